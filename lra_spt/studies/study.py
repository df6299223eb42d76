"""Studies as data: many runs that answer one question in one table or figure. They need no jax.

A study file defines `get_study()`, or `get_study(arg)` with the text after the colon of `file.py:arg`. It
returns a `Study`; docs/studies.md has a complete example.
"""

import collections
import dataclasses
import inspect
import pathlib
import re
import traceback
from collections.abc import Mapping, Sequence

from lra_spt.config import loading, user_files
from lra_spt.config.regimes import get_regime
from lra_spt.errors import ConfigError, nearest
from lra_spt.report.runs import run_folder
from lra_spt.report.study.record import Chart, Published
from lra_spt.studies import choice

NAME = re.compile(r'[a-z0-9][a-z0-9_-]*')
Values = Mapping[str, object]  # {dotted key: value} of a config
# Additional parts of a page: training scores over the epochs of both stages; kernels of state-space models;
# test accuracies as bars. 'operations' also stores validation scores with the runs of a study.
SHOWN = ('curves', 'operations', 'kernels', 'bars')


def _check_seeds(what, seeds, least=0):
  whole = isinstance(seeds, Sequence) and all(isinstance(seed, int) for seed in seeds)
  if not whole or len(set(seeds)) < max(len(seeds), least):
    raise ConfigError(f'{what} has seeds={seeds!r}: list different whole numbers, such as seeds=(0, 1, 2).')


@dataclasses.dataclass(frozen=True)
class Search:
  """Values that validation chooses for every cell, before the seeds of the cell run with them.

  Attributes:
    rounds: the values that each round tries; the second round starts from the best of the first. Cells
      without pretraining skip the values of pretraining.
    seeds: development seeds; the best mean over them wins. They differ from the study's seeds.
  """

  rounds: Sequence[Sequence[Values]]
  seeds: tuple[int, ...] = (0,)

  def __post_init__(self):
    _check_seeds('A search', self.seeds, least=1)
    rounds = self.rounds if isinstance(self.rounds, Sequence) else [self.rounds]
    for tried in rounds:
      if not isinstance(tried, Sequence) or not all(_is_values(values) for values in tried):
        raise ConfigError(
          f'A search has the round {tried!r:.100}: make rounds a list of lists of dicts, such as '
          "[[{'finetune.optimizer.lr': 1e-3}, {'finetune.optimizer.lr': 1e-4}]]."
        )


def _is_values(values) -> bool:
  return isinstance(values, Mapping) and all(isinstance(key, str) for key in values)


# Fields of a Cell: key, types, an example.
_FIELDS = (
  ('row', str, "a text, such as row='S4, masked'"),
  ('column', str, "a text, such as column='Image'"),
  ('config', str, "a text, such as config='configs/image.py:model=s4'"),
  ('overrides', Mapping, "a dict, such as overrides={'finetune.epochs': 50.0}"),
  ('published', Published | None, "such as published=Published(0.753, '75.3', 'Table 2')"),
  ('note', str, 'a text'),
  ('x', float | int | None, 'a number'),
  ('search', Search | None, 'such as search=Search([[{...}, {...}]], seeds=(1,))'),
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell of a table, or one point of a figure: the runs of one config, one run per seed.

  Attributes:
    row: name of the row.
    column: name of the column.
    config: as for `lra-spt train --config`, without a seed; '' for a cell without runs.
    overrides: overrides of the config.
    published: the number that others report for it.
    note: why there are no runs, or how they differ from the published run.
    x: the position on the x axis of a figure; None if the study is not a figure.
    seeds: seeds of the runs; (): those of the study.
    search: values that validation chooses for this cell; None: as the study searches.
  """

  row: str
  column: str
  config: str = ''
  overrides: Values = dataclasses.field(default_factory=dict)
  published: Published | None = None
  note: str = ''
  x: float | None = None
  seeds: tuple[int, ...] = ()
  search: Search | None = None

  def __post_init__(self):
    what = f'The cell ({self.row}, {self.column})'
    for key, kind, example in _FIELDS:
      if not isinstance(value := getattr(self, key), kind):
        raise ConfigError(f'{what} has {key}={value!r:.100}: make it {example}.')
    _check_seeds(what, self.seeds)


@dataclasses.dataclass(frozen=True)
class Study:
  """A set of runs that answer one question.

  Attributes:
    name: short, of lower-case letters, digits, - and _.
    title: title of the page.
    cells: the cells of the table or figure.
    about: the question, in a few sentences.
    seeds: seeds of cells that name none.
    averages: the table includes means: the three of papers if it has all tasks of LRA, else over its columns.
    chart: the axes of a figure; None for a table.
    show: an additional part of the page, from `SHOWN`.
    search: values that validation chooses for every cell without a search of its own; None if the configs
      set all values.
    smoke: the runs take only a few steps, see `shortened`.
    focus: name of the model that the conclusions are about; '' for all.
  """

  name: str
  title: str
  cells: Sequence[Cell]
  about: str = ''
  seeds: tuple[int, ...] = (0,)
  averages: bool = False
  chart: Chart | None = None
  show: str = ''
  search: Search | None = None
  smoke: bool = False
  focus: str = ''

  def __post_init__(self):
    if not NAME.fullmatch(self.name):
      raise ConfigError(
        f'A study is called {self.name!r}: use lower-case letters, digits, - and _ only, beginning with a '
        'letter or digit.'
      )
    _check_seeds(f'The study {self.name}', self.seeds)
    if not isinstance(self.cells, Sequence) or not all(isinstance(cell, Cell) for cell in self.cells):
      raise ConfigError(
        f'The study {self.name} has cells={self.cells!r:.100}: list Cells, such as [Cell(...)].'
      )
    if self.show not in ('', *SHOWN):
      raise ConfigError(
        f'The study {self.name} shows {self.show!r}: choose {", ".join(SHOWN)}, or leave it out.'
      )
    places = collections.Counter(folder_of(cell) for cell in self.cells)
    if twice := [place for place, count in places.items() if count > 1]:
      same = dict.fromkeys(
        f'({cell.row}, {cell.column})' for cell in self.cells if folder_of(cell) == twice[0]
      )
      raise ConfigError(
        f'The study {self.name} has several cells at one place, {" and ".join(same)}: give each another row '
        'or column.'
      )
    if not self.cells:
      raise ConfigError(f'The study {self.name} has no cells: list at least one.')

  def search_of(self, cell: Cell) -> Search | None:
    """The search of one of its cells."""
    return cell.search or self.search

  @property
  def rows(self) -> list[str]:
    """Names of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(cell.row for cell in self.cells))

  @property
  def columns(self) -> list[str]:
    """Names of the columns, in the order in which they first appear."""
    return list(dict.fromkeys(cell.column for cell in self.cells))


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """One run of a study.

  folder: relative to that of the study.
  config: the ConfigDict, with seed and overrides.
  arguments: for `lra-spt train`, without the seed and the folders.
  stages: keys of its stages; runs with a common key share that stage.
  what: round and values in a search; '' for a run of the table.
  """

  cell: Cell
  seed: int
  folder: pathlib.PurePosixPath
  config: object
  arguments: tuple[str, ...]
  stages: Mapping[str, str]
  what: str = ''

  @property
  def place(self) -> str:
    return f'{self.cell.row}, {self.cell.column}' + (f' ({self.what})' if self.what else '')

  @property
  def name(self) -> str:
    return f'{self.place}, seed {self.seed}'

  @property
  def overrides(self) -> dict[str, str]:
    """Overrides of the config, as for a command line."""
    pairs = (item.removeprefix('--config.') for item in self.arguments if item.startswith('--config.'))
    return dict(pair.split('=', 1) for pair in pairs)

  @property
  def program(self) -> str:
    """A digest that is equal for runs that differ only in the seed."""
    return loading.digest(loading.identity(self.config) | {'seed': 0})

  @property
  def members(self) -> int:
    """The number of runs that differ only in their seeds and train as one program."""
    return self.config.runtime.get('members', 1)


STAGES = 'stages'  # folder of the stages that runs of a study share


def together(jobs: Sequence[Job]) -> list[list[Job]]:
  """Groups the jobs, in their order, into lists that one command trains as one program."""
  groups: list[list[Job]] = []
  for job in jobs:
    alike = (group for group in groups if len(group) < job.members and _alike(group[0], job))
    if (group := next(alike, None)) is not None:
      group.append(job)
    else:
      groups.append([job])
  return groups


def _alike(job, other) -> bool:
  return (job.folder.parent, job.program) == (other.folder.parent, other.program)


def command(group: Sequence[Job], workdir, stages: pathlib.Path | None = None) -> list[str]:
  """The words of the command that trains a list of jobs from `together` in the folder of a study.

  Args:
    stages: folder for the stages; None: that of the study.
  """
  first, workdir = group[0], pathlib.Path(workdir)
  folder, seeds = workdir / first.folder, f'--config.seed={first.seed}'
  if first.members > 1:
    folder, seeds = folder.parent, '--seeds=' + ','.join(str(job.seed) for job in group)
  stages = workdir / STAGES if stages is None else stages
  return ['lra-spt', 'train', *first.arguments, seeds, f'--workdir={folder}', f'--stages={stages}']


def _slug(text: str) -> str:
  return re.sub(r'[^a-z0-9.]+', '_', text.lower()).strip('_.') or '_'


def folder_of(cell: Cell) -> pathlib.PurePosixPath:
  """The folder of the runs of a cell, relative to the folder of the study."""
  return pathlib.PurePosixPath('runs', _slug(cell.row), _slug(cell.column))


def load(spec: str) -> Study:
  """Loads the study of `path/to/file.py` or `path/to/file.py:argument`, found like config files.

  Raises:
    ConfigError: there is no such file, or it does not define a study.
  """
  name, colon, arg = spec.partition('.py:')
  path = user_files.find(name + '.py' if colon else spec)
  module = user_files.run(path, '_study_file_')
  make = getattr(module, 'get_study', None)
  if not callable(make):
    raise ConfigError(f'The study file {path} has no function get_study: define one that returns a Study.')
  takes_argument = bool(inspect.signature(make).parameters)
  if arg and not takes_argument:
    raise ConfigError(f'The study file {path} takes no argument: leave out :{arg}.')
  try:
    with user_files.importing_from(path.resolve().parent):
      study = make(arg) if arg else make()
  except TypeError as error:
    if (sentence := _misused(path, error)) is None:
      raise
    raise ConfigError(sentence) from error
  if not isinstance(study, Study):
    raise ConfigError(
      f'get_study of {path} returns {type(study).__name__}: return a lra_spt.studies.study.Study.'
    )
  return study


def _misused(path, error: TypeError) -> str | None:
  """A sentence if the study file calls a class of this module with wrong arguments; None for other errors."""
  *_, (frame, line) = traceback.walk_tb(error.__traceback__)
  match = re.fullmatch(r'(\w+)\.__init__\(\) (.*)', str(error))
  cls = {one.__name__: one for one in (Study, Cell, Search, Chart, Published)}.get(match and match[1])
  if cls is None or frame.f_code.co_filename != str(path):
    return None
  unknown = re.search(r"unexpected keyword argument '(\w+)'", match[2])
  close = nearest(unknown[1], [field.name for field in dataclasses.fields(cls)]) if unknown else ''
  return f'{path} cannot make a {match[1]} in line {line} ({match[2]}): correct it.{close}'


def shortened(study: Study) -> Study:
  """The study as a smoke run, which tests that everything works: a few steps and one seed. Each round of a
  search has one seed and its first two values."""

  def shorter(search):
    return search and Search([values[:2] for values in search.rounds], search.seeds[:1])

  cells = [
    dataclasses.replace(cell, seeds=cell.seeds[:1], search=shorter(cell.search)) for cell in study.cells
  ]
  about = f'{study.about}\n\nThis was a smoke run of a few steps: its numbers mean nothing.'
  return dataclasses.replace(
    study,
    cells=cells,
    seeds=study.seeds[:1],
    search=shorter(study.search),
    smoke=True,
    about=about.strip(),
  )


def jobs(
  study: Study,
  *,
  seeds: Sequence[int] | None = None,
  only: Mapping[str, str] | None = None,
  overrides: Sequence[str] = (),
) -> list[Job]:
  """The runs of a study: the first seed of every cell, then the second, and so on. The first of the runs that
  differ only in the seed compiles their programs.

  Args:
    study: the study.
    seeds: replace the seeds of the study.
    only: {key of choice.SELECTABLE: value} that all chosen runs have.
    overrides: 'KEY=VALUE' for the configs of all runs.

  Raises:
    ConfigError: a config cannot be used (the message names the cell), no run is left, or a seed is one of the
      search.
  """
  runs = []
  for cell in study.cells:
    cell_seeds = (seeds or cell.seeds or study.seeds) if cell.config else ()
    if (search := study.search_of(cell)) and (used := {*cell_seeds} & {*search.seeds}):
      raise ConfigError(
        f'Seed {min(used)} of the study {study.name} chooses hyperparameters, so it cannot test them: take '
        'another one.'
      )
    for turn, seed in enumerate(cell_seeds):
      try:
        job = _job(cell, seed, overrides, study.smoke)
      except ConfigError as error:
        raise ConfigError(f'The cell ({cell.row}, {cell.column}) of study {study.name}: {error}') from error
      if choice.includes(job, only or {}):
        runs.append((turn, job))
  if not runs:
    wanted = ', '.join(f'{key}={value}' for key, value in (only or {}).items())
    raise ConfigError(
      f'No run of the study {study.name} has {wanted}: it has the rows {", ".join(study.rows)} and the '
      f'columns {", ".join(study.columns)}.'
      if wanted
      else f'No cell of the study {study.name} has a config: give one to at least one cell.'
    )
  return [job for _, job in sorted(runs, key=lambda pair: pair[0])]


def _job(cell, seed, overrides, smoke):
  keys = {item.partition('=')[0] for item in overrides}
  values = {key: value for key, value in cell.overrides.items() if key not in keys}
  pairs = [*(f'{key}={text_of(value)}' for key, value in values.items()), *overrides]
  config = loading.load(cell.config, [*pairs, f'seed={seed}'])
  if smoke:
    loading.shorten(config)
  identity = loading.identity(config) | {'fingerprints': {'data': '', 'splits': ''}}
  # The fingerprints of data are left out: all runs of a study on a task have the same.
  stages = {name: path.name for name, path in run_folder.stage_folders(pathlib.Path(), identity).items()}
  if get_regime(config.regime).objective is None:
    del stages['pretrain']
  arguments = (f'--config={cell.config}', *(f'--config.{pair}' for pair in pairs), *['--smoke'] * smoke)
  return Job(cell, seed, folder_of(cell) / f'seed{seed}', config, arguments, stages)


def text_of(value) -> str:
  """A value as written on a command line."""
  return str(value).lower() if isinstance(value, bool) else str(value)
