"""The command `lra-spt prepare`: one entry for every data set that can be made here."""

import dataclasses
import importlib
import pathlib
from collections.abc import Mapping

from data_prep import chunks, downloads, plan
from lra_spt.errors import ConfigError

_RESOLUTIONS = (32, 64, 128, 256)
_OF_FILES = ('raw_dir', 'accept_unverified')
_OF_GENERATORS = ('examples', 'seed', 'workers', 'runner', 'beam_options')


@dataclasses.dataclass(frozen=True)
class _Maker:
  """Which function of which module makes a set, the flags that it knows, and settings of its own."""

  module: str
  function: str
  flags: tuple[str, ...]
  settings: Mapping = dataclasses.field(default_factory=dict)


def _pathfinders(module, function, flags):
  return {f'pathfinder{size}': _Maker(module, function, flags, {'resolution': size}) for size in _RESOLUTIONS}


IMPORTED = {
  'listops': _Maker('sources.listops', 'prepare_listops', _OF_FILES),
  'text': _Maker('sources.text', 'prepare_text', _OF_FILES),
  'text_2048': _Maker('sources.text', 'prepare_text', _OF_FILES, {'dataset': 'text_2048', 'length': 2048}),
  'retrieval': _Maker('sources.retrieval', 'prepare_retrieval', _OF_FILES),
  'cifar10': _Maker('sources.cifar10', 'prepare_cifar10', _OF_FILES),
  'speech_commands': _Maker('sources.speech_commands', 'prepare_speech_commands', _OF_FILES),
  'bidmc': _Maker('sources.bidmc', 'prepare_bidmc', _OF_FILES),
  **_pathfinders('pathfinder.released', 'prepare_pathfinder', _OF_FILES),
}
GENERATED = {
  'listops': _Maker('sources.listops', 'prepare_listops', _OF_GENERATORS),
  **_pathfinders('pathfinder.generated', 'prepare_pathfinder', _OF_GENERATORS),
  'stripes': _Maker('sources.stripes', 'prepare_stripes', ('examples', 'seed')),
}
DATASETS = tuple({**IMPORTED, **GENERATED})


def prepare(
  dataset: str,
  data_dir,
  raw_dir=None,
  accept_unverified: bool = False,
  examples: int | None = None,
  workers: int | None = None,
  seed: int = 0,
  runner: str = 'local',
  beam_options: str = '',
  dry_run: bool = False,
) -> pathlib.Path | list[pathlib.Path]:
  """Makes a prepared set, or says that it is there already.

  Args:
    dataset: one of `DATASETS`.
    data_dir: folder for prepared sets; the set goes to <data_dir>/<dataset>/<version>/, downloads to
      <data_dir>/downloads/.
    raw_dir: folder with files from the official source. None: what can be generated is generated, and the
      official archive of anything else is downloaded.
    accept_unverified: import files that are not, or cannot be shown to be, the official ones.
    examples: generated sets only: training trees of listops (see `listops.sizes_for`) and
      stripes, all images of pathfinder.
    workers: processes or threads of the generators; None for all cores.
    seed: of the generators.
    runner: of the generators of listops and pathfinder: 'local' or 'beam' (see `chunks.make_chunks`).
    beam_options: of runner 'beam'.
    dry_run: say what would be done (see `plan`), and do nothing.

  Returns:
    the folder of the set, of bidmc those of its three.

  Raises:
    FileNotFoundError: something is missing; says what, and how to get it.
    ValueError: wrong arguments, wrong files, too little space on the disk, or the set exists with other
      settings. Nothing is overwritten.
  """
  if dataset not in DATASETS:
    raise ConfigError(f'There is no data set {dataset!r}; choose one of {", ".join(DATASETS)}.')
  if seed < 0:
    raise ConfigError(f'The seed is {seed}; it must not be negative.')
  if workers is not None and workers < 1:
    raise ConfigError(f'{workers} workers were asked for; ask for at least 1.')
  if examples is not None and examples < 1:
    raise ConfigError(f'{examples} examples were asked for; ask for at least 1.')
  imported = dataset not in GENERATED or (raw_dir is not None and dataset in IMPORTED)
  maker = (IMPORTED if imported else GENERATED)[dataset]
  given = {
    'raw_dir': raw_dir,
    'accept_unverified': accept_unverified or None,
    'examples': examples,
    'workers': workers,
    'seed': seed or None,
    'runner': None if runner == 'local' else runner,
    'beam_options': beam_options or None,
  }
  # Only what was given is passed on: every default stands in one place, the module that knows why.
  given = {flag: value for flag, value in given.items() if value is not None}
  if foreign := [f'--{flag}' for flag in given if flag not in maker.flags]:
    how = 'imported from files' if imported else 'generated'
    has, them = ('has', 'it') if len(foreign) == 1 else ('have', 'them')
    raise ConfigError(f'{dataset!r} is {how}, so {" and ".join(foreign)} {has} no meaning; leave {them} out.')
  chunks.check_runner(runner, beam_options)
  outlook = plan.outlook(dataset, data_dir, raw_dir=raw_dir, examples=examples, workers=workers)
  if dry_run:
    print(outlook)
    return outlook.folders[0] if len(outlook.folders) == 1 else list(outlook.folders)
  # Files that are taken as they are may be a small part of the published set.
  if not (raw_dir and accept_unverified):
    outlook.check_space()
  if imported and raw_dir is None and not outlook.ready:
    given['raw_dir'] = downloads.fetch(dataset, downloads.folder_in(data_dir))
  # Here and not above, because the generators compile on import and most callers need one module.
  module = importlib.import_module(f'data_prep.{maker.module}')
  if dataset == 'listops' and 'examples' in given:
    given['sizes'] = module.sizes_for(given.pop('examples'))
  return getattr(module, maker.function)(data_dir, **maker.settings, **given)
