"""Findings with what limits them: missing and failed runs, versions of a set, runs that learned nothing."""

import json
import shutil

import pytest

from lra_spt import errors, files
from lra_spt.cli import main as cli
from lra_spt.report.pages import report
from lra_spt.report.runs import run_folder
from lra_spt.report.study import notes, sentences
from lra_spt.report.study import table as studies
from lra_spt.report.study.record import read_record
from lra_spt.report.study.text import text as text_of


def test_what_is_missing_costs_its_own_comparison_only(study):
  read = study()
  whole = study.by_pair(read())
  (study.folder / 'runs/s4_masked/image/seed0/predictions.npz').write_bytes(b'no archive')
  (study.folder / 'runs/dlr_scratch/image/seed1/result.json').unlink()
  for seed in (0, 1):
    (study.folder / f'runs/s5_masked/image/seed{seed}/predictions.npz').unlink()
  table = read()
  left = study.by_pair(table)
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
  left = study.by_pair(table)
  assert (left['S4', 'Image'].seeds, left['DLR', 'Image'].seeds) == ((2, 3), (0, 1))
  assert {('S4', 'DLR'), ('DLR', 'S4')}.isdisjoint(
    (gap.leader.name, gap.other.name) for gap in table.findings.gaps if gap.leader.place == 'Image'
  )


def test_a_seed_that_diverged_to_non_finite_numbers_is_not_a_missing_one(study):
  read = study(3)
  place = study.folder / 'runs/s4_scratch/image/seed1'
  (place / 'result.json').unlink()
  run_folder.write_failure(place, errors.ConfigError('an accident'))
  assert study.by_pair(read())['S4', 'Image'].seeds == (0, 2)
  run_folder.write_failure(place, errors.NonFiniteError('The loss is not finite.'))
  table = read()
  assert ('S4', 'Image') not in study.by_pair(table)
  assert {('S4', 'PathX'), ('DLR', 'Image')} <= study.by_pair(table).keys()
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
  actual = read().findings
  assert actual.unrun['pairs'] == 1
  assert actual.apart == ('S4 (Image) is not compared: its seeds diverged to non-finite numbers.',)


def test_a_scratch_cell_of_another_column_does_not_replace_the_planned_one(study):
  """The planned scratch cell of the same column has not run yet, or has diverged."""
  read = study()
  place = study.folder / 'runs/s4_scratch'
  shutil.rmtree(place / 'image')
  shutil.copytree(place / 'pathx', place / 'image')
  record = read_record(study.folder)
  cells = [
    cell
    for cell in record['cells']
    if (cell['row'], cell['column']) in {('S4', 'Image'), ('S4', 'PathX'), ('S4 + Masked SPT', 'PathX')}
  ]
  for cell in cells:
    cell['config'] = cell['config'].replace('image', 'pathx')
  files.write_json(study.folder / run_folder.STUDY, record | {'cells': cells})
  (pair,) = read().findings.pairs
  assert pair.scratch.record['column'] == 'PathX'
  for path in (place / 'pathx').glob('seed*'):
    (path / 'result.json').unlink()
  assert not read().findings.pairs
  assert read().findings.unrun['pairs'] == 1
  for path in (place / 'pathx').glob('seed*'):
    run_folder.write_failure(path, errors.NonFiniteError('The loss is not finite.'))
  assert not read().findings.pairs
  files.write_json(study.folder / run_folder.STUDY, record | {'cells': [cells[0], cells[2]]})
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
      study.change(f'{model}_{regime}', fingerprints={'data': 'a'})
  assert not notes.cautions(read())
  for regime in ('scratch', 'masked'):
    study.change(f's4_{regime}', fingerprints={'data': 'b'})
  table = read()
  assert ('S4', 'Image') in study.by_pair(table)
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
  study.change('s4_scratch', cautions=['Chosen by <test> examples.'], **facts)
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


def test_a_run_that_learned_nothing_is_counted(study):
  actual = study(3)().findings
  rates = {one.cell.record['row']: one.beating for one in actual.successes if one.place == 'PathX'}
  assert rates['Transformer'] == 0
  assert rates['Transformer + Masked SPT'] == 3
  assert '0 of 3 for Transformer on PathX' in ' '.join(sentences.sentences(actual))
