"""Configs: merging with origins, loading, overrides, typed sections, identity, difference, digest."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from lra_spt.config import loading, protocol, user_files
from lra_spt.config import values as config_values
from lra_spt.errors import ConfigError, FieldError

FILE = """
from lra_spt.config import loading as config

def get_config(arg=''):
  choice = config.arguments(arg, regime=('scratch', 'causal'), width=64, scale=1.0, fast=False)
  ours = {'regime': choice.regime, 'seed': 0, 'fast': choice.fast, 'limit': None, 'runtime': {'threads': 4}}
  ours |= {'task': 'mine', 'protocol': 'clean', 'causal': False, 'pretrain': {'threshold': -1.0}}
  return config.from_sources(
    paper={'model': {'width': choice.width, 'scale': choice.scale}},
    code={'finetune.optimizer.lr': 1e-3, 'finetune.milestones': (), 'finetune.pool': 'mean'},
    ours=ours,
  )
"""


@pytest.fixture
def spec(tmp_path):
  path = tmp_path / 'small.py'
  path.write_text(FILE)
  return str(path)


# --- from_sources


def test_sources_are_merged_and_their_origins_kept():
  config = loading.from_sources(
    paper={'model': {'width': 64}},
    code={'model.mixer.heads': 4},
    ours={'model': {'name': 'x'}, 'list': [1, 2]},
  )
  assert config.to_dict() == {
    'model': {'width': 64, 'mixer': {'heads': 4}, 'name': 'x'},
    'list': (1, 2),
    'origins': {'model': {'width': 'paper', 'mixer': {'heads': 'code'}, 'name': 'ours'}, 'list': 'ours'},
  }


def test_merged_config_is_locked():
  config = loading.from_sources(paper={'model': {'width': 64}})
  with pytest.raises(AttributeError):
    config.model.widht = 32
  with pytest.raises(AttributeError):
    config.modle = 1


@pytest.mark.parametrize(
  'paper, ours, message',
  [
    ({'a.b': 1}, {'a': {'b': 2}}, 'a.b is given twice, as paper and as ours'),
    ({'a': 1}, {'a': {'b': 2}}, 'a is given twice, as paper and as ours'),
    ({'a': {'b': 2}}, {'a': 1}, 'a is given twice, as a section and as ours'),
    ({'a.b': 1, 'a': {'b': 1}}, {}, 'a.b is given twice, as paper and as paper'),
    ({'origins': {'a': 'b'}}, {}, 'choose another name'),
  ],
)
def test_a_key_given_twice_is_an_error(paper, ours, message):
  with pytest.raises(ConfigError, match=message):
    loading.from_sources(paper=paper, ours=ours)


# --- load


def test_load_passes_the_argument_on(spec):
  config = loading.load(f'{spec}:regime=causal,width=128,scale=2,fast=true')
  assert (config.regime, config.model.width, config.model.scale, config.fast) == ('causal', 128, 2.0, True)
  assert loading.load(spec).regime == 'scratch'


@pytest.mark.parametrize(
  'arg, message',
  [
    ('regmie=causal', 'keys regime, width, scale, fast. Did you mean regime'),
    ('causal', "'causal' is unknown: write key=value"),
    ('regime=causl', 'choose one of scratch, causal. Did you mean causal. One of your own is known once'),
    ('regime=own', 'choose one of scratch, causal. One of your own is known once its file is imported'),
    ('width=wide', 'takes an integer'),
    ('fast=1', 'true or false'),
    ('width=8,width=16', 'The config argument width is given twice; leave one out'),
  ],
)
def test_wrong_argument(spec, arg, message):
  with pytest.raises(ConfigError, match=message):
    loading.load(f'{spec}:{arg}')


def test_overrides_take_the_type_of_what_they_replace(spec):
  config = loading.load(
    spec,
    [
      'finetune.optimizer.lr=5e-4',
      'finetune.milestones=100,200',
      'finetune.pool=none',
      'model.scale=3',
      'fast=True',
      'limit=7',
      'seed = 3',
      'pretrain.threshold=-2',
    ],
  )
  assert config.finetune.optimizer.lr == 5e-4
  assert config.finetune.milestones == (100, 200)
  assert config.finetune.pool == 'none'
  assert config.fast is True
  assert config.limit == 7
  assert config.seed == 3
  assert config.pretrain.threshold == -2.0
  assert type(config.model.scale) is float
  assert config.origins.finetune.optimizer.lr == 'command line'
  assert config.origins.seed == 'command line'
  assert config.origins.model.width == 'paper'


def test_overrides_as_a_dict_of_values_or_texts(spec):
  config = loading.load(spec, {'model.scale': 2, 'seed': '3', 'finetune.milestones': [1], 'limit': None})
  assert (config.model.scale, config.seed, config.finetune.milestones, config.limit) == (2.0, 3, (1,), None)


def test_empty_and_single_lists(spec):
  assert loading.load(spec, ['finetune.milestones=5']).finetune.milestones == (5,)
  assert loading.load(spec, ['finetune.milestones=']).finetune.milestones == ()


@pytest.mark.parametrize(
  'override, message',
  [
    ('finetune.optimzer.lr=1', 'no key finetune.optimzer.lr: the nearest ones are finetune.optimizer.lr'),
    ('finetune.lr=1', 'the nearest ones are finetune.optimizer.lr'),
    ('model.widht=1', 'the nearest ones are .*model.width'),
    ('qqq=1', 'it has causal, fast, finetune, limit, model, pretrain, protocol, regime, runtime, seed, task'),
    ('model.width.inner=1', 'no key model.width.inner'),
    ('origins.seed=paper', 'no key origins.seed'),
    ('finetune=1', 'finetune is a section, not a value'),
    ('seed', 'has no value: write seed=VALUE'),
    ('seed=1e3', "seed takes an integer .*not '1e3'"),
    ('seed=1.5', 'seed takes an integer'),
    ('model.scale=nan', 'model.scale takes a finite number'),
    ('model.scale=big', 'model.scale takes a finite number'),
    ('fast=1', 'fast takes true or false'),
    ('finetune.milestones=soon', 'takes a list such as 100,200'),
    ('finetune.milestones={[1]}', 'takes a list such as 100,200'),
    (f'finetune.milestones={"-" * 60_000}1', 'takes a list such as 100,200'),
    ('regime=causal', 'belongs to the argument .*small.py:regime=causal'),
  ],
)
def test_wrong_override(spec, override, message):
  with pytest.raises(ConfigError, match=message):
    loading.load(spec, [override])


@pytest.mark.parametrize('overrides', [{'seed': 1.5}, {'seed': True}, {'fast': 1}, {'finetune.pool': 3}])
def test_wrong_type_in_a_dict_of_overrides(spec, overrides):
  with pytest.raises(ConfigError, match=f'{next(iter(overrides))} takes'):
    loading.load(spec, overrides)


def test_a_file_in_the_working_directory_comes_before_the_installed_one(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  installed = loading.load('configs/image.py')
  assert installed.task == 'image'
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / 'image.py').write_text(FILE)
  assert loading.load('configs/image.py').model.width == 64
  assert loading.load('configs/image.py').task == 'mine'


@pytest.mark.parametrize('name', ['configs/nowhere.py', '/nowhere/image.py', 'configs', 'configs/image', ''])
def test_missing_file(name):
  with pytest.raises(ConfigError, match=f'no config file {name}.*write a path such as configs/image'):
    loading.load(name)


def test_files_that_are_no_config_files(tmp_path):
  (tmp_path / 'empty.py').write_text('')
  (tmp_path / 'plain.py').write_text('def get_config():\n  return None\n')
  (tmp_path / 'value.py').write_text('get_config = 3\n')
  with pytest.raises(ConfigError, match='has no function get_config'):
    loading.load(str(tmp_path / 'empty.py'))
  with pytest.raises(ConfigError, match='takes no argument: leave out :a=1'):
    loading.load(str(tmp_path / 'plain.py') + ':a=1')
  with pytest.raises(ConfigError, match='value.py has no function get_config'):
    loading.load(str(tmp_path / 'value.py'))


def test_a_file_without_argument_may_have_its_regime_overridden(tmp_path):
  text = FILE.replace("get_config(arg='')", 'get_config()').replace('arguments(arg,', "arguments('',")
  (tmp_path / 'plain.py').write_text(text)
  assert loading.load(str(tmp_path / 'plain.py'), ['regime=causal']).regime == 'causal'


# --- what config files may do


def test_a_module_beside_a_config_file_can_be_imported(tmp_path, monkeypatch):
  """From any working directory, and another module of that name beside another file."""
  monkeypatch.chdir(tmp_path)
  for name, seed in (('a', 1), ('b', 2)):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'beside_the_config.py').write_text(f'SEED = {seed}\n')
    text = 'import beside_the_config\n' + FILE.replace("'seed': 0", "'seed': beside_the_config.SEED")
    (tmp_path / name / 'mine.py').write_text(text)
  path = list(sys.path)
  assert [loading.load(f'{name}/mine.py').seed for name in 'aba'] == [1, 2, 1]
  assert sys.path == path


def test_a_module_beside_may_be_imported_when_the_config_is_made(tmp_path):
  (tmp_path / 'late_beside.py').write_text('SEED = 5\n')
  text = FILE.replace('  choice =', '  import late_beside\n  choice =').replace(
    "'seed': 0", "'seed': late_beside.SEED"
  )
  (tmp_path / 'mine.py').write_text(text)
  assert loading.load(str(tmp_path / 'mine.py')).seed == 5


@pytest.mark.parametrize('imported_before', [False, True])
def test_python_started_in_a_folder_with_its_own_configs(tmp_path, repository, imported_before):
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / '__init__.py').write_text('OWN = True\n')
  (tmp_path / 'configs' / 'common.py').write_text('OWN = True\n')
  program = (
    'import configs.common\n' * imported_before + 'from lra_spt import config\n'
    "assert config.load('configs/demo.py').task == 'stripes'\n"
    "assert config.load('configs/image.py:model=s4').model.mixer.state_size == 64\n"
    'import configs.common\nassert configs.OWN and configs.common.OWN\n'
  )
  environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(tmp_path), str(repository)])}
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr


def test_a_folder_called_configs_sees_itself_before_ours(tmp_path):
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / 'numbers_of_mine.py').write_text('SEED = 7\n')
  text = 'from configs import common, numbers_of_mine\nassert common.REGIMES\n'
  (tmp_path / 'configs' / 'mine.py').write_text(
    text + FILE.replace("'seed': 0", "'seed': numbers_of_mine.SEED")
  )
  assert loading.load(str(tmp_path / 'configs' / 'mine.py')).seed == 7
  import configs

  assert [pathlib.Path(place).resolve() for place in configs.__path__] == [user_files.INSTALLED]


@pytest.mark.parametrize(
  'key', ['task', 'model', 'protocol', 'regime', 'causal', 'seed', 'finetune', 'runtime']
)
def test_a_config_that_lacks_what_every_config_has(tmp_path, key):
  (tmp_path / 'mine.py').write_text(
    FILE.replace('  return config.from_sources(', '  whole = config.from_sources(')
    + f'  whole.unlock()\n  del whole[{key!r}]\n  return whole\n'
  )
  with pytest.raises(ConfigError, match=f'mine.py lacks the key {key}: every config has task, '):
    loading.load(str(tmp_path / 'mine.py'))


def test_a_file_may_return_a_frozen_config(tmp_path):
  """It may also have sections that are frozen or dicts."""
  mixed = 'ConfigDict(config.to_dict() | {"model": FrozenConfigDict(config.model)})'
  for form in ('FrozenConfigDict(config)', mixed):
    (tmp_path / 'frozen.py').write_text(
      'from ml_collections import ConfigDict, FrozenConfigDict\nfrom configs import demo\n\n'
      f'def get_config(arg=""):\n  config = demo.get_config(arg)\n  return {form}\n'
    )
    loaded = loading.load(f'{tmp_path}/frozen.py:regime=causal', {'finetune.optimizer.lr': '1e-2'})
    expected = loading.load('configs/demo.py:regime=causal', {'finetune.optimizer.lr': 1e-2})
    assert loading.difference(loaded, expected) == ''
    assert loading.digest(loading.identity(loaded)) == loading.digest(loading.identity(expected))


def test_sources_may_be_frozen_and_keys_are_texts():
  config = loading.from_sources(ours={'model': FrozenConfigDict({'width': 64})}, paper={'model.depth': 2})
  assert config.model.to_dict() == {'width': 64, 'depth': 2}
  assert config.origins.model.to_dict() == {'width': 'ours', 'depth': 'paper'}
  with pytest.raises(
    ConfigError, match='The source ours has the key 3 in model, but keys are texts: quote it'
  ):
    loading.from_sources(ours={'model': {3: 4}})


@pytest.mark.parametrize('overrides', [5, [5], {'a': 1}.keys()])
def test_overrides_of_no_form(spec, overrides):
  with pytest.raises(ConfigError, match='The overrides are .*: give a dict such as'):
    loading.load(spec, overrides)


def test_only_a_run_from_scratch_needs_no_pretraining(tmp_path):
  text = FILE.replace(", 'pretrain': {'threshold': -1.0}", '')
  (tmp_path / 'mine.py').write_text(text)
  assert 'pretrain' not in loading.load(str(tmp_path / 'mine.py'))
  with pytest.raises(ConfigError, match='lacks the key pretrain'):
    loading.load(f'{tmp_path}/mine.py:regime=causal')


def test_the_advice_is_the_spelling_of_the_user():
  """The advised spec works. It names the file as the user did, with the arguments of the command."""
  with pytest.raises(ConfigError) as refused:
    loading.load('configs/image.py:regime=scratch,seed=2', ['model.name=s4'])
  spec = str(refused.value).rpartition('--config=')[2]
  assert spec == 'configs/image.py:regime=scratch,seed=2,model=s4'
  config = loading.load(spec)
  assert (config.model.name, config.regime, config.seed) == ('s4', 'scratch', 2)
  with pytest.raises(ConfigError, match=r'--config=configs/image.py:regime=causal$'):
    loading.load('configs/image.py:regime=scratch', {'regime': 'causal'})


def test_a_key_set_twice(spec):
  with pytest.raises(ConfigError, match='seed is set twice'):
    loading.load(spec, ['seed=1', 'fast=true', 'seed=2'])


@pytest.mark.parametrize('seed', [-1, 2**31])
def test_seeds_that_no_run_can_have(spec, seed):
  with pytest.raises(ConfigError, match=f'seed is {seed}, but it must be at least 0 and below 2147483648'):
    loading.load(spec, [f'seed={seed}'])


def test_an_import_that_fails_elsewhere_keeps_its_traceback(tmp_path):
  (tmp_path / 'beside.py').write_text('def load():\n  from json import nothing\n')
  for content, said in (
    ('import beside\nbeside.load()', 'cannot import name'),
    ('raise ImportError("no libcuda.so.1")', 'libcuda'),
  ):
    (tmp_path / 'mine.py').write_text(content)
    with pytest.raises(ImportError, match=said):
      loading.register(tmp_path / 'mine.py')


def test_a_file_registers_once(tmp_path, monkeypatch):
  (tmp_path / 'beside_registered.py').write_text('NAME = "registered"\n')
  (tmp_path / 'mine.py').write_text(
    'import beside_registered, dataclasses, sys\n'
    '@dataclasses.dataclass\nclass Kept:\n  name: "str"\n'
    'sys.registered_by_test.append(Kept(beside_registered.NAME).name)\n'
  )
  monkeypatch.setattr(sys, 'registered_by_test', [], raising=False)
  loading.register(tmp_path / 'mine.py')
  monkeypatch.chdir(tmp_path)
  loading.register('mine.py')
  assert sys.registered_by_test == ['registered']


# --- typed


@dataclasses.dataclass(frozen=True)
class Optimizer:
  lr: float
  clip: float | None = None


@dataclasses.dataclass(frozen=True)
class Stage:
  epochs: int
  pool: Literal['mean', 'max']
  optimizer: Optimizer
  milestones: tuple[int, ...] = ()
  pair: tuple[int, float] = (1, 2.0)
  fast: bool = False
  options: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_typed_builds_nested_dataclasses():
  section = {
    'epochs': 3,
    'pool': 'max',
    'optimizer': {'lr': 1, 'clip': None},
    'milestones': (1, 2),
    'options': {'heads': 4},
  }
  stage = config_values.typed(Stage, ConfigDict(section), 'finetune')
  assert stage == Stage(3, 'max', Optimizer(1.0), (1, 2), options={'heads': 4})
  assert type(stage.optimizer.lr) is float
  assert type(stage.options) is dict
  assert config_values.typed(Stage, json.loads(json.dumps(section)), 'finetune') == stage


@dataclasses.dataclass(frozen=True)
class Careful:
  lr: float

  def __post_init__(self):
    if not self.lr >= 0:
      raise FieldError('lr', f'is {self.lr}; choose at least 0')


@dataclasses.dataclass(frozen=True)
class Outer:
  optimizer: Careful


def test_a_value_that_a_spec_refuses_is_named_with_its_section():
  with pytest.raises(ConfigError, match='^finetune.optimizer.lr is -1.0; choose at least 0$'):
    config_values.typed(Outer, {'optimizer': {'lr': -1}}, 'finetune')
  with pytest.raises(ConfigError, match='^lr is nan;'):
    Careful(float('nan'))


@pytest.mark.parametrize(
  'change, message',
  [
    ({'epohcs': 3}, 'finetune has no key epohcs: it takes epochs, pool, .*Did you mean epochs'),
    ({'epochs': None}, 'finetune.epochs takes int, not None'),
    ({'epochs': 1.5}, 'finetune.epochs takes int, not 1.5'),
    ({'epochs': True}, 'finetune.epochs takes int, not True'),
    ({'fast': 0}, 'finetune.fast takes bool, not 0'),
    ({'pool': 'mxa'}, 'choose one of mean, max'),
    ({'optimizer': {'lr': '1e-3'}}, "finetune.optimizer.lr takes float, not '1e-3'"),
    ({'optimizer': {'lr': 1e-3, 'clip': 'no'}}, 'finetune.optimizer.clip takes float'),
    ({'optimizer': {}}, 'finetune.optimizer lacks the key lr: it takes lr, clip'),
    ({'optimizer': 3}, 'finetune.optimizer is a section with the keys lr, clip, not 3'),
    ({'milestones': (1, 'x')}, r'finetune.milestones\[1\] takes int'),
    ({'pair': (1,)}, 'finetune.pair takes 2 values, not 1'),
  ],
)
def test_typed_names_what_is_wrong(change, message):
  section = {'epochs': 3, 'pool': 'mean', 'optimizer': {'lr': 1e-3}}
  with pytest.raises(ConfigError, match=message):
    config_values.typed(Stage, {**section, **change}, 'finetune')


@dataclasses.dataclass(frozen=True)
class Note:
  stages: dict[str, Stage]
  losses: list[float]
  tried: list[Optimizer] = dataclasses.field(default_factory=list)
  weights: Mapping[str, float] | None = None


@pytest.mark.parametrize(
  'change, message',
  [
    ({}, None),
    ({'date': 'of a later version', 'tried': [{'lr': 1, 'note': ''}], 'weights': None}, None),
    ({'losses': [1, 'x']}, "losses[1] takes float, not 'x'"),
    ({'losses': [float('nan')]}, 'losses[0] takes float, not nan'),
    ({'losses': [1e200]}, 'losses[0] takes float, not 1e+200'),
    ({'losses': [2**63]}, f'losses[0] takes float, not {2**63}'),
    ({'losses': (1.0,)}, 'losses takes list, not (1.0,)'),
    ({'tried': [{}]}, 'tried[0] lacks the key lr: it takes lr, clip'),
    ({'tried': ['x']}, "tried[0] is a section with the keys lr, clip, not 'x'"),
    ({'weights': {'a': True}}, 'weights.a takes float, not True'),
    ({'stages': {'finetune': {'epochs': 'x'}}}, "stages.finetune.epochs takes int, not 'x'"),
    ({'stages': 3}, 'stages takes dict, not 3'),
  ],
)
def test_the_first_wrong_key_of_a_json_file_is_named_with_its_path(change, message):
  assert config_values.problem(Note, {'stages': {}, 'losses': []} | change) == message
  assert config_values.problem(Note, [change]).startswith('it is a section with the keys stages, losses')


# --- identity, difference, digest


def test_identity_leaves_out_runtime_and_origins(spec):
  a = loading.identity(loading.load(spec))
  b = loading.identity(loading.load(spec, ['runtime.threads=8']))
  assert a == b
  kept = {'task', 'model', 'protocol', 'regime', 'causal', 'seed', 'pretrain', 'finetune', 'fast', 'limit'}
  assert set(a) == kept
  assert json.loads(json.dumps(a)) == a
  assert loading.identity(a) == a


def test_difference_shows_readable_lines(spec):
  a = loading.load(spec)
  b = loading.load(f'{spec}:regime=causal', ['finetune.optimizer.lr=5e-4', 'finetune.milestones=1,2'])
  assert loading.difference(loading.identity(a), loading.identity(b)).splitlines() == [
    'finetune.milestones: [] -> [1, 2]',
    'finetune.optimizer.lr: 0.001 -> 0.0005',
    "regime: 'scratch' -> 'causal'",
  ]
  assert loading.difference({'a': {'b': 1}}, {'c': {}}) == 'a.b: 1 -> (absent)\nc: (absent) -> {}'
  assert loading.difference(a, a) == ''


def test_difference_and_digest_survive_json(spec):
  ours = loading.load(spec, ['model.scale=3', 'finetune.milestones=1,2', 'finetune.optimizer.lr=3e-4'])
  back = json.loads(json.dumps(loading.identity(ours)))
  assert loading.difference(loading.identity(ours), back) == ''
  assert loading.digest(loading.identity(ours)) == loading.digest(back)
  assert loading.digest({'b': (1.0, 2), 'a': None}) == loading.digest({'a': None, 'b': [1, 2.0]})


def test_digest_is_eight_hex_digits_and_the_same_everywhere():
  # The SHA-256 of the text {"lr":0.001,"milestones":[1]}.
  assert loading.digest({'milestones': (1,), 'lr': 1e-3}) == '587c7761'
  assert loading.digest({'lr': 1e-3}) != loading.digest({'lr': 1.0000001e-3})


# --- protocol


def test_protocols_differ_in_every_behaviour():
  clean, paper = (dataclasses.asdict(protocol.get_protocol(name)) for name in ('clean', 'paper'))
  assert all(clean[name] != paper[name] for name in clean)
  assert clean['name'] == 'clean'
  assert not any(value for value in clean.values() if isinstance(value, bool))
  assert (clean['l1_selection'], paper['l1_selection']) == ('r2', 'mae')


def test_unknown_protocol():
  with pytest.raises(ValueError, match='choose clean .* or paper'):
    protocol.get_protocol('papre')
