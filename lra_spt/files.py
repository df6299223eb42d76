"""Files that appear whole or not at all, JSON without NaN, and folders that one process owns at a time."""

import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import socket

from lra_spt.errors import ConfigError, DamagedFile, touching

LOCK = '.lock'
LARGEST, DEEPEST = 256 * 2**20, 50  # JSON of ours has less than a tenth of these bytes, and of these levels


@contextlib.contextmanager
def replacing(path, mode: str = 'w'):
  """A file that takes its name only when it is whole and on the disk; after an exception nothing is left.

  Args:
    path: its folder must exist.
    mode: 'w' (UTF-8) or 'wb'.

  Raises:
    FileAccessError: the operating system refuses.
  """
  path = pathlib.Path(path)
  part = path.with_name(f'{path.name}.part')
  with touching(path, 'written'):
    try:
      with part.open(mode, encoding=None if 'b' in mode else 'utf-8') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(part, path)
      _sync(path.parent)  # or a power cut takes the new name back
    except BaseException:
      with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)
      raise


def sync(folder) -> None:
  """Has everything in a folder, and the folder's own name, on the disk before it returns.

  Raises:
    FileAccessError: the operating system refuses.
  """
  folder = pathlib.Path(folder)
  with touching(folder, 'written'):
    for path in (*folder.rglob('*'), folder, folder.parent):
      _sync(path)


def _sync(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno != errno.EINVAL:  # some network file systems know no fsync of folders
      raise
  finally:
    os.close(descriptor)


def write_text(path, text: str) -> None:
  """Writes a text file, see `replacing`."""
  with replacing(path) as file:
    file.write(text)


def write_json(path, content) -> None:
  """Writes JSON, see `replacing`; ValueError for a number that is not finite."""
  write_text(path, json.dumps(content, indent=2, allow_nan=False) + '\n')


def read_json(path, kind: str, advice: str) -> dict:
  """The JSON object in a file.

  Args:
    kind: what the file is, as in '{path} is not {kind}'.
    advice: what to do when it is not, as the end of the sentence.

  Raises:
    DamagedFile: it cannot be read, is no JSON object, or holds a number that is not finite.
  """

  def finite(text):
    if not math.isfinite(number := float(text)):
      raise ValueError(f'it holds the number {text:.40}')
    return number

  try:
    with touching(path, 'read'), open(path, 'rb') as file:
      if (size := os.fstat(file.fileno()).st_size) > LARGEST:
        raise ValueError(f'it has {size:,} bytes')
      text = file.read(LARGEST).decode('utf-8')
    content = json.loads(text, parse_constant=finite, parse_float=finite)
    if not isinstance(content, dict):
      raise ValueError('it is no JSON object')
    _check_depth(content)
    if '\\u' in text:  # half a surrogate pair cannot be printed
      json.dumps(content, ensure_ascii=False).encode()
  except (ValueError, RecursionError) as error:
    reason = ' '.join(str(error).split())[:200]
    raise DamagedFile(f'{path} is not {kind} ({reason}); {advice}.') from error
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
  """Makes a folder this process's own; the operating system ends that when the process dies.

  Args:
    folder: made if missing.
    doing: what its owner does, as in 'another process (...) is {doing} {folder}'.

  Raises:
    ConfigError: another process owns it.
    FileAccessError: the folder cannot be made or written to.
  """
  folder = pathlib.Path(folder)
  path = folder / LOCK
  with touching(folder, 'written to'):
    folder.mkdir(parents=True, exist_ok=True)
    lock = _locked(path)
  if lock is None:
    raise ConfigError(
      f'Another process ({_owner(path)}) is {doing} {folder}; wait for it to end, or choose another folder.'
    )
  with lock:
    with contextlib.suppress(OSError):  # the note is for people; on a full disk there is none
      lock.truncate(0)
      lock.write(f'process {os.getpid()} on {socket.gethostname()}'.encode())
    try:
      yield
    finally:
      with contextlib.suppress(OSError):  # without a living owner the file means nothing
        path.unlink(missing_ok=True)


def is_owned(folder) -> bool:
  """Whether a process owns a folder, see `owned`."""
  with (
    contextlib.suppress(FileNotFoundError, NotADirectoryError),
    (pathlib.Path(folder) / LOCK).open() as file,
  ):
    try:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      return True
  return False


def _locked(path):
  """The lock file, locked and open, or None when another process holds it."""
  while True:
    file = path.open('ab', buffering=0)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # Its last owner may have removed the file between our opening and locking it.
      if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return file
    except BlockingIOError:
      file.close()
      return None
    except FileNotFoundError:
      pass
    file.close()


def _owner(path) -> str:
  with contextlib.suppress(OSError):
    if text := path.read_text(encoding='utf-8', errors='replace').strip()[:200]:
      return text
  return 'of unknown number'
