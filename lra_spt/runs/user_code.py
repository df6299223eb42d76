"""Notes which user code a run trains: hashes of a mixer, an objective and a task from outside the package.

Without them, a finished run would pass for the result of a mixer that was edited afterwards, and an
unfinished run would go on with other code. The hash of a class covers the source text of its module and of
every other user module that this one reaches through its global names. The names and places of the files do
not matter, but a comment does: after an edit that changes no number, ACCEPT lets a run go on. A class that
was typed into a notebook has no file. Its hash covers the source of the class, of everything in the notebook
that it names, and of the user modules that it names.

The hash of a task covers what training reads from it: inputs, labels, splits and metric.
"""

import ast
import dataclasses
import hashlib
import inspect
import json
import linecache
import os
import pathlib
import sys
import types

import numpy as np

from lra_spt.config.user_files import INSTALLED, digest_of_texts
from lra_spt.errors import ConfigError, touching

ACCEPT = 'LRA_SPT_ACCEPT_CHANGED_CODE'  # environment variable that `--accept_changed_code` sets
_BYTECODE = 'py'  # the first letters of a hash by an earlier version of this file, which hashed bytecode


def digest(cls: type) -> str:
  """Returns 'text:' and 16 hexadecimal digits.

  Raises:
    ConfigError: the class has no source, such as one that `exec` made.
  """
  texts, waiting, seen = set(), [*cls.__mro__], []
  while waiting:
    value = waiting.pop()
    if not is_user(value):
      continue
    file, space = _file(value), _namespace(value)
    part = space if file else value
    if any(part is before for before in seen):
      continue
    seen.append(part)
    if file:
      with touching(file, 'read'):
        texts.add(pathlib.Path(file).read_bytes())
      waiting += space.values()
    else:
      text, names = _typed_in(value)
      texts.add(text.encode())
      waiting += [space[name] for name in sorted(names & space.keys())]
  if not any(texts):
    raise ConfigError(
      f'{cls.__qualname__} has no source text, so its runs could not be distinguished from those of other '
      'code: write the class into a file or a notebook.'
    )
  return digest_of_texts(texts)


def digest_of_task(task) -> str:
  """Returns 'fields:' and 16 hexadecimal digits of what training reads from a `data.tasks.Task`.

  Equal numbers of different types hash alike. Defaults do not count, so that a new field with a default
  changes no hash. The name and the groups serve reports only, and the examples have their own
  fingerprint.
  """
  fields = {name: _fields(getattr(task, name)) for name in ('inputs', 'labels', 'splits', 'published')}
  fields |= {'metric': task.metric} if task.metric else {}
  return f'fields:{hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]}'


def is_user(value) -> bool:
  """Says if a module, class, function or object is neither of this project, nor of Python, nor installed."""
  name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, '__module__', None)
  root = name.partition('.')[0] if isinstance(name, str) else ''
  if root == '__main__':
    return True
  if root in ('', 'lra_spt') or root in sys.stdlib_module_names:
    return False
  path = pathlib.Path(_namespace(value).get('__file__') or '')
  if root in ('configs', 'data_prep', 'benchmarks') and path.is_relative_to(INSTALLED.parent / root):
    return False
  return not {'site-packages', 'dist-packages'} & {*path.parts}


def as_begun(before: dict, identity: dict) -> dict:
  """Replaces the hashes of an identity that must not be compared by those that the run noted when it began.

  These are all hashes if ACCEPT is set, else those of bytecode.

  Args:
    before: the identity that the run noted, see `run_folder.read_config`.
    identity: the identity that the same command has now.
  """
  noted, now = before.get('code', {}), identity.get('code', {})
  if not os.environ.get(ACCEPT):
    noted = now | {key: value for key, value in noted.items() if value.startswith(_BYTECODE)}
  return {key: value for key, value in identity.items() if key != 'code'} | ({'code': noted} if noted else {})


def remark(before: dict, identity: dict) -> str | None:
  """Returns a sentence on the hashes that `as_begun` replaces, None if it replaces none."""
  begun, now = as_begun(before, identity).get('code', {}), identity.get('code', {})
  if begun == now:
    return None
  if os.environ.get(ACCEPT):
    changed = sorted(key for key in {*begun, *now} if begun.get(key) != now.get(key))
    return f'your own code ({", ".join(changed)}) has changed since this run began; it goes on as you asked'
  return 'this run noted your own code in an earlier form, which is not compared with the code as it is now'


def _file(value) -> str | None:
  """The file of the module of a value; None for what was typed into a notebook."""
  file, function = _namespace(value).get('__file__'), _function(value)
  if function is None or function.__module__ != '__main__':
    return file
  return file if function.__code__.co_filename == file else None  # a notebook has the file of Jupyter


def _namespace(value) -> dict:
  """The global names of the module of a value, which need not be in sys.modules any more."""
  if isinstance(value, types.ModuleType):
    return vars(value)
  if (function := _function(value)) is not None:
    return function.__globals__
  return getattr(sys.modules.get(value.__module__), '__dict__', {})


def _function(value) -> types.FunctionType | None:
  """Returns a function that was written in the module of a value: the function itself, or one in the class or
  in the class of the object; None if there is none."""
  value = inspect.unwrap(value)
  if not isinstance(value, type | types.FunctionType):
    value = type(value)
  inside = vars(value).values() if isinstance(value, type) else [value]
  functions = (each for each in map(inspect.unwrap, inside) if isinstance(each, types.FunctionType))
  return next((each for each in functions if each.__module__ == value.__module__), None)


def _typed_in(value) -> tuple[str, set[str]]:
  """The source of a class or function in the cell of a notebook, and the names in it."""
  if (function := _function(value)) is None:
    return '', set()
  cell = ''.join(linecache.getlines(function.__code__.co_filename))
  name = getattr(inspect.unwrap(value), '__name__', type(value).__name__)
  for node in ast.walk(ast.parse(cell)):
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
      first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
      text = '\n'.join(cell.splitlines()[first - 1 : node.end_lineno])
      return text, {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
  return '', set()


def _fields(value):
  if dataclasses.is_dataclass(value):
    counting = [field for field in dataclasses.fields(value) if field.compare]
    named = {field.name: (_fields(getattr(value, field.name)), field) for field in counting}
    chosen = {name: plain for name, (plain, field) in named.items() if plain != _fields(field.default)}
    return {'': type(value).__name__} | chosen
  array = np.asarray(value)
  return array.astype(np.float64).tolist() if array.dtype.kind in 'biuf' else str(value)
