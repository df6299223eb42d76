"""Published rows of Long Range Arena beside one's own runs, one table per task; and what is inconsistent.

Figures of the field are in leaderboard.json, those of the paper in published.csv. Submissions, files of
`lra-spt submit` in the folder leaderboard/ of a clone, have tables of their own.
"""

import dataclasses
import itertools
import json
import pathlib

from lra_spt.config.user_files import PROJECT
from lra_spt.errors import DamagedFile
from lra_spt.report import published
from lra_spt.report.pages import document
from lra_spt.report.runs.run import RECORDED
from lra_spt.report.statistics.scores import ACCURACY, DASH, R2
from lra_spt.report.study import any_folder, notes, submission
from lra_spt.report.study.table import AVERAGES, CHANCE, averages

PAPER = 'Amos et al., ICLR 2024 (arXiv 2310.02980)'
DATA = pathlib.Path(__file__).parents[1] / 'leaderboard.json'
TASKS = (*published.LRA, 'pathx256')
SUBMISSIONS = PROJECT / 'leaderboard'  # a folder of a clone, not of an installed package
TITLE = 'Long Range Arena: published rows and own runs'


@dataclasses.dataclass(frozen=True)
class LeaderboardRow:
  """One printed row of a table.

  values: {task: printed number}, in per cent, or R2 for BIDMC. average: as printed, None if there is none.
  source: paper and table. note, seeds: remarks of the source on the row, '' without one. problem: a sentence
  on numbers that cannot be right; tests/report/test_leaderboard.py finds them.
  """

  model: str
  regime: str
  values: dict[str, float]
  average: float | None
  source: str
  note: str = ''
  seeds: str = ''
  problem: str = ''

  @property
  def name(self):
    return f'{self.model} ({self.source})'


def rows() -> list[LeaderboardRow]:
  """The paper's Tables 1, 2, 3 and 7, then the field."""
  return [*_paper(), *_field()]


def _paper():
  chosen = [row for row in published.ROWS if row.table in (1, 2, 3, 7) and row.value is not None]

  def line(row):
    return row.table, row.approach, row.regime, row.causal

  for (table, approach, regime, causal), same in itertools.groupby(sorted(chosen, key=line), key=line):
    values = {row.task: row.value for row in same}
    form = ', causal' if causal and regime == 'scratch' else ''
    average, mean = (of.get((table, approach)) for of in (published.AVERAGES, published.WRONG_AVERAGES))
    yield LeaderboardRow(
      approach + form,
      regime,
      values,
      average,
      f'{PAPER}, Table {table}',
      seeds='one run',
      problem=f'its printed average is {average:.2f}, but its values give {mean:.2f}' if mean else '',
    )


def _field():
  return [LeaderboardRow(regime='scratch', **row) for row in json.loads(DATA.read_text('utf-8'))['rows']]


def submitted(folder: pathlib.Path = SUBMISSIONS) -> dict[tuple, list[dict]]:
  """The lines of all submissions in a folder by (task, score), the best first.

  Raises:
    DamagedFile: a file does not pass `lra-spt verify`.
  """
  lines = {}
  for path in sorted(folder.glob('*.zip')):
    with submission.unpacked(path) as place:
      if wrong := [run for run in submission.verify(place)[0] if run.faults]:
        raise DamagedFile(
          f'{path} does not pass `lra-spt verify` ({wrong[0].name}: {wrong[0].faults[0]}); move it away.'
        )
      for cell in any_folder.read_any(place).cells.values():
        if cell.arm:
          parameters = cell.arm.first.result.get('parameters')
          about = {'source': path.name, 'note': ' '.join(notes.of_runs(cell.runs)), 'parameters': parameters}
          line = _own_line(cell) | about | {'own': False}
          lines.setdefault((cell.runs[0].task, cell.score), []).append(line)
  return {key: sorted(of, key=lambda line: -line['value']) for key, of in sorted(lines.items(), key=str)}


def distinct(listed: list[LeaderboardRow]) -> list[LeaderboardRow]:
  """Leaves out rows that repeat the numbers of another row, which then names the sources of both."""
  left = []
  for row in sorted(listed, key=lambda row: -len(row.values)):  # stable: the paper's first
    for number, other in enumerate(left):
      if other.regime == row.regime and len(row.values) >= 4 and row.values.items() <= other.values.items():
        source = f'{other.source}; {row.source}'
        both = dataclasses.replace(other, source=source, note=other.note or row.note)
        left[number] = both
        break
    else:
      left.append(row)
  return left


def write(table, path, title=TITLE) -> pathlib.Path:
  """Writes the page of published rows and the runs of a ResultTable; FileAccessError if it cannot be."""
  return document.write_page(path, 'leaderboard.html', title=title, **view(table))


def view(table) -> dict:
  """The content of the page."""
  printed = distinct(rows())
  cells = [cell for cell in table.cells.values() if cell.arm]
  names = dict.fromkeys([*TASKS, *(task for row in printed for task in row.values)])
  names |= dict.fromkeys(run.task for run in table.runs)
  return {
    'averages': _averages_view(printed, cells),
    'conventions': [name for name, *_ in AVERAGES],
    'tasks': [view for task in names for view in _task_views(task, printed, cells)],
    'submissions': [
      {'name': task, 'score': score.title, 'lines': lines, 'cautions': []}
      for (task, score), lines in submitted().items()
    ],
    'problems': [row for row in printed if row.problem],
    'counts': {'published': len(printed), 'runs': len(table.runs)},
    'failures': notes.failures(table),
    'notes': [*notes.unscored(table), *notes.recorded(table.runs), *notes.contradictions(table.runs)],
  }


def _task_views(task, shown, cells):
  """A table for each score of the task, that of its published rows first."""
  ours = [cell for cell in cells if cell.runs[0].task == task]
  printed = [row for row in shown if task in row.values]
  theirs = R2 if task.startswith('bidmc') else ACCURACY
  scores = dict.fromkeys([*[theirs] * bool(printed or not ours), *(cell.score for cell in ours)])
  name = published.TASK_NAMES.get(task, task)
  for score in scores:
    alike = [cell for cell in ours if cell.score is score]
    lines = [_own_line(cell) for cell in alike]
    lines += [_printed_line(row, row.values[task], score) for row in printed if score is theirs]
    yield {
      'name': f'{name}, {score.name}' if len(scores) > 1 else name,
      'score': score.title,
      'lines': sorted(lines, key=lambda line: -line['value']),
      'cautions': notes.of_runs([run for cell in alike for run in cell.runs]),
    }


def _printed_line(row, value, score):
  return {
    'value': value / 100 if score.in_percent else value,
    'model': row.model,
    'training': row.regime,
    'score': f'{value:.2f} %' if score.in_percent else f'{value:.3f}',
    'limits': DASH,
    'seeds': row.seeds or 'not given',
    'protocol': 'published',
    'source': row.source,
    'note': row.note,
    'flagged': bool(row.problem),
    'own': False,
  }


def _own_line(cell):
  arm = cell.arm
  return {
    'value': arm.score.estimate,
    'model': arm.model,
    'training': cell.training,
    'score': arm.shown,
    'limits': cell.score.limits(arm.score),
    'seeds': f'{len(arm.runs)} ({", ".join(map(str, arm.seeds))})',
    'protocol': arm.first.protocol,
    'source': 'recorded' if arm.recorded else 'own runs',
    'note': '',
    'flagged': False,
    'own': True,
  }


def _averages_view(printed, cells):
  """Rows with at least one of the averages, the best of six tasks first, then of the other conventions."""
  lines = []
  for row in printed:
    text = None if row.average is None else f'{row.average:.2f}'
    known = {'model': row.model, 'training': row.regime, 'own': False, 'printed': text, 'source': row.source}
    lines.append(
      known | {'means': list(averages(row.values, 100 * CHANCE).values()), 'flagged': bool(row.problem)}
    )
  arms_of = {}
  for cell in cells:
    run = cell.runs[0]
    if cell.score.counts and run.task in published.LRA:
      arms_of.setdefault((run.model, cell.training, run.protocol), {})[run.task] = cell.arm
  for (model, training, protocol), arms in arms_of.items():
    values = {task: 100 * arm.score.estimate for task, arm in arms.items()}
    source = f'own runs, protocol {protocol}'
    source += f', some of them recorded {RECORDED}' * any(arm.recorded for arm in arms.values())
    known = {'model': model, 'training': training, 'own': True, 'printed': None, 'source': source}
    lines.append(known | {'means': list(averages(values).values()), 'flagged': False})
  lines = [line for line in lines if any(mean is not None for mean in line['means'])]
  lines.sort(key=lambda line: [-(line['means'][number] or 0) for number in (1, 0, 2)])
  for line in lines:
    line['means'] = [DASH if mean is None else f'{mean:.2f}' for mean in line['means']]
  return lines
