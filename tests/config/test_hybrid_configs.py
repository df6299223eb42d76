"""model=NAME-NAME: the task's Transformer with mixers in turn, each with the options of model=NAME."""

import pytest

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import ConfigError
from lra_spt.runs.build import resolve

FILES = ('image', 'listops', 'pathx', 'bidmc', 'demo', 'mini/listops')


@pytest.mark.parametrize('file', FILES)
def test_a_hybrid_is_the_transformer_with_mixers_in_turn(file):
  for form in ('regime=masked', 'regime=causal'):
    parts = 's4', 'attention', 'mamba', 'none'
    hybrid = loading.load(f'configs/{file}.py:model={"-".join(parts)},{form}')
    transformer = loading.load(f'configs/{file}.py:model=transformer,{form}')
    changed = loading.difference(loading.identity(transformer), loading.identity(hybrid)).splitlines()
    changed = {line.split(':')[0] for line in changed if not line.startswith('model.mixer')}
    assert {'model.name'} <= changed <= {'model.name', 'model.depth'}
    depth = transformer.model.depth
    assert depth <= hybrid.model.depth < depth + 4
    assert hybrid.model.depth % 4 == 0
    assert hybrid.origins.model.mixers['0'].copies == 'ours'
    period = resolve(hybrid).model.period
    assert [mixer['name'] for mixer in period] == list(parts)
    for place, name in enumerate(('s4', 'transformer', 'mamba')):
      assert period[place] == loading.load(f'configs/{file}.py:model={name},{form}').model.mixer.to_dict()


def test_options_have_the_place_of_their_mixer(capsys):
  spec = 'configs/image.py:model=s4-attention,regime=scratch'
  config = lra_spt.load_config(spec, {'model.mixers.1.heads': 8})
  assert resolve(config).model.mixers[1]['heads'] == 8
  assert config.origins.model.mixers['1'].heads == 'command line'
  assert cli.main(['config', spec, '--config.model.mixers.1.heads=8', '--about']) == 0
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert ['mixers.1.heads', '8', 'command', 'line'] in lines
  assert ['mixers.0.name', 's4', 'ours', 'name', 'of', 'the', 'mixer;'] in [line[:7] for line in lines]


def test_a_list_in_a_config_file_is_the_same_run():
  mixers = [{'name': 's4', 'state_size': 4}, {'name': 'attention', 'heads': 2}]
  listed = loading.from_sources(ours={'model': {'mixers': mixers}})
  dotted = {f'model.mixers.{i}.{key}': value for i in (0, 1) for key, value in mixers[i].items()}
  assert listed == loading.from_sources(ours=dotted)
  config = lra_spt.load_config('configs/demo.py:model=s4-attention')
  other = lambda mixers: config.to_dict() | {'model': {**config.model.to_dict(), 'mixers': mixers}}  # noqa: E731
  assert resolve(other(mixers)).model.mixers == tuple(mixers)
  with pytest.raises(ConfigError, match=r"model.mixers\[0\] takes dict, not 's4'"):
    resolve(other(['s4', 'attention']))


@pytest.mark.parametrize(
  'argument, overrides, message',
  [
    ('model=s4-atention', [], "model=s4-atention has 'atention', which is no mixer: .*mean attention"),
    ('model=s4-', [], "model=s4- has '', which is no mixer: choose from attention, "),
    ('model=s4+dlr', [], r'joins mixers by \+, which separates the models of a study: write model=s4-dlr '),
    ('model=s4-linformer,regime=causal', [], "The mixer 'linformer' has no causal form: choose"),
    ('model=s4', ['model.mixers=[dlr, attention]'], r'write --config=\S+:model=dlr-attention$'),
    ('model=s4-dlr', ['model.mixers.1.name=s5'], r'write --config=\S+:model=s4-s5$'),
    ('model=s4-dlr', ['model.mixer.state_size=5'], 'has no key .*: .*mixers.0.state_size'),
    ('model=s4', ['model.mixers.0.state_size=5'], 'has no key model.mixers.0.state_size: .*mixer.state_size'),
    ('model=s4-dlr', ['model.mixers=3'], 'model.mixers selects the hyperparameters'),
  ],
)
def test_wrong_hybrids_are_refused_in_a_sentence(argument, overrides, message):
  with pytest.raises(ConfigError, match=message):
    loading.load(f'configs/image.py:{argument}', overrides)


def test_a_depth_without_whole_periods_is_refused():
  config = loading.load('configs/image.py:model=s4-attention', ['model.depth=5'])
  with pytest.raises(ConfigError, match='model.mixers has 2 mixers, which do not divide model.depth=5; set'):
    resolve(config)
