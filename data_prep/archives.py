"""Tar archives, read from front to back without writing to disk, so that no path of a member can do harm.

Headers are parsed here, member by member, because `tarfile` mistakes a damaged header within a stream for the
end of the archive, reads names of any size into memory, and ignores the checksum at the end of a gzip stream.
An archive is accepted only if all of it was read, only the end mark and zeros follow the last member, and the
checksums of the compression are right.
"""

import contextlib
import gzip
import hashlib
import io
import pathlib
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tqdm

from data_prep import raw_files
from lra_spt.errors import DataError, UserError, touching

_BLOCK = tarfile.BLOCKSIZE
# Bytes that are read at once when they are skipped.
_PIECE = 2**20
# Largest number of bytes of a name, and of a header that holds a long name or other attributes. Names of
# official members have at most some 60 characters.
_NAME, _ATTRIBUTES = 1024, 2**16
_KINDS = {
  tarfile.LNKTYPE: 'a link',
  tarfile.SYMTYPE: 'a link',
  tarfile.CHRTYPE: 'a device',
  tarfile.BLKTYPE: 'a device',
  tarfile.DIRTYPE: 'a folder',
  tarfile.FIFOTYPE: 'a pipe',
}
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class _Damage(Exception):
  """The archive is damaged."""


@contextlib.contextmanager
def _naming_damage(archive):
  """Turns the errors of a damaged archive into a DataError that names it."""
  with touching(archive, 'read'):
    try:
      yield
    except UserError:
      raise
    except (_Damage, tarfile.HeaderError, EOFError, OSError, zlib.error) as error:
      if isinstance(error, OSError) and error.errno is not None:
        raise  # an error of the system, not of the archive
      raise DataError(
        f'{archive} is not a readable tar archive ({raw_files.shown(str(error))}); get it again.'
      ) from None


class _Stream:
  """The uncompressed archive. Reading it moves a progress bar by the bytes that are read from the file."""

  def __init__(self, raw: io.BufferedReader, bar: tqdm.tqdm):
    self._raw, self._bar = raw, bar
    self._file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b'\x1f\x8b' else raw

  def read(self, size: int) -> bytes:
    """At most `size` bytes; fewer only at the end."""
    content = self._file.read(size)
    self._bar.update(self._raw.tell() - self._bar.n)
    return content

  def exactly(self, size: int) -> bytes:
    """Exactly `size` bytes."""
    content = self.read(size)
    if len(content) < size:
      raise _Damage('it ends too early')
    return content

  def skip(self, size: int):
    """Reads and discards `size` bytes."""
    while size:
      size -= len(self.exactly(min(size, _PIECE)))


class _Content(io.RawIOBase):
  """The content of a member; `digest` is the SHA-256 of the bytes read so far."""

  def __init__(self, stream: _Stream, size: int):
    super().__init__()
    self._stream, self._left = stream, size
    self.digest = hashlib.sha256()

  def readable(self):
    return True

  def readinto(self, buffer):
    size = min(len(buffer), self._left)
    buffer[:size] = self._stream.exactly(size)
    self.digest.update(buffer[:size])
    self._left -= size
    return size

  def readall(self):
    return self.read(self._left)

  def drain(self):
    """Reads the rest."""
    while self._left:
      self.read(min(self._left, _PIECE))


def _attributes(content: bytes) -> dict[str, str]:
  """The attributes in an extended header of POSIX, whose rows are 'length key=value'."""
  attributes = {}
  while content.strip(b'\0'):
    length, _, _ = content.partition(b' ')
    if not (length.isdigit() and len(length) < 6 and 0 < int(length) <= len(content)):
      raise _Damage('an extended header is damaged')
    row, content = content[: int(length)], content[int(length) :]
    key, equals, value = row[len(length) + 1 : -1].partition(b'=')
    if not equals or row[-1:] != b'\n':
      raise _Damage('an extended header is damaged')
    attributes[key.decode('utf-8', 'replace')] = value.decode('utf-8', 'replace')
  return attributes


def _headers(stream: _Stream) -> Iterator[tarfile.TarInfo]:
  """Yields the header of every member, with its whole name and its size, to the end of the stream.

  The caller has to read the content of a member before it asks for the next header.
  """
  attributes = {}
  while True:
    block = stream.exactly(_BLOCK)
    if not block.strip(b'\0'):
      break
    header = tarfile.TarInfo.frombuf(block, 'utf-8', 'replace')
    if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
      if not 0 <= header.size <= _ATTRIBUTES:
        raise _Damage(f'a header declares a name or attributes of {header.size:,} bytes')
      content = stream.exactly(header.size)
      stream.exactly(-header.size % _BLOCK)
      if header.type == tarfile.XHDTYPE:
        attributes |= _attributes(content)
      elif header.type == tarfile.GNUTYPE_LONGNAME:
        attributes['path'] = content.partition(b'\0')[0].decode('utf-8', 'replace')
      continue
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith('GNU.sparse') for key in attributes):
      raise _Damage('it holds a sparse file, which no official archive does')
    header.name = attributes.get('path', header.name)
    if 'size' in attributes:
      if not attributes['size'].isdecimal() or len(attributes['size']) > 20:
        raise _Damage('an extended header is damaged')
      header.size = int(attributes['size'])
    if header.size < 0:
      raise _Damage('a header declares a negative size')
    # In tar, links, folders and devices have no content, whatever their headers declare.
    if header.type in _KINDS:
      header.size = 0
    attributes = {}
    yield header
    stream.exactly(-header.size % _BLOCK)
  while rest := stream.read(_PIECE):
    if rest.strip(b'\0'):
      raise _Damage('something follows its end mark')


def _members(archive, wanted, most):
  """Yields (name, content) of the wanted files; reads the archive to its end."""
  seen = set()
  with raw_files.opened(archive) as raw, progress(archive) as bar:
    stream = _Stream(raw, bar)
    for header in _headers(stream):
      name = str(pathlib.PurePosixPath(header.name))
      if not wanted(name):
        stream.skip(header.size)
        continue
      _check(archive, header, name, most)
      # The path of the unpacked file.
      place = posixpath.normpath(f'/{name.lstrip("/")}')
      if place in seen:
        raise DataError(f'{archive} holds {name} twice; get it again.')
      seen.add(place)
      content = _Content(stream, header.size)
      yield name, content
      content.drain()


def _check(archive, header, name, most):
  """Raises a DataError unless a wanted member is a plain file with a valid name and size."""
  where = f'{archive}/{raw_files.shown(name)}'
  if len(name) > _NAME or not name.isprintable():
    raise DataError(f'{where} has an invalid name of {len(name):,} characters; get the archive again.')
  if header.type not in _PLAIN:
    kind = _KINDS.get(header.type, 'of an unknown kind')
    raise DataError(f'{where} is {kind} instead of a plain file; get the archive again.')
  raw_files.check_size(where, header.size, most)


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


def contents(archive: pathlib.Path, wanted: Callable[[str], bool], most: int) -> Iterator[tuple[str, bytes]]:
  """Yields files of a tar archive, one at a time; reads all of it.

  Args:
    archive: .tar, or gzipped.
    wanted: returns True for the name of a wanted file.
    most: largest number of bytes of a wanted file.

  Yields:
    (name, content), in the order of the archive.

  Raises:
    DataError: the archive is damaged, or a wanted member is too large, occurs twice or is no plain file.
  """
  with _naming_damage(archive):
    for name, content in _members(archive, wanted, most):
      yield name, content.readall()


def _chosen(archive, folder, names, most):
  """Yields (name, content) of the named files of a folder at any depth; a second copy must be equal.

  The rest of a file that the caller does not read is read here.
  """
  tails, first = {f'{folder}/{name}': name for name in names}, {}

  def tail(member):
    return '/'.join(pathlib.PurePosixPath(member).parts[-2:])

  for member, content in _members(archive, lambda member: tail(member) in tails, most):
    name = tails[tail(member)]
    if name not in first:
      yield name, content
    content.drain()
    other, digest = first.setdefault(name, (member, content.digest.digest()))
    if digest != content.digest.digest():
      raise DataError(f'{archive} holds both {other} and {member}, which differ; get it again.')
  missing = [tail for tail, name in tails.items() if name not in first]
  if missing:
    raise DataError(f'{archive} has no {" and no ".join(missing)}; get it again.')


def rows(
  place: pathlib.Path, folder: str, names: Sequence[str], most: int, longest: int
) -> Iterator[tuple[str, pathlib.Path, bytes]]:
  """Yields rows of the named files of one folder.

  Args:
    place: the folder, or an archive (.tar, or gzipped) that contains it at any depth; all of it is read.
    folder, names: names of the folder and of the files.
    most: largest number of bytes of a file.
    longest: largest number of bytes of a row.

  Yields:
    (name, the file for messages, row with its line end). Files of a folder come in the order of `names`,
    those of an archive in its order.

  Raises:
    DataError: the archive is damaged, lacks a file or holds two that differ; or a file or row is too large.
    FileAccessError: the folder lacks a file.
  """
  if place.is_dir():
    for name in names:
      path = place / name
      with raw_files.opened(path, most) as file, progress(path) as bar:
        for row in raw_files.rows(file, path, longest):
          yield name, path, row
          bar.update(len(row))
    return
  with _naming_damage(place):
    for name, content in _chosen(place, folder, names, most):
      where = place / folder / name
      for row in raw_files.rows(io.BufferedReader(content, _PIECE), where, longest):
        yield name, where, row


def members(archive: pathlib.Path, folder: str, names: Sequence[str], most: int) -> Mapping[str, bytes]:
  """{name: content} of the named files of an archive, each of at most `most` bytes; see `rows`."""
  with _naming_damage(archive):
    read = {name: content.readall() for name, content in _chosen(archive, folder, names, most)}
  return {name: read[name] for name in names}
