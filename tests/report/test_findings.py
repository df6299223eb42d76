"""Conclusions of a study: comparable runs are compared, a missing run costs only its comparisons."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from benchmarks.studies import write_study
from lra_spt import errors, files
from lra_spt.cli import main as cli
from lra_spt.report.pages import report
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import notes, sentences
from lra_spt.report.study import table as studies
from lra_spt.report.study.record import claim, read_record
from lra_spt.report.study.text import conclusions
from lra_spt.report.study.text import text as text_of


@pytest.fixture
def study(tmp_path):
  """study(seeds) -> a function that reads the table of 5 models on 2 tasks, from scratch and masked."""

  def written(seeds=2, examples=300):
    write_study(tmp_path, seeds, examples, ('image', 'pathx'))
    return lambda: studies.read_table(tmp_path)

  written.folder = tmp_path
  return written


def change(folder, row, column='image', **facts):
  """Alters result.json of all runs of a cell; a dict is merged."""
  for path in (folder / 'runs' / row / column).glob('seed*/result.json'):
    result = json.loads(path.read_text())
    for key, value in facts.items():
      result[key] = {**result.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(result))


def told(table):
  return {(pair.name, pair.place): pair for pair in table.findings.pairs}


def test_every_model_is_compared_on_every_task(study):
  found = study()().findings
  assert len(found.pairs) == 10
  assert len(found.gaps) == 2 * 10
  assert found.rankings[0].models == (5, 5)
  assert found.rankings[0].places == ('Image', 'PathX')
  assert not found.apart
  assert {one.place for one in found.smallest} == set(found.rankings[0].places)


def test_p_counts_the_comparisons_that_have_not_run(study):
  """Two of ten gains are missing: one model lacks its pretrained cell, another its scratch cell."""
  read = study(4)
  whole = read().findings
  for row in ('S4 + Masked SPT', 'S5'):
    (cell,) = [cell for key, cell in read().cells.items() if key == (row, 'PathX')]
    shutil.rmtree(study.folder / cell.record['folder'])
  part = read().findings
  for kind, count, missing in (('pairs', 8, 2), ('means', 2, 0), ('gaps', 13, 7)):
    found = getattr(part, kind)
    assert len(found) == count == len(getattr(whole, kind)) - missing
    p_values = [one.estimate.p for one in found]
    assert [one.adjusted for one in found] == pytest.approx(bootstrap.holm(p_values, missing))
  page = report.write(read()).read_text()
  for words in ('all 8 and 2 still to run together', 'all 2 together', 'all 13 and 7 still to run together'):
    assert words in page
  before, after = ({(one.name, one.place): one for one in found.pairs} for found in (part, whole))
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
  found = studies.read_table(tmp_path).findings
  assert [one.place for one in found.smallest] == ['PathX', 'Image']


def test_the_smallest_gain_that_would_be_found_is_at_most_100_points(study, monkeypatch):
  """If seeds differ so much that a test would find no gain at all, the page says 100 points and no more."""
  monkeypatch.setattr(bootstrap, 'smallest_difference', lambda *args, **options: 2.5)
  for one in study()().findings.smallest:
    assert (one.now, one.among, {*one.more.values()}) == (1, 1, {1})


def test_numbers_are_those_of_the_runs(study):
  read = study(3)
  table = read()
  pair = told(table)['S4', 'Image']
  scores = {
    row: np.mean([run.value for run in table.cells[row, 'Image'].runs]) for row in ('S4', 'S4 + Masked SPT')
  }
  assert pair.values() == pytest.approx(tuple(scores.values()))
  assert pair.interval.estimate == pytest.approx(scores['S4 + Masked SPT'] - scores['S4'])
  for gap in table.findings.gaps:
    assert gap.before + gap.after >= 0
    assert gap.interval.estimate == pytest.approx(gap.before - gap.after)
    gains = [told(table)[side.name, side.place].interval.estimate for side in (gap.other, gap.leader)]
    assert gap.interval.estimate == pytest.approx(gains[0] - gains[1])


def test_the_mean_gain_of_a_task_is_that_of_its_models(study):
  read = study(3)
  found = read().findings
  assert [mean.place for mean in found.means] == ['Image', 'PathX']
  for mean in found.means:
    pairs = [pair for pair in found.pairs if pair.place == mean.place]
    assert {*mean.pairs} == {*pairs}
    assert len(pairs) == 5
    assert mean.interval.estimate == pytest.approx(np.mean([pair.interval.estimate for pair in pairs]))
    assert mean.after - mean.before == pytest.approx(mean.interval.estimate)
    # Seeds are not shared, so the variance of the mean over 5 models is the sum of theirs over 25.
    of_seeds = [pair.estimate.parts.seeds for pair in pairs]
    assert mean.estimate.parts.seeds == pytest.approx(sum(of_seeds) / 25)
    assert mean.interval.low <= mean.interval.estimate <= mean.interval.high
  assert any('mean gain' in text and 'Image +' in text for text in sentences.sentences(found))
  assert f'{len(pairs)} models' in report.write(read()).read_text()
  for seed, row in ((0, 's4_masked'), (1, 's5_masked'), (2, 'dlr_masked')):
    (study.folder / f'runs/{row}/image/seed{seed}/result.json').unlink()
  assert [mean.place for mean in read().findings.means] == ['PathX']  # on Image, no seed is common to all


def test_other_sizes_and_parts_of_the_data_are_other_models(study):
  read = study()
  change(study.folder, 's4_masked', config={'model': {'name': 's4', 'width': 512}})
  change(study.folder, 'dlr_masked', config={'model': {'name': 'dlr'}, 'finetune': {'data_fraction': 0.1}})
  assert {name for name, place in told(read()) if place == 'Image'} == {'Transformer', 'S4D', 'S5'}
  change(study.folder, 's4_scratch', config={'model': {'name': 's4', 'width': 512}})
  assert ('S4', 'Image') in told(read())


def test_settings_that_a_search_chose_are_no_other_model(study):
  read = study()
  slow, fast = ({'name': 's4', 'mixer': {'dt_min': step, 'name': 's4'}} for step in (0.001, 0.01))
  change(study.folder, 's4_scratch', config={'model': slow})
  change(study.folder, 's4_masked', config={'model': fast})
  assert ('S4', 'Image') not in told(read())
  record = read_record(study.folder)
  tried = [
    {'values': f'model.mixer.dt_min={step}, model.dropout=0.1', 'score': 0.5} for step in (0.001, 0.01)
  ]
  for cell in record['cells']:
    cell['search'] = [{'tried': tried, 'won': tried[0]['values']}]
  claim(study.folder, record)
  assert ('S4', 'Image') in told(read())


def test_the_causal_form_is_compared_with_itself(study):
  read = study()
  change(study.folder, 's4_masked', causal=True, regime='causal')
  change(study.folder, 's4d_scratch', causal=True, model='s4', config={'model': {'name': 's4'}})
  (pair,) = [pair for pair in read().findings.pairs if pair.regime == 'causal']
  assert pair.scratch.record['row'] == 'S4D'
  record = read_record(study.folder)
  own = next(cell for cell in record['cells'] if (cell['row'], cell['column']) == ('S4D', 'Image'))
  own['config'] = own['config'].replace('model=s4d', 'model=s4') + ',causal=true'
  files.write_json(study.folder / run_folder.STUDY, record)
  assert [pair.regime for pair in read().findings.pairs].count('causal') == 1
  shutil.rmtree(study.folder / own['folder'])  # this cell is planned, so no other form replaces it
  assert 'causal' not in {pair.regime for pair in read().findings.pairs}


def test_two_ways_of_pretraining_one_model_have_names_of_their_own(study):
  read = study()
  before = told(read())
  change(study.folder, 's4d_masked', model='s4', config={'model': {'name': 's4'}})
  pairs = told(read())
  names = {name for name, place in pairs if place == 'Image'}
  assert names == {'Transformer', 'S4 + Masked SPT', 'S4D + Masked SPT', 'DLR', 'S5'}
  ours, same = pairs['S4 + Masked SPT', 'Image'], before['S4', 'Image']
  assert ours.values() == same.values()


def test_cells_of_one_row_in_several_columns_keep_the_name_of_the_row(study):
  """Table 8 has this form: pretrained cells are in the row of the scratch cell, in other columns."""
  read = study()
  change(study.folder, 's4d_masked', model='s4', config={'model': {'name': 's4'}})
  path = study.folder / run_folder.STUDY
  record = json.loads(path.read_text())
  for cell in record['cells']:
    if cell['folder'].endswith(('s4_masked/image', 's4d_masked/image')):
      cell['column'] = 'Image' + (', half' if 's4d' in cell['folder'] else ', all')
      cell['row'] = 'S4'
  path.write_text(json.dumps(record))
  assert {('S4', 'Image, half'), ('S4', 'Image, all')} <= told(read()).keys()


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
  found = read().findings
  assert told(read()).keys() == {('S4', 'Image')}
  (gain, *_) = sentences.sentences(found)
  assert ' S4 on Image, ' in gain


def test_what_is_missing_costs_its_own_comparison_only(study):
  read = study()
  whole = told(read())
  (study.folder / 'runs/s4_masked/image/seed0/predictions.npz').write_bytes(b'no archive')
  (study.folder / 'runs/dlr_scratch/image/seed1/result.json').unlink()
  for seed in (0, 1):
    (study.folder / f'runs/s5_masked/image/seed{seed}/predictions.npz').unlink()
  table = read()
  left = told(table)
  assert {('S4', 'Image'), ('DLR', 'Image'), ('S5', 'Image')}.isdisjoint(left)
  assert table.findings.apart == (
    'S5 + Masked SPT (Image) and S5 (Image) are not compared: predictions.npz is missing.',
    '2 pairs of cells share one seed, others several: those with one seed are not compared.',
  )
  for key, pair in left.items():
    ours, before = pair.interval, whole[key].interval
    assert (ours.low, ours.high) == pytest.approx((before.low, before.high), abs=1e-6)
  assert all(sentence in ' '.join(text_of(table).split()) for sentence in table.findings.apart)
  report.write(table)


def test_seeds_that_only_some_models_have_in_common(study):
  read = study(4)
  for row, seeds in (('s4', (0, 1)), ('dlr', (2, 3))):
    for seed in seeds:
      (study.folder / f'runs/{row}_masked/image/seed{seed}/result.json').unlink()
  table = read()
  left = told(table)
  assert (left['S4', 'Image'].seeds, left['DLR', 'Image'].seeds) == ((2, 3), (0, 1))
  assert {('S4', 'DLR'), ('DLR', 'S4')}.isdisjoint(
    (gap.leader.name, gap.other.name) for gap in table.findings.gaps if gap.leader.place == 'Image'
  )


def test_a_gain_of_a_causal_model_over_the_bidirectional_form_says_so(study):
  read = study()
  change(study.folder, 's4_scratch', causal=True)
  assert ('S4', 'Image') not in told(read())
  change(study.folder, 's4_scratch', causal=False)
  change(study.folder, 's4_masked', causal=True, regime='causal')
  table = read()
  (pair,) = [pair for pair in table.findings.pairs if pair.regime == 'causal']
  assert pair.form == 'bidirectional form'
  assert not [gap for gap in table.findings.gaps if gap.leader.regime == 'causal']  # others have one form


@pytest.mark.parametrize('form', ['causal', 'bidirectional'])
def test_every_sentence_on_causal_models_names_the_form_of_those_from_scratch(study, form):
  """Without the form, they would contradict the sentences on masked self-pretraining of these models."""
  read = study()
  for model in ('s4', 's5', 'dlr'):
    change(study.folder, f'{model}_masked', causal=True, regime='causal')
    change(study.folder, f'{model}_scratch', causal=form == 'causal')
  found = read().findings
  bases = [pair.scratch.row for pair in found.pairs if pair.regime == 'causal']
  assert sorted(bases) == ['DLR', 'S4', 'S5']
  assert f', over the {form} form' in ' '.join(sentences.sentences(found))
  page = report.write(read()).read_text()
  assert f'3 models, causal, over the {form} form' in page
  assert f'Image, causal, over the {form} form' in page


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


def test_a_seed_that_diverged_to_non_finite_numbers_is_not_a_missing_one(study):
  read = study(3)
  place = study.folder / 'runs/s4_scratch/image/seed1'
  (place / 'result.json').unlink()
  run_folder.write_failure(place, errors.ConfigError('an accident'))
  assert told(read())['S4', 'Image'].seeds == (0, 2)
  run_folder.write_failure(place, errors.NonFiniteError('The loss is not finite.'))
  table = read()
  assert ('S4', 'Image') not in told(table)
  assert {('S4', 'PathX'), ('DLR', 'Image')} <= told(table).keys()
  assert table.findings.apart == (
    'S4 + Masked SPT (Image) and S4 (Image) are not compared: seed 1 of S4 (Image) diverged to non-finite '
    'numbers, and a mean over the others would only include seeds that trained well.',
  )
  assert table.findings.unrun['pairs'] == 1  # it still counts as planned
  (rate,) = [one for one in table.findings.successes if one.cell.diverged]
  assert (rate.beating, rate.total) == (2, 3)
  assert '2 of 3 for S4 on Image' in ' '.join(sentences.sentences(table.findings))
  assert '2 of 3' in report.write(table).read_text()
  for seed in (0, 2):
    place = study.folder / f'runs/s4_scratch/image/seed{seed}'
    (place / 'result.json').unlink()
    run_folder.write_failure(place, errors.NonFiniteError('The loss is not finite.'))
  found = read().findings
  assert found.unrun['pairs'] == 1
  assert found.apart == ('S4 (Image) is not compared: its seeds diverged to non-finite numbers.',)


def test_a_scratch_cell_of_another_column_does_not_replace_the_planned_one(study):
  """The planned scratch cell of the same column has not run yet, or has diverged."""
  read = study()
  place = study.folder / 'runs/s4_scratch'
  shutil.rmtree(place / 'image')
  shutil.copytree(place / 'pathx', place / 'image')
  record = read_record(study.folder)
  kept = [
    cell
    for cell in record['cells']
    if (cell['row'], cell['column']) in {('S4', 'Image'), ('S4', 'PathX'), ('S4 + Masked SPT', 'PathX')}
  ]
  for cell in kept:
    cell['config'] = cell['config'].replace('image', 'pathx')
  files.write_json(study.folder / run_folder.STUDY, record | {'cells': kept})
  (pair,) = read().findings.pairs
  assert pair.scratch.record['column'] == 'PathX'
  for path in (place / 'pathx').glob('seed*'):
    (path / 'result.json').unlink()
  assert not read().findings.pairs
  assert read().findings.unrun['pairs'] == 1
  for path in (place / 'pathx').glob('seed*'):
    run_folder.write_failure(path, errors.NonFiniteError('The loss is not finite.'))
  assert not read().findings.pairs
  files.write_json(study.folder / run_folder.STUDY, record | {'cells': [kept[0], kept[2]]})
  (pair,) = read().findings.pairs
  assert pair.scratch.record['column'] == 'Image'


def test_averages_of_which_seeds_are_missing_are_named(study, monkeypatch):
  monkeypatch.setattr(studies, 'AVERAGES', (('mean of 2', ('image', 'pathx'), False),))
  read = study()
  path = study.folder / 'study.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'averages': True}))
  assert not [text for text in notes.cautions(read()) if text.startswith('Averages')]
  (study.folder / 'runs/s4_scratch/image/seed1/result.json').unlink()
  table = read()
  assert table.averages('S4')[0][1] is not None
  sentence = 'Averages of S4 include cells with missing seeds.'
  assert sentence in notes.cautions(table)
  assert sentence in report.write(table).read_text()


def test_runs_on_several_versions_of_a_set_are_named(study):
  read = study()
  path = study.folder / 'runs/s4_scratch/image/seed1/result.json'
  result = json.loads(path.read_text())
  path.write_text(json.dumps(result | {'fingerprints': {'data': 'another'}}))
  table = read()
  sentence = 'S4, Image: These runs used several versions of the set'
  assert [text for text in notes.cautions(table) if text.startswith(sentence)]
  assert sentence in text_of(table)
  assert sentence in report.write(table).read_text()


def test_models_on_another_version_of_a_set_have_no_leads_over_others(study):
  """Runs may have been copied from a machine whose set was prepared from other files."""
  read = study()
  for model in ('transformer', 's4d', 'dlr', 's5', 's4'):
    for regime in ('scratch', 'masked'):
      change(study.folder, f'{model}_{regime}', fingerprints={'data': 'a'})
  assert not notes.cautions(read())
  for regime in ('scratch', 'masked'):
    change(study.folder, f's4_{regime}', fingerprints={'data': 'b'})
  table = read()
  assert ('S4', 'Image') in told(table)
  gaps = [gap for gap in table.findings.gaps if gap.place == 'Image']
  assert 'S4' not in {side.name for gap in gaps for side in (gap.leader, gap.other)}
  assert notes.cautions(table) == [
    'The runs of image used several versions of its set; those on different versions are not compared.'
  ]


def test_runs_that_are_no_seeds_of_one_way_of_training_are_named(study):
  read = study()
  assert not notes.cautions(read())
  place = study.folder / 'runs/s4_masked/image'
  shutil.rmtree(place / 'seed1')
  shutil.copytree(place / 'seed0', place / 'seed1')
  (run,) = read().cells['S4 + Masked SPT', 'Image'].open
  assert run.progress == 'damaged'
  facts = {'seed': 1, 'stages': {'pretrain': {'folder': 'pretrain-1'}}, 'runtime': {'precision': 'bfloat16'}}
  for seed in (0, 1):
    path = place / f'seed{seed}/result.json'
    result = json.loads(path.read_text())
    config = {'model': {'name': 's4'}, 'finetune': {'optimizer': {'lr': 0.1 * (1 + seed)}}}
    facts |= {'seed': seed, 'config': config, 'runtime': {'precision': ('float32', 'bfloat16')[seed]}}
    path.write_text(json.dumps(result | facts))
  assert notes.cautions(read()) == [
    'S4 + Masked SPT, Image: 2 seeds were finetuned from one pretraining (pretrain-1), so no interval covers '
    'how much pretrainings differ.',
    'S4 + Masked SPT, Image: These runs differ in finetune.optimizer.lr, runtime.precision, so their mean '
    'belongs to none of these settings.',
  ]


def test_cautions_of_runs_are_shown_with_their_study(study):
  """A result.json that contradicts predictions.npz is shown too."""
  read = study()
  place = study.folder / 'runs/s4_scratch/image'
  facts = {'data': {'source': 'files x.tgz', 'verified': False}}
  change(study.folder, 's4_scratch', cautions=['Chosen by <test> examples.'], **facts)
  path = place / 'seed1/result.json'
  result = json.loads(path.read_text())
  result['metrics']['test']['accuracy'] = 0.99
  path.write_text(json.dumps(result))
  table = read()
  page, shown = report.write(table).read_text(), ' '.join(text_of(table).split())  # lines may break
  for sentence in (
    'S4, Image: Chosen by <test> examples.',
    'S4, Image: The data could not be verified to be the official files: files x.tgz.',
    'result.json says 99.0 %',
  ):
    assert sentence in shown
    assert sentence.replace('<', '&lt;').replace('>', '&gt;') in page
  assert cli.main(['report', f'--workdir={study.folder}']) == 1


def test_training_from_scratch_with_the_steps_of_both_stages_is_compute_tied(study):
  read = study(1)
  assert read().cells['S4', 'Image'].training == 'scratch'
  change(study.folder, 's4_scratch', config={'finetune': {'max_steps': 900}})
  change(study.folder, 's4_masked', config={'pretrain': {'max_steps': 500}, 'finetune': {'max_steps': 400}})
  table = read()
  assert table.cells['S4', 'Image'].training == 'scratch, compute-tied'
  assert ', same compute from scratch ' in sentences.headline(table.findings)


def test_one_seed_speaks_of_runs(study):
  table = study(1)()
  assert sentences.ONE_SEED in sentences.sentences(table.findings)
  assert all(pair.single for pair in table.findings.pairs)
  assert all(not one.more for one in table.findings.smallest)


def test_several_seeds_speak_of_training(study):
  table = study(5, examples=500)()
  found = table.findings
  gap = next(
    gap
    for gap in found.gaps
    if (gap.leader.name, gap.other.name) == ('S4', 'Transformer') and gap.significant
  )
  (sentence,) = sentences.sentences(
    dataclasses.replace(found, pairs=(), means=(), gaps=(gap,), differences=(), smallest=(), successes=())
  )
  for words in (
    gap.place,
    'S4 over Transformer',
    f'smaller after masked self-pretraining by {sentences.size(gap.score, gap.interval.estimate)}',
  ):
    assert words in sentence
  assert sentences.ONE_SEED not in ' '.join(sentences.sentences(found))


def test_a_run_that_learned_nothing_is_counted(study):
  found = study(3)().findings
  rates = {one.cell.record['row']: one.beating for one in found.successes if one.place == 'PathX'}
  assert rates['Transformer'] == 0
  assert rates['Transformer + Masked SPT'] == 3
  assert '0 of 3 for Transformer on PathX' in ' '.join(sentences.sentences(found))


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
  found = read().findings
  extra = [pair for pair in found.pairs if not pair.main]
  assert [pair.scratch.record['row'] for pair in extra] == ['S4, longer']
  assert extra[0].interval.estimate == told(read())['S4', 'Image'].interval.estimate
  assert len(found.gaps) == len(leads)
  assert found.rankings[0].models == rankings[0].models
  # This pretrained cell has no second scratch cell.
  shutil.rmtree(study.folder / read().cells['S4 + Masked SPT', 'PathX'].record['folder'])
  found = read().findings
  assert len(found.pairs) == 10
  adjusted = bootstrap.holm([one.estimate.p for one in found.pairs], 1)
  assert [one.adjusted for one in found.pairs] == pytest.approx(adjusted)


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
    found = read().findings
    counts.append((len(found.pairs), found.unrun['pairs']))

  count()
  (study.folder / 'aside').rename(masked)
  count()
  for cell in longer:
    shutil.copytree(
      study.folder / cell['folder'].replace('longer', 's4_scratch'), study.folder / cell['folder']
    )
    count()
  assert counts == [(0, 4), (2, 2), (3, 1), (4, 0)]


def on_a_chart(folder, *places):
  """Puts S4's cells of Image on a chart at x = 1 (all labels), and copies of them at each (column, x)."""
  record = read_record(folder)
  cells = [cell for cell in record['cells'] if cell['row'].startswith('S4') and cell['column'] == 'Image']
  cells = [cell for cell in cells if not cell['row'].startswith('S4D')]
  copies = []
  for column, x in places:
    for cell in cells:
      copies.append(cell | {'column': column, 'x': x, 'folder': f'{cell["folder"]}_{column}'})
      shutil.copytree(folder / cell['folder'], folder / copies[-1]['folder'])
      row, name = copies[-1]['folder'].removeprefix('runs/').split('/')
      change(folder, row, name, config={'finetune': {'data_fraction': x}})
  for cell in cells:
    cell['x'] = 1.0
  columns = [*record['columns'], *(column for column, _ in places)]
  record |= {'columns': columns, 'cells': [*record['cells'], *copies]}
  files.write_json(folder / run_folder.STUDY, record)


def test_a_gain_with_fewer_labels_is_compared_with_that_with_all(study):
  read = study(3)
  full = told(read())['S4', 'Image']
  on_a_chart(study.folder, ('Image, 10%', 0.1), ('Image, 30%', 0.3))
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
  said = ' '.join(sentences.sentences(table.findings))
  assert '1 smaller' in said
  assert 'S4 on Image, 10%, smaller than on Image by' in said
  html = report.write(table).read_text()
  assert 'Changes of gains along the chart' in html
  assert 'against Image<' in html


def test_a_scratch_cell_that_two_gains_share_cancels(study):
  """If a chart varies the data of pretraining, all gains are over the same runs from scratch."""
  read = study(3)
  on_a_chart(study.folder, ('Image, 10%', 0.1))
  change(study.folder, 's4_masked', 'image_Image, 10%', config={'finetune': {'data_fraction': 1.0}})
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
  on_a_chart(study.folder, ('Image, 10%', 0.1))
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
