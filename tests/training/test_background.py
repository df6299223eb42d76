"""Saving while training goes on: order, failures, donation."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt import files
from lra_spt.distributed import sharding
from lra_spt.errors import FileAccessError
from lra_spt.training.checkpoints.background import Background, copied
from lra_spt.training.checkpoints.store import Checkpoints


def test_calls_run_in_order_and_those_of_another_group_are_waited_for():
  background, may_go_on, calls = Background(), threading.Event(), []

  def slow():
    assert may_go_on.wait(60)
    calls.append('best 1')

  background.start(1, slow)
  background.start(1, lambda: calls.append('latest 1'))
  assert calls == []  # the caller goes on
  may_go_on.set()
  background.start(2, lambda: calls.append('latest 2'))
  assert calls[:2] == ['best 1', 'latest 1']
  background.wait()
  assert calls == ['best 1', 'latest 1', 'latest 2']


def test_what_a_call_raises_is_raised_by_whatever_comes_next():
  calls = []
  for come_next in (
    lambda background: background.wait(),
    lambda background: background.start(1, lambda: calls.append('after')),
    lambda background: background.start(2, lambda: calls.append('after')),
  ):
    background = Background()
    background.check()
    background.start(1, lambda: 1 / 0)
    background._last.join()
    with pytest.raises(ZeroDivisionError):
      come_next(background)
    with pytest.raises(ZeroDivisionError):
      background.check()
  assert calls == []


def test_nothing_runs_after_a_call_that_raised():
  background, may_fail, calls = Background(), threading.Event(), []

  def fail():
    assert may_fail.wait(60)
    raise OSError

  background.start(1, fail)
  background.start(1, lambda: calls.append('latest would name a best that is not there'))
  may_fail.set()
  with pytest.raises(OSError):
    background.wait()
  assert calls == []


def test_copies_outlive_a_donation():
  mesh = sharding.make_mesh(fsdp=4)
  state = {'params': np.arange(64.0, dtype=np.float32).reshape(8, 8), 'step': np.int32(3)}
  state = jax.device_put(state, sharding.state_shardings(state, mesh))
  shardings = jax.tree.map(lambda x: x.sharding, state)
  copies = copied(state)
  assert jax.tree.map(lambda x: x.sharding, copies) == shardings
  jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(state)
  assert state['params'].is_deleted()
  np.testing.assert_array_equal(copies['params'], np.arange(64).reshape(8, 8))
  assert copies['step'] == 3


def make_state(step):
  kernel = np.full((64, 64), step, np.float32)
  state = {'step': np.int32(step), 'params': {'kernel': kernel}, 'stats': {}, 'opt': {'count': kernel[0]}}
  return jax.device_put(state, sharding.state_shardings(state, sharding.make_mesh()))


def abstract(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


@pytest.fixture
def checkpoints(tmp_path):
  opened = Checkpoints(tmp_path, background=Background())
  yield opened
  opened.close()


def test_what_is_saved_is_the_state_of_that_moment(checkpoints, tmp_path):
  donating = jax.jit(lambda state: jax.tree.map(lambda x: x + jnp.ones_like(x), state), donate_argnums=0)
  state = make_state(1)
  for _ in range(3):
    checkpoints.save_best(state)
    checkpoints.save_latest(state)
    state = donating(state)
  assert checkpoints.latest_step() == 3
  expected = make_state(3)
  for actual in (checkpoints.load_latest(abstract(expected)), checkpoints.load_best(abstract(expected))):
    np.testing.assert_array_equal(actual['params']['kernel'], expected['params']['kernel'])
  assert {path.name for path in (tmp_path / 'latest').iterdir()} == {'2', '3'}


def test_a_failure_ends_saving_and_leaves_the_one_before(checkpoints, tmp_path, monkeypatch):
  checkpoints.save_latest(make_state(5))
  checkpoints.wait()

  def fail(folder):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(files, 'sync', fail)
  checkpoints.save_best(make_state(6))
  checkpoints.save_latest(make_state(6))
  with pytest.raises(FileAccessError, match='best/6 could not be written: no space is left'):
    checkpoints.wait()
  with pytest.raises(FileAccessError, match='best/6'):
    checkpoints.check()
  assert {path.name for path in (tmp_path / 'latest').iterdir()} == {'5'}
