"""Tar archives read from front to back without writing anything to disk: no member can lead anywhere."""

import contextlib
import pathlib
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tqdm

from lra_spt.errors import DataError, touching


@contextlib.contextmanager
def _naming_damage(archive):
  """Makes whatever a damaged archive raises within a DataError that names it."""
  with touching(archive, 'read'):
    try:
      yield
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
      if isinstance(error, OSError) and error.errno is not None:
        raise  # of the system, not of what the archive holds
      # The lines after the first are what tarfile heard from every kind of compression it tried.
      reason = str(error).partition('\n')[0].rstrip(':')
      raise DataError(f'{archive} is not a readable tar archive ({reason}); get it again.') from None


def _members(archive, wanted, count):
  """Yields (name, open file, moves the progress bar to where the archive is read); stops after `count`."""
  with (
    open(archive, 'rb') as raw,
    progress(archive) as bar,
    tarfile.open(fileobj=raw, mode='r|*', bufsize=2**20) as tar,
  ):
    while count != 0 and (member := tar.next()) is not None:
      tar.members.clear()  # tarfile remembers each, and LRA's release has millions
      bar.update(raw.tell() - bar.n)
      name = str(pathlib.PurePosixPath(member.name))
      if member.isfile() and wanted(name):
        yield name, tar.extractfile(member), lambda: bar.update(raw.tell() - bar.n)
        count = None if count is None else count - 1


def progress(path: pathlib.Path) -> tqdm.tqdm:
  """A progress bar over the bytes of a file."""
  return tqdm.tqdm(
    total=path.stat().st_size,
    desc=f'reading {path.name}',
    unit='B',
    unit_scale=True,
    disable=None,
    mininterval=0.5,
  )


def contents(
  archive: pathlib.Path, wanted: Callable[[str], bool], count: int | None = None
) -> Iterator[tuple[str, bytes]]:
  """Files of a tar archive, one at a time.

  Args:
    archive: .tar, or a compressed one.
    wanted: says of a file's name in the archive whether it is wanted.
    count: of the files that are wanted, where it is known: nothing is read beyond the last.

  Yields:
    (name, content), in the order of the archive.

  Raises:
    DataError: the archive is damaged.
  """
  with _naming_damage(archive):
    for name, file, _ in _members(archive, wanted, count):
      yield name, file.read()


def rows(archive: pathlib.Path, wanted: Callable[[str], bool], count: int) -> Iterator[tuple[str, bytes]]:
  """As `contents`, of every file its rows: (name, row with its line end); of an empty file one empty row."""
  with _naming_damage(archive):
    for name, file, move in _members(archive, wanted, count):
      row = None
      for row in file:
        yield name, row
        move()
      if row is None:
        yield name, b''


def members(archive: pathlib.Path, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
  """{name: content} of the named files of one folder, wherever that lies in the archive; reads no further.

  Raises:
    DataError: the archive is damaged or lacks a file.
  """
  wanted = {f'{folder}/{name}': name for name in names}
  found = {}

  def is_wanted(name):
    return '/'.join(pathlib.PurePosixPath(name).parts[-2:]) in wanted

  for name, content in contents(archive, is_wanted, len(names)):
    found[pathlib.PurePosixPath(name).name] = content
  missing = [name for name in names if name not in found]
  if missing:
    raise DataError(f'{archive} has no {", ".join(f"{folder}/{name}" for name in missing)}; get it again.')
  return {name: found[name] for name in names}
