"""If a file of a run or of a prepared set is damaged, the doctor names it, unless no number has changed.

The short test damages every file once. The long one (`pytest -m slow` of this file) does so 16 times and
prints the outcomes. Modification times stay as they were, as when a disk fails.
"""

import collections
import contextlib
import gc
import logging
import os
import shutil

import jax
import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from lra_spt.distributed import sharding
from lra_spt.errors import UserError
from lra_spt.report.runs import restored, run_folder
from lra_spt.report.runs.kernels import Kernels
from lra_spt.report.study.any_folder import read_any
from lra_spt.runs import doctor
from lra_spt.training.checkpoints.digests import of_all
from lra_spt.training.checkpoints.store import BEST_KEYS, Checkpoints

pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # of Orbax
STAGE = 'finetune-0a1b2c3d'
TASK = tasks.Task('resting', 'resting', tasks.Tokens(12, vocabulary=9), tasks.Classes(10))


def make_state():
  rng = np.random.default_rng(0)
  params = {
    'encoder': {'kernel': rng.normal(size=(12, 30)).astype(np.float32)},
    'head': {'bias': np.arange(3, dtype=np.float32)},
  }
  state = {'step': np.int32(8), 'params': params, 'stats': {'mean': rng.normal(size=5).astype(np.float32)}}
  state |= {'opt': {'count': np.int32(8)}, 'control': {'best': np.float32(0.5)}}
  return jax.device_put(state, sharding.state_shardings(state, sharding.make_mesh(devices=jax.devices()[:1])))


def make_run(folder):
  """A finished run with every kind of file, in seconds."""
  (folder / STAGE).mkdir(parents=True)
  identity = {
    'task': 'resting',
    'model': {'name': 's4', 'width': 64},
    'protocol': 'clean',
    'regime': 'scratch',
    'causal': False,
    'seed': 3,
    'finetune': {'optimizer': {'lr': 1e-3}},
    'fingerprints': {'data': '5e' * 32, 'splits': 'a0' * 32},
  }
  run_folder.claim(folder, identity)
  with contextlib.closing(Checkpoints(folder / STAGE / 'checkpoints')) as checkpoints:
    checkpoints.save_best(make_state())
    checkpoints.save_latest(make_state())
  lines = [f'{{"step": {k}, "split": "validation", "accuracy": 0.{30 + k}, "loss": 1.{k}}}' for k in range(9)]
  (folder / STAGE / run_folder.METRICS).write_text('\n'.join([*lines, '']))
  label = np.random.default_rng(1).integers(0, 10, 60)
  prediction = np.where(np.arange(60) < 24, label, (label + 1) % 10)
  metrics = {'validation': {'accuracy': 0.375}, 'test': {'accuracy': 0.4, 'loss': 1.25, 'examples': 60}}
  report = {'steps': 8, 'examples': 64, 'epochs': 0.5, 'seconds': 3.25, 'flops_per_step': 1_000_000}
  report |= {'best_step': 8, 'metrics': metrics['validation'], 'folder': STAGE}
  report |= {'best_digest': of_all({key: make_state()[key] for key in BEST_KEYS})}
  run_folder.write_stage(folder / STAGE, report)
  keys = ('task', 'protocol', 'regime', 'causal', 'seed', 'fingerprints')
  result = {key: identity[key] for key in keys} | {'model': 's4', 'metric': 'accuracy', 'config': identity}
  result |= {'metrics': metrics, 'stages': {'finetune': report}, 'parameters': 363}
  arrays = {'index': np.arange(60), 'label': label, 'prediction': prediction}
  run_folder.write_result(folder, result, arrays)
  decay = np.exp(-np.arange(9)[None] / 3)
  kernels = Kernels('finetune', 8, 'structured', 0, 9, (1,), decay, 2 * decay)
  (folder / run_folder.KERNELS).write_text(kernels.to_json())
  images = np.random.default_rng(2).integers(0, 256, (2, 16)).astype(np.uint8)
  actual = restored.RestoredInputs(np.arange(2, dtype=np.int32), images, images > 99, images, np.int32(8))
  restored.write_restored(folder, actual)


def read_run(workdir, with_checkpoints):
  """Returns every number of a run that is shown or resumed from; raises UserError where a file is refused."""
  run_folder.read_config(workdir)
  (run,) = read_any(workdir).runs  # raises where it is damaged
  numbers = [run.result, run.predictions, run.curves, vars(run.kernels), run_folder.read_config(workdir)]
  numbers += [run_folder.read_stage(workdir / STAGE), vars(restored.read_restored(workdir))]
  if with_checkpoints:
    abstract = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), make_state()
    )
    with contextlib.closing(Checkpoints(workdir / STAGE / 'checkpoints')) as checkpoints:
      numbers += [checkpoints.load_latest(abstract), checkpoints.load_best(abstract)]
  return numbers


def read_set(data_dir):
  """Returns the metadata and all examples of each split."""
  splits = examples_lib.open_splits(TASK, data_dir)
  return [actual.metadata | actual.gather(np.arange(len(actual))) for actual in splits.values()]


def equal(a, b):
  leaves, others = (jax.tree.leaves(tree, is_leaf=lambda x: x is None) for tree in (a, b))
  return jax.tree.structure(a) == jax.tree.structure(b) and all(map(np.array_equal, leaves, others))


class Place:
  """A folder to damage, with functions that examine and read it."""

  def __init__(self, folder, monkeypatch):
    self.folder, self.monkeypatch = folder, monkeypatch
    self.files = sorted(path for path in folder.rglob('*') if path.is_file())
    self.whole = self._read(True)
    assert self._examine(True) == []

  def damage(self, path, change):
    """Returns 'refused' or 'harmless', or None if the content is the same. Fails if a wrong number is
    read."""
    content, state = path.read_bytes(), path.stat()
    changed = change(bytearray(content))
    if changed == content:
      return None
    path.write_bytes(changed)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    checkpoint = 'checkpoints' in path.parts
    try:
      problems, numbers, refusal = self._examine(checkpoint), None, ''
      try:
        numbers = self._read(checkpoint)
      except UserError as error:
        refusal = str(error)
    finally:
      path.write_bytes(content)
      os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
      gc.collect()  # what Orbax leaves behind
    assert problems or not refusal, f'the doctor finds {path} good, but {refusal}'
    assert refusal or equal(numbers, self._kept(checkpoint)), f'{path} gives another number'
    for sentence in (*problems, refusal):
      assert '\n' not in sentence
      assert not sentence or str(self.folder) in sentence
    return 'refused' if problems else 'harmless'


class RunPlace(Place):
  def _read(self, with_checkpoints):
    return read_run(self.folder, with_checkpoints)

  def _kept(self, with_checkpoints):
    return self.whole if with_checkpoints else self.whole[:-2]

  def _examine(self, with_checkpoints):
    health = doctor.Health()
    with self.monkeypatch.context() as patch:
      if not with_checkpoints:  # checkpoints are undamaged, and slow to verify
        patch.setattr(doctor, '_verify', lambda *arguments: 8)
      doctor.examine_runs(self.folder, health)
    return health.problems


class SetPlace(Place):
  def _read(self, _):
    return read_set(self.folder)

  def _kept(self, _):
    return self.whole

  def _examine(self, _):
    health = doctor.Health()
    doctor.examine_sets(self.folder, health)
    return health.problems


@pytest.fixture(autouse=True)
def no_logs():
  """Switches logging off: captured records of Orbax's threads would keep its coroutines after the test."""
  logging.disable(logging.CRITICAL)
  yield
  gc.collect()
  logging.disable(logging.NOTSET)


@pytest.fixture(scope='module')
def originals(tmp_path_factory, make_set):
  folder = tmp_path_factory.mktemp('originals')
  make_run(folder / 'run')
  counts, vocabulary = (
    {'train': 16, 'validation': 5, 'test': 6},
    ['<mask>', '<pad>', '<unk>', '<eos>', *'abcde'],
  )
  make_set('resting', counts, None, vocabulary=vocabulary, data_dir=folder / 'data')
  read_set(folder / 'data')  # writes the record of the verified files
  return folder


@pytest.fixture
def places(originals, tmp_path, monkeypatch):
  shutil.copytree(originals, tmp_path / 'places')
  run, data = tmp_path / 'places' / 'run', tmp_path / 'places' / 'data'
  read_set(data)  # copies have other inodes, so the record of verified files changes
  return [RunPlace(run, monkeypatch), SetPlace(data, monkeypatch)]


def flip(rng):
  def change(content):
    if content:
      content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    return bytes(content)

  return change


def cut(rng):
  return lambda content: bytes(content[: rng.integers(len(content))] if content else content)


def wipe(rng):
  def change(content):
    start = rng.integers(len(content) + 1)
    content[start : start + 16] = bytes(len(content[start : start + 16]))
    return bytes(content)

  return change


def kind(path):
  """Returns the kind of a file; data files of checkpoints are of one kind, though their names are hashes."""
  return '/'.join(path.parts[-2:]) if path.parent.name != 'd' else f'{path.parent.parent.name}/d'


def try_all(places, rounds, seed=0):
  """Damages every file once a round; returns {(kind of file, outcome): how often}."""
  rng, actual = np.random.default_rng(seed), collections.Counter()
  for number in range(rounds):
    for place in places:
      for path in place.files:
        outcome = place.damage(path, (flip, cut, flip, wipe)[number % 4](rng))
        if outcome is not None:
          actual[kind(path), outcome] += 1
  return actual


def outcomes_of(counts):
  outcomes = collections.Counter()
  for (_, outcome), count in counts.items():
    outcomes[outcome] += count
  return outcomes


def test_damage_is_named_or_harmless(places):
  """Every file is damaged once, except those of the latest checkpoint, which are like those of the best."""
  places[0].files = [path for path in places[0].files if 'latest' not in path.parts]
  outcomes = outcomes_of(try_all(places, rounds=1))
  assert outcomes.total() >= 20
  assert outcomes['refused'] > outcomes.total() / 2


@pytest.mark.slow
def test_damage_is_named_or_harmless_many_times(places, capsys):
  actual = try_all(places, rounds=16, seed=1)
  outcomes = outcomes_of(actual)
  with capsys.disabled():
    print(
      f'\n{actual.total()} tries: {outcomes["refused"]} refused, {outcomes["harmless"]} harmless, 0 silent'
    )
    for (name, outcome), count in sorted(actual.items()):
      print(f'  {count:4d} {outcome:8} {name}')
  assert actual.total() >= 500
  refused = {
    name.rpartition('/')[2] for (name, outcome), count in actual.items() if count and outcome == 'refused'
  }
  run_files = {'config.json', 'result.json', 'stage.json', 'metrics.jsonl', 'predictions.npz', 'kernels.json'}
  assert refused >= run_files | {
    'restored.npz',
    '_METADATA',
    'd',
    prepared.INFO,
    prepared.FEATURES,
    prepared.METADATA,
  }


def test_the_command_says_what_is_wrong_and_what_to_do(places, capsys):
  run, data = (place.folder for place in places)
  flags = [f'--workdir={run.parent}', f'--data_dir={data}']
  assert cli.main(['doctor', *flags]) == 0
  assert capsys.readouterr().out == '1 run, 2 checkpoints, 1 set: good\n'
  (run / STAGE / 'checkpoints' / 'best').rename(run / 'moved')
  (run / run_folder.PREDICTIONS).unlink()
  path = prepared.dataset_folder(data, 'resting') / prepared.INFO
  path.write_text(path.read_text().replace('random', 'chosen'))
  assert cli.main(['doctor', *flags]) == 1
  printed = capsys.readouterr().out
  assert (
    f'{path.name} is not the file that was prepared; remove {path.parent} and prepare resting again.'
    in printed
  )
  assert f'{run / run_folder.PREDICTIONS} is missing' in printed
  assert (
    f'{run / STAGE / "checkpoints" / "best"} holds no checkpoint of the best validation; restore' in printed
  )
  assert printed.endswith('1 run, 1 checkpoint, 1 set: 3 problems\n')


def test_recorded_runs_need_no_config(places, capsys):
  folder = places[0].folder
  with np.load(folder / run_folder.PREDICTIONS) as stored:
    predictions = dict(stored)
  result = run_folder.read_result(folder) | {'recorded': {'source': 'elsewhere'}, 'stages': {}}
  shutil.rmtree(folder)
  folder.mkdir()
  run_folder.write_result(folder, result, predictions)
  assert cli.main(['doctor', f'--workdir={folder}']) == 0
  assert '1 run, 0 checkpoints, 0 sets: good' in capsys.readouterr().out


def test_a_stage_that_is_gone_is_named(places, capsys):
  run = places[0].folder
  stage = run.parent / 'stages' / STAGE
  stage.parent.mkdir()
  shutil.move(run / STAGE, stage)
  flags = ['doctor', f'--workdir={run}']
  assert cli.main(flags) == 1
  gone = f'{run / STAGE}, a stage of the run in {run}, is gone; restore it from a copy, or repeat the run in'
  assert gone in capsys.readouterr().out
  (run / STAGE).symlink_to(f'../stages/{STAGE}')
  assert cli.main(flags) == 0
  stage.rename(stage.with_name('moved'))
  for result in (run / run_folder.RESULT, run / 'none'):  # the second pass has no result
    assert cli.main(flags) == 1
    assert f'{STAGE} (a link to ../stages/{STAGE}), a stage of' in capsys.readouterr().out
    result.unlink(missing_ok=True)


def test_a_pretraining_may_lie_with_another_run(places):
  run = places[0].folder
  result = run_folder.read_result(run)
  with np.load(run / run_folder.PREDICTIONS) as stored:
    predictions = dict(stored)
  stages = {'pretrain': result['stages']['finetune'] | {'folder': 'pretrain-1'}} | result['stages']
  given = {'pretrained': {'run': str(run.parent / 'moved'), 'seed': 0, 'hash': '1'}}
  for taken, status in (({}, 1), (given, 0)):
    run_folder.write_result(run, result | {'stages': stages} | taken, predictions)
    assert cli.main(['doctor', f'--workdir={run}']) == status


@pytest.mark.parametrize('step', [8, 9])
def test_the_best_checkpoint_of_another_run_is_named(places, capsys, step):
  run = places[0].folder
  best = run / STAGE / 'checkpoints' / 'best'
  other = make_state()
  other |= {'step': other['step'] + (step - 8), 'stats': {'mean': other['stats']['mean'] * 2}}
  shutil.rmtree(best)
  with contextlib.closing(Checkpoints(best.parent)) as checkpoints:
    checkpoints.save_best(other)
  assert cli.main(['doctor', f'--workdir={run}']) == 1
  assert f'{best}/{step} is not the checkpoint that its stage ended with' in capsys.readouterr().out
  # Runs of earlier versions store no digest, so only the step can be compared.
  stage = run_folder.read_stage(run / STAGE)
  del stage['best_digest']
  run_folder.write_stage(run / STAGE, stage)
  assert cli.main(['doctor', f'--workdir={run}']) == (0 if step == 8 else 1)
  named = f'{best} holds a checkpoint of step 9, but stage.json says that the best validation was at step 8'
  assert (named in capsys.readouterr().out) == (step == 9)


def test_predictions_that_do_not_give_the_result_are_named(places, capsys):
  folder = places[0].folder
  result = run_folder.read_result(folder)
  result['metrics']['test']['accuracy'] = 0.9
  with np.load(folder / run_folder.PREDICTIONS) as stored:
    run_folder.write_result(folder, result, dict(stored))
  assert cli.main(['doctor', f'--workdir={folder}']) == 1
  assert 'result.json says 90.0 % of 60 and predictions.npz 40.0 % of 60' in capsys.readouterr().out


@pytest.mark.parametrize(
  'arguments, words',
  [
    ([], 'needs --workdir or --data_dir'),
    (['--workdir={}/none'], 'there is no folder'),
    (['--workdir={}'], 'there is no run in or below'),
    (['--data_dir={}'], 'there is no prepared set in'),
  ],
)
def test_wrong_usage(tmp_path, capsys, arguments, words):
  assert cli.main(['doctor', *(argument.format(tmp_path) for argument in arguments)]) == 2
  assert words in capsys.readouterr().err
