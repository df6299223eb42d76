"""Files in a bucket of Google Cloud Storage: paths and whole objects.

Objects are read and written by TensorStore, which Orbax uses for the arrays of checkpoints. So there is one
library, one kind of credentials (those of the machine, or `gcloud auth application-default login`) and
nothing else to install. Orbax's other files, and the programs that jax keeps, come here through etils.epath,
which returns these paths instead of its own. Imported only for paths in buckets.

An object appears whole when its upload ends, or not at all. There are no folders: a folder exists while an
object is below it. Leases take the place of locks (`lra_spt.files.leases`).
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

PATIENCE = 600.0  # seconds for a bucket that does not answer
# Of one request, so few that guards are asked again in time.
_RETRIES = {'max_retries': 4, 'initial_delay': '500ms', 'max_delay': '4s'}
_AWAY = ('ABORTED', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL', 'UNKNOWN')
guards = []  # called with a path before anything is written there; they raise where that may not be


@epath.register_path_cls('gs://')
class BucketPath(type(epath.Path('gs://bucket'))):
  """A file or folder in a bucket, with what this project, Orbax and jax ask of a pathlib.Path."""

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
    """Of a file; when it was written is not known."""
    return types.SimpleNamespace(st_size=len(self.read_bytes()), st_mtime=0.0, st_mtime_ns=0)

  def read(self, begin=0, end=None):
    """TensorStore's ReadResult: `value`, `state` ('value' or 'missing') and `stamp.generation`.

    begin, end: of a part of the file; EOFError where it ends before.
    """
    return self._ask('read', lambda store: store.read(self._name, byte_range=slice(begin, end)))

  def read_bytes(self, begin=0, end=None):
    found = self.read(begin, end)
    if found.state != 'value':
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
    return found.value

  def pieces(self, size: int, piece: int = 64 * 2**20):
    """All of a file of so many bytes, in parts; EOFError where it has fewer."""
    for begin in range(0, size, piece):
      yield self.read_bytes(begin, min(size, begin + piece))

  def read_text(self, encoding='utf-8', errors='strict'):
    return self.read_bytes().decode(encoding, errors)

  def open(self, mode='r', buffering=-1, encoding='utf-8', errors='strict'):
    """For reading; see `atomic.replacing` for the other way."""
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
    """Writes or (None) removes a file if it is still of a generation, asking a few times only: its new one,
    or b'' where it was another, also by a write of this kind that was done but not answered.

    Raises:
      TimeoutError: the bucket does not answer.
      FileAccessError: it refuses.
    """
    try:
      return _store(self._bucket).write(self._name, content, if_equal=generation).result().generation
    except ValueError as error:
      raise self._refusal('written', error) from error

  def unlink(self, missing_ok=False):
    """Also of a file that is missing."""
    self._ask('removed', lambda store: store.write(self._name, None), writes=True)

  def mkdir(self, mode=0o777, parents=False, exist_ok=False):
    """Makes nothing, but raises where nothing may be written."""
    insist(self._pass_guards)
    if not exist_ok and self.exists():
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

  def rmtree(self, missing_ok=False):
    self._ask('removed', lambda store: store.delete_range(self._range), writes=True)

  def files(self) -> list:
    """All files below, at any depth."""
    found = self._ask('listed', lambda store: store.list(self._range))
    root = type(self)(f'gs://{self._bucket}')
    return [root / name.decode() for name in sorted(found)]

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
    """Of the names below."""
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
    """What TensorStore raises where permission is denied, as a sentence; None for another reason."""
    reason = _reason(error)
    if 'PERMISSION_DENIED' in reason or 'UNAUTHENTICATED' in reason:
      return FileAccessError(
        f'{self} could not be {doing}: permission is denied ({reason}); give another path, or the '
        'credentials of this machine the permission to use this one.'
      )
    return None

  def _refusal(self, doing, error):
    """What TensorStore raises, as a sentence: a TimeoutError where the bucket may be asked again, an EOFError
    where a file ends before, else a FileAccessError."""
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
  """What `attempt()` returns, which is made again after a TimeoutError; a FileAccessError after PATIENCE."""
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
