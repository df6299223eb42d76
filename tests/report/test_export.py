"""CSV and JSON have every number of a study. LaTeX and Markdown stay valid, whatever names users give."""

import csv
import io
import json
import math
import shutil

import pytest

from lra_spt.cli import main as cli
from lra_spt.report import export, published
from lra_spt.report.study import table as studies
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.record import claim
from lra_spt.studies import records
from lra_spt.studies.study import Cell, Published, Study

NASTY = '=HYPERLINK("x")|a & b_c % $d$ #1 {e} ~f^2 \\g <b>h</b>\nnext *i* `j` [k]'


@pytest.fixture
def finished_study(write_run, tmp_path):
  """A study of two rows, one of them with two seeds, and of one cell that has not run."""
  cells = [
    Cell('scratch', 'Toy', 'c', published=Published(0.25, '25.00', 'Table 1')),
    Cell(NASTY, 'Toy', 'c'),
    Cell('not ours', 'Toy', published=Published(None, '\u00d7', 'Table 1'), note='not implemented'),
  ]
  one = Study('s', 'A study & more', cells)
  record = records.record(one, [])
  for cell, seeds in zip(record['cells'], ([0, 1], [0], []), strict=True):
    cell['seeds'] = seeds
    for seed in seeds:
      if seed == 0 or cell['row'] == 'scratch':
        regime = 'scratch' if cell['row'] == 'scratch' else 'masked'
        shutil.move(
          write_run('x', regime=regime, seed=seed), _parent(tmp_path / cell['folder']) / f'seed{seed}'
        )
  claim(tmp_path, record)
  return tmp_path


def _parent(folder):
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def exported(capsys, workdir, form, *flags):
  assert cli.main(['export', f'--workdir={workdir}', f'--format={form}', *flags]) == 0
  return capsys.readouterr().out


def test_csv_and_json_hold_every_number_of_a_study(finished_study, capsys):
  lines = list(csv.DictReader(io.StringIO(exported(capsys, finished_study, 'csv'))))
  same = json.loads(exported(capsys, finished_study, 'json'))
  assert [list(line) for line in (*lines, *same)] == [list(export.COLUMNS)] * 6
  table = studies.read_table(finished_study)
  arm = table.cells['scratch', 'Toy'].arm
  first = same[0]
  assert (first['score'], first['low'], first['high']) == (arm.score.estimate, arm.score.low, arm.score.high)
  assert [float(lines[0][key]) for key in ('score', 'low', 'high')] == [
    first[key] for key in ('score', 'low', 'high')
  ]
  assert (first['seeds'], lines[0]['seeds']) == ([0, 1], '0 1')
  assert first['scores'] == [run.value for run in arm.runs]
  assert (first['published'], first['published_source']) == (0.25, 'Table 1')
  assert (first['task'], first['model'], first['regime']) == ('toy', 'transformer', 'scratch')
  assert (first['parameters'], first['folder']) == (131_466, 'runs/scratch/toy')
  assert first['flops'] == pytest.approx(3.1e9 * 400)
  assert first['seconds'] == pytest.approx(400 * 0.07)
  assert [line['state'] for line in same] == ['', '', 'not implemented']
  assert (same[2]['score'], lines[2]['score'], same[2]['seeds']) == (None, '', [])
  assert lines[1]['row'] == "'" + NASTY  # a spreadsheet must not run it as a formula
  assert same[1]['row'] == NASTY


def test_markdown_is_one_pipe_table(finished_study, capsys):
  lines = exported(capsys, finished_study, 'markdown').splitlines()
  title, empty, head, rule, *rows = lines
  assert (title, empty, head, rule) == ('**A study & more**', '', '|  | Toy |', '|---|---|')
  assert len(rows) == 3
  for row in rows:
    assert row.replace('\\|', '').count('|') == 3
  assert '(published 25.00) |' in rows[0]
  assert '% [' in rows[0].replace('\\', '')
  assert r'\|a & b\_c' in rows[1]
  assert r'\<b\>h\</b\> next \*i\* \`j\` \[k\]' in rows[1]
  assert rows[2] == '| not ours | not implemented (published \u00d7) |'


def test_latex_escapes_what_is_special(finished_study, capsys):
  text = exported(capsys, finished_study, 'latex')
  for part in (
    r'\caption{A study \& more}',
    r'b\_c \% \$d\$ \#1 \{e\} \textasciitilde{}f\textasciicircum{}2 \textbackslash{}g \textless{}b',
    r'(published $\times$) \\',
    '\\toprule',
    '\\midrule',
    '\\bottomrule',
  ):
    assert part in text
  rows = [line for line in text.splitlines() if line.endswith('\\\\')]
  assert [row.replace('\\&', '').count('&') for row in rows] == [1] * 4


def test_runs_without_a_study_are_a_line_per_arm(write_study, capsys, tmp_path):
  workdir = write_study((0, 1), ('scratch', 'masked'), task='image')
  lines = json.loads(exported(capsys, workdir, 'json'))
  table = read_any(workdir)
  arms = [cell.arm for cell in table.cells.values()]
  assert [line['row'] for line in lines] == ['Transformer, scratch', 'Transformer, masked self-pretraining']
  assert [line['score'] for line in lines] == [arm.score.estimate for arm in arms]
  assert [line['folder'] for line in lines] == ['scratch/seed0; scratch/seed1', 'masked/seed0; masked/seed1']
  assert [line['published'] for line in lines] == [0.4244, 0.7422]
  assert published.PAPER in lines[0]['published_source']
  (pair,) = table.findings.pairs
  assert (lines[0]['gain'], lines[1]['gain_over']) == (None, 'Transformer, scratch')
  assert (lines[1]['gain'], lines[1]['gain_p_holm']) == (pair.interval.estimate, pair.adjusted)
  printed = exported(capsys, workdir, 'markdown')
  assert '|  | Image |' in printed
  assert '(published 42.44 %) |' in printed
  path = tmp_path / 'table.csv'
  assert str(path) in exported(capsys, workdir, 'csv', f'--output={path}')
  assert len(list(csv.DictReader(path.read_text().splitlines()))) == 2


def test_numbers_that_are_not_known_are_empty(write_run, capsys, tmp_path):
  write_run('a', classes=0, examples=2, predictions=False)
  (line,) = json.loads(exported(capsys, tmp_path, 'json'))
  assert (line['metric'], line['low'], line['high']) == ('r2', None, None)
  assert math.isfinite(line['score'])


def test_nothing_to_export_is_a_sentence(tmp_path, capsys):
  assert cli.main(['export', f'--workdir={tmp_path}', '--format=csv']) == 2
  assert 'there is no finished run' in capsys.readouterr().err
  assert cli.main(['export', f'--workdir={tmp_path}', '--format=xls']) == 2
  assert "--format is 'xls': choose one of csv, json, latex, markdown" in capsys.readouterr().err


def test_a_damaged_run_is_named_and_the_others_stay(write_study, capsys):
  workdir = write_study((0, 1), ('scratch',))
  (workdir / 'scratch' / 'seed1' / 'result.json').write_text('[1]')
  assert cli.main(['export', f'--workdir={workdir}', '--format=json']) == 1
  captured = capsys.readouterr()
  assert [line['seeds'] for line in json.loads(captured.out)] == [[0]]
  assert captured.err.startswith(f'! {workdir}/scratch/seed1/result.json is not the result of a run')
  assert cli.main(['report', '--leaderboard', f'--workdir={workdir}']) == 1
  assert 'seed1/result.json is not the result' in (workdir / 'leaderboard.html').read_text()
