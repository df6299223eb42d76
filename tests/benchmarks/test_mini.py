"""benchmarks/mini.py: what it makes of the runs of LRA-mini."""

import json
import shutil
import types

import numpy as np
import pytest

from benchmarks import kept_runs, mini, mini_course, mini_minutes, mini_orders, mini_origins
from benchmarks.study_page import write_study
from benchmarks.tables import lra_mini
from docs import pictures
from lra_spt import files
from lra_spt.config import loading
from lra_spt.errors import DataError, MissingFile
from lra_spt.files import checksums
from lra_spt.report.runs import restored, run_folder


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
  not_run = dict.fromkeys(cells[0]) | {'state': 'not run'}
  (one,) = mini_orders.agreement([*cells, cell('s4', 0.7), cell('s5', 0.9, state='2 of 3 seeds'), not_run])
  assert (one['column'], one['regime'], one['tau']) == ('Text', 'scratch', pytest.approx(1 / 3, abs=1e-3))
  assert one['of_seeds'] == [one['tau']] * 2
  assert one['models']['dlr'] == {'mini': 0.6, 'printed': 79.65}
  assert [*one['models']] == ['transformer', 'dlr', 's4']  # once each; of S5 seeds are missing
  assert mini_orders.agreement(cells[:2]) == []
  (one,) = mini_orders.agreement(
    [cell('transformer', 0.1), cell('dlr', 0.2), cell('s4', 0.3), cell('lru', 0.4)]
  )
  assert one['tau'] == 1
  more = cell('s4', 0.55, scores=[0.1, 0.54, 0.56], seeds=[1, 2, 3])
  (one,) = mini_orders.agreement([*cells[:2], more])
  assert len(one['of_seeds']) == 2  # that all have
  (one,) = mini_orders.agreement([cell(model, 0.5) for model in ('transformer', 'dlr', 's4')])
  assert (one['tau'], one['of_seeds']) == (0, [0, 0])  # JSON has no NaN


def test_how_sure_the_agreement_is():
  """Models of which seeds and examples leave no doubt keep their order; those that are alike have any."""
  rng = np.random.default_rng(0)

  def found(*scores):
    cells = [cell(*of) for of in zip(('transformer', 's4', 'dlr'), scores, strict=True)]
    units = {(one['row'], 'Text'): [rng.random(500) < one['score']] * 2 for one in cells}
    return cells, mini_orders.agreement(cells, units)[0]

  _, clear = found(0.2, 0.8, 0.5)
  assert (clear['tau'], clear['low'], clear['high']) == (1, 1, 1)
  cells, alike = found(0.5, 0.5, 0.5)
  assert alike['low'] < 0 < alike['high']
  (unknown,) = mini_orders.agreement(cells, {('s4', 'Text'): np.ones((2, 500))})
  assert (unknown['low'], unknown['high']) == (None, None)


def test_where_runs_come_from_and_what_they_took(tmp_path):
  """A pretraining that two runs share is counted once; machines are told apart with their versions."""
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
  took = {'runs': 2, 'fastest': 120.0, 'median': 125.0, 'slowest': 130.0, 'seconds': 150}
  assert mini_origins.time(tmp_path) == {'toy': took}
  machines = mini_origins.machines(results)
  assert [(one['versions']['jax'], one['runs']) for one in machines] == [('1', 2), ('2', 1)]
  assert [one['precision'] for one in machines] == [None, 'float32']
  sources = [{'source': None, 'verified': None}, {'source': 'files a', 'verified': False}]
  assert mini_origins.data(results) == {'toy': sources}


def test_cells_that_are_not_whole_say_nothing(tmp_path):
  write_study(tmp_path, 2, 300, ('image', 'pathx'))
  name = mini.studies.read_record(tmp_path)['study']
  found = mini.collected(name, tmp_path)
  assert len(found['gains']) == 10
  assert all(
    one['limits'][when]['low'] < one[when] < one['limits'][when]['high']
    for one in found['leads']
    for when in ('before', 'after')
  )
  assert {tuple(cell['machines']) for cell in found['cells']} == {(0,)}
  assert found['machines'][0]['runs'] == sum(len(cell['seeds']) for cell in found['cells'] if cell['scores'])
  (tmp_path / 'runs/s4_masked/image/seed1/result.json').unlink()
  less = mini.collected(name, tmp_path)
  assert len(less['gains']) == 9
  assert ('S4', 'Image') not in {(one['model'], one['column']) for one in less['gains']}
  with pytest.raises(DataError, match='is of the study .*, not mini_labels; give another --study'):
    mini.collected('mini_labels', tmp_path)


def test_gains_over_a_further_way_from_scratch(tmp_path):
  record = write_study(tmp_path, 2, 300, ('image',))
  name = record['study']
  assert mini.collected(name, tmp_path)['further'] == []
  scratch = next(cell for cell in record['cells'] if cell['row'] == 'S4')
  shutil.copytree(tmp_path / scratch['folder'], tmp_path / 'runs/shorter/image')
  shorter = scratch | {'row': 'S4, shorter', 'folder': 'runs/shorter/image'}
  record |= {'rows': [*record['rows'], 'S4, shorter'], 'cells': [*record['cells'], shorter]}
  record = {key: value for key, value in record.items() if key != checksums.KEY}
  files.write_json(tmp_path / 'study.json', checksums.sealed(tmp_path / 'study.json', record))
  found = mini.collected(name, tmp_path)
  (further,) = found['further']
  (gain,) = [one for one in found['gains'] if one['row'] == further['row']]
  assert further['over'] == 'S4, shorter'
  assert (further['estimate'], further['scratch']) == (gain['estimate'], gain['scratch'])


def test_what_further_inputs_are_worth(tmp_path):
  """Two ways of pretraining one model, with the runs of two models."""
  name = write_study(tmp_path, 3, 300, ('image',))['study']
  assert mini.collected(name, tmp_path)['inputs'] == mini.collected(name, tmp_path)['growths'] == []
  path = tmp_path / 'study.json'
  text = path.read_text().replace('Transformer + Masked SPT', f'S4, {mini.ON_PART}')
  record = json.loads(text.replace('S4 + Masked SPT', f'S4, {mini.ON_ALL}'))
  record.pop(checksums.KEY, None)
  files.write_json(path, checksums.sealed(path, record))
  found = mini.collected(name, tmp_path)
  scores = {cell['row']: cell['score'] for cell in found['cells']}
  (one,) = found['inputs']
  difference = scores[f'S4, {mini.ON_ALL}'] - scores[f'S4, {mini.ON_PART}']
  assert (one['model'], one['column'], one['seeds']) == ('S4', 'Image', [0, 1, 2])
  assert one['estimate'] == pytest.approx(difference, abs=1e-6)
  assert one['low'] < difference < one['high']
  assert one['adjusted'] == one['p']
  part = next(cell for cell in record['cells'] if cell['row'].endswith(mini.ON_PART))
  part['seeds'] = [0, 1, 3]
  (tmp_path / part['folder'] / 'seed2').rename(tmp_path / part['folder'] / 'seed3')
  result = json.loads((tmp_path / part['folder'] / 'seed3/result.json').read_text())
  (tmp_path / part['folder'] / 'seed3/result.json').write_text(json.dumps(result | {'seed': 3}))
  files.write_json(path, {key: value for key, value in record.items() if key != checksums.KEY})
  assert mini.collected(name, tmp_path)['inputs'] == []  # other seeds are no pairs


def test_the_course_of_two_cells(tmp_path, monkeypatch):
  """Of a model that fails from scratch on PathX, and its picture."""
  write_study(tmp_path, 2, 300, ('pathx',))
  rows = {'scratch': 'Transformer', 'masked': 'Transformer + Masked SPT'}
  images_NL = np.arange(64, dtype=np.uint8).reshape(4, 16)
  index_N, hidden_NL = np.arange(4, dtype=np.int32), images_NL % 2 == 0
  shown = restored.RestoredInputs(index_N, images_NL, hidden_NL, images_NL + 1, step=5)
  monkeypatch.setattr(mini_course.restore, 'restore', lambda folder, data_dir: shown)
  found = mini_course.course(tmp_path, 'data', rows, 'PathX')
  assert [(one['regime'], one['seed']) for one in found['curves']] == [
    ('scratch', 0),
    ('scratch', 1),
    ('masked', 0),
    ('masked', 1),
  ]
  scratch, masked = found['curves'][0], found['curves'][2]
  assert scratch['pretraining'] == 0 < masked['pretraining'] < masked['step'][0]
  assert masked['step'] == sorted(masked['step'])
  assert len(masked['step']) == len(masked['score']) > 1
  assert scratch['test'] < 0.6 < masked['test']
  assert np.array(found['images']['restored']).shape == (3, 4, 4)
  lines = lra_mini.course(found)
  steps = f'{masked["pretraining"]:,} + {masked["step"][-1] - masked["pretraining"]:,}'
  tests = [f'{100 * one["test"]:.1f} %' for one in (scratch, masked)]
  assert lines[2] == f'| 0 | {tests[0]} | {scratch["step"][-1]:,} | {tests[1]} | {steps} |'
  drawn = pictures.course(found)
  assert len(drawn.axes) == 3 * 3 + 1
  metrics = next(tmp_path.glob('runs/transformer_scratch/pathx/seed1/finetune-*/metrics.jsonl'))
  metrics.unlink()
  with pytest.raises(DataError, match='seed1 has no metrics of its finetuning; give the folder that it was'):
    mini_course.course(tmp_path, 'data', rows, 'PathX')
  with pytest.raises(SystemExit, match='mini_course: The cell .* is not whole; go on with its study'):
    mini_course.main([f'--workdir={tmp_path}', f'--json={tmp_path / "none.json"}'])


class Split:
  """As much of a prepared test set as is asked for."""

  fingerprint, split_fingerprint = 'data', 'splits'

  def __init__(self, labels_N):
    self.labels_N = labels_N

  def __len__(self):
    return len(self.labels_N)

  def gather(self, index_N):
    return {'index': index_N, 'label': self.labels_N[index_N]}

  def groups(self, index_N):
    return None


@pytest.fixture
def run(tmp_path, monkeypatch):
  """run(sets) -> what the command prints where these sets are prepared; its results are in run.results."""
  done, results = tmp_path / 'done', tmp_path / 'results'
  results.mkdir()
  write_study(done, 2, 300, ('image', 'pathx'))
  record = mini.studies.read_record(done)
  for path in done.rglob('result.json'):  # as runs write it, with its digests
    with np.load(path.parent / 'predictions.npz', allow_pickle=False) as stored:
      run_folder.write_result(path.parent, json.loads(path.read_text()), dict(stored))
  kept_runs.keep(done, results / 'synthetic_runs.jsonl')

  def open_split(task, split, data_dir):
    if task not in run.sets:
      raise MissingFile(f'There is no prepared data set of {task}.')
    with np.load(next(done.glob(f'runs/*/{task}/seed0/predictions.npz')), allow_pickle=False) as stored:
      return Split(stored['label'][np.argsort(stored['index'])])

  def run(*sets, argument=''):
    run.sets = sets
    words = [f'--workdir={tmp_path / "runs"}', f'--results={results}', '--study=synthetic']
    mini.main([*words, *([f'--argument={argument}'] if argument else [])])

  rows = {'configs/studies/synthetic.py:models=all': record['rows'], 'configs/studies/synthetic.py': ['S4']}
  monkeypatch.setattr(mini, 'STUDIES', ('synthetic',))
  monkeypatch.setattr(mini.examples, 'open_split', open_split)
  monkeypatch.setattr(mini.study_lib, 'load', lambda spec: types.SimpleNamespace(rows=rows[spec]))
  run.results = results
  return run


def test_runs_are_put_where_their_sets_are(run, capsys):
  kept = run.results / 'synthetic_runs.jsonl'
  before = kept.read_bytes()
  with pytest.raises(SystemExit, match='mini: .* has no finished run of synthetic yet; go on with its study'):
    run()
  run('image', argument='models=all')
  said = capsys.readouterr().out
  assert 'Left out: There is no prepared data set of pathx.' in said
  assert 'Masked self-pretraining' in said
  assert 'Nothing is written to' in said
  assert (
    'The kept runs of image (source not noted) have other data than the set that is prepared here' in said
  )
  assert [path.name for path in run.results.iterdir()] == [kept.name]
  assert kept.read_bytes() == before  # and not without the runs of PathX
  run('image', 'pathx', argument='models=all')
  assert kept.read_bytes().count(b'"answers"') == before.count(b'"answers"') == 40
  found = json.loads((run.results / 'synthetic.json').read_text())
  assert found['command'] == 'lra-spt study configs/studies/synthetic.py:models=all'
  assert len(found['gains']) == 10
  run('image', 'pathx')  # the argument is that of the file
  assert json.loads((run.results / 'synthetic.json').read_text()) == found


def test_rows_of_another_argument_are_not_kept(run):
  kept = run.results / 'synthetic_runs.jsonl'
  before = kept.read_bytes()
  with pytest.raises(SystemExit, match='synthetic.py has no row .*; give the --argument'):
    run('image', 'pathx')
  assert kept.read_bytes() == before


def test_minutes_of_a_whole_run_follow_from_a_shortened_one():
  """2,500 and 1,500 steps of 0.1 s with 5 and 6 validations of 2 s, beside 40 s of everything else."""
  spent = {'steps': 20.0, 'data': 5.0, 'evaluation': 3.0, 'checkpoints': 1.0, 'compiling': 9.0, 'other': 1.0}
  whole = loading.load('configs/mini/listops.py:model=s4,regime=masked')
  times = dict.fromkeys(mini_minutes.STAGES, spent)
  found = mini_minutes.whole_run(40 + 2 * (25 + 4), times, whole)
  assert found['minutes'] == round((40 + 4_000 * 0.1 + (5 + 6 + 2) * 2) / 60, 1)
  assert (found['pretrain_step_milliseconds'], found['finetune_validation_seconds']) == (100.0, 2.0)
