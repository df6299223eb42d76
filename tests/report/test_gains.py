"""Gains of self-pretraining over each way of training from scratch, and along a chart."""

import json
import shutil

import numpy as np
import pytest

from lra_spt import files
from lra_spt.report.pages import report
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import sentences
from lra_spt.report.study.record import read_record


def test_the_causal_form_is_compared_with_itself(study):
  read = study()
  study.change('s4_masked', causal=True, regime='causal')
  study.change('s4d_scratch', causal=True, model='s4', config={'model': {'name': 's4'}})
  (pair,) = [pair for pair in read().findings.pairs if pair.regime == 'causal']
  assert pair.scratch.record['row'] == 'S4D'
  record = read_record(study.folder)
  ours = next(cell for cell in record['cells'] if (cell['row'], cell['column']) == ('S4D', 'Image'))
  ours['config'] = ours['config'].replace('model=s4d', 'model=s4') + ',causal=true'
  files.write_json(study.folder / run_folder.STUDY, record)
  assert [pair.regime for pair in read().findings.pairs].count('causal') == 1
  shutil.rmtree(study.folder / ours['folder'])  # this cell is planned, so no other form replaces it
  assert 'causal' not in {pair.regime for pair in read().findings.pairs}


def test_a_gain_of_a_causal_model_over_the_bidirectional_form_says_so(study):
  read = study()
  study.change('s4_scratch', causal=True)
  assert ('S4', 'Image') not in study.by_pair(read())
  study.change('s4_scratch', causal=False)
  study.change('s4_masked', causal=True, regime='causal')
  table = read()
  (pair,) = [pair for pair in table.findings.pairs if pair.regime == 'causal']
  assert pair.form == 'bidirectional form'
  assert not [gap for gap in table.findings.gaps if gap.leader.regime == 'causal']  # others have one form


@pytest.mark.parametrize('form', ['causal', 'bidirectional'])
def test_every_sentence_on_causal_models_names_the_form_of_those_from_scratch(study, form):
  """Without the form, they would contradict the sentences on masked self-pretraining of these models."""
  read = study()
  for model in ('s4', 's5', 'dlr'):
    study.change(f'{model}_masked', causal=True, regime='causal')
    study.change(f'{model}_scratch', causal=form == 'causal')
  actual = read().findings
  bases = [pair.scratch.row for pair in actual.pairs if pair.regime == 'causal']
  assert sorted(bases) == ['DLR', 'S4', 'S5']
  assert f', over the {form} form' in ' '.join(sentences.sentences(actual))
  page = report.write(read()).read_text()
  assert f'3 models, causal, over the {form} form' in page
  assert f'Image, causal, over the {form} form' in page


def test_training_from_scratch_with_the_steps_of_both_stages_is_compute_tied(study):
  read = study(1)
  assert read().cells['S4', 'Image'].training == 'scratch'
  study.change('s4_scratch', config={'finetune': {'max_steps': 900}})
  study.change('s4_masked', config={'pretrain': {'max_steps': 500}, 'finetune': {'max_steps': 400}})
  table = read()
  assert table.cells['S4', 'Image'].training == 'scratch, compute-tied'
  assert ', same compute from scratch ' in sentences.headline(table.findings)


def test_other_scratch_arms_are_compared_and_count_for_nothing_else(study):
  """The other arm may, for example, train from scratch with the compute of both stages."""
  read = study()
  leads, rankings = read().findings.gaps, read().findings.rankings
  record = read_record(study.folder)
  place = next(
    n for n, cell in enumerate(record['cells']) if (cell['row'], cell['column']) == ('S4', 'Image')
  )
  longer = record['cells'][place] | {'row': 'S4, longer', 'folder': 'runs/longer'}
  shutil.copytree(study.folder / record['cells'][place]['folder'], study.folder / 'runs' / 'longer')
  record['cells'].append(longer)
  files.write_json(study.folder / run_folder.STUDY, record | {'rows': [*record['rows'], 'S4, longer']})
  actual = read().findings
  extra = [pair for pair in actual.pairs if not pair.main]
  assert [pair.scratch.record['row'] for pair in extra] == ['S4, longer']
  assert extra[0].interval.estimate == study.by_pair(read())['S4', 'Image'].interval.estimate
  assert len(actual.gaps) == len(leads)
  assert actual.rankings[0].models == rankings[0].models
  # This pretrained cell has no second scratch cell.
  shutil.rmtree(study.folder / read().cells['S4 + Masked SPT', 'PathX'].record['folder'])
  actual = read().findings
  assert len(actual.pairs) == 10
  adjusted = bootstrap.holm([one.estimate.p for one in actual.pairs], 1)
  assert [one.adjusted for one in actual.pairs] == pytest.approx(adjusted)


def test_gains_over_every_planned_scratch_cell_count_from_the_start(study):
  """One model on two tasks, with two ways of training from scratch, always has four planned gains."""
  read = study()
  record = read_record(study.folder)
  cells = [cell for cell in record['cells'] if cell['row'] in ('S4', 'S4 + Masked SPT')]
  longer = [
    cell | {'row': 'S4, longer', 'folder': cell['folder'].replace('s4_scratch', 'longer')}
    for cell in cells
    if cell['row'] == 'S4'
  ]
  changed = {'cells': [*cells, *longer], 'rows': ['S4', 'S4, longer', 'S4 + Masked SPT']}
  files.write_json(study.folder / run_folder.STUDY, record | changed)
  masked = study.folder / 'runs' / 's4_masked'
  masked.rename(study.folder / 'aside')
  counts = []

  def count():
    actual = read().findings
    counts.append((len(actual.pairs), actual.unrun['pairs']))

  count()
  (study.folder / 'aside').rename(masked)
  count()
  for cell in longer:
    shutil.copytree(
      study.folder / cell['folder'].replace('longer', 's4_scratch'), study.folder / cell['folder']
    )
    count()
  assert counts == [(0, 4), (2, 2), (3, 1), (4, 0)]


def on_a_chart(study, *places):
  """Puts S4's cells of Image on a chart at x = 1 (all labels), and copies of them at each (column, x)."""
  folder, record = study.folder, read_record(study.folder)
  cells = [cell for cell in record['cells'] if cell['row'].startswith('S4') and cell['column'] == 'Image']
  cells = [cell for cell in cells if not cell['row'].startswith('S4D')]
  copies = []
  for column, x in places:
    for cell in cells:
      copies.append(cell | {'column': column, 'x': x, 'folder': f'{cell["folder"]}_{column}'})
      shutil.copytree(folder / cell['folder'], folder / copies[-1]['folder'])
      row, name = copies[-1]['folder'].removeprefix('runs/').split('/')
      study.change(row, name, config={'finetune': {'data_fraction': x}})
  for cell in cells:
    cell['x'] = 1.0
  columns = [*record['columns'], *(column for column, _ in places)]
  record |= {'columns': columns, 'cells': [*record['cells'], *copies]}
  files.write_json(folder / run_folder.STUDY, record)


def test_a_gain_with_fewer_labels_is_compared_with_that_with_all(study):
  read = study(3)
  full = study.by_pair(read())['S4', 'Image']
  on_a_chart(study, ('Image, 10%', 0.1), ('Image, 30%', 0.3))
  for seed in range(3):  # with 10 % of the labels, pretraining changes nothing
    scratch, masked = (
      study.folder / f'runs/{row}/image_Image, 10%/seed{seed}' for row in ('s4_scratch', 's4_masked')
    )
    shutil.copy(scratch / 'predictions.npz', masked)
    metrics = json.loads((scratch / 'result.json').read_text())['metrics']
    result = json.loads((masked / 'result.json').read_text()) | {'metrics': metrics}
    (masked / 'result.json').write_text(json.dumps(result))
  table = read()
  growths = {growth.place: growth for growth in table.findings.growths}
  assert growths.keys() == {'Image, 10%', 'Image, 30%'}
  less, same = growths['Image, 10%'], growths['Image, 30%']
  assert (less.gain, less.end_gain) == (0, pytest.approx(full.interval.estimate))
  assert less.interval.estimate == pytest.approx(-full.interval.estimate)
  assert (same.interval.estimate, same.verdict) == (0, 'not significant')
  assert less.verdict == 'smaller'
  assert less.adjusted == pytest.approx(min(1, 2 * less.estimate.p))
  message = ' '.join(sentences.sentences(table.findings))
  assert '1 smaller' in message
  assert 'S4 on Image, 10%, smaller than on Image by' in message
  html = report.write(table).read_text()
  assert 'Changes of gains along the chart' in html
  assert 'against Image<' in html


def test_a_scratch_cell_that_two_gains_share_cancels(study):
  """If a chart varies the data of pretraining, all gains are over the same runs from scratch."""
  read = study(3)
  on_a_chart(study, ('Image, 10%', 0.1))
  study.change('s4_masked', 'image_Image, 10%', config={'finetune': {'data_fraction': 1.0}})
  record = read_record(study.folder)
  record['cells'] = [
    cell for cell in record['cells'] if not cell['folder'].endswith('s4_scratch/image_Image, 10%')
  ]
  files.write_json(study.folder / run_folder.STUDY, record)
  (growth,) = read().findings.growths
  scratch, end = growth.end.scratch, growth.end.pretrained
  assert growth.here.scratch is scratch
  assert growth.gain == pytest.approx(growth.end_gain)
  seed_variances = [np.var([run.value for run in cell.runs], ddof=1) / 3 for cell in (end, scratch)]
  assert min(seed_variances) > 0
  assert growth.estimate.parts.seeds == pytest.approx(2 * seed_variances[0])


def test_a_gain_is_compared_with_that_of_its_row_at_the_end_of_the_chart(study):
  """If a row has no cell at the end, its gain is compared with the only cell there, but not if there are
  two."""
  read = study()
  on_a_chart(study, ('Image, 10%', 0.1))
  path = study.folder / run_folder.STUDY
  record = json.loads(path.read_text())
  (masked,) = [cell for cell in record['cells'] if cell['folder'].endswith('s4_masked/image_Image, 10%')]
  second = masked | {'row': 'S4 + Masked SPT on all', 'folder': 'runs/s4_all/less'}
  shutil.copytree(study.folder / masked['folder'], study.folder / second['folder'])
  record['rows'].append(second['row'])
  record['cells'].append(second)
  path.write_text(json.dumps(record))
  ends = {growth.here.pretrained.record['row']: growth.end for growth in read().findings.growths}
  assert ends.keys() == {'S4 + Masked SPT', 'S4 + Masked SPT on all'}
  assert {end.pretrained.record['row'] for end in ends.values()} == {'S4 + Masked SPT'}
  full = next(cell for cell in record['cells'] if cell['folder'].endswith('s4_masked/image'))
  record['cells'].append(full | {'row': second['row'], 'folder': 'runs/s4_all/full'})
  shutil.copytree(study.folder / full['folder'], study.folder / 'runs/s4_all/full')
  record['cells'].append(second | {'row': 'S4 + Masked SPT, long', 'folder': 'runs/s4_long/less'})
  record['rows'].append('S4 + Masked SPT, long')
  shutil.copytree(study.folder / second['folder'], study.folder / 'runs/s4_long/less')
  path.write_text(json.dumps(record))
  ends = {growth.here.pretrained.record['row']: growth.end for growth in read().findings.growths}
  assert {row: end.pretrained.record['row'] for row, end in ends.items()} == {
    'S4 + Masked SPT': 'S4 + Masked SPT',
    'S4 + Masked SPT on all': 'S4 + Masked SPT on all',
  }  # the long one has none: at the end there are two cells of other rows
