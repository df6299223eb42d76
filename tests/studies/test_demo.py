"""The demo runs from nothing to a report; its numbers are checked by its own command, not here."""

import json

from lra_spt import cli
from lra_spt.studies import demo


def test_smoke_run_writes_all_arms_and_a_report(tmp_path, capsys):
  assert cli.main(['demo', '--smoke', f'--workdir={tmp_path}']) == 0
  paths = tmp_path.glob('seed101/*/result.json')
  results = {path.parent.name: json.loads(path.read_text()) for path in paths}
  assert set(results) == set(demo.ARMS)
  tied, masked = results['scratch_tied']['stages'], results['masked']['stages']
  assert tied['finetune']['steps'] == masked['pretrain']['steps'] + masked['finetune']['steps']
  assert results['scratch']['stages']['finetune']['steps'] == masked['finetune']['steps']
  assert len({result['fingerprints']['data'] for result in results.values()}) == 1
  output = capsys.readouterr().out
  assert 'smoke' in (tmp_path / 'report.html').read_text()
  assert 'masked self-pretraining' in output
  assert str(tmp_path / 'report.html') in output


def test_seeds_must_be_numbers(tmp_path, capsys):
  assert cli.main(['demo', '--seeds=one', f'--workdir={tmp_path}']) == 2
  assert 'whole numbers' in capsys.readouterr().err
