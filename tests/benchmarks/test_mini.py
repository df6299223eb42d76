"""`python -m benchmarks mini`, on synthetic runs of a study."""

import json

import numpy as np
import pytest

from benchmarks import mini, provenance
from benchmarks.studies import write_study
from lra_spt.errors import DataError, MissingFile
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive
from lra_spt.report.study.record import read_record


def test_origins_of_runs(tmp_path):
  """A pretraining that two runs share counts once; machines differ by versions too."""
  pretrain = {'folder': 'pretrain-1', 'seconds': 100.0}
  gpu = {'hardware': {'platform': 'gpu'}, 'versions': {'jax': '2'}, 'runtime': {'precision': 'float32'}}
  cpu = {'hardware': {'platform': 'cpu'}, 'versions': {'jax': '1'}}
  results = [
    cpu | {'task': 'toy', 'stages': {'pretrain': pretrain, 'finetune': {'folder': 'f-1', 'seconds': 20.0}}},
    gpu | {'task': 'toy', 'stages': {'pretrain': pretrain, 'finetune': {'folder': 'f-2', 'seconds': 30.0}}},
    cpu | {'task': 'toy', 'stages': {}, 'data': {'source': 'files a', 'verified': False}},
  ]
  for number, result in enumerate(results):
    (tmp_path / f'seed{number}').mkdir()
    (tmp_path / f'seed{number}' / run_folder.RESULT).write_text(json.dumps(result))
  seconds = {'runs': 2, 'fastest': 120.0, 'median': 125.0, 'slowest': 130.0, 'seconds': 150}
  assert provenance.time(tmp_path) == {'toy': seconds}
  machines = provenance.machines(results)
  assert [(one['versions']['jax'], one['runs']) for one in machines] == [('1', 2), ('2', 1)]
  sources = [{'source': None, 'verified': None}, {'source': 'files a', 'verified': False}]
  assert provenance.data(results) == {'toy': sources}


def test_a_cell_without_a_seed_has_no_gain(tmp_path):
  write_study(tmp_path, 2, 300, ('image', 'pathx'))
  name = read_record(tmp_path)['study']
  assert len(mini.collected(name, tmp_path)['gains']) == 10
  (tmp_path / 'runs/s4_masked/image/seed1/result.json').unlink()
  gains = mini.collected(name, tmp_path)['gains']
  assert ('S4', 'Image') not in {(gain['model'], gain['column']) for gain in gains}
  assert len(gains) == 9
  with pytest.raises(DataError, match='is of the study .*, not mini_labels'):
    mini.collected('mini_labels', tmp_path)


class Split:
  """The part of a prepared test set that the command reads."""

  fingerprint, split_fingerprint = 'data', 'splits'

  def __init__(self, labels_N):
    self.labels_N = labels_N

  def __len__(self):
    return len(self.labels_N)

  def gather(self, index_N):
    return {'index': index_N, 'label': self.labels_N[index_N]}

  def groups(self, index_N):
    return None


def test_runs_are_restored_where_their_sets_are(tmp_path, monkeypatch, capsys):
  done, results = tmp_path / 'done', tmp_path / 'results'
  results.mkdir()
  write_study(done, 2, 300, ('image', 'pathx'))
  for path in done.rglob('result.json'):  # written as runs do, with checksums
    with np.load(path.parent / 'predictions.npz', allow_pickle=False) as stored:
      run_folder.write_result(path.parent, json.loads(path.read_text()), dict(stored))
  file = results / 'synthetic_runs.jsonl'
  archive.store(done, file)
  before, sets = file.read_bytes(), ['image']

  def open_split(task, split, data_dir):
    if task not in sets:
      raise MissingFile(f'There is no prepared data set of {task}.')
    with np.load(next(done.glob(f'runs/*/{task}/seed0/predictions.npz')), allow_pickle=False) as stored:
      return Split(stored['label'][np.argsort(stored['index'])])

  def run():
    mini.run_mini([f'--workdir={tmp_path / "runs"}', f'--results={results}', '--study=synthetic'])
    return capsys.readouterr().out

  monkeypatch.setattr(mini, 'FILES', {'synthetic': 'synthetic.py:part=all'})
  monkeypatch.setattr(mini.examples, 'open_split', open_split)
  printed = run()
  assert 'Left out: There is no prepared data set of pathx.' in printed
  assert 'Nothing is written to' in printed
  assert [path.name for path in results.iterdir()] == [file.name]
  assert file.read_bytes() == before  # the runs of PathX are not lost
  sets.append('pathx')
  run()
  assert file.read_bytes().count(b'"answers"') == before.count(b'"answers"') == 40
  content = json.loads((results / 'synthetic.json').read_text())
  assert content['command'] == 'lra-spt study synthetic.py:part=all'
  assert len(content['gains']) == 10
  run()
  assert json.loads((results / 'synthetic.json').read_text()) == content
