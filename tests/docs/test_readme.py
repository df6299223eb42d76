"""The examples of the README work as printed: a mixer, a set and its task, a PyTorch model."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.report import published
from lra_spt.report.runs import run_folder

STAGE = {'max_steps': 2, 'evaluate_every': 2, 'batch_size': 16}
SHORT = [f'--config.{stage}.{key}={value}' for stage in run_folder.STAGES for key, value in STAGE.items()]
SHORT += ['--config.runtime.evaluation_batch_size=200']


@pytest.fixture
def folder(repository, tmp_path, monkeypatch):
  """Writes the README's Python blocks into a working directory, as the files that their first lines name."""
  readme = (repository / 'README.md').read_text(encoding='utf-8')
  for block in re.findall('```python\n(.*?)```', readme, flags=re.DOTALL):
    name = re.match(r'# (my_\w+\.py)', block)[1]
    (tmp_path / name).write_text(block)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def train(register, config, workdir, *flags):
  words = ['train', f'--register={register}', f'--config={config}', f'--workdir={workdir}']
  assert cli.main([*words, *SHORT, *flags]) == 0
  return json.loads((pathlib.Path(workdir) / 'result.json').read_text())


def run_file(repository, name):
  environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(repository), *sys.path])}
  subprocess.run([sys.executable, name], env=environment, check=True, timeout=300)


def test_no_number_is_still_to_come(repository):
  text = (repository / 'README.md').read_text()
  assert not re.search(r'@[A-Z]+@|^[A-Z0-9_]{4,}$', text, re.MULTILINE)


@pytest.mark.parametrize(
  'regime',
  [
    'masked',
    *(
      pytest.param(it, marks=pytest.mark.slow)
      for it in ('scratch,tied=true', 'scratch,tied=true,causal=true', 'causal')
    ),
  ],
)
def test_own_mixer_trains(folder, regime):
  stripes.prepare_stripes(folder / 'data', examples=64)
  config = f'configs/demo.py:model=moving_average,regime={regime}'
  result = train('my_mixer.py', config, f'runs/{regime}', '--config.model.width=16')
  assert result['metrics']['test']['examples'] == 2000
  assert ('pretrain' in result['stages']) == ('scratch' not in regime)
  assert result['model'] == 'moving_average'  # not under the name of a model that the paper ran
  assert result['config']['model']['mixer'] == {'name': 'moving_average'}


def test_own_data_trains(folder, repository):
  (folder / 'raw').mkdir()
  run_file(repository, 'my_data.py')
  assert cli.main(['prepare', 'npz', '--name=waves', '--raw_dir=raw', '--data_dir=data']) == 0
  result = train('my_data.py', 'configs/demo.py:model=s4', 'runs/w', '--config.task=waves')
  assert (result['task'], result['splits']) == ('waves', 'random')
  assert result['metrics']['test']['examples'] == 100


@pytest.mark.skipif(importlib.util.find_spec('torch') is None, reason='PyTorch is not installed')
def test_predictions_of_a_pytorch_model_join(folder, repository):
  stripes.prepare_stripes(folder / 'data', examples=64)
  run_file(repository, 'my_torch.py')
  words = ['record', '--predictions=predictions.npz', '--out=runs/torch', '--task=stripes', '--data_dir=data']
  assert cli.main([*words, '--model=conv', '--regime=scratch', '--seed=0', '--source=my_torch.py']) == 0
  assert json.loads(pathlib.Path('runs/torch/result.json').read_text())['metrics']['test']['examples'] == 2000


def test_averages_are_those_that_the_paper_prints(repository):
  text = ' '.join((repository / 'README.md').read_text(encoding='utf-8').split())
  rotary, s4 = (
    [published.AVERAGES[2, name] for name in (model, f'{model} + Masked SPT')]
    for model in ('Transformers + Rotary', 'S4')
  )
  assert 'rises from {:.1f} to {:.1f} %'.format(*rotary) in text
  assert 'S4 from {:.1f} to a printed {:.1f} %'.format(*s4) in text


def test_the_readme_counts_the_mixers(repository):
  """The README counts them without those of the paper and the control. Tests register others, so a new
  process lists them."""
  command = [sys.executable, '-m', 'lra_spt', 'list', 'models']
  listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
  others = [line for line in listed.splitlines() if 'not in the paper' in line or 'with this mixer' in line]
  assert f'and {len(others)} more mixers' in (repository / 'README.md').read_text(encoding='utf-8')
