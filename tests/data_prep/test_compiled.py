"""Functions compile even if Numba's cache cannot be made, there is no home, or its files are damaged."""

import importlib.util
import os
import pwd

import numba
import pytest

from data_prep.compiled import jit


def function_of(path):
  """Returns the function f of a new Python file, which no other test compiles."""
  path.write_text('def f(x):\n  return x + 1\n')
  spec = importlib.util.spec_from_file_location('module_to_compile', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.f


def test_no_folder_can_hold_the_cache():
  names = {}
  exec(
    'def f(x):\n  return x + 1\n', names
  )  # it has no file beside which, or by whose name, Numba could store
  with pytest.raises(RuntimeError, match='no locator'):
    numba.njit(cache=True)(names['f'])
  assert jit(names['f'])(1) == 2


def test_without_a_home_there_is_no_cache(tmp_path, monkeypatch):
  def unknown(number):
    raise KeyError(number)

  monkeypatch.delenv('HOME', raising=False)
  monkeypatch.delenv('NUMBA_CACHE_DIR', raising=False)
  monkeypatch.setattr(pwd, 'getpwuid', unknown)
  monkeypatch.chdir(tmp_path)
  assert os.path.expanduser('~') == '~'
  assert jit(function_of(tmp_path / 'a.py'))(1) == 2
  assert [path.name for path in tmp_path.iterdir() if path.name != '__pycache__'] == ['a.py']


def test_a_damaged_or_full_cache_is_compiled_again(tmp_path, monkeypatch):
  monkeypatch.setattr(numba.config, 'CACHE_DIR', str(tmp_path / 'cache'))
  path = tmp_path / 'a.py'
  function = jit(function_of(path))
  assert function(1) == 2
  assert sum(function.stats.cache_misses.values()) == 1
  again = jit(function_of(path))
  assert again(1) == 2
  cached = [path for path in (tmp_path / 'cache').rglob('*') if path.is_file()]
  assert len(cached) == 2
  for each in cached:
    each.write_bytes(b'')
  assert jit(function_of(path))(1) == 2
  for each in cached:
    each.unlink(missing_ok=True)
    each.mkdir()  # nothing can be stored
  assert jit(function_of(path))(1) == 2
