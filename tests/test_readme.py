"""The README's example of a new architecture trains as printed."""

import re

import pytest

from data_prep.sources import stripes
from lra_spt import config as config_lib
from lra_spt import experiment


@pytest.fixture(scope='module')
def example(repository, tmp_path_factory):
  """The README's Python block as a config file."""
  (block,) = re.findall('```python\n(.*?)```', (repository / 'README.md').read_text(), flags=re.DOTALL)
  path = tmp_path_factory.mktemp('readme') / 'my_config.py'
  path.write_text(block)
  return path


def test_no_number_is_still_to_come(repository):
  text = (repository / 'README.md').read_text()
  assert not re.search(r'@[A-Z]+@|^[A-Z0-9_]{4,}$', text, re.MULTILINE)


@pytest.mark.parametrize(
  'regime', ['masked', *(pytest.param(regime, marks=pytest.mark.slow) for regime in ('scratch', 'causal'))]
)
def test_example_trains(example, regime, tmp_path):
  stripes.prepare_stripes(tmp_path / 'data', examples=64)
  stage = {'max_steps': 2, 'evaluate_every': 2, 'batch_size': 16}
  overrides = {f'{name}.{key}': value for name in ('pretrain', 'finetune') for key, value in stage.items()}
  config = config_lib.load(
    f'{example}:regime={regime}',
    overrides
    | {
      'task': 'stripes',
      'runtime.data_dir': str(tmp_path / 'data'),
      'runtime.evaluation_batch_size': 200,
      'model.width': 16,
    },
  )
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert result['metrics']['test']['examples'] == 2000
  assert ('pretrain' in result['stages']) == (regime != 'scratch')
  assert result['model'] == 'moving_average'  # not under the name of a model that the paper ran
  assert result['config']['model']['mixer'] == {'name': 'moving_average', 'window': 16}
