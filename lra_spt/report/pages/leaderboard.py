"""Published rows of Long Range Arena beside one's own runs, one table per task; and what is inconsistent.

Figures of the field are in leaderboard.json, those of the paper in published.py.
"""

import dataclasses
import itertools
import math
import pathlib

from lra_spt import files
from lra_spt.errors import DamagedFile
from lra_spt.report import published
from lra_spt.report.pages import document
from lra_spt.report.runs.run import RECORDED
from lra_spt.report.statistics.scores import ACCURACY, R2
from lra_spt.report.study import arms as tables
from lra_spt.report.study import notes
from lra_spt.report.study.table import AVERAGES, CHANCE

PAPER = 'Amos et al., ICLR 2024 (arXiv 2310.02980)'
DATA = pathlib.Path(__file__).parents[1] / 'leaderboard.json'
TASKS = (*published.LRA, 'pathx256')
GUESSING = {'listops': 10, 'image': 10, 'text': 50, 'retrieval': 50}  # per cent; else as PathX
BELOW = 3.0  # points under guessing that chance does not explain: ListOps has 2,000 test examples
REPORTED = 'mean of what it reports'


@dataclasses.dataclass(frozen=True)
class LeaderboardRow:
  """One printed row of a table.

  values: {task: printed number}, per cent, or R2 of BIDMC. average: as printed, None where none is. source:
  where; note, seeds: what it says of the row, '' where nothing.
  """

  model: str
  regime: str
  values: dict[str, float]
  average: float | None
  source: str
  note: str = ''
  seeds: str = ''

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
    source = f'{PAPER}, Table {table}'
    yield LeaderboardRow(
      approach + form, regime, values, published.AVERAGES.get((table, approach)), source, seeds='one run'
    )


def _field():
  kind, advice = 'the figures of the field', 'install the package again'
  stored = files.read_json(DATA, kind, advice)
  try:
    return [LeaderboardRow(regime='scratch', **row) for row in stored['rows']]
  except (KeyError, TypeError) as error:
    raise DamagedFile(f'{DATA} is not {kind} ({error}); {advice}.') from error


def averages(values: dict[str, float], failed: float | None = 100 * CHANCE) -> dict[str, float | None]:
  """{convention: mean}, None where a task is missing.

  Args:
    values: {task: score}.
    failed: what a missing PathX counts where the convention says so; None: no value is missing because a
      model failed.
  """
  found = {}
  for name, tasks, chance in AVERAGES:
    of = [values.get(task, failed if chance and task == 'pathx' else None) for task in tasks]
    found[name] = None if None in of else sum(of) / len(of)
  return found


@dataclasses.dataclass(frozen=True)
class Finding:
  """A row, and a sentence on what cannot be right with it."""

  row: LeaderboardRow
  sentence: str


def check(checked: list[LeaderboardRow]) -> list[Finding]:
  """What cannot be right: values that nothing reaches, averages that do not follow, rows given twice."""
  found = []
  for row in checked:
    found += [Finding(row, sentence) for sentence in (*_values(row), *_average(row))]
  seen = {}
  for row in checked:
    key = row.source, row.regime, tuple(sorted(row.values.items()))
    if key in seen and row.values:
      found.append(Finding(row, f'has the same numbers as {seen[key].model} from the same source'))
    seen.setdefault(key, row)
  return found


def _values(row):
  for task, value in row.values.items():
    where = published.TASK_NAMES.get(task, task)
    if task.startswith('bidmc'):
      if not math.isfinite(value) or value > 1:
        yield f'prints an R\u00b2 of {value} on {where}, which is above 1'
      continue
    guess = GUESSING.get(task, 50 if task in TASKS else 0)
    if not 0 <= value <= 100:
      yield f'prints {value} % on {where}, which is not a share'
    elif value < guess - BELOW:
      yield f'prints {value} % on {where}, far below the {guess} % of guessing'


def _average(row):
  if row.average is None:
    return
  means = {name: mean for name, mean in averages(row.values).items() if mean is not None}
  known = [row.values[task] for task in published.LRA if task in row.values]
  if not means and known:
    means = {REPORTED: sum(known) / len(known)}
  # A unit of the last digit: half for the average itself, half for the values that it was taken of.
  slack = 10.0 ** -max(1, *map(_decimals, [*known, row.average]))
  if not any(abs(mean - row.average) <= slack + 1e-9 for mean in means.values()):
    shown = ', '.join(f'{name} {mean:.2f}' for name, mean in means.items())
    yield f'prints an average of {row.average:.2f}, which does not follow from its values ({shown or "none"})'


def _decimals(value):
  return len(f'{value}'.partition('.')[2].rstrip('0'))


def distinct(listed: list[LeaderboardRow]) -> list[LeaderboardRow]:
  """Rows without those that repeat numbers of another one, whose sources it then names too."""
  kept = []
  for row in sorted(listed, key=lambda row: -len(row.values)):  # stable: the paper's first
    for number, other in enumerate(kept):
      if other.regime == row.regime and len(row.values) >= 4 and row.values.items() <= other.values.items():
        source = f'{other.source}; {row.source}'
        both = dataclasses.replace(other, source=source, note=other.note or row.note)
        kept[number] = both
        break
    else:
      kept.append(row)
  return kept


def write(runs, path, title='Leaderboard', damaged=()) -> pathlib.Path:
  """Writes the page of published rows and runs.

  Args:
    runs: list of FinishedRun. path: of the file. title: plain text.
    damaged: list of `survey.Damaged`, which the page names.

  Raises:
    DamagedFile, FileAccessError: as `tables.summarise` and `document.write_page`.
  """
  return document.write_page(path, 'leaderboard.html', title=title, damaged=damaged, **view(runs))


def view(runs) -> dict:
  """What the page shows."""
  listed = rows()
  findings, groups = check(listed), tables.summarise(runs)
  flagged = {(finding.row.model, finding.row.regime) for finding in findings}
  names = dict.fromkeys([*TASKS, *(task for row in listed for task in row.values)])
  names |= dict.fromkeys(group.task for group in groups)
  shown = distinct(listed)
  return {
    'averages': _averages_view(shown, groups, flagged),
    'conventions': [name for name, *_ in AVERAGES],
    'tasks': [view for task in names for view in _task_views(task, shown, groups, flagged)],
    'findings': findings,
    'counts': {'published': len(shown), 'runs': len(runs)},
    'recorded': notes.recorded(runs),
    'contradictions': notes.contradictions(runs),
  }


def _task_views(task, shown, groups, flagged):
  """A table for each score of the task, that of its published rows first."""
  own = [group for group in groups if group.task == task]
  printed = [row for row in shown if task in row.values]
  theirs = R2 if task.startswith('bidmc') else ACCURACY
  scores = dict.fromkeys([*[theirs] * bool(printed or not own), *(group.score for group in own)])
  for score in scores:
    alike = [group for group in own if group.score is score]
    view = _task_view(task, score, printed if score is theirs else [], alike, flagged)
    yield view | {'name': f'{view["name"]}, {score.name}' if len(scores) > 1 else view['name']}


def _task_view(task, score, printed, own, flagged):
  """A table: every printed row and own arm, the best first."""
  share = score.is_share
  lines = [_own_line(group, arm) for group in own for arm in group.arms]
  for row in printed:
    value = row.values[task] / 100 if share else row.values[task]
    lines.append(
      {
        'value': value,
        'model': row.model,
        'training': row.regime,
        'score': f'{row.values[task]:.2f} %' if share else f'{row.values[task]:.3f}',
        'limits': '\u2013',
        'seeds': row.seeds or 'not given',
        'protocol': 'published',
        'source': row.source,
        'note': row.note,
        'flagged': (row.model, row.regime) in flagged,
        'own': False,
      }
    )
  lines.sort(key=lambda line: -line['value'])
  return {
    'name': published.TASK_NAMES.get(task, task),
    'score': score.title,
    'lines': lines,
    'cautions': list(dict.fromkeys(caution for group in own for caution in group.cautions)),
  }


def _own_line(group, arm):
  return {
    'value': arm.score.estimate,
    'model': arm.model,
    'training': arm.name,
    'score': arm.shown,
    'limits': group.score.limits(arm.score),
    'seeds': f'{len(arm.runs)} ({", ".join(map(str, arm.seeds))})',
    'protocol': group.protocol,
    'source': 'recorded' if arm.recorded else 'own runs',
    'note': '',
    'flagged': False,
    'own': True,
  }


def _averages_view(shown, groups, flagged):
  """Rows with at least one of the averages, the best of six tasks first, then of the other conventions."""
  lines = []
  for row in shown:
    means = averages(row.values)
    text = None if row.average is None else f'{row.average:.2f}'
    known = {'model': row.model, 'training': row.regime, 'own': False, 'printed': text, 'source': row.source}
    lines.append(known | {'means': list(means.values()), 'flagged': (row.model, row.regime) in flagged})
  own = {}
  for group in groups:
    for arm in group.arms:
      if group.score.is_share and group.task in published.LRA:
        own.setdefault((arm.model, arm.key, group.protocol), {})[group.task] = arm
  for (model, (_, _, training), protocol), arms in own.items():
    values = {task: 100 * arm.score.estimate for task, arm in arms.items()}
    source = f'own runs, protocol {protocol}'
    source += f', some of them recorded {RECORDED}' * any(arm.recorded for arm in arms.values())
    known = {'model': model, 'training': training, 'own': True, 'printed': None, 'source': source}
    lines.append(known | {'means': list(averages(values, failed=None).values()), 'flagged': False})
  lines = [line for line in lines if any(mean is not None for mean in line['means'])]
  lines.sort(key=lambda line: [-(line['means'][number] or 0) for number in (1, 0, 2)])
  for line in lines:
    line['means'] = ['\u2013' if mean is None else f'{mean:.2f}' for mean in line['means']]
  return lines
