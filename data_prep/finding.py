"""Finds the files of a set in a folder: its official archive, a folder unpacked from one, or single files."""

import itertools
import pathlib
from collections.abc import Iterator

from data_prep import catalogue
from data_prep.official import Archive
from lra_spt.errors import MissingFile


def downloaded(dataset: str, folder) -> Archive | None:
  """The first official archive of a data set that a folder contains, or None."""
  folder = pathlib.Path(folder).expanduser()
  archives = catalogue.SETS[dataset].archives
  return next((archive for archive in archives if (folder / archive.name).is_file()), None)


def locate(dataset: str, raw_dir) -> tuple[pathlib.Path, Archive] | None:
  """Finds an official archive of a data set, else a folder unpacked from one.

  Args:
    dataset: a key of `catalogue.SETS`.
    raw_dir: a folder that contains the archive, is the unpacked folder, or contains it up to two folders
      deep; or None.

  Returns:
    The path of the archive or folder, and the archive; None if there is neither.
  """
  if raw_dir is None:
    return None
  raw, archives = pathlib.Path(raw_dir).expanduser(), catalogue.SETS[dataset].archives
  packed = [archive for archive in archives if archive.unpacked]
  plain = [archive for archive in archives if not archive.unpacked]
  # Folders whose files can be verified come first.
  by_folder = sorted(packed, key=lambda archive: not archive.members_known)
  readable = [archive for archive in packed if archive.read_packed]
  places = itertools.chain(
    ((raw / archive.name, archive) for archive in readable if (raw / archive.name).is_file()),
    ((folder, archive) for archive in by_folder for folder in folders(raw, archive)),
    ((raw / archive.name, archive) for archive in plain if (raw / archive.name).is_file()),
  )
  return next(places, None)


def folders(raw_dir, archive: Archive) -> Iterator[pathlib.Path]:
  """Folders that look unpacked from an archive: raw_dir itself, or folders at most two levels below."""
  raw = pathlib.Path(raw_dir).expanduser()
  if raw.is_dir() and (raw.name == archive.unpacked or (archive.sign and any(raw.glob(archive.sign)))):
    yield raw
  for depth in ('', '*/', '*/*/'):
    yield from (path for path in sorted(raw.glob(depth + archive.unpacked)) if path.is_dir())


def file(raw_dir, name: str) -> pathlib.Path | None:
  """The file of that name in raw_dir or in a folder of it, or None."""
  raw = pathlib.Path(raw_dir).expanduser()
  return next(iter(sorted([*raw.glob(name), *raw.glob(f'*/{name}')])), None)


def require(dataset: str, raw_dir) -> tuple[pathlib.Path, Archive]:
  """The result of `locate`.

  Raises:
    MissingFile: there is none.
  """
  located = locate(dataset, raw_dir)
  if located is None:
    wrong = f'{raw_dir} holds nothing of {dataset!r}' if raw_dir else f'{dataset!r} cannot be generated'
    raise MissingFile(f'{wrong}: {advice(dataset)}.')
  return located


def advice(dataset: str) -> str:
  """Advice on getting the files of a data set, as a part of a sentence."""
  entry = catalogue.SETS[dataset]
  packed = [archive for archive in entry.archives if archive.unpacked]
  archives = ' or '.join(f'{archive.name} ({archive.url})' for archive in packed)
  unpacked = ' or '.join(archive.unpacked for archive in packed)
  if all(archive.read_packed for archive in packed):
    what = f'{archives}, or the folder {unpacked} unpacked from it,'
    how = f'put {what} into a folder and name it with --raw_dir'
  else:
    how = f'unpack {archives} and name the folder that holds {unpacked} with --raw_dir'
  return f'{how}, or leave --raw_dir out to generate the set' if entry.generator else how
