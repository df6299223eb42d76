"""Which code of one's own a run trains: a digest of a class from outside the package.

Where a mixer was edited, a finished run would otherwise pass for its result, and an unfinished one would go
on with other code. The digest is of what Python runs, so comments, docstrings and the place of a class do
not matter, and a class in a notebook has one too; what the class calls belongs to it as far as that is one's
own, not of Python or an installed package. Another version of Python makes other code of the same class, so
digests name the version, and those of two versions are not compared.
"""

import contextlib
import functools
import hashlib
import inspect
import sys
import types

# Of a class, what says nothing of what it does.
_SILENT = {'__doc__', '__module__', '__dict__', '__weakref__', '__firstlineno__', '__static_attributes__'}
_PLAIN = (int, float, complex, str, bytes, type(None), type(...), range)


def digest(cls: type) -> str:
  """'py3.11:' and 16 hexadecimal digits."""
  told = _Told()
  told.add(cls)
  return f'{_version()}:{hashlib.sha256("|".join(told.parts).encode()).hexdigest()[:16]}'


def comparable(before: str, now: str) -> bool:
  """Whether two digests are of the same version of Python."""
  return before.partition(':')[0] == now.partition(':')[0]


def as_begun(before: dict, identity: dict) -> dict:
  """An identity as the run of another one, `before`, notes it: with the `code` that is noted there where the
  two cannot be compared, which is of another version of Python, or from before there were digests."""
  kept, now = before.get('code', {}), identity.get('code', {})
  code = {key: value for key, value in now.items() if key in kept and comparable(kept[key], value)}
  code |= {key: value for key, value in kept.items() if key in now and key not in code}
  identity = {key: value for key, value in identity.items() if key != 'code'}
  return identity | ({'code': code} if code else {})


def _version() -> str:
  return f'py{sys.version_info.major}.{sys.version_info.minor}'


def _is_own(module: str | None) -> bool:
  root = str(module).partition('.')[0]
  if root == '__main__':  # also of a notebook, whose file is Jupyter's
    return True
  if root == 'lra_spt' or root in sys.stdlib_module_names:
    return False
  file = getattr(sys.modules.get(module), '__file__', None) or ''
  return not {'site-packages', 'dist-packages'} & {*file.replace('\\', '/').split('/')}


class _Told:
  """What a class is made of, as texts; everything once."""

  def __init__(self):
    self.parts, self.seen = [], {}

  def add(self, value, names=()):
    """names: which attributes of a module are asked for."""
    if isinstance(value, _PLAIN):
      self.parts.append(repr(value))
    elif isinstance(value, types.CodeType):
      self.code(value)
    elif id(value) not in self.seen:
      self.seen[id(value)] = value  # which so lives on, and no other takes its place
      self.once(value, names)

  def once(self, value, names):
    if isinstance(value, tuple | list):
      self.all(value)
    elif isinstance(value, set | frozenset):
      self.parts += sorted(map(repr, value))
    elif isinstance(value, dict):
      self.all(part for pair in value.items() for part in pair)
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
      self.add(value.__func__)
    elif isinstance(value, property):
      self.all((value.fget, value.fset, value.fdel))
    elif isinstance(value, functools.partial):
      self.all((value.func, value.args, value.keywords))
    elif isinstance(value, types.ModuleType):
      own = names if _is_own(value.__name__) else ()
      self.all(getattr(value, name) for name in own if hasattr(value, name))
    elif isinstance(value, type):
      self.type(value)
    elif inspect.isfunction(inner := inspect.unwrap(value) if callable(value) else value):
      self.function(inner)
    else:
      self.parts.append(f'{type(value).__module__}.{type(value).__qualname__}')
      if _is_own(type(value).__module__):
        self.add(getattr(value, '__dict__', None))

  def all(self, values):
    for value in values:
      self.add(value)

  def type(self, cls):
    self.parts.append(cls.__qualname__)
    if _is_own(cls.__module__):
      self.all(cls.__bases__)
      for name, value in vars(cls).items():
        if name not in _SILENT:
          self.parts.append(name)
          self.add(value)

  def function(self, function):
    self.parts.append(function.__qualname__)
    if _is_own(function.__module__):
      self.code(function.__code__, function.__doc__)
      self.all((function.__defaults__, function.__kwdefaults__))
      names = _names(function.__code__)
      for name in dict.fromkeys(name for name in names if name in function.__globals__):
        self.add(function.__globals__[name], names)
      for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty yet
          self.add(cell.cell_contents)

  def code(self, code, doc=None):
    self.parts += [code.co_code.hex(), *code.co_names, *code.co_varnames]
    for value in code.co_consts:
      if doc is None or value != doc:
        self.add(value)


def _names(code) -> list[str]:
  """Of globals and attributes, also of the functions inside."""
  inner = [name for value in code.co_consts if isinstance(value, types.CodeType) for name in _names(value)]
  return [*code.co_names, *inner]
