"""The digest of one's own classes: another one where something is computed otherwise, and only there."""

import dataclasses
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from lra_spt.data.tasks import Classes, Groups, Published, Real, Task, Values
from lra_spt.runs import user_code

TEXT = '''
"""A mixer and what it calls."""
import functools
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

REACH, NAMES = 3, frozenset({'a', 'b', 'c', 'd'})


TABLE = np.arange(3.0)


def doubled(function):
  @functools.wraps(function)
  def called(self, x):
    return 2 * function(self, x)

  return called


@jax.custom_vjp
def passed(x):
  return x


passed.defvjp(lambda x: (x, None), lambda _, g: (3.0 * g,))


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

  @functools.cached_property
  def fourth(self):
    return 4 + TABLE[0]

  @doubled
  def __call__(self, x):
    # A comment.
    def inner(y):
      return passed(smoothed(y)) + self.twice

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
  'a new docstring': ('  return jnp.roll(x, by)', '  """Moves."""\n  return jnp.roll(x, by)'),
  'a docstring inside': ('    def inner(y):', '    def inner(y):\n      """Inner."""'),
  'an annotation': ('  scale = 2.0', '  scale: float = 2.0'),
  'a global of the name of an attribute': ('REACH, NAMES', 'out = 3\nREACH, NAMES'),
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
  'a derivative': ('3.0 * g', '4.0 * g'),
  'an array': ('np.arange(3.0)', 'np.arange(4.0)'),
  'a decorator': ('2 * function(self, x)', '3 * function(self, x)'),
  'a cached property': ('4 + TABLE', '5 + TABLE'),
  'one of two that are there': ('moved(self.out(inner(x)), REACH', 'smoothed(self.out(inner(x)), by=REACH'),
  'an object of its own': ('self.shift = 7', 'self.shift = 8'),
  'initial values': ('nnx.Linear(width, width, rngs', 'nnx.Linear(width, width, use_bias=False, rngs'),
}


def made(text, name='_registered_mine'):
  module = types.ModuleType(name)
  sys.modules[name] = module
  exec(compile(text, f'{name}.py', 'exec'), module.__dict__)
  return user_code.digest(module.Mixer)


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
  """Whatever the order and the addresses of what is in sets."""
  (tmp_path / 'mine.py').write_text(TEXT.replace("'d'}", "'d', jnp.sin, jnp.cos, jax.nn.relu}"))
  program = 'import mine; from lra_spt import own_code; print(own_code.digest(mine.Mixer))'

  def printed(seed):
    environment = {'PYTHONHASHSEED': str(seed), 'PYTHONPATH': f'{tmp_path}:.', 'JAX_PLATFORMS': 'cpu'}
    done = subprocess.run([sys.executable, '-c', program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

  found = printed(0)
  assert found.startswith(f'py{sys.version_info.major}.{sys.version_info.minor}:')
  assert printed(1) == found


def test_what_it_calls_in_other_files(monkeypatch):
  """Of modules what it reads there, in every function, also of a module in a module."""
  helper = types.ModuleType('helper')
  helper.within = types.ModuleType('helper.within')
  for module in (helper, helper.within):
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec('def first(x):\n  return x\n\n\ndef second(x):\n  return x\n', module.__dict__)
  text = TEXT.replace('import functools', 'import functools\nimport helper')
  text = text.replace('width, rngs=rngs', 'helper.first(width), rngs=rngs')
  text = text.replace('passed(smoothed(y))', 'helper.second(helper.within.second(y))')
  before = made(text)
  for module, name, other in (
    (helper, 'first', True),
    (helper, 'second', True),
    (helper.within, 'second', True),
    (helper.within, 'first', False),
  ):
    with monkeypatch.context() as patch:
      exec(f'def {name}(x):\n  return x + 1\n', edited := {'__name__': module.__name__})
      patch.setattr(module, name, edited[name])
      assert (made(text) != before) == other, (module, name)


def test_equal_constants_may_be_one_object_or_several():
  """The compiler makes one of them, and a file of bytecode may be read as another number of objects."""
  text = "class Mixer:\n  one = (SIZES, 'a')\n\n  def two(self):\n    return (1, 2.5)"
  assert made(text.replace('SIZES', '(1, 2.5)')) == made(text.replace('SIZES', 'tuple([1, 2.5])'))


def test_the_name_of_the_file_does_not_matter(monkeypatch):
  monkeypatch.setitem(sys.modules, '_registered_other', None)
  assert made(TEXT, '_registered_other') == made(TEXT)


def test_digests_of_two_versions_of_python_are_not_compared():
  assert user_code.comparable('py3.11:ab', 'py3.11:cd')
  assert not user_code.comparable('py3.11:ab', 'py3.12:ab')


def test_what_is_installed_is_not_followed():
  told = user_code._Told()
  told.add(jax.nn.Initializer if hasattr(jax.nn, 'Initializer') else jax.tree_util.Partial)
  assert len(told.parts) == 1


def test_a_task_is_what_training_reads_by_it():
  waves = Task('waves', 'waves', Values(64, mean=(0.5,), std=(1,)), Classes(2))
  same = [
    dataclasses.replace(waves, name='w', description='Waves.', chance='half', groups=Groups('ship', 'waves')),
    waves.with_inputs(mean=np.array([0.5]), std=[1.0], scale=255),
  ]
  others = [
    waves.with_inputs(mean=(0.0,)),
    waves.with_inputs(std=(2.0,)),
    waves.with_inputs(scale=1),
    waves.with_inputs(measured=True),
    dataclasses.replace(waves, labels=Real(0.0, 1.0, (-1.0, 1.0))),
    dataclasses.replace(waves, labels=Real(0.0, 2.0, (-1.0, 1.0))),
    dataclasses.replace(waves, splits='random'),
    dataclasses.replace(waves, published=Published(identity_head=True)),
  ]
  assert {user_code.digest_of_task(task) for task in same} == {user_code.digest_of_task(waves)}
  assert len({user_code.digest_of_task(task) for task in (waves, *others)}) == 1 + len(others)
  assert user_code.digest_of_task(waves) == 'fields:2cb434587a3883cb'  # the same in every process
