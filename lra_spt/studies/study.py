"""Studies: many runs that answer one question in one table or figure, as data. Needs no jax.

A study file defines `get_study()` (or `get_study(arg)`, with what follows the colon in `file.py:arg`), which
returns a `Study`; docs/studies.md has a whole one.
"""

import collections
import dataclasses
import inspect
import pathlib
import re
from collections.abc import Mapping, Sequence

from lra_spt import config as config_lib
from lra_spt import config_files, run_folder
from lra_spt.errors import ConfigError, nearest
from lra_spt.regimes import get_regime

NAME = re.compile(r'[a-z0-9][a-z0-9_-]*')
Values = Mapping[str, object]  # {dotted key: value} of a config
# What else a page can show: accuracy over the steps of either stage; validation over what training had cost;
# kernels of state-space models.
SHOWN = ('curves', 'operations', 'kernels')
SELECTABLE = ('task', 'model', 'regime', 'protocol', 'row', 'column')  # what `--only` chooses by


@dataclasses.dataclass(frozen=True)
class Published:
  """A number to stand beside ours.

  value: as in result.json (a share, or R2); None where the source says that there is none. printed: as the
  source prints it. source: where.
  """

  value: float | None
  printed: str
  source: str


# Of a Cell: key, types, how a value looks.
_FIELDS = (
  ('row', str, "a text, such as row='S4, masked'"),
  ('column', str, "a text, such as column='Image'"),
  ('config', str, "a text, such as config='configs/image.py:model=s4'"),
  ('overrides', Mapping, "a dict, such as overrides={'finetune.epochs': 50.0}"),
  ('published', Published | None, "such as published=Published(0.753, '75.3', 'Table 2')"),
  ('note', str, 'a text'),
  ('x', float | int | None, 'a number'),
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell of a table, or one point of a figure: the runs of one config, a run per seed.

  Attributes:
    row: name of its place.
    column: likewise.
    config: as `lra-spt train --config` takes it, without a seed; '' for a cell without runs of ours.
    overrides: of the config.
    published: the number that others report for it.
    note: why there are no runs, or how they differ from the published one.
    x: its place on the axis of a figure; None where the study is none.
    seeds: of its runs; () for those of the study.
  """

  row: str
  column: str
  config: str = ''
  overrides: Values = dataclasses.field(default_factory=dict)
  published: Published | None = None
  note: str = ''
  x: float | None = None
  seeds: tuple[int, ...] = ()

  def __post_init__(self):
    what = f'The cell ({self.row}, {self.column})'
    for key, kind, example in _FIELDS:
      if not isinstance(value := getattr(self, key), kind):
        raise ConfigError(f'{what} has {key}={value!r:.100}: make it {example}.')
    _check_seeds(what, self.seeds)


def _check_seeds(what, seeds, least=0):
  whole = isinstance(seeds, Sequence) and all(isinstance(seed, int) for seed in seeds)
  if not whole or len(set(seeds)) < max(len(seeds), least):
    raise ConfigError(f'{what} has seeds={seeds!r}: list different whole numbers, such as seeds=(0, 1, 2).')


@dataclasses.dataclass(frozen=True)
class Chart:
  """A figure: of every row a line over the x of its cells.

  x, y: what the axes show. log: whether that of x is logarithmic.
  """

  x: str
  y: str
  log: bool = False


@dataclasses.dataclass(frozen=True)
class Search:
  """Values that validation chooses for every cell, before its own seeds run with them.

  Attributes:
    rounds: what each round tries; the second builds on what won the first. A cell without pretraining passes
      over the values of one.
    seeds: development seeds, whose mean counts. The study's seeds are others.
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


@dataclasses.dataclass(frozen=True)
class Study:
  """name: short, of small letters, digits, - and _. about: what it asks, in a few sentences. seeds: of the
  cells that name none. averages: whether the means over the columns are a part of the table. chart: None for
  a table. show: what else of its runs belongs to it, of `SHOWN`. search: None where the configs say all.
  smoke: whether its runs take a few steps only, see `shortened`."""

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

  def __post_init__(self):
    if not NAME.fullmatch(self.name):
      raise ConfigError(
        f'A study is called {self.name!r}: use small letters, digits, - and _ only, beginning with a letter '
        'or digit.'
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
      same = [f'({cell.row}, {cell.column})' for cell in self.cells if folder_of(cell) == twice[0]]
      raise ConfigError(
        f'The study {self.name} has several cells at one place, {" and ".join(same)}: give each another row '
        'or column.'
      )
    if not self.cells:
      raise ConfigError(f'The study {self.name} has no cells: list at least one.')

  @property
  def rows(self) -> list[str]:
    """Names of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(cell.row for cell in self.cells))

  @property
  def columns(self) -> list[str]:
    """Likewise of the columns."""
    return list(dict.fromkeys(cell.column for cell in self.cells))


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """One run of a study.

  folder: below the study's. config: the ConfigDict, with seed and overrides. arguments: of `lra-spt train`
  that make it, without the seed and the folders. stages: keys of its stages; runs with a key in common share
  that stage. what: which part of a search it is, '' of a run of the table.
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
    """Of the config, as a command line takes them."""
    pairs = (item.removeprefix('--config.') for item in self.arguments if item.startswith('--config.'))
    return dict(pair.split('=', 1) for pair in pairs)

  @property
  def program(self) -> str:
    """Equal for runs that compute the same but for the seed."""
    return config_lib.digest(config_lib.identity(self.config) | {'seed': 0})

  @property
  def members(self) -> int:
    """How many runs that differ in their seeds train as one program."""
    return self.config.runtime.get('members', 1)


STAGES = 'stages'  # folder of the stages that runs of a study share


def together(jobs: Sequence[Job]) -> list[list[Job]]:
  """The jobs, in their order, those in one list that one command trains as one program."""
  found: list[list[Job]] = []
  for job in jobs:
    alike = (group for group in found if len(group) < job.members and _alike(group[0], job))
    if (group := next(alike, None)) is not None:
      group.append(job)
    else:
      found.append([job])
  return found


def _alike(job, other) -> bool:
  return (job.folder.parent, job.program) == (other.folder.parent, other.program)


def command(group: Sequence[Job], workdir, stages: pathlib.Path | None = None) -> list[str]:
  """The words of the command that makes jobs of `together` in a study's folder; stages: folder in which
  stages are kept, None for the study's own."""
  first, workdir = group[0], pathlib.Path(workdir)
  folder, seeds = workdir / first.folder, f'--config.seed={first.seed}'
  if first.members > 1:
    folder, seeds = folder.parent, '--seeds=' + ','.join(str(job.seed) for job in group)
  kept = workdir / STAGES if stages is None else stages
  return ['lra-spt', 'train', *first.arguments, seeds, f'--workdir={folder}', f'--stages={kept}']


def _slug(text: str) -> str:
  return re.sub(r'[^a-z0-9.]+', '_', text.lower()).strip('_.') or '_'


def folder_of(cell: Cell) -> pathlib.PurePosixPath:
  """Where the runs of a cell lie, below the folder of the study."""
  return pathlib.PurePosixPath('runs', _slug(cell.row), _slug(cell.column))


def load(spec: str) -> Study:
  """The study of `path/to/file.py` or `path/to/file.py:argument`, looked up as config files are.

  Raises:
    ConfigError: no such file, or it does not define a study.
  """
  name, colon, arg = spec.partition('.py:')
  path = config_files.find(name + '.py' if colon else spec)
  module = config_files.run(path, '_study_file_')
  make = getattr(module, 'get_study', None)
  if not callable(make):
    raise ConfigError(f'The study file {path} has no function get_study: define one that returns a Study.')
  takes_argument = bool(inspect.signature(make).parameters)
  if arg and not takes_argument:
    raise ConfigError(f'The study file {path} takes no argument: leave out :{arg}.')
  with config_files.importing_from(path.resolve().parent):
    study = make(arg) if arg else make()
  if not isinstance(study, Study):
    raise ConfigError(
      f'get_study of {path} returns {type(study).__name__}: return a lra_spt.studies.study.Study.'
    )
  return study


def shortened(study: Study) -> Study:
  """The study as a smoke run: a few steps, one seed, of each round of a search one seed and the first two
  values; to see that everything works."""
  search = study.search and Search([values[:2] for values in study.search.rounds], study.search.seeds[:1])
  cells = [dataclasses.replace(cell, seeds=cell.seeds[:1]) for cell in study.cells]
  about = f'{study.about}\n\nThis was a smoke run of a few steps: its numbers mean nothing.'
  return dataclasses.replace(
    study, cells=cells, seeds=study.seeds[:1], search=search, smoke=True, about=about.strip()
  )


def jobs(
  study: Study,
  *,
  seeds: Sequence[int] | None = None,
  only: Mapping[str, str] | None = None,
  overrides: Sequence[str] = (),
) -> list[Job]:
  """The runs of a study: of every cell the first seed, then the second, because runs that differ in the seed
  only share compiled programs, which the first of them leaves behind.

  Args:
    study: the study.
    seeds: instead of those that the study names.
    only: {key of SELECTABLE: value} that all chosen runs have.
    overrides: 'KEY=VALUE' for the configs of all runs.

  Raises:
    ConfigError: a config that cannot be used, named with its cell, or nothing is left to run, or a seed is
      one of the search.
  """
  found = []
  for cell in study.cells:
    own = (seeds or cell.seeds or study.seeds) if cell.config else ()
    if study.search and (used := {*own} & {*study.search.seeds}):
      raise ConfigError(
        f'Seed {min(used)} of the study {study.name} chooses hyperparameters, so it cannot test them: take '
        'another one.'
      )
    for turn, seed in enumerate(own):
      try:
        job = _job(cell, seed, overrides, study.smoke)
      except ConfigError as error:
        raise ConfigError(f'The cell ({cell.row}, {cell.column}) of study {study.name}: {error}') from error
      if _chosen(job, only or {}):
        found.append((turn, job))
  if not found:
    wanted = ', '.join(f'{key}={value}' for key, value in (only or {}).items())
    raise ConfigError(
      f'No run of the study {study.name} has {wanted}: it has the rows {", ".join(study.rows)} and the '
      f'columns {", ".join(study.columns)}.'
      if wanted
      else f'No cell of the study {study.name} has a config: give one to at least one cell.'
    )
  return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def _job(cell, seed, overrides, smoke):
  own = [f'{key}={text_of(value)}' for key, value in cell.overrides.items()]
  keys = {item.partition('=')[0] for item in overrides}
  pairs = [*(item for item in own if item.partition('=')[0] not in keys), *overrides]
  config = config_lib.load(cell.config, [*pairs, f'seed={seed}'])
  if smoke:
    config_lib.shorten(config)
  identity = config_lib.identity(config) | {'fingerprints': {'data': '', 'splits': ''}}
  # Without the fingerprints of data, which are one for all runs of a study on a task.
  stages = {name: path.name for name, path in run_folder.stage_folders(pathlib.Path(), identity).items()}
  if get_regime(config.regime).objective is None:
    del stages['pretrain']
  arguments = (f'--config={cell.config}', *(f'--config.{pair}' for pair in pairs), *['--smoke'] * smoke)
  return Job(cell, seed, folder_of(cell) / f'seed{seed}', config, arguments, stages)


def text_of(value) -> str:
  """A value as a command line takes it."""
  return str(value).lower() if isinstance(value, bool) else str(value)


def _chosen(job, only):
  config = job.config
  values = {
    'task': config.task,
    'model': config.model.name,
    'regime': config.regime,
    'protocol': config.protocol,
    'row': job.cell.row,
    'column': job.cell.column,
  }
  return all(values[key] == value for key, value in only.items())


def selection(text: str) -> dict[str, str]:
  """The `only` of 'task=image,model=s4' or 'row=S4, masked'; ConfigError for another key, or one given
  twice."""
  found = {}
  # Names of rows and columns may have commas: an item ends where another word before a = begins.
  for item in filter(None, (part.strip() for part in re.split(r',(?=\s*\w+\s*=|\s*$)', text))):
    key, equals, value = (part.strip() for part in item.partition('='))
    if key not in SELECTABLE or not equals:
      raise ConfigError(
        f'--only has {item!r}, but it takes key=value with the keys {", ".join(SELECTABLE)}.'
        f'{nearest(key, SELECTABLE)}'
      )
    if key in found:
      raise ConfigError(f'--only has {key} twice, {found[key]!r} and {value!r}: give the command for each.')
    found[key] = value
  return found
