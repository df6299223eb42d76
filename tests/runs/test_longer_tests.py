"""Models are tested on sequences longer than those of training, or refused by a sentence."""

import pathlib

import pytest

from data_prep import prepare
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import ConfigError
from lra_spt.report.runs import run_folder
from lra_spt.runs import api
from lra_spt.runs.build import for_split, resolve, stages_of

DEMO = 'configs/demo.py:regime=scratch,causal=true,model='


def test_a_run_and_its_report(tmp_path):
  prepare.prepare('parity_8', tmp_path / 'data', examples=100)
  words = [f'--config={DEMO}s4', '--config.task=parity_8', f'--config.runtime.data_dir={tmp_path / "data"}']
  words += ['--config.finetune.max_steps=2', '--config.finetune.batch_size=16', '--quiet']
  assert cli.main(['train', *words, f'--workdir={tmp_path / "runs"}']) == 0
  metrics = run_folder.read_result(tmp_path / 'runs')['metrics']
  assert [one['length'] for one in metrics['by_length'].values()] == [8, 16, 32]
  run = api.load_run(tmp_path / 'runs')
  for split in ('test', 'test_4x'):
    score = run.evaluate(split)[0]['accuracy']
    assert score == pytest.approx(metrics['by_length'][split]['accuracy'], abs=1e-6)
  assert run.evaluate('test_4x')[0]['positions'] == 32_000
  assert cli.main(['report', f'--workdir={tmp_path / "runs"}']) == 0
  page = pathlib.Path(tmp_path / 'runs' / 'report.html').read_text(encoding='utf-8')
  assert 'parity_8, on longer test examples' in page


@pytest.mark.parametrize('model, position', [('longconv', 'sinusoidal'), ('transformer', 'learned')])
def test_a_model_whose_parameters_depend_on_the_length(model, position):
  config = loading.load(f'{DEMO}{model}')
  config.task, config.model.position = 'parity_8', position
  run = resolve(config)
  stage = stages_of(run)['finetune']
  assert for_split(run, stage, 'validation') is stage
  with pytest.raises(
    ConfigError, match='has parameters for 8 positions, so it cannot read the 16 of test_2x'
  ):
    for_split(run, stage, 'test_2x')
