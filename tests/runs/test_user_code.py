"""The hash of user code changes after an edit of any source that the class reaches, and only then."""

import ast
import dataclasses
import linecache
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import rows
from lra_spt.config import user_files
from lra_spt.data.parts import Classes, Groups, Published, Real, Values
from lra_spt.data.task import Task
from lra_spt.errors import ConfigError
from lra_spt.runs import user_code

FILES = {
  'mine.py': (
    'import jax\nimport parts.inner\nfrom helper import smoothed\n\n\n'
    'class Mixer:\n  def call(self, x):\n    return smoothed(jax.nn.relu(x)) + parts.inner.SHIFT\n'
  ),
  'helper.py': 'import constants\n\n\ndef smoothed(x):\n  return x * constants.SCALE\n',
  'constants.py': 'SCALE = 3\n',
  'parts/__init__.py': '',
  'parts/inner.py': 'SHIFT = 7\n',
  'unrelated.py': 'NUMBER = 1\n',
}


@pytest.fixture
def hashed(tmp_path):
  """Returns a function that writes FILES with one edit into a new folder and hashes the mixer there."""
  before, folders = set(sys.modules), iter(range(100))

  def forget():
    for name in set(sys.modules) - before:
      if (getattr(sys.modules[name], '__file__', None) or '').startswith(str(tmp_path)):
        del sys.modules[name]

  def run(edited=None, old='', new='', name='mine.py'):
    forget()
    folder = tmp_path / str(next(folders))
    for file, text in FILES.items():
      assert file != edited or old in text
      path = folder / (name if file == 'mine.py' else file)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text.replace(old, new) if file == edited else text)
    return user_code.digest(user_files.run(folder / name, '_registered_').Mixer)

  yield run
  forget()


def test_every_module_that_the_class_reaches_counts(hashed):
  plain = hashed()
  assert plain.startswith('text:')
  assert plain == hashed() == hashed(name='renamed.py') == hashed('unrelated.py', '1', '2')
  changed = [
    hashed('mine.py', 'relu', 'gelu'),
    hashed('mine.py', 'class', '# A comment.\nclass'),
    hashed('helper.py', 'x *', 'x /'),
    hashed('constants.py', '3', '4'),
    hashed('parts/inner.py', '7', '8'),
  ]
  assert len({plain, *changed}) == 1 + len(changed)


def test_how_python_runs_does_not_matter(hashed, tmp_path):
  plain = hashed()
  program = 'import mine; from lra_spt.runs import user_code; print(user_code.digest(mine.Mixer))'
  environment = os.environ | {'PYTHONPATH': f'{tmp_path / "0"}:{user_files.INSTALLED.parent}'}
  command = [sys.executable, '-O', '-c', program]
  assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == f'{plain}\n'


def test_a_class_in_a_notebook(monkeypatch):
  """The source of the class counts, and that of the functions that it names. Other cells do not count."""

  def cells(scale, shift, other):
    space = {'__name__': '__main__'}
    texts = (
      f'def scaled(x):\n  return {scale} * x\n',
      f'class Mixer:\n  def call(self, x):\n    return scaled(x) + {shift}\n\nprint({other}, end="")\n',
      f'def unused():\n  return {other}\n',
    )
    for number, text in enumerate(texts):
      name = f'<cell {number}>'
      monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
      exec(compile(text, name, 'exec'), space)
    return user_code.digest(space['Mixer'])

  assert cells(2, 3, 4) == cells(2, 3, 5)
  assert len({cells(2, 3, 4), cells(3, 3, 4), cells(2, 4, 4)}) == 3


def test_a_class_without_source_is_refused():
  exec('class Mixer:\n  def call(self):\n    return 1\n', space := {'__name__': 'nowhere'})
  with pytest.raises(ConfigError, match='Mixer has no source text'):
    user_code.digest(space['Mixer'])


def test_only_user_modules_count():
  assert user_code.is_user(test_only_user_modules_count)
  assert user_code.is_user(sys.modules[__name__])
  others = (user_code, rows, rows.paper, ast, np, np.mean, linecache.getlines, jax.jit(np.mean), 3, None)
  assert not any(user_code.is_user(value) for value in others)


def test_a_run_goes_on_after_an_edit_only_if_asked(monkeypatch):
  before, now = (
    {'seed': 0, 'code': {'mixer': 'text:1', 'task': 'fields:1'}},
    {'seed': 0, 'code': {'mixer': 'text:2'}},
  )
  monkeypatch.delenv(user_code.ACCEPT, raising=False)
  assert user_code.as_begun(before, now) == now
  assert user_code.remark(before, now) is None
  monkeypatch.setenv(user_code.ACCEPT, '1')
  assert user_code.as_begun(before, now) == before
  assert '(mixer, task)' in user_code.remark(before, now)
  assert user_code.as_begun({'seed': 0}, now) == {'seed': 0}


def test_a_hash_of_bytecode_is_not_compared(monkeypatch):
  monkeypatch.delenv(user_code.ACCEPT, raising=False)
  before = {'code': {'mixer': 'py3.11:1', 'task': 'fields:1'}}
  now = {'code': {'mixer': 'text:2', 'task': 'fields:2'}}
  assert user_code.as_begun(before, now) == {'code': {'mixer': 'py3.11:1', 'task': 'fields:2'}}
  assert user_code.remark(before, now)


def test_a_task_counts_by_what_training_reads():
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
