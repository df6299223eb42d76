"""study.json, the plan of a study in its folder: its reader, its writer and its form."""

import dataclasses
from typing import Any

from lra_spt import files
from lra_spt.config.values import problem
from lra_spt.errors import ConfigError
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder


@dataclasses.dataclass(frozen=True)
class TriedValues:
  """Values that a search tried: 'key=value, key=value', and their mean validation score. loss: the mean
  validation loss, where the score is not defined."""

  values: str
  score: float | None
  loss: float | None = None


@dataclasses.dataclass(frozen=True)
class SearchRound:
  """won: the values that won the round; None while it is open. problem: why it cannot go on, or ''."""

  tried: list[TriedValues]
  won: str | None
  problem: str = ''


@dataclasses.dataclass(frozen=True)
class Published:
  """A published number to show beside ours.

  value: as in result.json (a fraction, or R2); None if the source says that there is none.
  printed: the text in the source.
  source: table, figure or section.
  """

  value: float | None
  printed: str
  source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellRecord:
  """A cell of a study: the config and the seeds of its runs. folder: of its runs, below that of the study."""

  row: str
  column: str
  folder: str
  seeds: list[int]
  config: str
  overrides: dict[str, Any]
  note: str
  search: list[SearchRound]
  published: Published | None = None
  x: float | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
  """A figure: one line per row, over the x of its cells.

  x, y: labels of the axes. log: the x axis is logarithmic.
  """

  x: str
  y: str
  log: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRecord:
  """study.json, see `lra_spt.studies.study.Study`. register: files of the command's --register."""

  study: str
  title: str
  about: str
  rows: list[str]
  columns: list[str]
  averages: bool
  show: str
  cells: list[CellRecord]
  chart: Chart | None = None
  smoke: bool = False
  focus: str = ''
  register: list[str] = dataclasses.field(default_factory=list)


def is_study(workdir) -> bool:
  """True for the folder of a study."""
  return (files.place(workdir) / run_folder.STUDY).exists()


def read_record(workdir) -> dict:
  """The content of study.json, which has the keys of StudyRecord; DamagedFile when it has not."""
  advice = 'move it away and run the command of the study again'
  path = files.place(workdir) / run_folder.STUDY
  return checksums.read(path, 'the record of a study', advice, lambda it: problem(StudyRecord, it))[0]


def claim(workdir, record: dict) -> list[str]:
  """Writes study.json. Cells that an earlier command chose keep their seeds and the result of their search.

  Args:
    workdir: folder of the study.
    record: with the keys of StudyRecord.

  Returns:
    Names of cells with seeds that the study no longer has, for example because its argument is another one.

  Raises:
    ConfigError: the folder belongs to another study, or holds results of a smoke run and this is a full one,
      or the other way round.
    DamagedFile: its study.json cannot be read.
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
      if earlier['seeds'] and not cell['seeds']:  # this command chose other cells
        cell |= {key: earlier[key] for key in ('overrides', 'search')}
      cell['seeds'] = sorted({*cell['seeds'], *earlier['seeds']})
    names = {(cell['row'], cell['column']) for cell in record['cells']}
    left_out = [', '.join(name) for name, cell in chosen.items() if cell['seeds'] and name not in names]
  checksums.write(path, record)
  return left_out


def _has_results(workdir, record):
  places = ((cell['folder'], seed) for cell in record['cells'] for seed in cell['seeds'])
  return any(
    (files.place(workdir) / folder / f'seed{seed}' / run_folder.RESULT).exists() for folder, seed in places
  )
