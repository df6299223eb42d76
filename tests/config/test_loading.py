"""Configs: merging with origins, loading, overrides, typed sections, identity, difference, digest."""

import dataclasses
import json

import pytest
from ml_collections import FrozenConfigDict

from lra_spt.config import loading, protocol
from lra_spt.errors import ConfigError
from tests.config.small_file import FILE


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


# --- what config files may do


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


# --- typed


# --- identity, difference, digest


def test_identity_leaves_out_runtime_and_origins(spec):
  a = loading.identity(loading.load(spec))
  b = loading.identity(loading.load(spec, ['runtime.threads=8']))
  assert a == b
  keys = {'task', 'model', 'protocol', 'regime', 'causal', 'seed', 'pretrain', 'finetune', 'fast', 'limit'}
  assert set(a) == keys
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
