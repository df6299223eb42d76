"""The table or figure of a study: study.json says what belongs where, run folders hold the results."""

import dataclasses
import functools
import itertools
import pathlib
import textwrap

from lra_spt import files
from lra_spt.errors import ConfigError, DamagedFile, FileAccessError, NonFiniteError
from lra_spt.files import checksums
from lra_spt.report.published import LRA, TASK_NAMES
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import FinishedRun, in_what_they_differ, settings
from lra_spt.report.runs.unfinished import progress_of
from lra_spt.report.statistics.scores import SCORES
from lra_spt.report.study import arms as tables
from lra_spt.report.study import notes
from lra_spt.report.study import sentences as conclusions
from lra_spt.report.study.findings import StudyFindings, findings
from lra_spt.report.survey import read_whole

WIDTH = 110  # of a line of text
CHANCE = 0.5  # on PathX, which counts so in the second average where a model fails
# The three ways in which papers average the LRA tasks: name, tasks, whether a failed PathX counts as chance.
AVERAGES = (
  ('mean of 5, no PathX', tuple(task for task in LRA if task != 'pathx'), False),
  ('mean of 6, failed PathX 50', LRA, True),
  ('mean of 5, no ListOps', tuple(task for task in LRA if task != 'listops'), False),
)
_KEYS = {
  'study': str,
  'title': str,
  'about': str,
  'rows': list,
  'columns': list,
  'averages': bool,
  'show': str,
  'cells': list,
}
_CELL = {
  'row': str,
  'column': str,
  'folder': str,
  'seeds': list,
  'config': str,
  'overrides': dict,
  'note': str,
  'search': list,
}


def is_study(workdir) -> bool:
  """Whether a folder is that of a study."""
  return (files.place(workdir) / run_folder.STUDY).exists()


def claim(workdir, record: dict) -> list[str]:
  """Notes what a study is in its folder; a part of it that was chosen before stays chosen, with what its
  search found.

  Args:
    workdir: of the study.
    record: of `lra_spt.studies.records.record`.

  Returns:
    names of cells that had runs and that the study lacks now, by another argument for example.

  Raises:
    ConfigError: the folder belongs to another study, or holds results of its smoke run where this is none,
      or the other way round.
    DamagedFile: its study.json is none.
  """
  path, left_out = files.place(workdir) / run_folder.STUDY, []
  if path.exists():
    before = read_record(workdir)
    if before['study'] != record['study']:
      raise ConfigError(
        f'{workdir} belongs to the study {before["study"]}, not to {record["study"]}; choose another '
        '--workdir.'
      )
    if bool(before.get('smoke')) != bool(record.get('smoke')) and _has_results(workdir, before):
      kinds = ('full runs', 'a smoke run')
      raise ConfigError(
        f'{workdir} has results of {kinds[bool(before.get("smoke"))]}, but this command makes '
        f'{kinds[bool(record.get("smoke"))]}; choose another --workdir, or move that folder away.'
      )
    chosen = {(cell['row'], cell['column']): cell for cell in before['cells']}
    for cell in record['cells']:
      earlier = chosen.get((cell['row'], cell['column']), {'seeds': []})
      if earlier['seeds'] and not cell['seeds']:  # this command was about others
        cell |= {key: earlier[key] for key in ('overrides', 'search')}
      cell['seeds'] = sorted({*cell['seeds'], *earlier['seeds']})
    kept = {(cell['row'], cell['column']) for cell in record['cells']}
    left_out = [', '.join(name) for name, cell in chosen.items() if cell['seeds'] and name not in kept]
  checksums.write(path, record)
  return left_out


def _has_results(workdir, record):
  places = ((cell['folder'], seed) for cell in record['cells'] for seed in cell['seeds'])
  return any(
    (files.place(workdir) / folder / f'seed{seed}' / run_folder.RESULT).exists() for folder, seed in places
  )


def read_record(workdir) -> dict:
  """The content of study.json; DamagedFile when it is none."""
  advice = 'move it away and run the command of the study again'
  return checksums.read(files.place(workdir) / run_folder.STUDY, 'the record of a study', advice, _problem)[0]


def _problem(record: dict) -> str | None:
  wrong = [key for key, of in _KEYS.items() if not isinstance(record.get(key), of)]
  wrong += [
    f'cells[{number}].{key}'
    for number, cell in enumerate(record.get('cells') or ())
    for key, of in _CELL.items()
    if not isinstance(cell, dict) or not isinstance(cell.get(key), of)
  ]
  wrong += (
    []
    if wrong
    else [
      f'cells[{number}].search'
      for number, cell in enumerate(record['cells'])
      if not all(_is_round(part) for part in cell['search'])
    ]
  )
  return f'it has no {wrong[0]} of the right kind' if wrong else None


def _is_round(part) -> bool:
  """Whether it is what `lra_spt.studies.search` notes of a round."""
  return (
    isinstance(part, dict)
    and isinstance(part.get('won'), str | None)
    and isinstance(part.get('problem', ''), str)
    and isinstance(part.get('tried'), list)
    and all(
      isinstance(one, dict) and isinstance(one.get('values'), str) and 'score' in one for one in part['tried']
    )
  )


@dataclasses.dataclass(frozen=True, eq=False)
class TableCell:
  """record: of study.json. folder: of its runs, one below per seed. arm: its finished runs, None without any.
  open: (seed, how far it is, the sentence with which it failed or '') of those that are not. diverged: seeds
  of runs that failed since a number was not finite, which is what this way of training does."""

  record: dict
  folder: pathlib.Path
  arm: tables.Arm | None
  open: tuple[tuple[int, str, str], ...]
  diverged: tuple[int, ...] = ()

  @property
  def published(self) -> dict | None:
    return self.record.get('published')

  @property
  def runs(self) -> tuple[FinishedRun, ...]:
    return () if self.arm is None else self.arm.runs

  @property
  def score(self):
    """How its number is shown: of its runs, else of what is published."""
    return self.runs[0].score if self.runs else SCORES['accuracy']

  @property
  def failed(self) -> tuple[str, ...]:
    return tuple(sentence for _, _, sentence in self.open if sentence)

  @property
  def state(self) -> str:
    """'' where all runs are finished, else what is missing: 'not run', 'failed', '1 of 3 seeds'."""
    if not self.record['seeds']:
      return self.record['note'] or ('not chosen' if self.record['config'] else 'not run')
    if not self.open:
      return ''
    if not (self.runs or self.failed) and any(part['won'] is None for part in self.record['search']):
      return 'searching'
    if self.failed and not self.runs:
      return 'failed'
    total = len(self.runs) + len(self.open)
    if self.runs:
      return f'{len(self.runs)} of {total} seeds'
    return 'running' if any(how != 'waiting' for _, how, _ in self.open) else 'waiting'

  @property
  def text(self) -> str:
    """Its number, or a dash."""
    return self.arm.shown if self.arm else self.score.show(None)


@dataclasses.dataclass(frozen=True, eq=False)
class ResultTable:
  """A study with what its runs came to. cells: {(row, column): TableCell}, not for every pair."""

  workdir: pathlib.Path
  record: dict
  cells: dict[tuple[str, str], TableCell]

  rows = property(lambda self: self.record['rows'])
  columns = property(lambda self: self.record['columns'])
  runs = property(lambda self: [run for cell in self.cells.values() for run in cell.runs])

  @functools.cached_property
  def counts(self) -> dict[str, int]:
    """How many runs are finished, failed and open, of how many cells."""
    open_runs = [run for cell in self.cells.values() for run in cell.open]
    return {
      'finished': len(self.runs),
      'failed': sum(bool(sentence) for *_, sentence in open_runs),
      'open': sum(not sentence for *_, sentence in open_runs),
    }

  @functools.cached_property
  def findings(self) -> StudyFindings:
    """What the finished runs say together."""
    return findings(self.cells.values())

  def averages(self, row: str) -> list[tuple[str, float | None, float | None]]:
    """(name of the convention, ours, published) over the LRA tasks; None where a task is missing."""
    return [
      (name, self._average(row, tasks, chance, ours), self._average(row, tasks, chance, published))
      for name, tasks, chance in AVERAGES
    ]

  def _average(self, row, tasks, chance, value):
    values = []
    for task in tasks:
      cell = self.cells.get((row, TASK_NAMES[task]))
      found = None if cell is None else value(cell)
      if found is None and chance and task == 'pathx' and cell is not None and value is published:
        found = CHANCE
      if found is None:
        return None
      values.append(found)
    return sum(values) / len(values)


def ours(cell):
  return cell.arm.score.estimate if cell.arm else None


def published(cell):
  return cell.published['value'] if cell.published else None


def read_table(workdir) -> ResultTable:
  """The ResultTable of a study's folder; a damaged run is shown as one that failed.

  Raises:
    DamagedFile: study.json is none.
  """
  workdir = files.place(workdir)
  record = read_record(workdir)
  cells = {}
  for entry in record['cells']:
    folder = workdir / entry['folder']
    runs, open_runs, diverged = [], [], []
    problem = next((part['problem'] for part in entry['search'] if part.get('problem')), '')
    for seed in entry['seeds']:
      place = folder / f'seed{seed}'
      if not (place / run_folder.RESULT).exists():
        *progress, kind = ('waiting', problem, '') if problem else _progress(place)
        open_runs.append((seed, *progress))
        diverged += [seed] if kind == NonFiniteError.__name__ else []
        continue
      try:
        run = read_whole(place)
        if run.seed != seed:
          raise DamagedFile(f'{place} holds a run of seed {run.seed}; move it to where it belongs.')
        runs.append(run)
      except (DamagedFile, FileAccessError) as error:
        open_runs.append((seed, 'damaged', str(error)))
    arm = tables.arm_of(runs) if runs else None
    cells[entry['row'], entry['column']] = TableCell(entry, folder, arm, tuple(open_runs), tuple(diverged))
  return ResultTable(workdir, record, cells)


def _progress(folder):
  """(how far, failure, its kind) of a run without a result."""
  try:
    note = run_folder.read_failure(folder)
  except DamagedFile as error:
    return 'failed', str(error), ''
  if note is not None:
    return 'failed', note.get('error') or 'failed without a message', note.get('kind', '')
  stage, step, _ = progress_of(folder)
  return ('waiting' if step is None else f'{stage}, step {step:,}'), '', ''


def text(table: ResultTable) -> str:
  """The table for a terminal: ours, and in parentheses what is published; what is not run says so."""
  head = ['', *table.columns]
  if table.record['averages']:
    head += [name for name, *_ in AVERAGES]
  lines = [head]
  for row in table.rows:
    cells = [table.cells.get((row, column)) for column in table.columns]
    line = [row, *('' if cell is None else cell_text(cell) for cell in cells)]
    if table.record['averages']:
      show = SCORES['accuracy'].show
      line += [f'{show(ours)} ({show(theirs)})' for _, ours, theirs in table.averages(row)]
    lines.append(line)
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  body = [
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
  ]
  counts = table.counts
  parts = [f'{counts["finished"]} runs finished']
  parts += [f'{counts[key]} {key}' for key in ('failed', 'open') if counts[key]]
  title = f'{table.record["title"]} (study {table.record["study"]}): {", ".join(parts)}'
  notes = ['In parentheses: published.'] if any(cell.published for cell in table.cells.values()) else []
  notes += cautions(table)
  said = []
  if table.runs:
    wrap = functools.partial(textwrap.wrap, width=WIDTH, subsequent_indent='  ')
    sentences = *conclusions.sentences(table.findings), *table.findings.apart
    said = ['', *(line for sentence in sentences for line in wrap(sentence))]
  return '\n'.join([title, '', *body, *[''] * bool(notes), *notes, *failures(table), *said])


def cautions(table) -> list[str]:
  """Sentences to stand beside the numbers: what runs say of themselves, with their cells; on cells of several
  versions of a set, on averages of which seeds are missing, on recorded runs, and on those that contradict
  themselves."""
  said = {}
  for cell in table.cells.values():
    for sentence in notes.told_by(cell.runs):
      said.setdefault(sentence, []).append(f'{cell.record["row"]}, {cell.record["column"]}')
  found = [f'{_some(cells)}: {sentence}' for sentence, cells in said.items()]
  mixed = [cell for cell in table.cells.values() if len({notes.fingerprints(run) for run in cell.runs}) > 1]
  found += [
    f'The runs of {cell.record["row"]}, {cell.record["column"]} used several versions of its set, so '
    'their mean belongs to none of them.'
    for cell in mixed
  ]
  found += [
    f'The runs of {task} used several versions of its set; those on different versions are not compared.'
    for task, prints in _prints(table.runs).items()
    if len(prints) > 1
  ]
  for cell in table.cells.values():
    name = f'{cell.record["row"]}, {cell.record["column"]}'
    if keys := in_what_they_differ([settings(run) for run in cell.runs]):
      found.append(
        f'The runs of {name} differ in {", ".join(keys)}, so their mean belongs to none of these settings.'
      )
    found += [f'{name}: {sentence}' for sentence in notes.shared(cell.runs)]
  if partial := _lacking_seeds(table):
    found.append(f'Averages of {", ".join(partial)} include cells with missing seeds.')
  return found + notes.recorded(table.runs) + notes.contradictions(table.runs)


def _prints(runs) -> dict[str, set[str]]:
  """{task: fingerprints of the examples} of its runs that note them."""
  found = {}
  for run in runs:
    if data := (run.result.get('fingerprints') or {}).get('data'):
      found.setdefault(run.task, set()).add(data)
  return found


def _some(cells) -> str:
  """The first of several cells and how many more."""
  return cells[0] if len(cells) == 1 else f'{cells[0]} and {len(cells) - 1} more'


def _lacking_seeds(table) -> list[str]:
  """Rows with an average of ours of which a cell lacks seeds."""
  if not table.record['averages']:
    return []
  partial = {row for (row, _), cell in table.cells.items() if cell.runs and cell.open}
  return [
    row
    for row in table.rows
    if row in partial and any(mean is not None for _, mean, _ in table.averages(row))
  ]


def failures(table):
  """A line per sentence with which runs failed."""
  found = [
    (sentence, f'{cell.record["row"]}, {cell.record["column"]}, seed {seed}')
    for cell in table.cells.values()
    for seed, _, sentence in cell.open
    if sentence
  ]
  found.sort()
  for sentence, same in itertools.groupby(found, key=lambda pair: pair[0]):
    where = [place for _, place in same]
    yield f'! {_some(where)}: {sentence}'


def cell_text(cell: TableCell) -> str:
  """'75.3 % +- 1.2 (74.2)', or what is missing."""
  ours = cell.text if cell.arm else cell.state
  if cell.arm and cell.state:
    ours += f' [{cell.state}]'
  return ours + (f' ({cell.published["printed"]})' if cell.published else '')
