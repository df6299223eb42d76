"""Errors that are meant for the user: one sentence that names the thing, what is wrong and what to do.

The command line prints the sentence of a `UserError` and nothing else. Every other exception is a defect of
this project, or of what it stands on, and keeps its traceback. What the operating system refuses becomes a
sentence where files are touched (`touching`).
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
  """The process was asked to end (SIGTERM); what it had is saved, and the same command goes on there."""

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


@contextlib.contextmanager
def touching(path, doing: str):
  """Turns what the operating system refuses within into a FileAccessError that names the path.

  Args:
    path: the file or folder that is touched, named where the system's error names none.
    doing: what is done with it, as in 'could not be {doing}': 'read', 'written'.
  """
  try:
    yield
  except UserError:
    raise
  except OSError as error:
    where = error.filename if isinstance(error.filename, (str, os.PathLike)) else path
    why = _ADVICE.get(error.errno, f'{error.strerror or error}; correct the path or look at the disk')
    raise FileAccessError(f'{where} could not be {doing}: {why}.') from error


@contextlib.contextmanager
def within(where: str):
  """Says of a FieldError raised inside that its field is one of `where`: lr becomes finetune.optimizer.lr."""
  try:
    yield
  except FieldError as error:
    raise FieldError(f'{where}.{error.field}', error.text) from error


def check_least(holder, least, *fields: str) -> None:
  """Raises a FieldError for the first of the `fields` of `holder` that is below `least`."""
  for field in fields:
    if not getattr(holder, field) >= least:
      raise FieldError(field, f'is {getattr(holder, field)}, but it must be at least {least}; correct it')


def nearest(name, names) -> str:
  """' Did you mean X?' with the X of `names` that is close to `name`; '' where none is."""
  close = difflib.get_close_matches(str(name), [str(known) for known in names], n=1)
  return f' Did you mean {close[0]}?' if close else ''
