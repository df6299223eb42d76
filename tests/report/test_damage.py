"""If files of a run are damaged, a report names the run and shows the others, without a traceback."""

import json

import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.errors import DamagedFile
from lra_spt.files import checksums
from lra_spt.report.runs import restored, run_folder
from lra_spt.report.runs.inside import Inside
from lra_spt.report.runs.kernels import Kernels
from lra_spt.report.runs.run import read_run
from lra_spt.report.study.any_folder import read_any

STAGE = 'finetune-0a1b2c3d'
REPORT = {
  'steps': 400,
  'examples': 25_600,
  'epochs': 6.4,
  'seconds': 28.0,
  'flops_per_step': 3,
  'best_step': 400,
  'metrics': {'accuracy': 0.3},
  'folder': STAGE,
}
DAMAGES = {
  'list': b'[1]',
  'empty': b'',
  'null': b'\0',
  'garbage': bytes(range(256)),
  'brackets': b'[' * 1_000_000,
  'objects': b'{"a":' * 60 + b'1' + b'}' * 60,
  'infinite': b'{"seed": 1e999}',
  'surrogate': b'{"task": "\\ud800"}',
  'digits': b'{"seed": ' + b'1' * 5000 + b'}',
}


@pytest.fixture
def folder(write_run):
  """The folder of runs 'bad', with a file of every kind, and 'good'."""
  write_run('good', regime='masked', accuracy=0.42)
  bad = write_run('bad', accuracy=0.31, facts={'stages': {'finetune': REPORT}})
  files.write_json(bad / STAGE / 'stage.json', REPORT)
  files.write_json(bad / 'failure.json', {'error': 'It met nan.', 'kind': 'E', 'date': '2026-11-21'})
  decay = np.exp(-np.arange(9)[None] / 3)
  kernels = Kernels('finetune', 3, 'structured', 0, 9, (1,), decay, 2 * decay)
  (bad / 'kernels.json').write_text(kernels.to_json())
  inside = Inside(4, {'scratch': 3}, {'scratch': np.full(9, 1 / 9)}, {}, None, {}, None, {})
  (bad / 'inside.json').write_text(inside.to_json())
  images = np.zeros((2, 16), np.uint8)
  actual = restored.RestoredInputs(np.arange(2, dtype=np.int32), images, images == 0, images, np.int32(3))
  restored.write_restored(bad, actual)
  return bad.parent


def report(folder, capsys):
  """(status, printed text and page without line breaks, error) of `lra-spt report`."""
  status = cli.main(['report', f'--workdir={folder}'])
  out, error = capsys.readouterr()
  page = (folder / 'report.html').read_text() if status < 2 else ''
  return status, ' '.join(out.split()), ' '.join(page.split()), error


def check_named(folder, capsys, name):
  status, printed, page, error = report(folder, capsys)
  assert (status, error) == (1, '')
  for shown in (printed, page):
    assert f'{folder / "bad"}' in shown.replace(f'{folder / "bad"}/', '')  # the run, beside its file
    assert 'is left out' in shown
    assert f'{folder / "bad" / name}' in shown
    assert 'masked self-pretraining' in shown
    assert '42.0 %' in shown.replace('\u00a0', ' ')
    assert '31.0 %' not in shown.replace('\u00a0', ' ')


def test_a_folder_of_good_files_is_reported(folder, capsys):
  status, printed, _, _ = report(folder, capsys)
  assert status == 0
  assert '31.0 %' in printed
  assert 'left out' not in printed


JSON = ('result.json', 'config.json', 'failure.json', 'kernels.json', 'inside.json', f'{STAGE}/stage.json')


@pytest.mark.parametrize('name', [*JSON, 'predictions.npz', 'restored.npz', f'{STAGE}/metrics.jsonl'])
def test_damaged_files_are_named_and_the_others_reported(folder, capsys, name):
  path = folder / 'bad' / name
  content = path.read_bytes()
  for damage in [content[: len(content) // 2], *DAMAGES.values()]:
    path.write_bytes(damage)
    if not name.endswith('metrics.jsonl'):
      (actual,) = read_any(folder).damaged
      assert actual.path == folder / 'bad'
      assert str(path) in actual.sentence
  if name.endswith('metrics.jsonl'):  # a half line is no damage
    path.write_bytes(b'\n'.join(DAMAGES.values()))
  check_named(folder, capsys, name)


def test_a_huge_file_is_not_read(folder, capsys):
  with (folder / 'bad' / 'result.json').open('r+b') as file:
    file.truncate(2**30)
  check_named(folder, capsys, 'result.json')


WRONG = {
  'result.json': [
    {'metrics': {'test': {'accuracy': 'high', 'examples': 500}}},
    {'metrics': {'test': {'accuracy': 0.31, 'examples': 500, 'mae': [1]}}},
    {'metrics': {'test': {'accuracy': 0.31, 'examples': 500.5}}},
    {'metrics': {'validation': {'accuracy': None}, 'test': {'accuracy': 0.31, 'examples': 500}}},
    {'stages': {'finetune': {'steps': None}}},
    {'stages': {'finetune': {'steps': 10**400}}},
    {'stages': {'finetune': {'seconds': '3'}}},
    {'stages': {'finetune': {'folder': '../../good'}}},
    {'stages': {'finetune': {'metrics': {'loss': {}}}}},
    {'pretrained': {'run': 3}},
    {'pretrained': {'seed': 0}},
    {'fingerprints': {'data': []}},
    {'groups': {}, 'cautions': [1]},
    {'origins': {'task': [1]}, 'seed': '0'},
    {'sha256': []},
    {'sha256': {'result.json': '0'}},
    {'sha256': {'predictions.npz': '0'}},
  ],
  'config.json': [{'sha256': {'config.json': '0'}}],
  'failure.json': [{'error': 3}],
  'kernels.json': [{'lags': '9'}, {'shown': [10**400]}, {'learned': [['x'] * 9]}],
  'inside.json': [
    {'examples': '4'},
    {'steps': {'scratch': None}},
    {'field': {'other': [1.0]}},
    {'field': {'scratch': [None] * 9}},
    {'attention': {'scratch': [[[1.0] * 9]]}},
    {'kernels': {'scratch': [[1.0] * 8]}},
    {'spans': 3},
  ],
  f'{STAGE}/stage.json': [
    {'steps': None},
    {'metrics': {'loss': '1'}},
    {'folder': 3},
    {'sha256': {'metrics.jsonl': '0'}},
  ],
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong_values_are_named(folder, capsys, name):
  path = folder / 'bad' / name
  content = json.loads(path.read_text())
  content.pop('sha256', None)
  for change in WRONG[name]:
    path.write_text(json.dumps(content | change))
    (actual,) = read_any(folder).damaged
    assert str(path.parent) in actual.sentence, change
  path.write_text(json.dumps(content | WRONG[name][0]))
  check_named(folder, capsys, name)


def test_odd_values_of_old_versions_are_reported(folder):
  """Values that a report only quotes may be anything."""
  path = folder / 'bad' / 'result.json'
  odd = {'origins': {'task': [1], 'x': {}}, 'hardware': {'a': [1]}, 'date': None, 'runtime': {'a': None}}
  path.write_text(json.dumps(json.loads(path.read_text()) | odd))
  assert cli.main(['report', f'--workdir={folder}']) == 0


def test_a_result_edited_since_is_no_result(tmp_path):
  result = {
    'task': 'toy',
    'model': 's4',
    'regime': 'scratch',
    'causal': False,
    'protocol': 'clean',
    'seed': 0,
    'metrics': {'test': {'accuracy': 0.5, 'loss': 1.0, 'examples': 2}},
    'stages': {},
  }
  arrays = {'index': np.arange(2), 'label': np.arange(2), 'prediction': np.zeros(2, int)}
  run_folder.write_result(tmp_path, result, arrays)
  assert read_run(tmp_path).value == 0.5
  path = tmp_path / 'result.json'
  written = path.read_text()
  path.write_text(written.replace('"loss": 1.0', '"loss": 1.5'))
  with pytest.raises(DamagedFile, match=r'result\.json was edited or damaged after .*; delete result\.json'):
    read_run(tmp_path)
  path.write_text(written)
  np.savez(tmp_path / 'predictions.npz', **arrays | {'prediction': np.ones(2, int)})
  with pytest.raises(DamagedFile, match=r'predictions\.npz was edited or damaged .*; delete result\.json'):
    read_run(tmp_path)
  (tmp_path / 'predictions.npz').unlink()  # the run is then shown without paired comparisons
  read_run(tmp_path)


def test_unfinished_runs_that_are_damaged_are_named(folder, capsys):
  (folder / 'bad' / 'result.json').unlink()
  config = folder / 'bad' / 'config.json'
  about = {'task': 'image', 'model': {'name': 's4'}, 'regime': 'masked', 'seed': 3}
  checksums.write(config, about | {'protocol': 'clean', 'causal': False})
  (folder / 'bad' / STAGE / 'metrics.jsonl').write_bytes(
    b'[' * 100_000 + b'\n{"step": 1e999}\n{"step": 2, "sp'
  )
  status, printed, _, _ = report(folder, capsys)
  assert status == 0
  assert 'S4, masked self-pretraining' in printed
  config.write_text(config.read_text().replace('image', 'imagf'))
  check_named(folder, capsys, 'config.json')
