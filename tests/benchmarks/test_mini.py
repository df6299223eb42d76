"""`python -m benchmarks mini` and `mini_course`, on synthetic runs of a study."""

import json
import types

import numpy as np
import pytest

from benchmarks import mini, provenance, trained
from benchmarks.studies import write_study
from lra_spt.errors import DataError, MissingFile
from lra_spt.report.runs import restored, run_folder
from lra_spt.report.study import archive
from lra_spt.report.study.record import read_record


def cell(model, score, **facts):
  of = {
    'state': '',
    'causal': False,
    'regime': 'scratch',
    'task': 'text_mini',
    'column': 'Text',
    'seeds': [2, 3],
  }
  return of | {'row': model, 'model': model, 'score': score, 'scores': [score - 0.01, score + 0.01]} | facts


def test_agreement_with_the_printed_order():
  """Printed, from scratch on Text: Transformer 64.27, DLR 79.65, S4 86.82."""
  cells = [cell('transformer', 0.5), cell('dlr', 0.6), cell('s4', 0.55)]
  (row,) = mini.agreement([*cells, cell('s5', 0.9, state='2 of 3 seeds')])
  assert (row['column'], row['regime'], row['tau']) == ('Text', 'scratch', pytest.approx(1 / 3, abs=1e-3))
  assert row['of_seeds'] == [row['tau']] * 2
  assert row['models']['dlr'] == {'mini': 0.6, 'printed': 79.65}
  assert (row['low'], row['high']) == (None, None)  # no answers
  assert mini.agreement(cells[:2]) == []
  (tied,) = mini.agreement([cell(model, 0.5) for model in ('transformer', 'dlr', 's4')])
  assert (tied['tau'], tied['of_seeds']) == (0, [0, 0])  # JSON has no NaN


def test_limits_of_the_agreement():
  rng = np.random.default_rng(0)

  def agreement(*scores):
    cells = [cell(*of) for of in zip(('transformer', 's4', 'dlr'), scores, strict=True)]
    units = {(one['row'], 'Text'): [rng.random(500) < one['score']] * 2 for one in cells}
    return mini.agreement(cells, units)[0]

  clear, alike = agreement(0.2, 0.8, 0.5), agreement(0.5, 0.5, 0.5)
  assert (clear['tau'], clear['low'], clear['high']) == (1, 1, 1)
  assert alike['low'] < 0 < alike['high']


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
  content = mini.collected(name, tmp_path)
  assert len(content['gains']) == 10
  for lead in content['leads']:
    for when in ('before', 'after'):
      assert lead['limits'][when]['low'] < lead[when] < lead['limits'][when]['high']
  (tmp_path / 'runs/s4_masked/image/seed1/result.json').unlink()
  gains = mini.collected(name, tmp_path)['gains']
  assert ('S4', 'Image') not in {(gain['model'], gain['column']) for gain in gains}
  assert len(gains) == 9
  with pytest.raises(DataError, match='is of the study .*, not mini_labels'):
    mini.collected('mini_labels', tmp_path)


def test_gains_of_further_inputs(tmp_path):
  """Two ways of pretraining one model, with the runs of two models."""
  name = write_study(tmp_path, 3, 300, ('image',))['study']
  assert mini.collected(name, tmp_path)['inputs'] == []
  path = tmp_path / 'study.json'
  text = path.read_text().replace('Transformer + Masked SPT', f'S4, {mini.ON_PART}')
  path.write_text(text.replace('S4 + Masked SPT', f'S4, {mini.ON_ALL}'))
  content = mini.collected(name, tmp_path)
  scores = {cell['row']: cell['score'] for cell in content['cells']}
  (gain,) = content['inputs']
  difference = scores[f'S4, {mini.ON_ALL}'] - scores[f'S4, {mini.ON_PART}']
  assert (gain['model'], gain['column'], gain['seeds']) == ('S4', 'Image', [0, 1, 2])
  assert gain['estimate'] == pytest.approx(difference, abs=1e-6)
  assert gain['low'] < difference < gain['high']


def test_curves_of_two_cells(tmp_path, monkeypatch):
  write_study(tmp_path, 2, 300, ('pathx',))
  rows = {'scratch': 'Transformer', 'masked': 'Transformer + Masked SPT'}
  images_NL = np.arange(64, dtype=np.uint8).reshape(4, 16)
  index_N, hidden_NL = np.arange(4, dtype=np.int32), images_NL % 2 == 0
  images = restored.RestoredInputs(index_N, images_NL, hidden_NL, images_NL + 1, step=5)
  monkeypatch.setattr(trained.demo, 'restore', lambda folder, data_dir: images)
  content = trained.course(tmp_path, 'data', rows, 'PathX')
  scratch, _, masked, _ = content['curves']
  assert scratch['pretraining'] == 0 < masked['pretraining'] < masked['step'][0]
  assert len(masked['step']) == len(masked['score']) > 1
  assert np.array(content['images']['restored']).shape == (3, 4, 4)
  next(tmp_path.glob('runs/transformer_scratch/pathx/seed1/finetune-*/metrics.jsonl')).unlink()
  with pytest.raises(DataError, match='seed1 has no metrics of its finetuning'):
    trained.course(tmp_path, 'data', rows, 'PathX')


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
  rows = write_study(done, 2, 300, ('image', 'pathx'))['rows']
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

  def run(**argument):
    words = [f'--workdir={tmp_path / "runs"}', f'--results={results}', '--study=synthetic']
    mini.run_mini([*words, *(f'--{key}={value}' for key, value in argument.items())])
    return capsys.readouterr().out

  specs = {'configs/studies/synthetic.py:models=all': rows, 'configs/studies/synthetic.py': ['S4']}
  monkeypatch.setattr(mini, 'STUDIES', ('synthetic',))
  monkeypatch.setattr(mini.examples, 'open_split', open_split)
  monkeypatch.setattr(mini.study_lib, 'load', lambda spec: types.SimpleNamespace(rows=specs[spec]))
  printed = run(argument='models=all')
  assert 'Left out: There is no prepared data set of pathx.' in printed
  assert 'Nothing is written to' in printed
  assert [path.name for path in results.iterdir()] == [file.name]
  assert file.read_bytes() == before  # the runs of PathX are not lost
  sets.append('pathx')
  with pytest.raises(SystemExit, match='synthetic.py has no row .*; give the --argument'):
    run()
  assert file.read_bytes() == before
  run(argument='models=all')
  assert file.read_bytes().count(b'"answers"') == before.count(b'"answers"') == 40
  content = json.loads((results / 'synthetic.json').read_text())
  assert content['command'] == 'lra-spt study configs/studies/synthetic.py:models=all'
  assert len(content['gains']) == 10
  run()  # with the argument of the file
  assert json.loads((results / 'synthetic.json').read_text()) == content
