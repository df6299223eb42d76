"""Errors meant for the user: one sentence that names the thing, what is wrong and what to do.

The command line prints only the sentence of a `UserError`. Every other exception is a bug in this project or
its dependencies, and keeps its traceback. Errors of the operating system become a sentence where files are
accessed (`touching`).
"""

import contextlib
import difflib
import errno
import os


class UserError(ValueError):
  """What a user can put right; its text is one sentence (a list of differences may follow on lines).

  `status` is what a command exits with.
  """

  status = 2


class ConfigError(UserError):
  """A value of a config, a flag or an argument that cannot be used."""


class InUse(ConfigError):
  """A folder that another process owns."""


class FieldError(ConfigError):
  """A field whose value cannot be used. What holds the field raises it; `within` adds where that stands.

  Args:
    field: its name, such as 'lr', or 'optimizer.lr' seen from further out.
    text: the rest of the sentence, such as 'is -1, but it must be at least 0; correct it'.
  """

  def __init__(self, field: str, text: str):
    super().__init__(f'{field} {text}')
    self.field, self.text = field, text


class DataError(UserError):
  """Examples, or the files they come from, that are not what they should be."""


class DamagedFile(UserError):
  """A file of a run or a prepared set that cannot be read as what it should be."""


class CheckpointError(UserError):
  """A checkpoint that cannot be read, or does not fit the model."""


class NonFiniteError(UserError):
  """Training met a number that is not finite; the state before it is intact."""


class Interrupted(UserError):
  """The run was asked to end (a signal, a preemption) and is saved; the same command goes on there."""

  status = 75  # EX_TEMPFAIL of sysexits.h: try again


class MissingFile(UserError, FileNotFoundError):
  """A file or folder that has to be there first."""


class FileAccessError(UserError, OSError):
  """What the operating system refuses: no permission, no space, a file where a folder should be."""


_ADVICE = {
  errno.ENOSPC: 'no space is left on the disk; make room and run the same command again',
  errno.EDQUOT: 'the disk quota is used up; make room and run the same command again',
  errno.EFBIG: 'the file would be larger than this system or shell allows (see ulimit -f); raise the limit',
  errno.EACCES: 'permission is denied; give another path, or the permission to use this one',
  errno.EPERM: 'permission is denied; give another path, or the permission to use this one',
  errno.EROFS: 'the file system is read-only; give a path on another one',
  errno.ENOTDIR: 'a part of the path is a file, not a folder; give another path',
  errno.EEXIST: 'there is a file of that name where a folder should be; give another path',
  errno.EISDIR: 'it is a folder, not a file; give another path',
  errno.ENOENT: 'it does not exist; correct the path',
  errno.ENAMETOOLONG: 'the name is too long for this file system; give a shorter path',
}


_OF_THE_MOMENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN)
_NEEDS_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def touching(path, doing: str, size: int = 0):
  """Turns what the operating system refuses within into a FileAccessError that names the path, also where a
  library says so in exceptions of its own kind. A pipe that nobody reads is no such refusal.

  Args:
    path: the file or folder that is touched, named where the system's error names none.
    doing: what is done with it, as in 'could not be {doing}': 'read', 'written'.
    size: about how many bytes it takes, where that is known.
  """
  try:
    yield
  except (UserError, BrokenPipeError):
    raise
  except Exception as error:
    code = error.errno if isinstance(error, OSError) else _code_in(str(error))
    if code is None and not isinstance(error, OSError):
      raise
    where = getattr(error, 'filename', None)  # may be a descriptor, or relative to one
    where = where if isinstance(where, (str, os.PathLike)) and os.path.dirname(where) else path
    reason = os.strerror(code) if code else error
    why = _ADVICE.get(code, f'{reason}; correct the path or check the disk')
    if size and code in _NEEDS_ROOM:
      why += f' (it takes about {max(1, round(size / 1e6)):,} MB)'
    raise FileAccessError(f'{where} could not be {doing}: {why}.') from error


def _code_in(text: str) -> int | None:
  """The errno that the message of a library (ArrayRecord, TensorStore) names in words."""
  if 'PERMISSION_DENIED' in text:  # of a bucket
    return errno.EACCES
  return next((code for code in (*_ADVICE, *_OF_THE_MOMENT) if os.strerror(code) in text), None)


@contextlib.contextmanager
def within(where: str):
  """Says of a FieldError raised inside that its field is one of `where`: lr becomes finetune.optimizer.lr."""
  try:
    yield
  except FieldError as error:
    raise FieldError(f'{where}.{error.field}' if where else error.field, error.text) from error


def check_least(holder, least, *fields: str) -> None:
  """Raises a FieldError for the first of the `fields` of `holder` that is below `least`."""
  for field in fields:
    if not getattr(holder, field) >= least:
      raise FieldError(field, f'is {getattr(holder, field)}, but it must be at least {least}; correct it')


def nearest(name, names) -> str:
  """' Did you mean X?' with the X of `names` that is close to `name`; '' where none is."""
  close = difflib.get_close_matches(str(name), [str(known) for known in names], n=1)
  return f' Did you mean {close[0]}?' if close else ''
