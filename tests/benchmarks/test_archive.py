"""Runs of a study as a file of numbers and back; committed files of runs agree with their tables."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.errors import ConfigError, DamagedFile, InUse
from lra_spt.files import checksums
from lra_spt.report.pages import curves as study_curves
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive, record
from lra_spt.report.study import table as studies

LABELS_N = np.array([3, 0, 2, 1, 3, 3, 0, 1, 2, 2], np.int32)


@pytest.fixture
def study(tmp_path):
  """The folder of a study: a row with two seeds, one of them finished, and a run of its search."""
  folder = tmp_path / 'study'
  for place, seed in (('rows/a/seed2', 2), ('search/a/seed0', 0)):
    answer_N = np.where(np.arange(10) < 6, LABELS_N, (LABELS_N + 1) % 4)
    result = {
      'task': 'toy',
      'model': 's4',
      'regime': 'scratch',
      'causal': False,
      'protocol': 'clean',
      'seed': seed,
      'metric': 'accuracy',
      'metrics': {'validation': {'accuracy': 0.5}, 'test': {'accuracy': 0.6, 'examples': 10}},
      'parameters': 7,
      'stages': {},
      'hardware': {},
      'versions': {},
      'commit': '0123',
      'date': '2026-11-23',
      'config': {},
      'runtime': {'data_dir': '/home/somebody/data', 'threads': 4},
    }
    (folder / place).mkdir(parents=True)
    order_N = np.random.default_rng(0).permutation(10).astype(np.int32)
    answers = {'index': order_N, 'label': LABELS_N[order_N], 'prediction': answer_N[order_N]}
    run_folder.write_result(folder / place, result, answers)
  record.claim(folder, _record([2, 3]))
  return folder


def _record(seeds, row='a'):
  cells = [
    {
      'row': name,
      'column': 'Toy',
      'folder': f'rows/{name}',
      'seeds': seeds if name == row else [],
      'config': 'toy.py',
      'overrides': {'model.width': '8', 'runtime.data_dir': '/home/somebody/data'},
      'published': None,
      'note': '',
      'x': None,
      'search': [],
    }
    for name in 'ab'
  ]
  about = {'study': 'toys', 'title': 'Toys', 'about': '', 'averages': False, 'chart': None, 'show': 'table'}
  return {**about, 'rows': ['a', 'b'], 'columns': ['Toy'], 'cells': cells}


def of_toy(task):
  assert task == 'toy'
  return {'index': np.arange(10, dtype=np.int32), 'label': LABELS_N}


def test_another_machine_goes_on_with_the_study(study, tmp_path):
  path, other = tmp_path / 'runs.jsonl', tmp_path / 'other'
  assert archive.store(study, path) == 2
  assert 'label' not in path.read_text()
  assert 'somebody' not in path.read_text()  # no path of this machine
  other.mkdir()
  record.claim(other, _record([2], row='b'))  # this machine has begun with another row
  (tmp_path / 'link').symlink_to(other)  # runs/ is often a link to a larger disk
  assert archive.restore(path, tmp_path / 'link', of_toy) == (2, [])
  for place in ('rows/a/seed2', 'search/a/seed0'):
    expected = run_folder.read_result(study / place)
    expected['runtime']['data_dir'] = 'data'
    assert run_folder.read_result(other / place) == expected
  (run,) = studies.read_table(other).runs
  before = studies.read_table(study).runs[0]
  for ours, theirs in zip(run.predictions, before.predictions, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  cells = record.read_record(other)['cells']
  assert [cell['seeds'] for cell in cells] == [[2, 3], [2]]
  assert cells[0]['overrides'] == {'model.width': '8'}
  assert archive.restore(path, other, of_toy) == (0, [])
  before = path.read_text().splitlines()[1:]
  assert archive.store(other, path) == 2
  assert path.read_text().splitlines()[1:] == before  # with the digests of the first files


def test_nothing_is_put_beside_a_study_that_runs(study, tmp_path):
  path, other = tmp_path / 'runs.jsonl', tmp_path / 'other'
  archive.store(study, path)
  with files.owned(other, 'running a study in'), pytest.raises(InUse, match='wait for it to end'):
    archive.restore(path, other, of_toy)
  assert not list(other.rglob(run_folder.RESULT))
  with files.owned(study, 'running a study in'):  # which has all: it is only read
    assert archive.restore(path, study, of_toy) == (0, [])


def test_curves_come_along_where_the_study_shows_them(study, tmp_path, capsys):
  path, other, place = tmp_path / 'runs.jsonl', tmp_path / 'other', study / 'rows/a/seed2'
  steps = {'finetune': {'steps': 4, 'flops_per_step': 10, 'folder': 'finetune-1'}}
  result, answers = run_folder.read_result(place), dict(np.load(place / 'predictions.npz'))
  run_folder.write_result(place, result | {'stages': steps}, answers)
  (place / 'finetune-1').mkdir()
  lines = [
    {'step': 2, 'split': 'train', 'loss': 2.0},
    {'step': 2, 'split': 'validation', 'accuracy': 0.25, 'seconds': 3.0},
    {'step': 4, 'split': 'validation', 'accuracy': 0.5},
  ]
  (place / 'finetune-1/metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  archive.store(study, path)
  assert '"operations"' not in path.read_text()
  content = {key: value for key, value in record.read_record(study).items() if key != checksums.KEY}
  files.write_json(study / run_folder.STUDY, content | {'show': 'operations'})
  archive.store(study, path)
  archive.restore(path, other, of_toy)
  (run,) = studies.read_table(other).runs
  flops, scores = study_curves.of_operations(run)
  np.testing.assert_array_equal(flops, [20, 40])
  np.testing.assert_array_equal(scores, [0.25, 0.5])
  assert 'seconds' not in (other / 'rows/a/seed2/finetune-1/metrics.jsonl').read_text()
  assert cli.main(['doctor', f'--workdir={other}']) == 0  # numbers without checkpoints are no damage
  printed = capsys.readouterr().out
  assert '2 of the runs are stored as numbers' in printed
  assert printed.endswith('2 runs, 0 checkpoints, 0 sets: good\n')
  (other / 'rows/a/seed2/predictions.npz').unlink()
  (other / 'rows/a/seed2/finetune-1/checkpoints').mkdir()
  assert cli.main(['doctor', f'--workdir={other}']) == 1
  printed = capsys.readouterr().out
  assert 'predictions.npz is missing' in printed
  assert 'has no config.json' in printed


def test_numbers_of_a_regression_come_back_with_the_groups(study, tmp_path):
  path, other, place = tmp_path / 'runs.jsonl', tmp_path / 'other', study / 'rows/a/seed2'
  rng = np.random.default_rng(0)
  label_N, group_N = rng.normal(80, 10, 10).astype(np.float32), np.repeat([3, 5], 5).astype(np.int32)
  answer_N = label_N + rng.normal(0, 3, 10).astype(np.float32)
  test = {'index': np.arange(20, 30, dtype=np.int32), 'label': label_N, 'group': group_N}
  result = run_folder.read_result(place)
  r2 = 1 - ((answer_N - label_N) ** 2).sum() / ((label_N - label_N.mean()) ** 2).sum()
  metrics = {'validation': {'r2': 0.5}, 'test': {'r2': float(r2), 'examples': 10}}
  run_folder.write_result(
    place, result | {'metric': 'r2', 'metrics': metrics}, test | {'prediction': answer_N}
  )
  shutil.rmtree(study / 'search')
  assert archive.store(study, path) == 1
  # A split by groups has the groups as they were drawn, each in its own order.
  drawn = {key: np.roll(value_N, 5) for key, value_N in test.items()}
  assert archive.restore(path, other, lambda task: drawn) == (1, [])
  (run,) = studies.read_table(other).runs
  for ours, theirs in zip(run.predictions, (test['index'], label_N, answer_N), strict=True):
    np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_array_equal(run.group_N, group_N)
  with pytest.raises(DamagedFile, match='are not those to the test examples of toy'):
    archive.restore(path, tmp_path / 'third', lambda task: test | {'label': label_N[::-1]})


def test_the_folder_of_another_study_stays_as_it_is(study, tmp_path):
  path, other = tmp_path / 'runs.jsonl', tmp_path / 'other'
  archive.store(study, path)
  other.mkdir()
  record.claim(other, _record([2]) | {'study': 'plays'})
  before = [file.name for file in other.rglob('*')]
  with pytest.raises(ConfigError, match='belongs to the study plays, not to toys'):
    archive.restore(path, other, of_toy)
  assert [file.name for file in other.rglob('*')] == before


def test_runs_of_a_set_that_is_not_there_are_left_out(study, tmp_path):
  path = tmp_path / 'runs.jsonl'
  archive.store(study, path)
  assert archive.restore(path, tmp_path / 'other', lambda task: None) == (0, ['toy'])
  assert studies.read_table(tmp_path / 'other').runs == []
  assert archive.restore(path, tmp_path / 'other', of_toy) == (2, [])


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda line: line.update(folder='../../out'), 'is not in the study'),
    (lambda line: line['result']['metrics']['test'].update(accuracy=0.9), 'was edited, by its checksum'),
    (lambda line: line.update(answers='eJwDAAAAAAE='), 'are not those to the test examples of toy'),
  ],
)
def test_what_was_changed_is_refused(study, tmp_path, change, sentence):
  path = tmp_path / 'runs.jsonl'
  archive.store(study, path)
  head, *lines = map(json.loads, path.read_text().splitlines())
  change(lines[0])
  path.write_text('\n'.join(map(json.dumps, [head, *lines])))
  with pytest.raises(DamagedFile, match=sentence):
    archive.restore(path, tmp_path / 'other', of_toy)
  assert not (tmp_path / 'out').exists()
  assert not list(tmp_path.glob('other/**/result.json'))


def test_runs_on_another_version_of_a_set(study, tmp_path):
  path, place = tmp_path / 'runs.jsonl', study / 'rows/a/seed2'
  result, answers = run_folder.read_result(place), dict(np.load(place / 'predictions.npz'))
  prints = {'data': '0123456789', 'splits': 'abc'}
  run_folder.write_result(place, result | {'fingerprints': prints}, answers)
  archive.store(study, path)
  assert archive.on_other_sets(path, lambda task: prints) == []
  (sentence,) = archive.on_other_sets(path, lambda task: prints | {'data': 'fedcba9876'})
  assert 'other data' in sentence
  assert 'fedcba98' in sentence


FILES = sorted((pathlib.Path(__file__).parents[2] / 'benchmarks/results').glob('*_runs.jsonl'))


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_committed_runs_agree_with_their_table(path):
  text = path.read_text(encoding='utf-8')
  assert not re.findall(r'data_dir": ?"[/~]', text)  # no path of a machine
  head, *lines = map(json.loads, text.splitlines())
  runs = {line['folder']: line['result'] for line in lines}
  table = json.loads(path.with_name(path.name.replace('_runs.jsonl', '.json')).read_text(encoding='utf-8'))
  folders = {(cell['row'], cell['column']): cell['folder'] for cell in head['study']['cells']}
  compared = 0
  for cell in table['cells']:
    if cell['metric'] is None:
      continue
    of_seeds = [runs[f'{folders[cell["row"], cell["column"]]}/seed{seed}'] for seed in cell['seeds']]
    scores = [run['metrics']['test'][cell['metric']] for run in of_seeds]
    np.testing.assert_allclose(scores, cell['scores'], atol=5e-7)
    compared += len(scores)
  assert compared
