"""The demo runs from nothing to a report. The command itself checks the numbers, not these tests."""

import json
import os
import pathlib

import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.cli.commands import train
from lra_spt.config import loading
from lra_spt.data import examples
from lra_spt.data.tasks import get_task
from lra_spt.errors import ConfigError
from lra_spt.objectives import rows
from lra_spt.report.runs import restored
from lra_spt.studies import demo


@pytest.fixture
def smoke(tmp_path, capsys):
  """(workdir, output) of `lra-spt demo --smoke`. Where continuous integration has run it, LRA_SPT_DEMO names
  the workdir, and a text file beside it has the output. Otherwise it runs here."""
  if made := os.environ.get('LRA_SPT_DEMO'):
    return pathlib.Path(made), pathlib.Path(f'{made}.txt').read_text()
  assert cli.main(['demo', '--smoke', f'--workdir={tmp_path}']) == 0
  return tmp_path, capsys.readouterr().out


@pytest.mark.slow
def test_smoke_run_writes_all_arms_and_a_report(smoke):
  workdir, output = smoke
  paths = workdir.glob('seed101/*/result.json')
  results = {path.parent.name: json.loads(path.read_text()) for path in paths}
  assert set(results) == set(demo.ARMS)
  tied, masked = results['scratch_tied']['stages'], results['masked']['stages']
  assert tied['finetune']['steps'] == masked['pretrain']['steps'] + masked['finetune']['steps']
  assert results['scratch']['stages']['finetune']['steps'] == masked['finetune']['steps']
  assert len({result['fingerprints']['data'] for result in results.values()}) == 1
  assert 'smoke' in (workdir / 'report.html').read_text()
  assert 'masked self-pretraining' in output
  assert str(workdir / 'report.html') in output
  _check_pictures(workdir)


def _check_pictures(workdir):
  actual = restored.read_restored(workdir / 'seed101' / 'masked')
  test = examples.open_split('stripes', 'test', workdir / 'data' / 'seed101').gather(range(demo.PICTURES))
  np.testing.assert_array_equal(actual.original, test['inputs'])
  np.testing.assert_array_equal(actual.restored[~actual.hidden], actual.original[~actual.hidden])
  assert 0.4 < actual.share < 0.6
  assert np.mean(actual.restored[actual.hidden] != actual.original[actual.hidden]) > 0.5
  assert (workdir / 'report.html').read_text().count('<img src="data:image/png;base64,') == 3 * demo.PICTURES


def test_restored_values_become_stored_values():
  task = get_task('stripes')
  stored = np.arange(256, dtype=np.uint8).reshape(4, 64)
  values = demo.stored_values(task, np.asarray(rows.normalise(task, stored)))
  np.testing.assert_array_equal(values.reshape(4, 64), stored)


def test_seeds_must_be_numbers(tmp_path, capsys):
  assert cli.main(['demo', '--seeds=one', f'--workdir={tmp_path}']) == 2
  assert 'whole numbers' in capsys.readouterr().err


def test_training_from_scratch_can_be_tied_to_both_stages():
  steps = [loading.load(f'configs/demo.py:regime={it}').finetune.max_steps for it in ('scratch', 'masked')]
  tied = loading.load('configs/demo.py:regime=scratch,tied=true').finetune.max_steps
  pretrained = loading.load('configs/demo.py:regime=masked').pretrain.max_steps
  assert steps[0] == steps[1] == tied - pretrained
  with pytest.raises(ConfigError, match='tied=true is for regime=scratch, not for regime=masked'):
    loading.load('configs/demo.py:regime=masked,tied=true')


@pytest.mark.parametrize(
  ('words', 'arm'),
  [
    (['--config=configs/demo.py:regime=scratch,tied=true'], 'scratch, compute-tied'),
    (['--config=configs/demo.py:regime=scratch,tied=true,causal=true'], 'scratch, causal form, compute-tied'),
    (['--config=configs/demo.py:regime=scratch,tied=true', '--config.finetune.max_steps=9'], None),
    (['--config=configs/demo.py:regime=scratch'], None),
  ],
)
def test_a_run_by_hand_is_called_compute_tied_where_it_is_alone(words, arm):
  assert train._arm(train.parser().parse_args([*words, '--workdir=w'])) == arm
