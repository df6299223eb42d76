"""K_max of a run equals the formula. It can be drawn, stored, and shown in the report."""

import dataclasses
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.data.tasks import get_task
from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, DamagedFile
from lra_spt.models import register_mixer
from lra_spt.report.pages import charts, figures, plots, sections
from lra_spt.report.pages.styles import Style
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.kernels import Kernels, read_kernels
from lra_spt.runs import experiment, kernels
from lra_spt.runs.build import build, resolve
from lra_spt.runs.inside import look_inside
from lra_spt.training import state as states
from lra_spt.training.member import Member

DEPTH, WIDTH, LENGTH = 5, 8, 24
STYLE = Style(3)


@register_mixer('decaying')
class Decaying(nnx.Module):
  """y_t = sum_s k_{|t - s|} x_s per channel and direction, k_l = scale * sigmoid(decay)^l."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal
    shape = (1 if causal else 2, width)
    self.scale = nnx.Param(jax.random.normal(rngs.params(), shape), ssm=True)
    self.decay = nnx.Param(jax.random.normal(rngs.params(), shape), ssm=True)

  def kernel(self, length):
    lag_11L = jnp.arange(length, dtype=jnp.float32)[None, None]
    return self.scale[...][..., None] * nnx.sigmoid(self.decay[...])[..., None] ** lag_11L

  def max_kernel(self, length):
    return jnp.abs(self.kernel(length)).max((0, 1))

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    length = x_BLD.shape[1]
    lag_LL = jnp.arange(length)[:, None] - jnp.arange(length)[None]
    kernel_SDL = self.kernel(length)
    y_BLD = jnp.einsum('dts,bsd->btd', jnp.where(lag_LL >= 0, kernel_SDL[0][:, jnp.abs(lag_LL)], 0.0), x_BLD)
    if not self.causal:
      past_DLL = jnp.where(lag_LL < 0, kernel_SDL[1][:, jnp.abs(lag_LL)], 0.0)
      y_BLD = y_BLD + jnp.einsum('dts,bsd->btd', past_DLL, x_BLD)
    return y_BLD


def config_of(tiny_data, repository, regime, **model):
  overrides = {
    'model.width': WIDTH,
    'model.depth': DEPTH,
    'model.feed_forward': 0,
    'finetune.epochs': 1,
    'runtime.data_dir': str(tiny_data),
    'runtime.scan_layers': 'always',
    'runtime.checkpoint_every': 0,
    'runtime.devices': 1,
  }
  overrides |= {f'model.{key}': value for key, value in model.items()}
  config = loading.load(f'{repository}/tests/tiny_config.py:regime={regime}', overrides)
  with config.unlocked():
    config.model.mixer = ConfigDict({'name': 'decaying'})
  return config


@pytest.fixture(scope='module')
def runs(tiny_data, repository, tmp_path_factory):
  """(folder of two runs, {name: their initial arrays}).

  'scratch' is trained from random values. 'masked' is not trained, to save time: its checkpoints are made up.
  """
  folder, starts = tmp_path_factory.mktemp('kernels') / 'runs', {}
  create = states.create

  def record(*arguments):
    state = create(*arguments)
    starts['scratch'] = mixer_arrays(state)
    return state

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(states, 'create', record)
    scratch = config_of(tiny_data, repository, 'scratch', random_init='ssm', random_std=0.5)
    experiment.run(scratch, folder / 'scratch', announce=lambda _: None)
  masked = config_of(tiny_data, repository, 'masked')
  claim(folder / 'masked', masked)
  starts['masked'] = pretend(folder / 'masked', masked, 'pretrain', step=12, factor=0.5)
  pretend(folder / 'masked', masked, 'finetune', step=6, factor=0.25)
  return folder, starts


def claim(folder, config):
  folder.mkdir(parents=True)
  prints = {'fingerprints': {'data': 'd', 'splits': 's'}}
  (folder / 'config.json').write_text(json.dumps(loading.identity(config) | prints))


def pretend(folder, config, stage, *, step, factor):
  """Saves the initial state, with all scales times `factor`, as the best one; returns the initial arrays."""
  built = build(resolve(config), stage)
  directory = run_folder.stage_folders(folder, run_folder.read_config(folder))[stage]
  member = Member(built, directory)
  with member.opened(None):
    state, saved = member.first_state(one_device()), member.checkpoints
    start = mixer_arrays(state)
    state['params']['encoder']['blocks']['mixer']['scale'] *= factor
    saved.save_best(state | {'step': jnp.int32(step)})
  return start


def one_device():
  return sharding.make_mesh(devices=jax.devices()[:1])


def mixer_arrays(state):
  # The step reuses the memory of the state, so these are copies.
  return jax.tree.map(np.array, state['params']['encoder']['blocks']['mixer'])


def formula(arrays):
  """K_max [layers, L] from the arrays of `Decaying`, in float64."""
  scale, decay = (arrays[name].astype(np.float64)[..., None] for name in ('scale', 'decay'))
  return np.abs(scale * (1 / (1 + np.exp(-decay))) ** np.arange(LENGTH)).max((1, 2))


def best_of(folder, stage, config):
  built = build(resolve(config), stage)
  (directory,) = folder.glob(f'{stage}-*')
  return built.best_state(directory, one_device())


@pytest.mark.parametrize('stage', [None, 'pretrain', 'finetune'])
def test_curves_of_a_run_with_pretraining(runs, tiny_data, repository, file_contents, stage):
  (folder, starts), read = runs, stage or 'pretrain'
  folder = folder / 'masked'
  before = file_contents(folder)
  actual = kernels.compute(folder, stage)
  assert file_contents(folder) == before
  assert (actual.stage, actual.initialisation, actual.row, actual.lags) == (read, 'structured', 0, LENGTH)
  assert actual.shown == (1, 3, 5)
  best = best_of(folder, read, config_of(tiny_data, repository, 'masked'))
  assert actual.step == best['step'] == {'pretrain': 12, 'finetune': 6}[read]
  assert actual.initial.shape == actual.learned.shape == (DEPTH, LENGTH)
  # The initial kernels of both stages are those of the run, before pretraining.
  np.testing.assert_allclose(actual.initial, formula(starts['masked']), rtol=1e-5)
  np.testing.assert_allclose(actual.learned, formula(mixer_arrays(best)), rtol=1e-5)
  assert not np.allclose(actual.learned, actual.initial, rtol=1e-3)


def test_curves_of_a_trained_run_from_scratch(runs, tiny_data, repository):
  folder, starts = runs
  actual = kernels.compute(folder / 'scratch', layers=(2,), lags=7)
  assert (actual.stage, actual.initialisation, actual.shown, actual.lags) == ('finetune', 'random', (2,), 7)
  best = best_of(folder / 'scratch', 'finetune', config_of(tiny_data, repository, 'scratch'))
  np.testing.assert_allclose(actual.learned, formula(mixer_arrays(best)), rtol=1e-5)
  assert not np.allclose(actual.learned, actual.initial, rtol=1e-3)
  np.testing.assert_allclose(actual.initial, formula(starts['scratch']), rtol=1e-5)
  assert starts['scratch']['scale'].std() < 0.7  # random_std is 0.5; without it the std is 1


def test_looking_inside_shows_the_same_kernels(runs):
  actual = look_inside(runs[0] / 'scratch', examples=2)
  assert list(actual.kernels) == list(actual.field) == ['initial', 'scratch']
  whole = kernels.compute(runs[0] / 'scratch')
  np.testing.assert_array_equal(actual.kernels['initial'], whole.initial)
  np.testing.assert_array_equal(actual.kernels['scratch'], whole.learned)
  assert not actual.attention
  assert actual.uniform is None


def test_initial_kernels_of_a_run_that_starts_from_another(runs, tmp_path):
  """They are those of the other run. If the other run is not known, there are none."""
  folder = shutil.copytree(runs[0] / 'masked', tmp_path / 'run')
  stored = json.loads((folder / 'config.json').read_text())
  before = run_folder.stage_folders(folder, stored)
  (folder / 'config.json').write_text(json.dumps(stored | {'seed': 1, 'pretrained': 'x'}))
  for stage, path in run_folder.stage_folders(folder, run_folder.read_config(folder)).items():
    before[stage].rename(path)
  with pytest.raises(kernels.NoKernels, match='names it only once it is finished; choose that run'):
    kernels.compute(folder)
  (folder / 'result.json').touch()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_folder, 'read_result', lambda folder: {'pretrained': {'seed': 0}})
    actual = kernels.compute(folder, 'finetune')
  np.testing.assert_allclose(actual.initial, formula(runs[1]['masked']), rtol=1e-5)
  stored['model']['weights'] = 'sha256:0'
  (folder / 'config.json').write_text(json.dumps(stored))
  with pytest.raises(kernels.NoKernels, match=r'started from model\.weights, which it does not keep'):
    kernels.compute(folder)


def test_a_stage_in_training_is_left_alone(runs, tmp_path):
  """Files that another process is writing must survive."""
  folder = shutil.copytree(runs[0] / 'masked', tmp_path / 'run')
  (best,) = folder.glob('pretrain-*/checkpoints/best')
  (best / '99.orbax-checkpoint-tmp').mkdir()
  (best / '99.orbax-checkpoint-tmp' / 'part').write_text('half')
  assert kernels.compute(folder).step < 99
  assert (best / '99.orbax-checkpoint-tmp' / 'part').read_text() == 'half'


def test_pretraining_that_was_deleted_gives_way_to_finetuning(runs, tmp_path):
  folder = shutil.copytree(runs[0] / 'masked', tmp_path / 'run')
  (stage,) = folder.glob('pretrain-*')
  shutil.rmtree(stage / 'checkpoints' / 'best')
  assert kernels.compute(folder).stage == 'finetune'
  assert not (stage / 'checkpoints' / 'best').exists()
  with pytest.raises(kernels.NoKernels, match='no checkpoint of pretrain yet'):
    kernels.compute(folder, 'pretrain')


def test_damaged_checkpoint_is_named(runs, tmp_path):
  folder = shutil.copytree(runs[0] / 'scratch', tmp_path / 'run')
  for path in folder.glob('finetune-*/checkpoints/best/*/**/*'):
    if path.is_file():
      path.write_bytes(b'')
  with pytest.raises(CheckpointError, match='best'):
    kernels.compute(folder)


def test_command_on_several_runs(runs, tiny_data, repository, tmp_path, capsys):
  """One run has attention and another has only begun. Both are named and left out."""
  folder = shutil.copytree(runs[0], tmp_path / 'runs')
  config = config_of(tiny_data, repository, 'masked')
  claim(folder / 'begun', config)
  with config.unlocked():
    config.model.mixer = ConfigDict({'name': 'attention', 'heads': 2})
  claim(folder / 'transformer', config)
  assert cli.main(['kernels', f'--workdir={folder}', '--layers=1,2', '--lags=12']) == 0
  printed = capsys.readouterr()
  assert [line.split(': ')[0] for line in printed.err.splitlines()] == ['left out', 'left out']
  assert 'begun has no checkpoint of pretrain or finetune yet' in printed.err
  assert "model.mixer 'attention' has no convolution kernel" in printed.err
  assert len(printed.out.splitlines()) == 2
  assert 'after self-pretraining (best checkpoint, step 12)' in printed.out
  for name in ('masked', 'scratch'):
    assert {path.name for path in (folder / name).glob('kernels*')} == {'kernels.json', 'kernels.png'}
    assert (folder / name / 'kernels.png').read_bytes().startswith(b'\x89PNG')
    stored, made = read_kernels(folder / name / 'kernels.json'), kernels.compute(folder / name)
    assert (stored.shown, stored.lags) == ((1, 2), 12)
    np.testing.assert_allclose(stored.learned, made.learned, rtol=1e-5)
    assert stored.learned.shape == (DEPTH, LENGTH)
  assert cli.main(['report', f'--workdir={folder}']) == 0
  html = (folder / 'report.html').read_text()
  assert html.count('<figcaption>Layer 1: ') == html.count('<figcaption>Layer 2: ') == 1
  assert '<figcaption>Layer 3: ' not in html
  assert 'random initialisation' in html
  assert 'after finetuning' in html


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--workdir={}/none'], 'there is no folder'),
    (['--workdir={}/empty'], 'there is no run in or below'),
    (['--workdir={}/other'], 'config.json is not the config of a run (it lacks the key '),
    (['--workdir={}/scratch', '--stage=pretrain'], 'is a run from scratch'),
    (['--workdir={}/scratch', '--layers=1,6'], 'names layer 6, but the model in'),
    (['--workdir={}/scratch', '--layers=0'], "--layers is '0'"),
    (['--workdir={}/scratch', '--layers='], "--layers is ''"),
    (['--workdir={}/scratch', '--lags=25'], '--lags is 25, but the kernels in'),
    (['--workdir={}/scratch', '--lags=-1'], '--lags takes a whole number of at least 0'),
    (['--workdir={}/begun'], 'has no checkpoint of finetune yet'),
    (['--workdir={}/transformer'], "model.mixer 'attention' has no convolution kernel"),
  ],
)
def test_errors_are_one_sentence(runs, tiny_data, repository, tmp_path, capsys, arguments, words):
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'config.json').write_text('{"a": 1}')
  (tmp_path / 'scratch').symlink_to(runs[0] / 'scratch')
  config = config_of(tiny_data, repository, 'scratch')
  claim(tmp_path / 'begun', config)
  with config.unlocked():
    config.model.mixer = ConfigDict({'name': 'attention', 'heads': 2})
  claim(tmp_path / 'transformer', config)
  assert cli.main(['kernels', *(argument.format(tmp_path) for argument in arguments)]) == 2
  error = capsys.readouterr().err
  assert words in error
  assert len(error.splitlines()) == 1
  assert not list(tmp_path.rglob('kernels.*'))


def made_up(layers=3, length=50, **changes):
  decay = np.exp(-np.arange(length) / np.arange(5, 5 + 5 * layers, 5)[:, None])
  usual = Kernels(
    stage='pretrain',
    step=1200,
    initialisation='structured',
    row=0,
    lags=length,
    shown=tuple(range(1, layers + 1)),
    initial=decay,
    learned=2 * decay**2,
  )
  return dataclasses.replace(usual, **changes)


def test_reach_is_the_number_of_lags_that_hold_most():
  curves = np.array([[1.0] * 10, [0.0, 0.0, 5.0] + [0.0] * 7, [0.0] * 10, [1.0] * 9 + [np.nan]])
  actual = made_up(initial=curves, learned=curves, shown=(1, 2, 3, 4))
  assert actual.reach('initial') == [9, 3, 1, None]


def test_file_keeps_six_digits_and_what_is_not_finite(tmp_path):
  curves = np.array([[1 / 3, 1e-30, np.nan], [2.0, 0.0, 1.0]])
  before = made_up(initial=curves, learned=curves, shown=(2,), lags=3)
  (tmp_path / 'kernels.json').write_text(before.to_json())
  after = read_kernels(tmp_path / 'kernels.json')
  np.testing.assert_allclose(after.learned, curves, rtol=1e-6)
  assert 'NaN' not in before.to_json()
  assert (after.shown, after.step, after.stage) == ((2,), 1200, 'pretrain')


@pytest.mark.parametrize(
  'change',
  [
    {'stage': 'test'},
    {'shown': [4]},
    {'shown': []},
    {'lags': 51},
    {'learned': [[1.0]]},
    {'learned': [1.0]},
    {'initial': 'x'},
    {'more': 1},
    {'row': None},
  ],
)
def test_damaged_file_is_named(tmp_path, change):
  path = tmp_path / 'kernels.json'
  path.write_text(json.dumps(json.loads(made_up().to_json()) | {'sha256': {}} | change))
  with pytest.raises(DamagedFile, match=r'kernels\.json is not what `lra-spt kernels` writes'):
    read_kernels(path)


def test_thinning_keeps_every_peak():
  y = np.full(16384, 1e-4)
  y[::128] = np.random.default_rng(0).random(128) + 0.1
  x, thinned = charts.envelope(np.arange(16384), y)
  assert len(x) <= 2 * charts.MOST_POINTS
  assert (np.diff(x) > 0).all()
  np.testing.assert_array_equal(thinned, y[x])
  parts = np.array_split(np.arange(16384), charts.MOST_POINTS)
  assert {max(part, key=lambda i: y[i]) for part in parts} <= {*x}


@pytest.mark.parametrize(
  'row, lags, ticks, lines',
  [(128, 16384, 4096, 512), (128, 1024, 256, 128), (32, 1024, 256, 32), (8, 32, 8, 8)],
)
def test_grid_follows_the_rows_of_an_image(row, lags, ticks, lines):
  _, (axes,) = figures.chart(4, 3)
  axes.set_xlim(0, lags)
  plots._lag_grid(axes, row, lags, '#000000')
  major, minor = axes.xaxis.get_majorticklocs(), axes.xaxis.get_minorticklocs()
  assert set(np.diff(major)) == {ticks}
  both = np.union1d(major, minor)
  np.testing.assert_array_equal(both[(both >= 0) & (both < lags)], np.arange(0, lags, lines))


def test_tasks_that_are_images():
  rows = {name: kernels._image_row(get_task(name)) for name in ('image', 'pathfinder', 'scifar', 'listops')}
  assert rows == {'image': 32, 'pathfinder': 32, 'scifar': 32, 'listops': 0}


def test_figures_of_kernels_that_are_hard_to_draw(tmp_path):
  """The kernels are zero everywhere, not finite, of one lag, or with a last row that is not full. One title
  looks like TeX."""
  zero, broken = np.zeros((1, 50)), np.full((1, 50), np.nan)
  for actual in (
    made_up(4, row=7),
    made_up(1, initial=zero, learned=zero),
    made_up(1, learned=broken),
    made_up(1, lags=1),
  ):
    plots.kernel_png(actual, 'x$^{2', STYLE, tmp_path / 'a.png')
    assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
    run = types.SimpleNamespace(kernels=actual, task='t', model='m', arm='a', seed=0, regime='masked')
    (view,) = sections.kernels(types.SimpleNamespace(runs=[run]))
    assert len(view['pictures']) == len(actual.shown)
    assert all(chart.startswith('<svg') for _, chart in view['pictures'])
