"""Errors for the user: one sentence that names the thing, what is wrong and what to do.

The command line prints only the sentence of a `UserError`. Every other exception is a bug in this project or
its dependencies, and keeps its traceback. Errors of the operating system become a sentence where files are
accessed (`touching`).
"""

import contextlib
import difflib
import errno
import os
import resource


class UserError(ValueError):
  """A mistake that the user can correct. Its text is one sentence; a list of differences may follow on lines.

  `status` is the exit status of a command.
  """

  status = 2


class ConfigError(UserError):
  """A value of a config, a flag or an argument that cannot be used."""


class InUse(ConfigError):
  """A folder that another process owns."""


class FieldError(ConfigError):
  """A field whose value cannot be used. The object with the field raises it; `within` adds where that is.

  Args:
    field: the name of the field, such as 'lr', or 'optimizer.lr' with its section.
    text: the rest of the sentence, such as 'is -1, but it must be at least 0; correct it'.
  """

  def __init__(self, field: str, text: str):
    super().__init__(f'{field} {text}')
    self.field, self.text = field, text


class DataError(UserError):
  """Wrong examples, or wrong files from which examples are made."""


class DamagedFile(UserError):
  """A damaged file of a run or a prepared set."""


class CheckpointError(UserError):
  """A checkpoint that cannot be read, or does not fit the model."""


class NonFiniteError(UserError):
  """Training met a number that is not finite; the state before it is intact."""


class Interrupted(UserError):
  """The run got a signal or was preempted, and is saved; the same command continues it."""

  status = 75  # EX_TEMPFAIL of sysexits.h: try again


class MissingFile(UserError, FileNotFoundError):
  """A file or folder that is needed but does not exist."""


class FileAccessError(UserError, OSError):
  """A refusal of the operating system: no permission, no space, a file in place of a folder."""


class TooManyOpenFiles(UserError, OSError):
  """The limit of open files is reached; nothing is wrong with the file that could not be opened."""


def chain(error: BaseException | None) -> list[BaseException]:
  """Lists an error and its causes, which form a circle where the error of a thread is raised again."""
  errors = []
  while error is not None and error not in errors:
    errors.append(error)
    error = error.__cause__ or error.__context__
  return errors


def too_many_open_files(raised: BaseException | None) -> TooManyOpenFiles | None:
  """Returns the error to raise in place of `raised` if the limit of open files caused it, else None.

  Libraries that meet the limit raise errors of all kinds, also one that says that a file is damaged.
  """
  for error in chain(raised):
    if isinstance(error, TooManyOpenFiles):
      return error
    code, text = getattr(error, 'errno', None), str(error)
    if code == errno.ENFILE or os.strerror(errno.ENFILE) in text:
      return TooManyOpenFiles(
        'This machine has as many files open as it may; end other programs and run the same command again.'
      )
    if code == errno.EMFILE or os.strerror(errno.EMFILE) in text:
      limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
      return TooManyOpenFiles(
        f'This process has as many files open as it may, {limit:,} (see ulimit -n); raise the limit, as by '
        f'`ulimit -n {max(4096, 4 * limit)}`, and run the same command again.'
      )
  return None


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
  """Turns errors of the operating system into a FileAccessError that names the path, also if a library raises
  them as exceptions of another type. A pipe that nobody reads is no such error.

  Args:
    path: the file or folder, for the message if the system's error names none.
    doing: the verb of the message, as in 'could not be {doing}': 'read', 'written'.
    size: the approximate number of bytes that it takes, if known.
  """
  try:
    yield
  except (UserError, BrokenPipeError):
    raise
  except Exception as error:
    if limited := too_many_open_files(error):
      raise limited from error
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
  """Returns the errno that the message of a library (ArrayRecord, TensorStore) describes in words."""
  if 'PERMISSION_DENIED' in text:  # of a bucket
    return errno.EACCES
  return next((code for code in (*_ADVICE, *_OF_THE_MOMENT) if os.strerror(code) in text), None)


@contextlib.contextmanager
def within(where: str):
  """Adds the section `where` to the field of a FieldError raised inside: lr becomes finetune.optimizer.lr."""
  try:
    yield
  except FieldError as error:
    raise FieldError(f'{where}.{error.field}' if where else error.field, error.text) from error


def one_line(error: BaseException) -> str:
  """Returns the beginning of an error's text on one line, for a sentence that quotes it."""
  return ' '.join(str(error).split())[:200]


def roughly(seconds: float) -> str:
  """'40 s', '12 min', '2.5 h' or '12 days': a time for a sentence that estimates it."""
  if seconds < 5400:
    return f'{max(1, round(seconds))} s' if seconds < 90 else f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h' if seconds < 48 * 3600 else f'{seconds / 86400:.0f} days'


def counted(number: int, noun: str) -> str:
  """'1 group', '2,000 groups': a number with a noun whose plural adds an s."""
  return f'{number:,} {noun}{"s" * (number != 1)}'


IMPORT_FIRST = ' One of your own is known once its file is imported, or named with --register.'


def nearest(name, names) -> str:
  """Returns ' Did you mean X?' with the X of `names` that is close to `name`, or '' if none is."""
  close = difflib.get_close_matches(str(name), [str(known) for known in names], n=1)
  return f' Did you mean {close[0]}?' if close else ''
