"""The leaderboard shows published rows as printed, marks averages that do not add up, and includes runs."""

import dataclasses
import json
import re
import zipfile

import pytest

from lra_spt.cli import main as cli
from lra_spt.errors import DamagedFile
from lra_spt.report import published
from lra_spt.report.pages import leaderboard
from lra_spt.report.pages.leaderboard import LeaderboardRow

GOOD = LeaderboardRow(
  'm',
  'scratch',
  {'listops': 60.0, 'text': 80.0, 'retrieval': 80.0, 'image': 80.0, 'pathfinder': 75.0},
  None,
  's',
)


@pytest.fixture(scope='module')
def rows():
  return leaderboard.rows()


def test_nine_printed_averages_follow_from_nothing(rows):
  """A row is marked if its average is off by more than one unit of the last printed digit."""

  def decimals(value):
    return len(f'{value}'.partition('.')[2].rstrip('0'))

  wrong = []
  for row in rows:
    values = [row.values[task] for task in published.LRA if task in row.values]
    means = [mean for mean in leaderboard.averages(row.values, 50).values() if mean is not None]
    means = means or [sum(values) / len(values)] if values else []
    slack = 10.0 ** -max([1, *map(decimals, [*values, row.average or 0])]) + 1e-9
    if row.average is not None and not any(abs(mean - row.average) <= slack for mean in means):
      wrong.append(row.model)
      assert f'{row.average:.2f}' in row.problem
  assert sorted(wrong) == sorted(row.model for row in rows if row.problem)
  assert len(wrong) == 9


def test_printed_values_are_possible(rows):
  """No share lies outside of 0 to 100 % or far below guessing, no R2 above 1, and no row stands twice."""
  guessing = {'listops': 10, 'image': 10, 'text': 50, 'retrieval': 50, 'speech_commands': 0, 'scifar': 10}
  for row in rows:
    for task, value in row.values.items():
      low, high = (0, 1) if task.startswith('bidmc') else (guessing.get(task, 50) - 3, 100)
      assert low <= value <= high, (row.name, task)
  given = [(row.source, row.regime, tuple(sorted(row.values.items()))) for row in rows]
  assert len({*given}) == len(given)


def test_every_row_says_where_it_was_read(rows):
  for row in rows:
    assert re.search('[Tt]able|README|abstract', row.source) or row.note.startswith('secondary'), row.name


def test_the_three_conventions(rows):
  of = {row.model: leaderboard.averages(row.values, 50) for row in rows if row.source.startswith('S4 ')}
  assert list(of['Transformer'].values()) == [
    pytest.approx(54.39, abs=0.005),
    pytest.approx(53.66, abs=0.005),
    None,
  ]
  without = leaderboard.averages(
    of_s4 := next(r.values for r in rows if r.model == 'S4' and 'pathx' in r.values), 50
  )
  assert without['mean of 5, no ListOps'] == pytest.approx(91.38, abs=0.005)
  assert leaderboard.averages({k: v for k, v in of_s4.items() if k != 'text'}, 50) == dict.fromkeys(without)
  assert leaderboard.averages(GOOD.values, 50)['mean of 6, failed PathX 50'] == pytest.approx(425 / 6)
  assert leaderboard.averages(GOOD.values)['mean of 6, failed PathX 50'] is None


def test_rows_are_those_of_their_sources(rows, shared_folder):
  """Every collected row stands on the leaderboard as printed."""
  collected = json.loads((shared_folder / 'reference' / 'leaderboard.json').read_text())
  ours = {(tuple(sorted(row.values.items())), row.average) for row in rows}
  missing = []
  for row in collected:
    values = {task: row[task] for task in leaderboard.TASKS if row[task] is not None}
    if (tuple(sorted(values.items())), row['printed_avg']) not in ours:
      missing.append(row['model'])
    means = [
      *leaderboard.averages(values, 50).values(),
      sum(v for k, v in values.items() if k != 'pathx256') / max(1, len(values.keys() - {'pathx256'})),
    ]
    for recomputed in row['recomputed'].values():
      assert any(mean is not None and abs(mean - recomputed) < 0.0051 for mean in means), row
  assert len(collected) == 75
  assert missing == []


def test_rows_given_by_two_sources_stand_once(rows):
  quoted = dataclasses.replace(GOOD, source='t')
  (one,) = leaderboard.distinct([GOOD, quoted])
  assert one.source == 's; t'
  of_s4 = [row for row in leaderboard.distinct(rows) if row.values.get('pathx256') == 67.82]
  assert [row.source.count(';') for row in of_s4] == [2]  # Table 2, Table 7, and the paper on S4


def test_runs_stand_among_published_rows(write_run, tmp_path, capsys):
  write_run(
    'a', task='image', accuracy=0.9, facts={'model': '<i>mine</i>', 'recorded': {'source': '<u>x</u>'}}
  )
  write_run('b', task='own', accuracy=0.5, seed=2, facts={'cautions': ['Beware <b>this</b>.']})
  assert cli.main(['report', '--leaderboard', f'--workdir={tmp_path}']) == 0
  assert 'The leaderboard of 2 runs' in capsys.readouterr().out
  html = (tmp_path / 'leaderboard.html').read_text()
  assert not re.search(r'<script|<i>|<u>|<b>this', html)
  assert '&lt;i&gt;mine&lt;/i&gt;' in html
  assert 'made elsewhere (&lt;u&gt;x&lt;/u&gt;)' in html
  assert 'Beware &lt;b&gt;this&lt;/b&gt;.' in html
  sections = dict(
    re.findall(r'<section aria-labelledby="task-\d+">\s*<h2 id="[^"]*">(.*?)</h2>(.*?)</section>', html, re.S)
  )
  assert list(sections)[:7] == [published.TASK_NAMES[task] for task in leaderboard.TASKS]
  shown = [float(value) for value in re.findall(r'class="value">([\d.]+)\u00a0%', sections['Image'])]
  assert shown == sorted(shown, reverse=True)
  assert 90.0 in shown
  assert len(shown) > 50
  assert re.search(
    r'class="own"><th scope="row">transformer</th>.*?50\.0\u00a0%.*?1 \(2\)', sections['own'], re.S
  )
  assert html.count('aria-label="flagged') > 20
  assert len(html) < 1_000_000


def test_without_runs_it_is_the_published_page(tmp_path, capsys):
  assert (
    cli.main(['report', '--leaderboard', f'--workdir={tmp_path}', f'--output={tmp_path / "l.html"}']) == 0
  )
  assert '0 runs of your own' in (tmp_path / 'l.html').read_text()
  assert cli.main(['report', '--leaderboard', f'--workdir={tmp_path / "none"}']) == 2
  assert 'there is no folder' in capsys.readouterr().err


@pytest.mark.parametrize('path', sorted(leaderboard.SUBMISSIONS.iterdir()), ids=lambda path: path.name)
def test_committed_submissions_pass(path, capsys):
  assert path.suffix == '.zip'
  assert path.stat().st_size <= 3_000_000
  assert cli.main(['verify', str(path)]) == 0
  assert 'good' in capsys.readouterr().out


@pytest.mark.slow
def test_labels_of_a_committed_submission_are_those_of_its_set(tmp_path, capsys):
  path = leaderboard.SUBMISSIONS / 'longer_listops_mini.zip'
  assert cli.main(['prepare', 'listops_mini', f'--data_dir={tmp_path}']) == 0
  assert cli.main(['verify', str(path), f'--data_dir={tmp_path}']) == 0
  assert f'those of the prepared set in {tmp_path}' in capsys.readouterr().out


def test_submissions_have_tables_of_their_own(write_run, tmp_path):
  write_run('a', task='listops_mini', accuracy=0.5)
  assert cli.main(['report', '--leaderboard', f'--workdir={tmp_path}']) == 0
  html = (tmp_path / 'leaderboard.html').read_text()
  assert 'longer_listops_mini.zip' not in html[: html.index('id="submissions"')]
  section = html[html.index('id="submissions"') : html.index('id="faults"')]
  assert section.count('>longer_listops_mini.zip<') == 4
  assert 'class="own"' not in section


def test_a_bad_submission_is_named(tmp_path):
  good = next(leaderboard.SUBMISSIONS.glob('*.zip'))
  with zipfile.ZipFile(good) as old, zipfile.ZipFile(tmp_path / 'bad.zip', 'w') as new:
    for info in old.infolist():
      new.writestr(info, old.read(info).replace(b'"accuracy": 0.4', b'"accuracy": 0.9'))
  with pytest.raises(DamagedFile, match=r'bad.zip does not pass `lra-spt verify` \(runs/.*: .*was edited'):
    leaderboard.submitted(tmp_path)
