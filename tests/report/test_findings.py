"""Conclusions of a study: comparable runs are compared, a missing run costs only its comparisons."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from benchmarks.studies import write_study
from lra_spt import files
from lra_spt.report.pages import report
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import sentences
from lra_spt.report.study import table as studies
from lra_spt.report.study.record import claim, read_record
from lra_spt.report.study.text import conclusions
from lra_spt.report.study.text import text as text_of


def test_every_model_is_compared_on_every_task(study):
  actual = study()().findings
  assert len(actual.pairs) == 10
  assert len(actual.gaps) == 2 * 10
  assert actual.rankings[0].models == (5, 5)
  assert actual.rankings[0].places == ('Image', 'PathX')
  assert not actual.apart
  assert {one.place for one in actual.smallest} == set(actual.rankings[0].places)


def test_p_counts_the_comparisons_that_have_not_run(study):
  """Two of ten gains are missing: one model lacks its pretrained cell, another its scratch cell."""
  read = study(4)
  whole = read().findings
  for row in ('S4 + Masked SPT', 'S5'):
    (cell,) = [cell for key, cell in read().cells.items() if key == (row, 'PathX')]
    shutil.rmtree(study.folder / cell.record['folder'])
  part = read().findings
  for kind, count, missing in (('pairs', 8, 2), ('means', 2, 0), ('gaps', 13, 7)):
    actual = getattr(part, kind)
    assert len(actual) == count == len(getattr(whole, kind)) - missing
    p_values = [one.estimate.p for one in actual]
    assert [one.adjusted for one in actual] == pytest.approx(bootstrap.holm(p_values, missing))
  page = report.write(read()).read_text()
  for words in ('all 8 and 2 still to run together', 'all 2 together', 'all 13 and 7 still to run together'):
    assert words in page
  before, after = ({(one.name, one.place): one for one in actual.pairs} for actual in (part, whole))
  assert all(after[key].significant for key, one in before.items() if one.significant)
  assert any(one.significant for one in before.values())


def test_conclusions_may_be_about_one_model(study):
  """Its p values are still corrected for all comparisons of the page."""
  read = study(3)
  table, path = read(), study.folder / run_folder.STUDY
  files.write_json(path, read_record(study.folder) | {'focus': 's5'})
  about = read()
  assert [pair.adjusted for pair in about.main_findings.pairs] == [
    pair.adjusted for pair in table.findings.pairs if pair.name == 'S5'
  ]
  assert len(about.main_findings.differences) == 2 * 2 * 4  # from others, in two columns and two ways
  shown = conclusions(about)
  assert 'raises' in shown[0]
  assert ' S5 on ' in shown[0]
  assert shown[1].startswith('Significant differences between models')
  assert not any('mean gain' in sentence or 'lead' in sentence for sentence in shown)


def test_places_come_in_the_order_of_the_table(tmp_path):
  write_study(tmp_path, 2, 300, ('pathx', 'image'))
  actual = studies.read_table(tmp_path).findings
  assert [one.place for one in actual.smallest] == ['PathX', 'Image']


def test_the_smallest_gain_that_would_be_found_is_at_most_100_points(study, monkeypatch):
  """If seeds differ so much that a test would find no gain at all, the page says 100 points and no more."""
  monkeypatch.setattr(bootstrap, 'smallest_difference', lambda *args, **options: 2.5)
  for one in study()().findings.smallest:
    assert (one.now, one.among, {*one.more.values()}) == (1, 1, {1})


def test_numbers_are_those_of_the_runs(study):
  read = study(3)
  table = read()
  pair = study.by_pair(table)['S4', 'Image']
  scores = {
    row: np.mean([run.value for run in table.cells[row, 'Image'].runs]) for row in ('S4', 'S4 + Masked SPT')
  }
  assert pair.values() == pytest.approx(tuple(scores.values()))
  assert pair.interval.estimate == pytest.approx(scores['S4 + Masked SPT'] - scores['S4'])
  for gap in table.findings.gaps:
    assert gap.before + gap.after >= 0
    assert gap.interval.estimate == pytest.approx(gap.before - gap.after)
    gains = [
      study.by_pair(table)[side.name, side.place].interval.estimate for side in (gap.other, gap.leader)
    ]
    assert gap.interval.estimate == pytest.approx(gains[0] - gains[1])


def test_the_mean_gain_of_a_task_is_that_of_its_models(study):
  read = study(3)
  actual = read().findings
  assert [mean.place for mean in actual.means] == ['Image', 'PathX']
  for mean in actual.means:
    pairs = [pair for pair in actual.pairs if pair.place == mean.place]
    assert {*mean.pairs} == {*pairs}
    assert len(pairs) == 5
    assert mean.interval.estimate == pytest.approx(np.mean([pair.interval.estimate for pair in pairs]))
    assert mean.after - mean.before == pytest.approx(mean.interval.estimate)
    # Seeds are not shared, so the variance of the mean over 5 models is the sum of theirs over 25.
    of_seeds = [pair.estimate.parts.seeds for pair in pairs]
    assert mean.estimate.parts.seeds == pytest.approx(sum(of_seeds) / 25)
    assert mean.interval.low <= mean.interval.estimate <= mean.interval.high
  assert any('mean gain' in text and 'Image +' in text for text in sentences.sentences(actual))
  assert f'{len(pairs)} models' in report.write(read()).read_text()
  for seed, row in ((0, 's4_masked'), (1, 's5_masked'), (2, 'dlr_masked')):
    (study.folder / f'runs/{row}/image/seed{seed}/result.json').unlink()
  assert [mean.place for mean in read().findings.means] == ['PathX']  # on Image, no seed is common to all


def test_other_sizes_and_parts_of_the_data_are_other_models(study):
  read = study()
  study.change('s4_masked', config={'model': {'name': 's4', 'width': 512}})
  study.change('dlr_masked', config={'model': {'name': 'dlr'}, 'finetune': {'data_fraction': 0.1}})
  assert {name for name, place in study.by_pair(read()) if place == 'Image'} == {'Transformer', 'S4D', 'S5'}
  study.change('s4_scratch', config={'model': {'name': 's4', 'width': 512}})
  assert ('S4', 'Image') in study.by_pair(read())


def test_settings_that_a_search_chose_are_no_other_model(study):
  read = study()
  slow, fast = ({'name': 's4', 'mixer': {'dt_min': step, 'name': 's4'}} for step in (0.001, 0.01))
  study.change('s4_scratch', config={'model': slow})
  study.change('s4_masked', config={'model': fast})
  assert ('S4', 'Image') not in study.by_pair(read())
  record = read_record(study.folder)
  tried = [
    {'values': f'model.mixer.dt_min={step}, model.dropout=0.1', 'score': 0.5} for step in (0.001, 0.01)
  ]
  for cell in record['cells']:
    cell['search'] = [{'tried': tried, 'won': tried[0]['values']}]
  claim(study.folder, record)
  assert ('S4', 'Image') in study.by_pair(read())


def test_two_ways_of_pretraining_one_model_have_names_of_their_own(study):
  read = study()
  before = study.by_pair(read())
  study.change('s4d_masked', model='s4', config={'model': {'name': 's4'}})
  pairs = study.by_pair(read())
  names = {name for name, place in pairs if place == 'Image'}
  assert names == {'Transformer', 'S4 + Masked SPT', 'S4D + Masked SPT', 'DLR', 'S5'}
  ours, same = pairs['S4 + Masked SPT', 'Image'], before['S4', 'Image']
  assert ours.values() == same.values()


def test_cells_of_one_row_in_several_columns_keep_the_name_of_the_row(study):
  """Table 8 has this form: pretrained cells are in the row of the scratch cell, in other columns."""
  read = study()
  study.change('s4d_masked', model='s4', config={'model': {'name': 's4'}})
  path = study.folder / run_folder.STUDY
  record = json.loads(path.read_text())
  for cell in record['cells']:
    if cell['folder'].endswith(('s4_masked/image', 's4d_masked/image')):
      cell['column'] = 'Image' + (', half' if 's4d' in cell['folder'] else ', all')
      cell['row'] = 'S4'
  path.write_text(json.dumps(record))
  assert {('S4', 'Image, half'), ('S4', 'Image, all')} <= study.by_pair(read()).keys()


def test_a_sentence_does_not_repeat_a_column_that_is_the_regime(study):
  """The example of docs/studies.md has this form, with models as rows."""
  read = study()
  path = study.folder / run_folder.STUDY
  record = json.loads(path.read_text())
  record['cells'] = [
    cell for cell in record['cells'] if cell['folder'].endswith(('s4_scratch/image', 's4_masked/image'))
  ]
  for cell in record['cells']:
    cell['row'], cell['column'] = 'S4', 'masked' if 'masked' in cell['folder'] else 'scratch'
  path.write_text(json.dumps(record))
  actual = read().findings
  assert study.by_pair(read()).keys() == {('S4', 'Image')}
  (gain, *_) = sentences.sentences(actual)
  assert ' S4 on Image, ' in gain


def test_groups_and_not_examples_are_tested_against_chance(study):
  """S4 on Image beats chance with 300 examples, but not with 5 groups that are right or wrong together."""
  read = study()
  (cell,) = [cell for cell in read().cells.values() if cell.record['folder'].endswith('s4_scratch/image')]
  before = read().findings.successes
  assert cell not in [one.cell for one in before]
  for run in cell.runs:
    with np.load(run.path / 'predictions.npz', allow_pickle=False) as stored:
      arrays = dict(stored)
    right_N = arrays['prediction'] == arrays['label']
    order_N = np.argsort(np.argsort(~right_N, kind='stable'))
    np.savez(run.path / 'predictions.npz', **arrays | {'group': order_N * 5 // len(right_N)})
  (less,) = [one for one in read().findings.successes if one.cell.row == cell.row and one.place == 'Image']
  assert less.beating == 0


def test_one_seed_speaks_of_runs(study):
  table = study(1)()
  assert sentences.ONE_SEED in sentences.sentences(table.findings)
  assert all(pair.single for pair in table.findings.pairs)
  assert all(not one.more for one in table.findings.smallest)


def test_several_seeds_speak_of_training(study):
  table = study(5, examples=500)()
  actual = table.findings
  gap = next(
    gap
    for gap in actual.gaps
    if (gap.leader.name, gap.other.name) == ('S4', 'Transformer') and gap.significant
  )
  (sentence,) = sentences.sentences(
    dataclasses.replace(actual, pairs=(), means=(), gaps=(gap,), differences=(), smallest=(), successes=())
  )
  for words in (
    gap.place,
    'S4 over Transformer',
    f'smaller after masked self-pretraining by {sentences.size(gap.score, gap.interval.estimate)}',
  ):
    assert words in sentence
  assert sentences.ONE_SEED not in ' '.join(sentences.sentences(actual))


def test_page_and_text_say_the_same(study):
  table = study()()
  html, text = report.write(table).read_text(), text_of(table)
  for words in ('Leads of one model over another', 'p after Holm', 'With 10 seeds', 'Kendall'):
    assert words in html
  for sentence in sentences.sentences(table.findings, table.cells.values()):
    assert sentence.replace(' %', '\u00a0%') in html
    assert sentence in ' '.join(text.split())


def test_without_pairs_there_is_nothing_to_compare(study):
  read = study()
  for folder in (study.folder / 'runs').glob('*_masked/*/seed*'):
    (folder / 'result.json').unlink()
  table = read()
  none_yet = 'no pair of runs with and without self-pretraining can be compared yet'
  assert none_yet in sentences.sentences(table.findings, table.cells.values())[0]
  report.write(table)
  for path in (study.folder / 'runs').rglob('result.json'):
    path.unlink()
  empty = read()
  assert none_yet not in report.write(empty).read_text()
