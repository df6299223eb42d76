"""Python files of users, mainly config files: how they are looked up and run.

While such a file runs, modules beside it can be imported. `configs` and `data_prep` are the folders of this
project, even if Python was started in a folder with others of these names, or the file lies beside one.
"""

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Iterable

from lra_spt.errors import ConfigError, nearest, touching

PROJECT = pathlib.Path(__file__).resolve().parents[2]  # which holds lra_spt, configs and data_prep
INSTALLED = PROJECT / 'configs'
DIGEST = 'text:'  # the first letters of `digest_of_texts`

_folders: set[pathlib.Path] = set()  # of the files that were run, without those of this project
_beside: dict[str, pathlib.Path] = {}  # {module: folder} of modules that were imported from beside a file


def digest_of_texts(texts: Iterable[bytes]) -> str:
  """Returns DIGEST and 16 hexadecimal digits for a set of source texts, whatever ends their lines."""
  lines = {text.replace(b'\r\n', b'\n') for text in texts}
  return f'{DIGEST}{hashlib.sha256(b"|".join(sorted(lines))).hexdigest()[:16]}'


def search_working_directory_last() -> None:
  """Moves the working directory, which `python -m` searches first, to the end of the path for imports: it may
  hold a data_prep or configs of the user."""
  first = pathlib.Path(sys.path[0]).resolve()
  if first == pathlib.Path.cwd() and first != PROJECT:
    sys.path.append(sys.path.pop(0))


def claim_data_prep() -> None:
  """Makes `import data_prep` mean the package of this project, whichever folders Python searches first. Code
  of lra_spt calls it before such an import.

  Raises:
    ConfigError: another module of that name is imported already.
  """
  folder, loaded = PROJECT / 'data_prep', sys.modules.get('data_prep')
  if loaded is None:
    options = {'submodule_search_locations': [str(folder)]}
    spec = importlib.util.spec_from_file_location('data_prep', folder / '__init__.py', **options)
    sys.modules['data_prep'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules['data_prep'])
  elif folder not in (pathlib.Path(place).resolve() for place in getattr(loaded, '__path__', ())):
    where = getattr(loaded, '__file__', None) or next(iter(getattr(loaded, '__path__', ())), 'another module')
    raise ConfigError(
      f'lra_spt needs its package data_prep, but {where} is imported under that name: rename yours.'
    )


@contextlib.contextmanager
def project_first():
  """A context in which the project is the first folder that Python searches, also in processes that start."""
  sys.path.insert(0, str(PROJECT))
  try:
    yield
  finally:
    sys.path.remove(str(PROJECT))


def find(name: str) -> pathlib.Path:
  """The config file `name`: a path from the working directory, else one of the installed configs.

  Raises:
    ConfigError: there is none; the message names the nearest installed one.
  """
  path = pathlib.Path(os.path.expanduser(name))
  if path.suffix == '.py' and path.is_file():
    return path
  if path.suffix == '.py' and not path.is_absolute():
    below = path.relative_to('configs') if path.parts[0] == 'configs' else path
    if (INSTALLED / below).is_file():
      return INSTALLED / below
  known = installed()
  stem = path.name.partition(':')[0].removesuffix('.py')
  near = difflib.get_close_matches(stem, [pathlib.Path(one).stem for one in known], n=1)
  near = [one for one in known if pathlib.Path(one).stem in near]
  hint = f' Did you mean {near[0]}?' if near else ''
  raise ConfigError(
    f'There is no config file {name or repr(name)}, neither in {pathlib.Path.cwd()} nor among the installed '
    f'configs: write a path such as configs/image.py.{hint}'
  )


def installed(folder: str = '', function: str = 'get_config') -> list[str]:
  """The config files of this project (or of a `folder` of them) as `find` takes them: 'configs/image.py'."""
  return [
    (pathlib.Path('configs') / path.relative_to(INSTALLED)).as_posix()
    for path in sorted((INSTALLED / folder).rglob('*.py'))
    if f'\ndef {function}(' in path.read_text(encoding='utf-8')
  ]


def run(path, prefix: str) -> types.ModuleType:
  """Runs a Python file and returns its module, named by `prefix` and the name of the file.

  Raises:
    ConfigError: Python cannot compile it, or it imports a module that does not exist. Other exceptions of
      the file, and imports that fail in another file, are not caught.
    FileAccessError: it cannot be read.
  """
  path = pathlib.Path(path)
  with touching(path, 'read'):
    content = path.read_bytes()
  if not path.resolve().is_relative_to(INSTALLED):
    _folders.add(path.resolve().parent)
  spec = importlib.util.spec_from_file_location(prefix + path.stem, path)
  module = importlib.util.module_from_spec(spec)
  try:
    code = compile(content, str(path), 'exec', dont_inherit=True)
  except (SyntaxError, ValueError) as error:
    line = f' in line {error.lineno}' if getattr(error, 'lineno', None) else ''
    why = getattr(error, 'msg', None) or error
    raise ConfigError(f'{path} cannot be run as a Python file ({why}{line}): correct it.') from error
  with importing_from(path.resolve().parent):
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    try:
      exec(code, module.__dict__)
    except ModuleNotFoundError as error:
      raise ConfigError(
        f'{path} needs the module {error.name}, which cannot be found: put it beside the file, or install it.'
      ) from error
    except ImportError as error:
      if (sentence := _misnamed(path, error)) is None:
        raise
      raise ConfigError(sentence) from error
  return module


def trace(error: BaseException) -> str | None:
  """The traceback of an error, from the first line of a user's file on; None if it came through no such file.

  A user's file is one that `run` ran, or one beside it.
  """
  part = error.__traceback__
  while part is not None and pathlib.Path(part.tb_frame.f_code.co_filename).resolve().parent not in _folders:
    part = part.tb_next
  return part and ''.join(traceback.format_exception(type(error), error, part))


def _misnamed(path, error) -> str | None:
  """The sentence for a name that the file imports from a module without it; None for other errors."""
  *_, (frame, line) = traceback.walk_tb(error.__traceback__)
  name = re.match(r"cannot import name '(\w+)' from '", str(error))
  if name is None or frame.f_code.co_filename != str(path):
    return None
  close = nearest(name[1], dir(sys.modules.get(error.name)))
  return f'{path} imports {name[1]} in line {line}, which {error.name} does not have: correct it.{close}'


@contextlib.contextmanager
def importing_from(folder: pathlib.Path):
  """A context in which modules of `folder` can be imported, and `configs` and `data_prep` are the packages of
  this project. A `folder` that is itself called configs comes before it."""
  for name in [name for name, place in _beside.items() if place != folder]:
    sys.modules.pop(name, None)  # one of the same name may lie beside this file
    del _beside[name]
  before = set(sys.modules)
  importlib.invalidate_caches()
  if folder != INSTALLED:
    sys.path.insert(0, str(folder))
  try:
    with _configs_package(folder), _data_prep_package():
      yield
  finally:
    if folder != INSTALLED:
      with contextlib.suppress(ValueError):  # the file may have changed the path itself
        sys.path.remove(str(folder))
    for name in set(sys.modules) - before:
      file = getattr(sys.modules[name], '__file__', None)
      if file and pathlib.Path(file).parent == folder and folder != INSTALLED:
        _beside[name] = folder


@contextlib.contextmanager
def _configs_package(folder):
  """A context in which the package `configs` is that of this project."""
  theirs = folder.name == 'configs' and folder != INSTALLED
  if not theirs and _location() == INSTALLED:
    yield
    return
  others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split('.')[0] == 'configs'}
  package = types.ModuleType('configs')
  package.__path__ = [str(folder), str(INSTALLED)] if theirs else [str(INSTALLED)]
  sys.modules['configs'] = package
  try:
    yield
  finally:
    for name in [name for name in sys.modules if name.split('.')[0] == 'configs']:
      del sys.modules[name]
    sys.modules.update(others)


@contextlib.contextmanager
def _data_prep_package():
  """A context in which the package `data_prep` is that of this project, unless a program has imported its own
  before."""
  if 'data_prep' in sys.modules:
    yield
    return
  claim_data_prep()
  try:
    yield
  finally:
    if not any(name.startswith('data_prep.') for name in sys.modules):
      del sys.modules['data_prep']  # the file did not need it, and the program may have one


def _location():
  """The folder from which `import configs` would import now."""
  if 'configs' in sys.modules:
    places = getattr(sys.modules['configs'], '__path__', ())
  else:
    spec = importlib.util.find_spec('configs')
    places = (spec and spec.submodule_search_locations) or ()
  return next((pathlib.Path(place).resolve() for place in places), None)
