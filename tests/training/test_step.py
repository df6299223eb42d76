"""The train step: accumulation, several steps a dispatch, and the guard against non-finite numbers."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from lra_spt.models import ParameterGroup
from lra_spt.training.optimizer import OptimizerSpec
from lra_spt.training.state import leaf_names
from lra_spt.training.step import StepProgram


def assert_trees_close(a, b, **tolerance):
  for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(x, y, err_msg=jax.tree_util.keystr(path), **tolerance)


@pytest.mark.parametrize(
  'spec, stage',
  [
    ('image.py:regime=masked', 'pretrain'),
    pytest.param('listops.py:regime=scratch', 'finetune', marks=pytest.mark.slow),
  ],
)
def test_accumulated_gradients_equal_the_full_batch(tiny, make_batches, spec, stage):
  """Dropout and masks are drawn per row, so they are the same in microbatches. Plain gradient descent shows
  the gradients themselves."""
  results = []
  for microbatches in (1, 4):
    stage_ = tiny(spec, stage, microbatches=microbatches, **{'model.dropout': 0.2})
    # Adam divides gradients by their size. With b1 = b2 = 0 and a huge eps it is gradient descent.
    descent = OptimizerSpec(lr=1e8, weight_decay=0.0, b1=0.0, b2=0.0, eps=1e8)
    program = dataclasses.replace(stage_.program, optimizer=descent)
    results.append(
      dataclasses.replace(stage_, program=program).train(make_batches(stage_.built.task, 2, 8, 10))
    )
  (full, full_losses), (parts, parts_losses) = results
  np.testing.assert_allclose(parts_losses, full_losses, rtol=1e-6)
  assert_trees_close(parts['params'], full['params'], rtol=1e-6, atol=1e-6)
  assert full_losses[0] != full_losses[1]


@pytest.fixture(scope='module')
def trained(tiny, make_batches):
  """A masked stage with BatchNorm and dropout, 4 batches, and its results in one dispatch of 4 steps."""
  stage = tiny('image.py:regime=masked', 'pretrain', **{'model.dropout': 0.2, 'model.norm': 'batch'})
  batches = make_batches(stage.built.task, 4, 4, 10)
  return stage, batches, stage.train(batches)


def test_a_dispatch_of_four_equals_four_of_one(trained):
  stage, batches, (state, losses) = trained
  single, single_losses = stage.train(batches, chunk=1)
  np.testing.assert_array_equal(single_losses, losses)
  assert_trees_close(single, state, rtol=0, atol=0)
  assert state['step'] == 4
  moved = [not np.array_equal(x, np.zeros_like(x)) for x in jax.tree.leaves(state['opt'])]
  assert all(moved)


class PoisonedObjective:
  """An objective whose loss is NaN for a batch that holds example `index`."""

  def __init__(self, objective, index):
    self._objective, self._index = objective, index

  def prepare(self, batch, keys_B):
    poisoned = (batch['index'] == self._index).any()
    prepared = self._objective.prepare(batch, keys_B)
    return prepared.replace(weights=jax.numpy.where(poisoned, math.nan, prepared.weights))

  def __getattr__(self, name):
    return getattr(self._objective, name)


def test_a_non_finite_step_changes_nothing_from_there(trained):
  stage, batches, _ = trained
  poisoned_example = batches['index'][2, 1]  # in the third of four batches
  program = dataclasses.replace(
    stage.program, objective=PoisonedObjective(stage.program.objective, poisoned_example)
  )
  before, before_losses = stage.train(batches, steps=2, program=program)
  for chunk in (4, 2):  # the third step is in the middle of a dispatch, or the first of one
    state, losses = stage.train(batches, chunk=chunk, program=program)
    np.testing.assert_array_equal(losses[:2], before_losses)
    assert np.isfinite(losses[:2]).all()
    assert not np.isfinite(losses[2])
    control = state.pop('control')
    assert_trees_close(state, {key: before[key] for key in state}, rtol=0, atol=0)
    assert (int(state['step']), int(control['failed_step'])) == (2, 2)
    assert control['failed_leaf'] == 0  # all gradients are NaN: the first leaf is named
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
  assert before['control']['failed_step'] == -1


def test_the_failed_leaf_is_the_one_that_broke(tiny, make_batches):
  stage = tiny('listops.py:regime=scratch', 'finetune')
  names = leaf_names(stage.built.model.params)
  wanted = 'encoder/blocks/mixer/value/kernel'
  groups = jax.tree_util.tree_map_with_path(
    lambda path, group: (
      ParameterGroup(learning_rate=math.inf) if '/'.join(part.key for part in path) == wanted else group
    ),
    stage.built.model.groups,
  )
  program = dataclasses.replace(stage.program, model=dataclasses.replace(stage.built.model, groups=groups))
  assert isinstance(program, StepProgram)
  state, losses = stage.train(make_batches(stage.built.task, 3, 4, 10), program=program)
  assert names[state['control']['failed_leaf']] == wanted
  assert (int(state['step']), int(state['control']['failed_step'])) == (0, 0)
  assert np.isfinite(losses[0])
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state['params']))
