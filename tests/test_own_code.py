"""The digest of one's own classes: another one where something is computed otherwise, and only there."""

import subprocess
import sys
import types

import jax
import pytest

from lra_spt import own_code

TEXT = '''
"""A mixer and what it calls."""
import functools
import jax
import jax.numpy as jnp
from flax import nnx

REACH, NAMES = 3, frozenset({'a', 'b', 'c', 'd'})


class Options:
  def __init__(self):
    self.shift = 7


OPTIONS = Options()


def smoothed(x, *, by=0.5):
  """Less of it."""
  return jax.nn.sigmoid(x) * by


@functools.partial(jax.jit, static_argnums=1)
def moved(x, by):
  return jnp.roll(x, by)


class Base(nnx.Module):
  scale = 2.0

  @property
  def twice(self):
    return 2 * self.scale


class Mixer(Base):
  """Moves."""

  def __init__(self, width, *, rngs):
    self.out = nnx.Linear(width, width, rngs=rngs)

  def __call__(self, x):
    # A comment.
    inner = lambda y: smoothed(y) + self.twice
    return moved(self.out(inner(x)), REACH + OPTIONS.shift) if 'a' in NAMES else x


class Other:
  pass
'''
EDITS = {
  'nothing': ('', ''),
  'a comment': ('# A comment.', '# Another one,\n    # of two lines.'),
  'docstrings': ('"""Less of it."""', '"""Much less of it."""'),
  'its place': ('REACH, NAMES', '\n\n\nREACH, NAMES'),
  'another class': ('class Other:\n  pass', 'class Other:\n  more = 3'),
}
CHANGES = {
  'a number': ('+ self.twice', '- self.twice'),
  'a constant': ('REACH, NAMES = 3', 'REACH, NAMES = 4'),
  'a set': ("'d'}", "'e'}"),
  'what it calls': ('jax.nn.sigmoid', 'jax.nn.relu'),
  'what it calls, compiled': ('jnp.roll(x, by)', 'jnp.roll(x, -by)'),
  'a default': ('by=0.5', 'by=0.25'),
  'its base': ('scale = 2.0', 'scale = 3.0'),
  'a property of its base': ('2 * self.scale', '4 * self.scale'),
  'an object of its own': ('self.shift = 7', 'self.shift = 8'),
  'initial values': ('nnx.Linear(width, width, rngs', 'nnx.Linear(width, width, use_bias=False, rngs'),
}


def made(text, name='_registered_mine'):
  module = types.ModuleType(name)
  sys.modules[name] = module
  exec(compile(text, f'{name}.py', 'exec'), module.__dict__)
  return own_code.digest(module.Mixer)


@pytest.fixture(autouse=True)
def forgotten():
  yield
  sys.modules.pop('_registered_mine', None)


@pytest.mark.parametrize('edit', EDITS)
def test_what_computes_the_same_is_the_same(edit):
  before, after = EDITS[edit]
  assert before in TEXT
  assert made(TEXT.replace(before, after)) == made(TEXT)


@pytest.mark.parametrize('change', CHANGES)
def test_what_computes_otherwise_is_not(change):
  before, after = CHANGES[change]
  assert TEXT.count(before) == 1
  assert made(TEXT.replace(before, after)) != made(TEXT)


def test_every_process_finds_the_same(tmp_path):
  """Whatever the order of sets there, and where what it calls lies in a file of its own."""
  (tmp_path / 'helper.py').write_text('def halved(x):\n  return x / 2\n')
  (tmp_path / 'mine.py').write_text(
    TEXT.replace('class Base', 'import helper\n\n\nclass Base').replace('self.out(', 'helper.halved(')
  )
  program = 'import mine; from lra_spt import own_code; print(own_code.digest(mine.Mixer))'

  def printed(seed, program=program):
    environment = {'PYTHONHASHSEED': str(seed), 'PYTHONPATH': f'{tmp_path}:.', 'JAX_PLATFORMS': 'cpu'}
    done = subprocess.run([sys.executable, '-c', program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

  found = printed(0)
  assert found.startswith(f'py{sys.version_info.major}.{sys.version_info.minor}:')
  assert printed(1) == found
  (tmp_path / 'helper.py').write_text('def halved(x):\n  return x / 4\n')
  assert printed(0) != found


def test_digests_of_two_versions_of_python_are_not_compared():
  assert own_code.comparable('py3.11:ab', 'py3.11:cd')
  assert not own_code.comparable('py3.11:ab', 'py3.12:ab')


def test_what_is_installed_is_not_followed():
  told = own_code._Told()
  told.add(jax.nn.Initializer if hasattr(jax.nn, 'Initializer') else jax.tree_util.Partial)
  assert len(told.parts) == 1
