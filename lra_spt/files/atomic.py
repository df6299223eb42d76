"""Files that appear whole or not at all, JSON without NaN, and folders that one process owns at a time.

Paths may begin with gs://, see `lra_spt.files.gcs`.
"""

import contextlib
import errno
import fcntl
import io
import json
import math
import os
import pathlib
import re
import socket
import time
import uuid

from lra_spt.errors import (
  ConfigError,
  DamagedFile,
  FileAccessError,
  InUse,
  TooManyOpenFiles,
  one_line,
  touching,
)

LOCK = '.lock'
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # errors of flock on a file system without locks
NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)  # of fsync of a folder on network drives
ATTEMPTS = 4  # at a lock; fewer may fail because of a moment in which `is_owned` holds it
LARGEST, DEEPEST = 256 * 2**20, 50  # bytes and levels of JSON, ten times more than ours has


def is_bucket(path) -> bool:
  """True for a path that is not on this machine."""
  return '://' in str(path)


def is_name(text: str) -> bool:
  """True for the name of a file or folder; False for a path that leads elsewhere."""
  return text == pathlib.PurePath(text).name and text not in ('', '..')


def place(path):
  """A pathlib.Path with ~ expanded, or a `gcs.BucketPath`.

  Raises:
    ConfigError: an address of another kind, or the home of an unknown user.
  """
  if not is_bucket(path):
    text = os.path.expanduser(path)
    if text.startswith('~'):
      raise ConfigError(f'{path} is in the home of a user who is not known here; give the folder.')
    local = pathlib.Path(text)  # without the ./ of ./~name, which says that ~ is a letter
    return local.absolute() if local.name and local.parts[0].startswith('~') else local
  if not re.fullmatch(r'gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^\0]*)?', str(path)):
    raise ConfigError(
      f'{path} is neither a folder nor in a bucket of Google Cloud Storage; give a '
      'folder or gs://BUCKET/FOLDER'
    )
  from lra_spt.files import gcs

  return gcs.BucketPath(path)


def literal(path):
  """The same folder for libraries that use etils; see `lra_spt.files.literal_path`."""
  if is_bucket(path):
    return path
  from lra_spt.files.literal_path import LiteralPath

  return LiteralPath(path)


@contextlib.contextmanager
def replacing(path, mode: str = 'w', shared: bool = False):
  """Opens a file that gets its name only when it is whole and on the disk; after an exception it is removed.

  Args:
    path: its folder must exist.
    mode: 'w' (UTF-8) or 'wb'.
    shared: other processes may write the same file at the same moment; the last one wins.

  Raises:
    FileAccessError: the operating system refuses.
  """
  path = place(path)
  if is_bucket(path):
    file = io.BytesIO() if 'b' in mode else io.StringIO()
    yield file
    content = file.getvalue()
    with touching(path, 'written'):
      path.write_bytes(content if 'b' in mode else content.encode())
    return
  part = path.with_name(f'{path.name}.{uuid.uuid4().hex}.part' if shared else f'{path.name}.part')
  with touching(path, 'written'):
    try:
      with part.open(mode, encoding=None if 'b' in mode else 'utf-8') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(part, path)
      _sync(path.parent)  # else a power cut could undo the new name
    except BaseException:
      with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)
      raise


def sync(folder) -> None:
  """Writes a folder, everything in it and its name through to the disk.

  Raises:
    FileAccessError: the operating system refuses.
  """
  if is_bucket(folder):  # an upload that has ended is stored
    return
  folder = pathlib.Path(folder)
  with touching(folder, 'written'):
    for path in (*folder.rglob('*'), folder, folder.parent):
      _sync(path)


def _sync(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in NO_SYNC:
      raise
  finally:
    os.close(descriptor)


class Appended:
  """A file to which bytes are added; raises a FileAccessError if the operating system refuses.

  In a bucket the whole object is written each time, because objects cannot grow.
  """

  def __init__(self, path):
    self._path, self._file, self._whole = place(path), None, b''
    with touching(path, 'written'):
      if not is_bucket(path):
        self._file = self._path.open('ab', buffering=0)  # a buffer would be written again after an error
      elif self._path.is_file():
        self._whole = self._path.read_bytes()

  def add(self, content: bytes) -> None:
    """Adds the bytes and writes them through to the disk."""
    with touching(self._path, 'written'):
      if self._file is None:
        self._path.write_bytes(self._whole + content)
        self._whole += content
        return
      while content:
        content = content[self._file.write(content) :]
      os.fsync(self._file.fileno())

  def close(self) -> None:
    if self._file is not None:
      self._file.close()


def write_text(path, text: str, shared: bool = False) -> None:
  """Writes a text file, see `replacing`."""
  with replacing(path, shared=shared) as file:
    file.write(text)


def write_json(path, content, shared: bool = False) -> None:
  """Writes JSON, see `replacing`; raises a ValueError for a number that is not finite."""
  write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n', shared)


def read_json(path, kind: str, advice: str) -> dict:
  """The JSON object in a file.

  Args:
    kind: description of the file, as in '{path} is not {kind}'.
    advice: the remedy, as the end of that sentence.

  Raises:
    DamagedFile: it cannot be read, is no JSON object, or holds a number that is not finite.
  """

  def finite(text):
    if not math.isfinite(number := float(text)):
      raise ValueError(f'it holds the number {text:.40}')
    return number

  try:
    with touching(path, 'read'), place(path).open('rb') as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(0)
      if size > LARGEST:
        raise ValueError(f'it has {size:,} bytes')
      text = file.read(LARGEST).decode('utf-8')
    content = json.loads(text, parse_constant=finite, parse_float=finite)
    if not isinstance(content, dict):
      raise ValueError('it is not a JSON object')
    _check_depth(content)
    if '\\u' in text:  # half of a surrogate pair cannot be printed
      json.dumps(content, ensure_ascii=False).encode()
  except TooManyOpenFiles:
    raise
  except (ValueError, RecursionError) as error:
    raise DamagedFile(f'{path} is not {kind} ({one_line(error)}); {advice}.') from error
  return content


def _check_depth(content):
  level = [content]
  for _ in range(DEEPEST):
    children = (part for node in level for part in (node.values() if isinstance(node, dict) else node))
    level = [part for part in children if isinstance(part, (dict, list))]
  if level:
    raise ValueError('it is nested too deeply')


@contextlib.contextmanager
def owned(folder, doing: str):
  """Locks a folder for this process. If the process dies, the operating system frees the folder.

  A folder in a bucket is freed some time later, see `lra_spt.files.leases`. A file system without locks is
  refused, because owners remove unfinished work of dead ones, which would be unsafe without a lock.

  Args:
    folder: created if it is missing.
    doing: the work of the owner, as in 'another process (...) is {doing} {folder}'.

  Raises:
    InUse: another process owns it.
    FileAccessError: the folder cannot be created, written to or locked.
  """
  if is_bucket(folder):
    from lra_spt.files import leases

    with leases.leased(place(folder), doing):
      yield
    return
  folder = pathlib.Path(folder)
  path = folder / LOCK
  with touching(folder, 'written to'):
    folder.mkdir(parents=True, exist_ok=True)
    try:
      lock = _locked(path)
    except OSError as error:
      if error.errno not in NO_LOCKS:
        raise
      with contextlib.suppress(OSError):
        if not path.stat().st_size:  # no owner on another machine, which may have locks, has written it
          path.unlink()
      raise FileAccessError(
        f'{folder} cannot be locked against other processes, because its file system has no locks '
        f'({os.strerror(error.errno)} by flock); have it mounted with locks (Lustre: -o flock; NFS: its lock '
        'service running), or choose a folder on another file system.'
      ) from error
  if lock is None:
    raise InUse(
      f'Another process ({_owner(path)}) is {doing} {folder}; wait for it to end, or choose another folder.'
    )
  with lock:
    with contextlib.suppress(OSError):  # the note is for people and may be missing on a full disk
      lock.truncate(0)
      lock.write(f'process {os.getpid()} on {socket.gethostname()}'.encode())
    try:
      yield
    finally:
      with contextlib.suppress(OSError):  # a file without a living owner is harmless
        path.unlink(missing_ok=True)


def is_owned(folder) -> bool:
  """True if a process owns a folder, see `owned`; False on a file system without locks.

  Raises:
    FileAccessError: the lock cannot be read.
  """
  if is_bucket(folder):
    from lra_spt.files import leases

    return leases.is_leased(place(folder))
  path = pathlib.Path(folder) / LOCK
  with (
    touching(path, 'read'),
    contextlib.suppress(FileNotFoundError, NotADirectoryError),
    path.open() as file,
  ):
    try:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      return True
    except OSError as error:
      if error.errno not in NO_LOCKS:
        raise
  return False


def _locked(path):
  """The lock file, locked and open, or None if another process holds it longer than `is_owned` does."""
  refused = 0
  while True:
    file = path.open('ab', buffering=0)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # The last owner may have removed the file after it was opened here.
      if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return file
    except BlockingIOError:
      refused += 1
      if refused == ATTEMPTS:
        file.close()
        return None
      time.sleep(0.01)
    except FileNotFoundError:
      pass
    except OSError:
      file.close()
      raise
    file.close()


def _owner(path) -> str:
  with contextlib.suppress(OSError):
    if text := path.read_text(encoding='utf-8', errors='replace').strip()[:200]:
      return text
  return 'of unknown number'
