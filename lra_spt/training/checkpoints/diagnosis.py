"""Finds the reason why a checkpoint cannot be loaded, for the message of an error."""

import json
import pathlib
import re

import numpy as np

from lra_spt import files
from lra_spt.errors import FileAccessError, UserError, chain, too_many_open_files


def difference(there: dict, wanted: dict, digests: str = '') -> str:
  """Describes the first array that only one of a checkpoint and a model has, or whose shape or dtype differs.

  Args:
    there, wanted: {name: array or its description} of the checkpoint and of the model; `there` is empty if
      the content of the checkpoint is unknown.
    digests: the name of the array of checksums, if any, whose shape depends on the other arrays.

  Returns:
    A phrase, '' if there is no difference.
  """
  for name, leaf in wanted.items() if there else ():
    if name not in there:
      return f'it has no {name}'
    stored, asked = (f'{np.dtype(x.dtype).name} {list(x.shape)}' for x in (there[name], leaf))
    if stored != asked and name != digests:
      return f'{name} is {stored} there and {asked} in the model'
  return next((f'it has {name}, which the model lacks' for name in there if name not in wanted), '')


def refusal(error: BaseException, folder: pathlib.Path) -> UserError | None:
  """Returns the error of a bucket that denied access, or of the limit of open files, if it caused this error
  of Orbax: the checkpoint is then not damaged. Returns None for other causes."""
  if limited := too_many_open_files(error):
    return limited
  for cause in chain(error) if files.is_bucket(folder) else ():
    if isinstance(cause, FileAccessError):
      return cause
    if isinstance(cause, ValueError) and (denied := folder.denial('read', cause)):
      return denied
  return None


def reason(error: BaseException, folder: pathlib.Path) -> str:
  """Returns the cause of an error of Orbax: the damaged file if it is known, or the first error of the chain.

  Raises:
    FileAccessError: the operating system refuses a file of the checkpoint.
  """
  for name in ('_METADATA', '_sharding', 'array_metadatas/process_0'):
    path = folder / 'state' / name
    try:
      json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
      if name == '_METADATA':
        return f'state/{name} is missing'
    except FileAccessError:
      raise
    except (OSError, ValueError, RecursionError) as cause:
      return f'state/{name} is damaged: {" ".join(str(cause).split())[:160]}'
  *_, error = chain(error)
  text = re.sub(r'\[(source locations|tensorstore_spec)=.*', '', str(error), flags=re.DOTALL)
  text = ' '.join(text.split())
  text = text if len(text) <= 400 else f'{text[:100]} ... {text[-280:]}'
  return f'{type(error).__name__}: {text}'
