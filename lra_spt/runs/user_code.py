"""Which user code a run trains: digests of a class, and of a task definition, from outside the package.

Without them, after an edit of a mixer a finished run would pass for the edited mixer's result, and an
unfinished one would continue with other code. The digest covers what Python runs, so comments, docstrings,
annotations and the location of a class do not matter, and a class in a notebook has a digest too. It includes
what the class calls, unless that belongs to Python or an installed package, and the constants that it reads.
It does not include what the class reaches in other ways (getattr with a text, or a method of an argument). A
global list or dict counts with its content: one that fills while models run changes the digest in the same
process.

Another version of Python compiles the same class to other code, so digests name the version, and those of two
versions are not compared.

For a task, its inputs, labels and splits count, whatever code defines them.
"""

import contextlib
import dataclasses
import dis
import hashlib
import json
import sys
import types

import numpy as np

# Of a class, what says nothing of what it does.
_SILENT = {'__doc__', '__module__', '__dict__', '__weakref__', '__firstlineno__', '__static_attributes__'}
_SILENT |= {'__annotations__', '__annotate__', '__annotate_func__', '__annotations_cache__'}
_PLAIN = (int, float, complex, str, bytes, type(None), type(...), range)
# Where methods, properties, partial and compiled functions, and derivatives of one's own, keep functions.
_INSIDE = ('__func__', 'func', 'args', 'keywords', 'fget', 'fset', 'fdel', '__wrapped__', 'fun', 'fwd', 'bwd')
_INSIDE += ('jvp',)


def digest(cls: type) -> str:
  """'py3.11:' and 16 hexadecimal digits."""
  told = _Told()
  told.add(cls)
  return f'py{sys.version_info.major}.{sys.version_info.minor}:{told.hash()[:16]}'


def digest_of_task(task) -> str:
  """'fields:' and 16 hexadecimal digits of what training reads by a `data.tasks.Task`: numbers that are equal
  are the same, and defaults say nothing, so that a field which joins later makes no other digest. What groups
  are called is for reports, and the examples themselves have a fingerprint."""
  told = {name: _fields(getattr(task, name)) for name in ('inputs', 'labels', 'splits', 'published')}
  return f'fields:{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]}'


def _fields(value):
  if dataclasses.is_dataclass(value):
    named = {field.name: (_fields(getattr(value, field.name)), field) for field in dataclasses.fields(value)}
    told = {name: held for name, (held, field) in named.items() if held != _fields(field.default)}
    return {'': type(value).__name__} | told
  array = np.asarray(value)
  return array.astype(np.float64).tolist() if array.dtype.kind in 'biuf' else str(value)


def is_own(module: str | None) -> bool:
  """Whether a module of that name is neither of this package, nor of Python, nor installed."""
  root = str(module).partition('.')[0]
  if root == '__main__':  # also of a notebook, whose file is Jupyter's
    return True
  if root == 'lra_spt' or root in sys.stdlib_module_names:
    return False
  file = getattr(sys.modules.get(module), '__file__', None) or ''
  return not {'site-packages', 'dist-packages'} & {*file.replace('\\', '/').split('/')}


def comparable(before: str, now: str) -> bool:
  """Whether two digests are of the same version of Python, or both of fields."""
  return before.partition(':')[0] == now.partition(':')[0]


def as_begun(before: dict, identity: dict) -> dict:
  """An identity as the run of another one, `before`, notes it: with the `code` that is noted there where the
  two cannot be compared: of another version of Python, from before there were digests, or of what has moved
  into the package since."""
  kept, now = before.get('code', {}), identity.get('code', {})
  code = {key: value for key, value in now.items() if key in kept and comparable(kept[key], value)}
  code |= {key: value for key, value in kept.items() if key not in code}
  identity = {key: value for key, value in identity.items() if key != 'code'}
  return identity | ({'code': code} if code else {})


class _Told:
  """What a class is made of, as texts; everything once, and then by its number."""

  def __init__(self, seen=None):
    self.parts, self.seen = [], {} if seen is None else dict(seen)

  def hash(self) -> str:
    return hashlib.sha256('|'.join(self.parts).encode()).hexdigest()

  def add(self, value):
    if isinstance(value, _PLAIN):
      self.parts.append(repr(value))
    elif isinstance(value, types.CodeType):
      self.code(value)
    elif isinstance(value, tuple):  # equal constants are one object or several, as it was compiled or read
      self.all(value)
    elif isinstance(value, frozenset):
      self.unordered(value)
    elif id(value) in self.seen:
      self.parts.append(f'#{self.seen[id(value)][0]}')
    else:
      self.seen[id(value)] = len(self.seen), value  # which so lives on, and no other takes its place
      self.once(value)

  def once(self, value):
    if isinstance(value, list):
      self.all(value)
    elif isinstance(value, dict):
      self.all(part for pair in value.items() for part in pair)
    elif isinstance(value, set):
      self.unordered(value)
    elif isinstance(value, type):
      self.type(value)
    elif isinstance(value, types.FunctionType):
      self.function(value)
    elif hasattr(value, 'dtype') and hasattr(value, '__array__'):
      array = np.asarray(value)
      self.all((str(array.dtype), array.shape, array.tobytes() if array.dtype != object else ''))
    else:
      self.other(value)

  def all(self, values):
    for value in values:
      self.add(value)

  def unordered(self, values):
    """Of a set, the hashes of its members by themselves."""
    hashes = []
    for value in values:
      told = _Told(self.seen)
      told.add(value)
      hashes.append(told.hash())
    self.parts += sorted(hashes)

  def type(self, cls):
    self.parts.append(cls.__qualname__)
    if is_own(cls.__module__):
      self.all(cls.__bases__)
      for name, value in vars(cls).items():
        if name not in _SILENT:
          self.parts.append(name)
          self.add(value)

  def other(self, value):
    """An object: of its own kind with what it holds, else with the functions inside."""
    if is_own(type(value).__module__):
      self.add(type(value))
      self.add(getattr(value, '__dict__', None))
      return
    self.parts.append(type(value).__qualname__)
    for name in _INSIDE:
      inside = getattr(value, name, None)
      if callable(inside) or isinstance(inside, tuple | dict):
        self.add(inside)

  def function(self, function):
    self.parts.append(function.__qualname__)
    if is_own(function.__module__):
      self.code(function.__code__)
      self.all((function.__defaults__, function.__kwdefaults__))
      for value in _globals_of(function):
        self.add(value)
      for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty yet
          self.add(cell.cell_contents)

  def code(self, code):
    """Its instructions, with constants and names in place of their numbers."""
    for step in _steps(code):
      self.parts.append(step.opname)
      if step.opname == 'LOAD_CONST':
        self.add(step.argval)
      else:
        by_number = any(kind in step.opname for kind in ('FAST', 'DEREF', 'CLOSURE', 'CELL'))
        self.parts.append(str(step.arg if by_number else step.argval))


def _steps(code) -> list[dis.Instruction]:
  silent = ('CACHE', 'EXTENDED_ARG', 'NOP', 'RESUME')
  return [step for step in dis.get_instructions(code) if step.opname not in silent]


def _globals_of(function) -> list:
  """What it reads of its module, also in the functions inside; of a module what it reads of that."""
  found = []
  for code in _codes(function.__code__):
    steps = _steps(code)
    for number, step in enumerate(steps):
      if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and step.argval in function.__globals__:
        value, following = function.__globals__[step.argval], iter(steps[number + 1 :])
        while isinstance(value, types.ModuleType):
          attribute = next(following, None)
          if attribute is None or attribute.opname not in ('LOAD_ATTR', 'LOAD_METHOD'):
            break
          value = getattr(value, attribute.argval, None)
        if not isinstance(value, types.ModuleType):
          found.append(value)
  return found


def _codes(code):
  yield code
  for value in code.co_consts:
    if isinstance(value, types.CodeType):
      yield from _codes(value)
