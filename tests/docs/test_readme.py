"""The mixer of the README works as printed, and its numbers are those of the project."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.report import published
from lra_spt.report.pages import leaderboard
from lra_spt.report.runs import run_folder

STAGE = {'max_steps': 2, 'evaluate_every': 2, 'batch_size': 16}
SHORT = [f'--config.{stage}.{key}={value}' for stage in run_folder.STAGES for key, value in STAGE.items()]
SHORT += ['--config.runtime.evaluation_batch_size=200']

SENTENCES = 'has {:.1f} % from scratch and S4 {:.1f} %', 'they have {:.1f} and {:.1f} %'  # on averages


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


def test_averages_are_those_that_the_paper_prints(repository):
  text = ' '.join((repository / 'README.md').read_text(encoding='utf-8').split())
  rotary, s4 = (
    [published.AVERAGES[2, name] for name in (model, f'{model} + Masked SPT')]
    for model in ('Transformers + Rotary', 'S4')
  )
  for pair, sentence in zip(zip(rotary, s4, strict=True), SENTENCES, strict=True):
    assert sentence.format(*pair) in text


def test_the_readme_counts_the_mixers(repository):
  """The README counts them without those of the paper and the control. Tests register others, so a new
  process lists them."""
  command = [sys.executable, '-m', 'lra_spt', 'list', 'models']
  listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
  others = [line for line in listed.splitlines() if 'not in the paper' in line or 'with this mixer' in line]
  text = ' '.join((repository / 'README.md').read_text(encoding='utf-8').split())
  assert f'and {len(others)} more mixers' in text


def test_the_readme_counts_checked_models_and_published_rows(repository):
  text = ' '.join((repository / 'README.md').read_text(encoding='utf-8').split())
  models = (repository / 'docs' / 'models.md').read_text(encoding='utf-8')
  bounds = [float(bound) for bound in re.findall(r'\| (\de-\d) \|$', models, re.MULTILINE)]
  assert f'{len(bounds)} models are checked against published code' in text
  near = sum(bound <= 5e-6 for bound in bounds)
  assert f'gradients of {near} to 5e-6 and of the others to {max(bounds):.0e}'.replace('e-0', 'e-') in text
  rows = leaderboard.distinct(leaderboard.rows())
  assert f'It has {len(rows)} published rows. Nine printed averages' in text
  assert sum(bool(row.problem) for row in rows) == 9


def test_the_readme_counts_the_tests(request, repository):
  """Every process of the whole suite collects all of its tests; that of one file knows only its own."""
  assert 'more than 5,000 tests' in (repository / 'README.md').read_text(encoding='utf-8')
  collected = len(request.session.items)
  assert collected < 4000 or collected > 5000
