"""One file with a user's mixer, in the tree or outside it, makes model=NAME work in every config. Broken
mixers do not train."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from flax import nnx

from configs import rows
from lra_spt.cli import main as cli
from lra_spt.cli.commands import train
from lra_spt.config import loading, mixers
from lra_spt.config.protocol import CLEAN
from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec, MixerSpec, registry
from lra_spt.report.pages import report
from lra_spt.report.study.any_folder import read_any
from lra_spt.runs import experiment, user_code
from lra_spt.runs import plan as planning
from lra_spt.runs.active_run import ActiveRun
from lra_spt.runs.api import load_run
from lra_spt.runs.build import resolve

FILE = """
import jax.numpy as jnp
from flax import nnx

from lra_spt import register_mixer


@register_mixer('smoothing', row={'model.mixer.reach': 2, 'model.position': 'none', 'finetune.pool': 'max'})
class Smoothing(nnx.Module):
  '''The mean of some positions before, and after unless causal, through a linear map.'''

  def __init__(self, width, *, length, causal, protocol, rngs, reach):
    self.causal, self.reach = causal, reach
    self.out = nnx.Linear(width, width, rngs=rngs)

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    if lengths_B is not None:
      x_BLD = jnp.where((jnp.arange(x_BLD.shape[1])[None] < lengths_B[:, None])[..., None], x_BLD, 0.0)
    ahead = 0 if self.causal else self.reach
    padded = jnp.pad(x_BLD, ((0, 0), (self.reach, ahead), (0, 0)))
    lags = range(self.reach + ahead + 1)
    return self.out(sum(padded[:, i : i + x_BLD.shape[1]] for i in lags) / len(lags))
"""
BLIND = FILE.replace("'smoothing'", "'careless'").replace('if self.causal else', 'if False else')
TASKS = ('listops', 'text', 'retrieval', 'image', 'scifar', 'pathfinder', 'pathx', 'speech_commands', 'bidmc')


@pytest.fixture
def registered(monkeypatch, tmp_path):
  """Returns a function that registers a file with the given text, for this test only."""
  monkeypatch.setattr(mixers, '_registered', dict(mixers._registered))
  monkeypatch.setattr(mixers, '_registered_bidirectional', set(mixers._registered_bidirectional))
  monkeypatch.setattr(registry, '_MIXERS', dict(registry._MIXERS))
  monkeypatch.setattr(loading, '_registered', set())

  def register(text):
    path = tmp_path / 'mine.py'
    path.write_text(text)
    loading.register(path)
    return path

  return register


def test_one_file_trains_as_a_model(repository, tiny_data, compilation_cache, on_devices, tmp_path):
  (tmp_path / 'mine.py').write_text(FILE)
  flags = [f'--register={tmp_path / "mine.py"}']
  environment = os.environ | compilation_cache | on_devices(1) | {'PYTHONPATH': str(repository)}
  program = [sys.executable, '-m', 'lra_spt']
  process = {'cwd': repository, 'env': environment, 'text': True, 'capture_output': True}
  models = subprocess.run([*program, 'list', 'models', *flags], **process, check=True).stdout
  assert 'smoothing' in models.split()
  config = f'--config={repository}/tests/tiny_config.py:model=smoothing,regime=scratch,causal=true'
  overrides = {'runtime.data_dir': tiny_data, 'runtime.check_mixer': 'true', 'model.mixer.reach': 3}
  overrides |= {'finetune.max_steps': 2, 'finetune.evaluate_every': 2}
  overrides = [f'--config.{key}={value}' for key, value in overrides.items()]
  workdir = tmp_path / 'run'
  done = subprocess.run([*program, 'train', config, f'--workdir={workdir}', *flags, *overrides], **process)
  assert done.returncode == 0, done.stderr
  result = json.loads((workdir / 'result.json').read_text())
  assert (result['model'], result['stages']['finetune']['steps']) == ('smoothing', 2)
  assert result['config']['model']['mixer'] == {'name': 'smoothing', 'reach': 3}
  assert result['origins']['model']['mixer'] == {'name': 'ours', 'reach': 'command line'}


def test_an_edited_mixer_is_another_one(registered, tiny_data, repository, tmp_path, monkeypatch):
  """After an edit, neither the finished run nor its pretraining is used, unless the user accepts the edit."""
  few = {'max_steps': 2, 'evaluate_every': 2}
  overrides = {f'{stage}.{key}': value for stage in ('pretrain', 'finetune') for key, value in few.items()}
  overrides |= {'runtime.data_dir': str(tiny_data), 'model.mixer.reach': 3}
  spec = f'{repository}/tests/tiny_config.py:model=smoothing,regime=masked'

  monkeypatch.delenv(user_code.ACCEPT, raising=False)

  def run(text, workdir, **options):
    loading._registered.clear()  # as in a new process
    registered(text)
    lines = []
    actual = experiment.run(
      loading.load(spec, overrides), tmp_path / workdir, announce=lines.append, **options
    )
    return actual, lines

  result, lines = run(FILE, 'a')
  assert any('at least' in line and 'operations a step' in line for line in lines)
  assert '\u2265' in report.write(read_any(tmp_path / 'a')).read_text()
  assert result['code'] == json.loads((tmp_path / 'a' / 'config.json').read_text())['code']
  again, lines = run(FILE, 'a')
  assert again == result
  assert not [line for line in lines if 'best validation' in line]
  edited = FILE.replace('self.reach + ahead + 1', 'self.reach + ahead')
  message = r"a belongs to other code of your own; .*\ncode.mixer: 'text:.*' -> 'text:"
  with pytest.raises(ConfigError, match=message):
    run(edited, 'a')
  (a_result := tmp_path / 'a' / 'result.json').rename(tmp_path / 'result.json')
  for text, changes, refused in (
    (FILE, {}, None),
    (edited, {}, message),
    (FILE, {'finetune.max_steps': 3}, 'a belongs to another config'),
  ):
    loading._registered.clear()
    registered(text)
    dry = ActiveRun(resolve(loading.load(spec, overrides | changes)), tmp_path / 'a')
    with pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext():
      assert 'would be resumed' in train.describe(dry, 1)
  (tmp_path / 'result.json').rename(a_result)
  with pytest.raises(ConfigError, match=r'a was trained with your own code \(mixer\), which has'):
    run(edited, 'b', pretrained=tmp_path / 'a')
  with pytest.raises(ConfigError, match='a was trained with your own code'):
    load_run(tmp_path / 'a')
  monkeypatch.setenv(user_code.ACCEPT, '1')
  again, lines = run(FILE.replace('ahead = 0', '# Nothing.\n    ahead = 0'), 'a')
  assert again == result
  assert any('(mixer) has changed' in line for line in lines)
  assert load_run(tmp_path / 'a').step == 2


@pytest.mark.parametrize('task', TASKS)
def test_it_is_the_transformer_of_the_task_with_another_mixer(task, registered):
  registered(FILE)
  for form in (
    'regime=masked',
    'regime=scratch,causal=true',
    'regime=causal',
    'regime=scratch,protocol=paper',
  ):
    mine = loading.load(f'configs/{task}.py:model=smoothing,{form}')
    transformer = loading.load(f'configs/{task}.py:model=transformer,{form}')
    difference = loading.difference(loading.identity(transformer), loading.identity(mine))
    changed = {line.split(':')[0] for line in difference.splitlines()}
    changed -= {key for key in changed if key.startswith('model.mixer.')}
    assert changed - {'finetune.pool'} == {'model.name', 'model.position'}
    assert (mine.finetune.pool, mine.model.position) == ('max', 'none')
    assert mine.model.mixer.to_dict() == {'name': 'smoothing', 'reach': 2}
    origins = mine.origins
    for origin in (origins.model.width, origins.model.mixer.reach, origins.finetune.optimizer.lr):
      assert origin == 'ours'


def test_the_demo_takes_it_too(registered):
  registered(FILE)
  config = loading.load('configs/demo.py:model=smoothing')
  assert config.model.mixer.to_dict() == {'name': 'smoothing', 'reach': 2}
  assert (config.model.name, config.model.width, config.finetune.pool) == ('smoothing', 64, 'max')


def test_a_mixer_may_have_no_causal_form(registered):
  registered(FILE.replace("'max'})", "'max'}, causal=False)"))
  assert loading.load('configs/demo.py:model=smoothing,regime=masked').model.name == 'smoothing'
  for form in ('regime=causal', 'regime=scratch,causal=true'):
    with pytest.raises(ConfigError, match="The mixer 'smoothing' has no causal form: choose regime=masked"):
      loading.load(f'configs/demo.py:model=smoothing,{form}')


@pytest.mark.parametrize(
  'change, message',
  [
    (("'smoothing'", "'my mixer'"), "A mixer is called 'my mixer': use letters, digits and _ only"),
    (("'model.mixer.reach'", "'seed'"), "The row of the mixer 'smoothing' sets 'seed': it may only set"),
    (
      ("'model.mixer.reach'", "'runtime.remat'"),
      "'smoothing' sets 'runtime.remat': it may only set values below",
    ),
    (("'model.mixer.reach'", "'model.mixer.name'"), "sets 'model.mixer.name': .* and not names"),
    (("'smoothing'", "'s4'"), "a mixer named 's4' exists already"),
  ],
)
def test_wrong_registrations(change, message, registered):
  with pytest.raises(ConfigError, match=message):
    registered(FILE.replace(*change))


def test_a_name_of_the_tables_is_taken(registered):
  registered(FILE.replace("'smoothing'", "'transformer'"))
  with pytest.raises(ConfigError, match="registered as 'transformer', which is a model of the tables"):
    loading.load('configs/image.py')


@pytest.mark.parametrize('task', TASKS)
def test_other_mixers_of_the_tree_fit_every_task(task):
  """Their rows make configs, and their classes accept the options at the width of the task."""
  for name in mixers.ROWS.keys() & rows.other_models().keys():
    config = loading.load(f'configs/{task}.py:model={name},regime=masked')
    mixer = MixerSpec(resolve(config).model, 64, causal=False, protocol=CLEAN, execution=ExecutionSpec())
    assert nnx.eval_shape(lambda mixer=mixer: mixer.make(nnx.Rngs(0))) is not None


def test_every_mixer_fits_the_demo():
  for name in mixers.ROWS.keys() - rows.PARTS:
    config = loading.load(f'configs/demo.py:model={name},regime=masked')
    assert (config.model.name, config.model.mixer.name, config.model.width) == (name, name, 64)
    mixer = MixerSpec(resolve(config).model, 64, causal=False, protocol=CLEAN, execution=ExecutionSpec())
    assert nnx.eval_shape(lambda mixer=mixer: mixer.make(nnx.Rngs(0))) is not None


def test_a_mixer_that_looks_ahead_does_not_train(registered, tiny_data, repository, tmp_path):
  registered(BLIND)
  overrides = {'runtime.data_dir': str(tiny_data), 'runtime.check_mixer': True, 'runtime.devices': 1}
  config = loading.load(f'{repository}/tests/tiny_config.py:model=careless,regime=causal', overrides)
  for run in (lambda: experiment.run(config, tmp_path / 'run'), lambda: planning.plan(resolve(config))):
    with pytest.raises(ConfigError, match="The causal form of the mixer 'careless' looks ahead"):
      run()
  assert not (tmp_path / 'run').exists()


STRANGE = """
import jax.numpy as jnp
import lra_spt
from flax import nnx

@lra_spt.register_mixer('strange')
class Strange(nnx.Module):
  def __init__(self, width, *, length, causal, protocol, rngs):
    self.inner = nnx.List([nnx.Linear(width, width, rngs=rngs)])
    self.gain_D = nnx.Param(jnp.ones(width, jnp.DTYPE))

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    return self.inner[0](x_BLD) * self.gain_D[...].real[None, None].astype(jnp.float32)
"""


@pytest.mark.parametrize(
  'dtype, advice',
  [
    ('complex64', 'keep its real and its imaginary part as two parameters, each float32'),
    ('bfloat16', 'parameters are float32, and runtime.precision rounds what enters products'),
    ('int32', 'parameters are float32, and runtime.precision rounds what enters products'),
  ],
)
def test_parameters_are_float32(registered, tiny_data, repository, tmp_path, capsys, dtype, advice):
  """Complex parameters would train in the wrong direction. check_mixer=false does not allow them either."""
  path = registered(STRANGE.replace('DTYPE', dtype))
  config = f'--config={repository}/tests/tiny_config.py:model=strange,regime=masked'
  overrides = ['--config.runtime.check_mixer=false', f'--config.runtime.data_dir={tiny_data}']
  for command in (['check'], ['train', f'--workdir={tmp_path / "run"}', *overrides]):
    assert cli.main([*command, config, f'--register={path}']) == 2
    message = f"lra-spt: The model's parameter encoder/blocks/mixer/gain_D is {dtype}: {advice}.\n"
    assert capsys.readouterr().err == message
  assert not (tmp_path / 'run').exists()


def test_the_command_check(registered, repository, capsys):
  path = registered(BLIND)
  config = f'--config={repository}/tests/tiny_config.py:model=careless,regime='
  assert cli.main(['check', f'{config}causal', f'--register={path}']) == 2
  assert "lra-spt: The causal form of the mixer 'careless' looks ahead" in capsys.readouterr().err
  assert cli.main(['check', f'{config}masked', f'--register={path}']) == 0
  first, *findings = capsys.readouterr().out.splitlines()
  assert first == 'careless on tiny_listops: mixer careless, bidirectional form'
  assert findings == [
    '  ok: float32 of the shape of the input, [B, 24, 16]',
    '  ok: output and gradient finite, and the same for the same keys',
    '  ok: rows of a batch independent',
    '  ok: padding ignored (13 of 24 positions are valid)',
    '  note: the mixer has no method flops(length), so operations count its weight matrices only',
  ]
