"""Makes a prepared set, or estimates its cost: one entry point for every set in the catalogue."""

import pathlib

from data_prep import catalogue, chunks, downloads, finding, plan
from lra_spt.errors import ConfigError, MissingFile


def prepare(
  dataset: str,
  data_dir,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  examples: int | None = None,
  workers: int | None = None,
  seed: int = 0,
  runner: str = 'local',
  beam_options: str = '',
  name: str | None = None,
  train=None,
  validation=None,
  test=None,
  linoss_seed: int | None = None,
  longest: int | None = None,
  dry_run: bool = False,
) -> pathlib.Path | list[pathlib.Path]:
  """Makes a prepared set unless it exists.

  Args:
    dataset: one of `catalogue.SETS`, or 'npz' or 'ts' for files of your own (see `data_prep.sources.npz` and
      `data_prep.sources.ts`).
    data_dir: folder for prepared sets; the set goes to <data_dir>/<dataset>/<version>/, downloads to
      <data_dir>/downloads/.
    raw_dir: folder with files from the official source. None generates the set or, if it cannot be generated,
      downloads the official archive.
    accept_unverified: import files that are not the official ones, or cannot be verified.
    accept_incomplete: import files that have fewer examples than the official ones.
    examples: for generated sets: the number of all images of pathfinder, or of training examples of the
      others (the catalogue has the sizes of the other files of listops).
    workers: processes or threads of the generators; None for all cores.
    seed: seed of the generators.
    runner: runner of the generators of listops and pathfinder: 'local' or 'beam' (see `chunks.make_chunks`).
    beam_options: options of runner 'beam'.
    name: name of the set, for 'npz' and 'ts' only.
    train, validation, test: files of 'ts'.
    linoss_seed: split of 'ts', see `data_prep.sources.linoss`.
    longest: positions of the longest training series of 'ts', at most.
    dry_run: print the estimate of `plan`, and do nothing.

  Returns:
    The folder of the set, or the three of bidmc.

  Raises:
    MissingFile: a file is missing; the message says how to get it.
    ConfigError: an argument is wrong.
    UserError: a file is wrong, the disk has too little space, or the set exists with other settings. Nothing
      is overwritten.
  """
  entry = catalogue.find(dataset, name)
  if seed < 0:
    raise ConfigError(f'The seed is {seed}; it must not be negative.')
  if workers is not None and workers < 1:
    raise ConfigError(f'{workers} workers were asked for; ask for at least 1.')
  if examples is not None and examples < 1:
    raise ConfigError(f'{examples} examples were asked for; ask for at least 1.')
  maker = entry.maker(raw_dir)
  given = {
    'raw_dir': raw_dir,
    'accept_unverified': accept_unverified or None,
    'accept_incomplete': accept_incomplete or None,
    'examples': examples,
    'workers': workers,
    'seed': seed or None,
    'runner': None if runner == 'local' else runner,
    'beam_options': beam_options or None,
    'train': train,
    'validation': validation,
    'test': test,
    'linoss_seed': linoss_seed,
    'longest': longest,
  }
  # Only given flags are passed on, so that every default stands in one place, the maker.
  given = {flag: value for flag, value in given.items() if value is not None}
  if foreign := [f'--{flag}' for flag in given if flag not in maker.flags]:
    how = 'imported from files' if maker is entry.importer else 'generated'
    has, them = ('has', 'it') if len(foreign) == 1 else ('have', 'them')
    raise ConfigError(
      f'{entry.name!r} is {how}, so {" and ".join(foreign)} {has} no meaning; leave {them} out.'
    )
  of_files = 'train' in maker.flags
  if of_files and train is None:
    raise ConfigError('A set from .ts files needs --train, such as --train=NAME_TRAIN.ts.')
  downloaded = maker is entry.importer and raw_dir is None and not of_files
  if downloaded and not entry.archives:
    raise ConfigError(f'{entry.name!r} is made from files of your own; name their folder with --raw_dir.')
  chunks.check_runner(runner, beam_options)
  folder = pathlib.Path(train).parent if of_files else raw_dir
  outlook = plan.outlook(entry, data_dir, raw_dir=folder, examples=examples, workers=workers)
  if dry_run:
    print(outlook)
    return outlook.folders[0] if len(outlook.folders) == 1 else list(outlook.folders)
  if raw_dir is not None and not outlook.ready and not pathlib.Path(raw_dir).expanduser().is_dir():
    what = finding.advice(entry.name) if entry.archives else 'name that of your files with --raw_dir'
    raise MissingFile(f'There is no folder {raw_dir}: {what}.')
  # Incomplete files may be a small part of the published set.
  if not (raw_dir and accept_incomplete):
    outlook.check_space()
  if outlook.counts and not outlook.ready:
    print(outlook.in_short)
  if downloaded and not outlook.ready:
    given['raw_dir'] = downloads.fetch(entry.name, downloads.folder_in(data_dir))
  return maker.function(data_dir, **maker.settings, **given)
