"""The examples of the README and of docs/extending.md train as printed."""

import re
import subprocess
import sys

import pytest

from data_prep.sources import stripes
from lra_spt import cli, experiment
from lra_spt import config as config_lib

STAGE = {'max_steps': 2, 'evaluate_every': 2, 'batch_size': 16}
SHORT = {f'{name}.{key}': value for name in ('pretrain', 'finetune') for key, value in STAGE.items()}
SHORT |= {'runtime.devices': 1, 'runtime.evaluation_batch_size': 200, 'model.width': 16}


def python_block(path):
  (block,) = re.findall('```python\n(.*?)```', path.read_text(), flags=re.DOTALL)
  return block


@pytest.fixture(scope='module')
def example(repository, tmp_path_factory):
  """The README's Python block as a config file."""
  path = tmp_path_factory.mktemp('readme') / 'my_config.py'
  path.write_text(python_block(repository / 'README.md'))
  return path


def test_no_number_is_still_to_come(repository):
  text = (repository / 'README.md').read_text()
  assert not re.search(r'@[A-Z]+@|^[A-Z0-9_]{4,}$', text, re.MULTILINE)


@pytest.mark.parametrize(
  'regime', ['masked', *(pytest.param(regime, marks=pytest.mark.slow) for regime in ('scratch', 'causal'))]
)
def test_example_trains(example, regime, tmp_path):
  stripes.prepare_stripes(tmp_path / 'data', examples=64)
  data = {'task': 'stripes', 'runtime.data_dir': str(tmp_path / 'data')}
  config = config_lib.load(f'{example}:regime={regime}', SHORT | data)
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert result['metrics']['test']['examples'] == 2000
  assert ('pretrain' in result['stages']) == (regime != 'scratch')
  assert result['model'] == 'moving_average'  # not under the name of a model that the paper ran
  assert result['config']['model']['mixer'] == {'name': 'moving_average', 'window': 16}


def test_own_data_trains(repository, tmp_path, monkeypatch):
  path = tmp_path / 'my_data.py'
  path.write_text(python_block(repository / 'docs' / 'extending.md'))
  environment = {'PYTHONPATH': str(repository)}
  subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, check=True, timeout=120)
  monkeypatch.chdir(tmp_path)
  assert cli.main(['prepare', 'npz', '--name=waves', '--raw_dir=raw', '--data_dir=data']) == 0
  config = config_lib.load(f'{path}:regime=masked', SHORT | {'runtime.data_dir': 'data'})
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert (result['task'], result['splits']) == ('waves', 'random')
  assert result['metrics']['test']['examples'] == 100
