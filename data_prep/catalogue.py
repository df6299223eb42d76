"""Every set that can be prepared: its maker, its files, its cost and the names of its labels.

To add a set of your own, call `register_set`, for example with .npz files (`data_prep.sources.npz`):

```python
from data_prep import catalogue

catalogue.register_set(catalogue.npz_set('waves', class_names=('calm', 'storm')))
```
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping

from data_prep import official
from lra_spt.data import generated, prepared, splits, tasks
from lra_spt.data.tasks import Task
from lra_spt.errors import ConfigError, DataError, nearest


@dataclasses.dataclass(frozen=True)
class Lazy:
  """A function of a module of data_prep that is imported when called, because some modules compile then."""

  module: str
  function: str

  def __call__(self, *arguments, **options):
    return getattr(importlib.import_module(f'data_prep.{self.module}'), self.function)(*arguments, **options)


@dataclasses.dataclass(frozen=True)
class Maker:
  """The maker of a set: `function(data_dir, **settings, **flags)` returns its folder, or several folders.

  Attributes:
    function: see above.
    flags: the command-line flags that it takes, among raw_dir, accept_unverified and accept_incomplete,
      examples, seed, workers, runner and beam_options.
    settings: further keyword arguments.
  """

  function: Callable
  flags: tuple[str, ...] = ()
  settings: Mapping = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one example; `plan` names the machine on which it was measured.

  Attributes:
    stored: bytes in the prepared set, which is compressed.
    seconds: time to generate it in one process (without `drawn`) and to write it. If the set is not
      generated: time to read it from official files and to write it.
    drawn: seconds of generating it that all cores share.
    unfinished: bytes of unfinished work on the disk until the set is written.
    from_files: takes the place of `seconds` if a set that could be generated is read from official files.
  """

  stored: int
  seconds: float
  drawn: float = 0.0
  unfinished: int = 0
  from_files: float = 0.0


@dataclasses.dataclass(frozen=True)
class Entry:
  """A set that can be prepared.

  Attributes:
    name: its name on the command line, and of its folder unless `makes` has other names.
    importer: makes it from files; None if it has no files.
    generator: makes it without files; None if it cannot be generated.
    archives: official files; the first one is downloaded.
    counts: examples per file of the published set; empty if unknown.
    groups: {name of a set: sizes of the groups of its training file}; empty if it has none.
    resized: function from the number of training examples to the counts of a generated set; None if the
      other files keep their published counts.
    cost: cost of one example; None if unknown.
    class_names: names of the labels 0, 1, ...; empty if they have none. `lra-spt inspect` shows them.
    published_vocabulary: number of token ids of the published set, including the special ones; 0 for values.
    repeated: {file: number of its examples that have the inputs of a training example} of the published set;
      empty if unknown.
    makes: the sets that one preparation makes, if not just the one of this name.
  """

  name: str
  importer: Maker | None = None
  generator: Maker | None = None
  archives: tuple[official.Archive, ...] = ()
  counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
  groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
  resized: Callable[[int], Mapping[str, int]] | None = None
  cost: Cost | None = None
  class_names: tuple[str, ...] = ()
  published_vocabulary: int = 0
  repeated: Mapping[str, int] = dataclasses.field(default_factory=dict)
  makes: tuple[str, ...] = ()

  @property
  def sets(self) -> tuple[str, ...]:
    """Names of the prepared sets."""
    return self.makes or (self.name,)

  def counts_for(self, examples: int | None) -> Mapping[str, int]:
    """Returns the examples per file for a number of training examples; None: the published counts."""
    if examples is None:
      return self.counts
    if examples < 1:
      raise DataError(f'{examples} training examples were asked for; ask for at least 1.')
    return self.resized(examples) if self.resized else {**self.counts, 'train': examples}

  def maker(self, raw_dir) -> Maker:
    """The maker of the set, with or without files."""
    return (
      self.importer if self.generator is None or (raw_dir is not None and self.importer) else self.generator
    )


_FILES = ('raw_dir', 'accept_unverified', 'accept_incomplete')
_GENERATOR = ('examples', 'seed', 'workers', 'runner', 'beam_options')


def _names(text):
  return tuple(text.split())


def _windows(of_a_recording: int) -> tuple[int, ...]:
  """Windows of each of BIDMC's 46 patients, who have one recording each, except for three (see
  `sources.bidmc.SAME_PATIENT`)."""
  recordings = (1,) * 5 + (4,) + (1,) * 10 + (4,) + (1,) * 14 + (2,) + (1,) * 14
  return tuple(of_a_recording * count for count in recordings)


_WINDOWS = _windows(150)
_OPINIONS, _PATHS = ('negative', 'positive'), ('apart', 'joined')
_OBJECTS = _names('airplane automobile bird cat deer dog frog horse ship truck')


def _text(name, length, vocabulary, cost):
  return Entry(
    name=name,
    importer=Maker(Lazy('sources.text', 'prepare_text'), _FILES, {'dataset': name, 'length': length}),
    archives=(official.IMDB,),
    counts={'train': 25_000, 'test': 25_000},
    cost=cost,
    class_names=_OPINIONS,
    published_vocabulary=vocabulary,
    repeated={'test': 123},
  )


def _pathfinder(resolution, cost):
  settings = {'resolution': resolution}
  return Entry(
    name=f'pathfinder{resolution}',
    importer=Maker(Lazy('pathfinder.released', 'prepare_pathfinder'), _FILES, settings),
    generator=Maker(Lazy('pathfinder.generated', 'prepare_pathfinder'), _GENERATOR, settings),
    archives=(dataclasses.replace(official.LRA, unpacked=f'pathfinder{resolution}', read_packed=False),),
    counts={'train': 200_000},
    cost=cost,
    class_names=_PATHS,
  )


def _listops_counts(examples):
  others = max(100, examples // 48)
  return {'train': examples, 'validation': others, 'test': others}


SETS = {
  entry.name: entry
  for entry in (
    Entry(
      name='listops',
      importer=Maker(Lazy('sources.listops', 'prepare_listops'), _FILES),
      generator=Maker(Lazy('sources.listops', 'prepare_listops'), _GENERATOR),
      archives=(dataclasses.replace(official.LRA, unpacked='listops-1000', sign='basic_train.tsv'),),
      counts={'train': 96_000, 'validation': 2_000, 'test': 2_000},
      resized=_listops_counts,
      cost=Cost(stored=680, seconds=5e-5, drawn=5e-5, unfinished=580, from_files=1.9e-4),
      published_vocabulary=19,
    ),
    # 131 characters occur at least 15 times within the first 4,095 of the training reviews; 4 special tokens.
    # The paper's text has 2,048 positions, all its published configs have 4,096.
    _text('text', 4096, 135, Cost(stored=830, seconds=7.2e-5)),
    _text('text_2048', 2048, 130, Cost(stored=760, seconds=5.6e-5)),
    Entry(
      name='retrieval',
      importer=Maker(Lazy('sources.retrieval', 'prepare_retrieval'), _FILES),
      archives=(dataclasses.replace(official.LRA, unpacked='tsv_data', sign='new_aan_pairs.*.tsv'),),
      # The first is in the paper's code, all three are in papers that use the set.
      counts={'train': 147_086, 'validation': 18_090, 'test': 17_437},
      cost=Cost(stored=3_450, seconds=1.4e-4),
      class_names=('no citation', 'citation'),
      published_vocabulary=99,
    ),
    Entry(
      name='cifar10',
      importer=Maker(Lazy('sources.cifar10', 'prepare_cifar10'), _FILES),
      archives=official.CIFAR10,
      counts={'train': 50_000, 'test': 10_000},
      cost=Cost(stored=2_950, seconds=5.6e-5),
      class_names=_OBJECTS,
    ),
    Entry(
      name='speech_commands',
      importer=Maker(Lazy('sources.speech_commands', 'prepare_speech_commands'), _FILES),
      archives=(official.SPEECH_COMMANDS,),
      counts={'train': 84_843, 'validation': 9_981, 'test': 11_005},
      cost=Cost(stored=22_400, seconds=8.7e-4, unfinished=32_000),
      # The order is that of S4's loader, on which the published code builds.
      class_names=_names(
        'bed cat down five forward go house left marvin no on right sheila tree up visual yes backward bird '
        'dog eight follow four happy learn nine off one seven six stop three two wow zero'
      ),
    ),
    Entry(
      name='bidmc',
      importer=Maker(Lazy('sources.bidmc', 'prepare_bidmc'), _FILES),
      archives=(official.BIDMC, *official.BIDMC_WINDOWS),
      counts={'train': 7_950},
      # One recording lacks readings of the respiratory rate.
      groups={
        'bidmc_hr': _WINDOWS,
        'bidmc_rr': (*_WINDOWS[:9], 71, *_WINDOWS[10:]),
        'bidmc_spo2': _WINDOWS,
      },
      cost=Cost(stored=17_300, seconds=1.2e-3),
      makes=('bidmc_hr', 'bidmc_rr', 'bidmc_spo2'),
    ),
    _pathfinder(32, Cost(stored=580, seconds=1e-4, drawn=3.8e-4, unfinished=390, from_files=2.1e-4)),
    _pathfinder(64, Cost(stored=1_450, seconds=3e-4, drawn=8.8e-3, unfinished=1_100, from_files=2.7e-4)),
    _pathfinder(128, Cost(stored=2_900, seconds=3e-4, drawn=6.1e-3, unfinished=2_850, from_files=4.2e-4)),
    _pathfinder(256, Cost(stored=2_600, seconds=5e-4, drawn=1.5e-3, unfinished=3_100, from_files=6.8e-4)),
    Entry(
      name='listops_mini',
      generator=Maker(Lazy('sources.mini', 'prepare_listops'), ('examples', 'seed', 'workers')),
      counts={'train': 10_000, 'validation': 2_000, 'test': 10_000},
      cost=Cost(stored=155, seconds=1.1e-4),
      published_vocabulary=19,
    ),
    Entry(
      name='image_mini',
      importer=Maker(Lazy('sources.mini', 'prepare_image'), _FILES),
      archives=official.CIFAR10,
      counts={'train': 5_000, 'validation': 2_000, 'test': 9_980},
      cost=Cost(stored=270, seconds=2.2e-4),
      class_names=_OBJECTS,
    ),
    Entry(
      name='text_mini',
      importer=Maker(Lazy('sources.mini', 'prepare_text'), _FILES),
      archives=(official.IMDB,),
      counts={'train': 5_000, 'validation': 2_000, 'test': 25_000},
      cost=Cost(stored=300, seconds=2.8e-4),
      class_names=_OPINIONS,
      published_vocabulary=90,
      repeated={'validation': 3, 'test': 18},
    ),
    Entry(
      name='pathfinder_mini',
      generator=Maker(Lazy('sources.mini', 'prepare_pathfinder'), ('examples', 'seed')),
      counts={'train': 10_000, 'validation': 2_000, 'test': 10_000},
      cost=Cost(stored=255, seconds=3.3e-3),
      class_names=_PATHS,
    ),
    Entry(
      name='pulse_mini',
      importer=Maker(Lazy('sources.mini', 'prepare_pulse'), _FILES),
      archives=(official.BIDMC,),
      counts={'train': 8_374},
      groups={'pulse_mini': _windows(158)},
      cost=Cost(stored=1_920, seconds=9.5e-4),
    ),
    Entry(
      name='ppg_dalia',
      importer=Maker(Lazy('sources.ppg_dalia', 'prepare_ppg_dalia'), _FILES),
    ),
    Entry(
      name='stripes',
      generator=Maker(Lazy('sources.stripes', 'prepare_stripes'), ('examples', 'seed')),
      counts={'train': 4_000, 'validation': 500, 'test': 2_000},
      cost=Cost(stored=200, seconds=1.6e-4),
      class_names=('horizontal', 'falling', 'vertical', 'rising'),
    ),
  )
}
# The commands `prepare npz --name NAME` and `prepare ts --name NAME` make sets that are in no catalogue.
NPZ, TS = 'npz', 'ts'


def npz_set(name: str, *, class_names: tuple[str, ...] = ()) -> Entry:
  """The entry of a set of your own that is made from .npz files; see `data_prep.sources.npz`."""
  importer = Maker(Lazy('sources.npz', 'prepare_npz'), ('raw_dir',), {'dataset': name})
  return Entry(name, importer=importer, class_names=tuple(class_names))


def ts_set(name: str) -> Entry:
  """The entry of a set of your own that is made from .ts files; see `data_prep.sources.ts`."""
  flags = ('train', 'validation', 'test', 'linoss_seed', 'longest')
  return Entry(name, importer=Maker(Lazy('sources.ts', 'prepare_ts'), flags, {'dataset': name}))


_OWN = {NPZ: npz_set, TS: ts_set}


def register_set(entry: Entry) -> Entry:
  """Makes a set known to `lra-spt prepare`. Registering an equal entry again does nothing.

  Raises:
    ConfigError: the name is not a valid name of a set, or a different set has it.
  """
  _check_name(entry.name)
  made_by = owner(entry.name)
  if made_by is not None and made_by != entry:
    raise ConfigError(f'A different set is already called {entry.name!r}; give the new one another name.')
  return SETS.setdefault(entry.name, entry)


def _check_name(name):
  if not prepared.NAME.fullmatch(name) or name in (*_OWN, 'downloads'):
    raise ConfigError(
      f'A set cannot be called {name!r}; give it a name of lower-case letters, digits and _ that begins '
      f'with a letter and is not one of {", ".join((*_OWN, "downloads"))}.'
    )


def owner(name: str) -> Entry | None:
  """The entry that makes the prepared set of that name, or None."""
  return next((entry for entry in SETS.values() if name in (entry.name, *entry.sets)), None)


def published_counts(task: Task) -> dict[str, int] | None:
  """The number of examples in each split of a task's published set; None if it is unknown."""
  entry = owner(task.dataset)
  if entry is None or not entry.counts:
    return None
  groups = entry.groups.get(task.dataset)
  counts = {'train': sum(groups)} if groups else entry.counts
  stored = {'counts': counts, 'groups': {'train': groups}, 'source': entry.name}
  try:
    parts = splits.split_positions(task.splits, stored)
  except (KeyError, DataError):  # the set has no such file, or the sizes of its groups are unknown
    return None
  return {name: len(positions) for name, (_, positions) in parts.items()}


def find(name: str, name_of_set: str | None = None) -> Entry:
  """The entry of that name.

  Args:
    name: of a set, or `NPZ` or `TS`.
    name_of_set: the name of the set, if `name` is one of these two.

  Raises:
    ConfigError: there is none; the message suggests similar names.
  """
  if name in _OWN:
    return _own(name, name_of_set)
  if name_of_set is not None:
    raise ConfigError(f'{name!r} already has a name, so --name has no meaning; leave it out.')
  if name in SETS:
    return SETS[name]
  if (task := generated.task_of(name)) is not None:
    return _sequences(task)
  task = tasks.TASKS.get(name)
  made_by = owner(task.dataset if task else name)
  if made_by is not None:
    what = f'a task, which reads the set {task.dataset}' if task else f'one of {len(made_by.sets)} sets'
    raise ConfigError(f'{name!r} is {what}; make it with `lra-spt prepare {made_by.name}`.')
  near = nearest(name, [*SETS, *_OWN, *tasks.TASKS])
  raise ConfigError(f'There is no data set {name!r}; choose one of `lra-spt list sets`.{near}')


def _sequences(task):
  """The entry of a set of `lra_spt.data.generated`."""
  make = Lazy('sources.sequences', 'prepare_sequences')
  generator = Maker(make, ('examples', 'seed'), {'dataset': task.name})
  counts, cost = generated.counts_of(task), Cost(stored=2 * task.length, seconds=2e-4)
  return Entry(task.name, generator=generator, counts=counts, cost=cost)


def _own(kind, name):
  if name is None:
    raise ConfigError(f'A set from .{kind} files needs a name of its own; add --name, such as --name waves.')
  _check_name(name)
  entry, made_by, task = _OWN[kind](name), owner(name), tasks.TASKS.get(name)
  if (task and task.dataset != name) or generated.parts_of(name):
    raise ConfigError(f'{name!r} is a task that reads another set; give yours another --name.')
  if made_by is not None and made_by.importer != entry.importer:
    raise ConfigError(f'There is already a set {name!r} of another kind; give yours another --name.')
  return made_by or entry
