"""Files in a bucket of Google Cloud Storage: paths and whole objects.

TensorStore reads and writes the objects, as Orbax does for the arrays of checkpoints. So there is one library
and one kind of credentials (those of the machine, or `gcloud auth application-default login`), and nothing
else to install. Other files of Orbax and the compiled programs of jax use etils.epath, which returns the
paths of this module. It is imported only for paths in buckets.

An object appears whole when its upload ends, or not at all. A folder exists while an object is below it.
Leases take the place of locks (`lra_spt.files.leases`).
"""

import errno
import fnmatch
import functools
import io
import os
import pathlib
import time
import types

import tensorstore as ts
from etils import epath

from lra_spt.errors import FileAccessError

PATIENCE = 600.0  # seconds to wait for a bucket that does not answer
PIECE = 64 * 2**20  # bytes
# Retries of one request: few, so that guards are called again in time.
_RETRIES = {'max_retries': 4, 'initial_delay': '500ms', 'max_delay': '4s'}
_AWAY = ('ABORTED', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL', 'UNKNOWN')
guards = []  # called with a path before a write; they raise if it is not allowed


@epath.register_path_cls('gs://')
class BucketPath(type(epath.Path('gs://bucket'))):
  """A file or folder in a bucket, with the methods of pathlib.Path that this project, Orbax and jax use."""

  def exists(self):
    return self.is_file() or self.is_dir()

  def is_file(self):
    return bool(self._name) and self.read(0, 0).state == 'value'

  def is_dir(self):
    return not self._name or bool(self.files())

  def is_symlink(self):
    return False

  def absolute(self):
    return self

  expanduser = absolute

  def resolve(self, strict=False):
    return self

  def stat(self):
    """Size of a file; the time of its last change is not known."""
    return types.SimpleNamespace(st_size=len(self.read_bytes()), st_mtime=0.0, st_mtime_ns=0)

  def read(self, begin=0, end=None):
    """TensorStore's ReadResult: `value`, `state` ('value' or 'missing') and `stamp.generation`.

    begin, end: a part of the file; raises an EOFError if the file is shorter.
    """
    return self._ask('read', lambda store: store.read(self._name, byte_range=slice(begin, end)))

  def read_bytes(self, begin=0, end=None):
    stored = self.read(begin, end)
    if stored.state != 'value':
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
    return stored.value

  def pieces(self, size: int):
    """The content of a file of `size` bytes, in pieces; raises an EOFError if the file is shorter."""
    for begin in range(0, size, PIECE):
      yield self.read_bytes(begin, min(size, begin + PIECE))

  def read_text(self, encoding='utf-8', errors='strict'):
    return self.read_bytes().decode(encoding, errors)

  def open(self, mode='r', buffering=-1, encoding='utf-8', errors='strict'):
    """Opens a file for reading; `atomic.replacing` writes."""
    if mode not in ('r', 'rb'):
      raise ValueError(f'mode {mode!r}: objects are written whole')
    file = io.BytesIO(self.read_bytes())
    return file if 'b' in mode else io.TextIOWrapper(file, encoding, errors)

  def write_bytes(self, data):
    self._ask('written', lambda store: store.write(self._name, bytes(data)), writes=True)
    return len(data)

  def write_text(self, data, encoding='utf-8', errors='strict'):
    return self.write_bytes(data.encode(encoding, errors))

  def write_over(self, generation: bytes, content: bytes | None) -> bytes:
    """Writes a file (None: removes it) if it still has this generation; retries only a few times.

    Returns:
      The new generation, or b'' if the file had another one. That may come from this very write, if its
      answer was lost and it was sent again.

    Raises:
      TimeoutError: the bucket does not answer.
      FileAccessError: the bucket refuses.
    """
    try:
      return _store(self._bucket).write(self._name, content, if_equal=generation).result().generation
    except ValueError as error:
      raise self._refusal('written', error) from error

  def unlink(self, missing_ok=False):
    """Removes a file; a missing one is no error."""
    self._ask('removed', lambda store: store.write(self._name, None), writes=True)

  def mkdir(self, mode=0o777, parents=False, exist_ok=False):
    """Makes nothing; raises if writing is not allowed."""
    insist(self._pass_guards)
    if not exist_ok and self.exists():
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

  def rmtree(self, missing_ok=False):
    self._ask('removed', lambda store: store.delete_range(self._range), writes=True)

  def files(self) -> list:
    """All files below, at any depth."""
    names = self._ask('listed', lambda store: store.list(self._range))
    root = type(self)(f'gs://{self._bucket}')
    return [root / name.decode() for name in sorted(names)]

  def iterdir(self):
    return iter(self.glob('*'))

  def glob(self, pattern):
    depth = len(pathlib.PurePosixPath(pattern).parts)
    return [self / path for path in self._below() if len(path.parts) == depth and path.match(pattern)]

  def rglob(self, pattern):
    return [self / path for path in self._below() if fnmatch.fnmatchcase(path.name, pattern)]

  def _below(self):
    """All files and folders below, relative to this one."""
    files = [pathlib.PurePosixPath(str(file)[len(str(self)) + 1 :]) for file in self.files()]
    return sorted({place for file in files for place in (file, *file.parents[:-1])})

  @property
  def _range(self):
    """The range of the names below this folder."""
    name = self._name
    return ts.KvStore.KeyRange(f'{name}/', f'{name}0') if name else ts.KvStore.KeyRange()  # 0 is next to /

  @property
  def _bucket(self):
    return str(self).split('/')[2]

  @property
  def _name(self):
    return str(self).removeprefix('gs://').partition('/')[2]

  def _pass_guards(self):
    for guard in guards:
      guard(self)

  def _ask(self, doing, call, writes=False):
    """The result of `call(store)`."""

    def attempt():
      if writes:
        self._pass_guards()
      try:
        return call(_store(self._bucket)).result()
      except ValueError as error:
        raise self._refusal(doing, error) from error

    return insist(attempt)

  def denial(self, doing: str, error: ValueError) -> FileAccessError | None:
    """A FileAccessError for an error of TensorStore that denies permission; None for another error."""
    reason = _reason(error)
    if 'PERMISSION_DENIED' in reason or 'UNAUTHENTICATED' in reason:
      return FileAccessError(
        f'{self} could not be {doing}: permission is denied ({reason}); give another path, or the '
        'credentials of this machine the permission to use this one.'
      )
    return None

  def _refusal(self, doing, error):
    """The error to raise for one of TensorStore.

    It is a TimeoutError if the request may be repeated, an EOFError if a file is too short, else a
    FileAccessError.
    """
    if denied := self.denial(doing, error):
      return denied
    reason = _reason(error)
    if 'NOT_FOUND' in reason:
      return FileAccessError(
        f'{self} could not be {doing}: there is no bucket {self._bucket}; create it, or correct the path.'
      )
    if 'OUT_OF_RANGE' in reason:
      return EOFError(str(self))
    away = any(sign in reason for sign in _AWAY)
    advice = 'run the same command again when it does' if away else 'look at the bucket, or correct the path'
    kind = TimeoutError if away else FileAccessError
    return kind(f'{self} could not be {doing}: the bucket does not serve it ({reason}); {advice}.')


def _reason(error):
  return ' '.join(str(error).split('[')[0].split())[:200]


def insist(attempt):
  """Calls `attempt()` until it raises no TimeoutError; raises a FileAccessError after PATIENCE."""
  start, pause = time.monotonic(), 0.1
  while True:
    try:
      return attempt()
    except TimeoutError as error:
      if time.monotonic() - start > PATIENCE:
        raise FileAccessError(str(error)) from error
    time.sleep(pause)
    pause = min(2 * pause, 10.0)


@functools.cache
def _store(bucket):
  context = {'gcs_request_retries': _RETRIES}
  return ts.KvStore.open({'driver': 'gcs', 'bucket': bucket, 'context': context}).result()
