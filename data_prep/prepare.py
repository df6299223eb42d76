"""The command `lra-spt prepare`: one entry for every data set that can be made here."""

import argparse
import pathlib

IMPORTED = ('text', 'cifar10')
GENERATED = ('pathfinder32', 'pathfinder64', 'pathfinder128', 'pathfinder256', 'stripes')
DATASETS = ('listops', *IMPORTED, *GENERATED)


def prepare(
  dataset: str,
  data_dir,
  raw_dir=None,
  accept_unverified: bool = False,
  examples: int | None = None,
  workers: int | None = None,
  seed: int = 0,
) -> pathlib.Path:
  """Makes a prepared set, or says that it is there already.

  Args:
    dataset: one of `DATASETS`.
    data_dir: folder for prepared sets; the set goes to <data_dir>/<dataset>/<version>/.
    raw_dir: folder with files from the official source: needed for text and cifar10, possible for
      listops.
    accept_unverified: import files that are not, or cannot be shown to be, the official ones.
    examples: generated sets only: training trees of listops (see `listops.sizes_for`) and
      stripes, all images of pathfinder.
    workers: threads of the generators; None for all cores.
    seed: of the generators.

  Returns:
    the folder of the set.

  Raises:
    FileNotFoundError: something is missing; says what, and how to get it.
    ValueError: wrong arguments, wrong files, or the set exists with other settings. Nothing is overwritten.
  """
  if dataset not in DATASETS:
    raise ValueError(f'There is no data set {dataset!r}; choose one of {", ".join(DATASETS)}.')
  if seed < 0:
    raise ValueError(f'The seed is {seed}; it must not be negative.')
  if workers is not None and workers < 1:
    raise ValueError(f'{workers} workers were asked for; ask for at least 1.')
  imported = dataset in IMPORTED or (dataset == 'listops' and raw_dir is not None)
  if imported and (examples is not None or seed != 0):
    raise ValueError(
      f'{dataset!r} is imported from files, so --examples and --seed have no meaning; leave them out.'
    )
  if dataset in GENERATED and raw_dir is not None:
    raise ValueError(f'{dataset!r} is generated, so --raw_dir has no meaning; leave it out.')
  # Here and not above, because the generators compile on import and most callers need one of them.
  if dataset == 'cifar10':
    from data_prep import cifar10

    return cifar10.prepare_cifar10(data_dir, raw_dir=raw_dir, accept_unverified=accept_unverified)
  if dataset == 'text':
    from data_prep import text

    return text.prepare_text(data_dir, raw_dir=raw_dir, accept_unverified=accept_unverified)
  if dataset == 'listops':
    from data_prep import listops

    return listops.prepare_listops(
      data_dir,
      sizes=listops.sizes_for(examples),
      seed=seed,
      raw_dir=raw_dir,
      accept_unverified=accept_unverified,
      workers=workers,
    )
  if dataset == 'stripes':
    from data_prep import stripes

    return stripes.prepare_stripes(data_dir, examples=examples, seed=seed)
  from data_prep import pathfinder

  return pathfinder.prepare_pathfinder(
    data_dir,
    resolution=int(dataset.removeprefix('pathfinder')),
    examples=examples,
    seed=seed,
    workers=workers,
  )


def main(arguments: list[str]) -> int:
  """The command line `lra-spt prepare ...`; returns 0, or raises what `prepare` raises."""
  parser = argparse.ArgumentParser(prog='lra-spt prepare', description='Makes a prepared data set.')
  parser.add_argument('dataset', metavar='DATASET', help=', '.join(DATASETS))
  parser.add_argument('--data_dir', required=True, help='folder for prepared sets')
  parser.add_argument('--raw_dir', help='folder of the official files (text, cifar10; optional for listops)')
  parser.add_argument('--accept_unverified', action='store_true', help='import files that cannot be verified')
  parser.add_argument('--examples', type=int, help='how many to generate (default: as published)')
  parser.add_argument('--workers', type=int, help='threads of the generators (default: all cores)')
  parser.add_argument('--seed', type=int, default=0, help='of the generators (default: 0)')
  options = vars(parser.parse_args(arguments))
  prepare(options.pop('dataset'), **options)
  return 0
