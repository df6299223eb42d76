"""The least traffic of a step agrees with a count by hand."""

import jax
import numpy as np
import pytest

from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.aot.compile import least_traffic
from lra_spt.runs.build import build, resolve

OVERRIDES = {'model.mixer.heads': 2, 'runtime.remat': 'blocks'}


def least(tiny_config, devices=1, **overrides):
  settings = loading.load(f'{tiny_config}:regime=scratch', {**OVERRIDES, **overrides})
  mesh = sharding.make_mesh(devices=jax.devices()[:devices])
  with jax.set_mesh(mesh):
    built = build(resolve(settings), 'finetune')
    return built, least_traffic(built, mesh)


def test_state_and_batch(tiny_config):
  built, actual = least(tiny_config)
  leaves = jax.tree.leaves(built.abstract_state(sharding.make_mesh(devices=jax.devices()[:1])))
  assert actual['state'] == 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
  assert actual['state'] > 2 * 3 * 4 * built.model.parameter_count  # parameters and two moments, at least
  rows, length = built.spec.batch_size, built.task.length
  tokens = built.task.batch(1, rows)['inputs'].dtype
  assert actual['batch'] == rows * length * np.dtype(tokens).itemsize + rows * 4 * 4  # and four numbers each


def test_a_block_that_keeps_nothing_costs_its_input(tiny_config):
  """With remat=blocks a further block adds its input, and nothing else that grows with the batch."""
  built, two = least(tiny_config)
  _, three = least(tiny_config, **{'model.depth': 3})
  rows, length, width = built.spec.batch_size, built.task.length, built.mixer.model.width
  assert two['batch'] == three['batch']
  assert three['kept'] - two['kept'] == pytest.approx(2 * 4 * rows * length * width, rel=0.02)
  _, everything = least(tiny_config, **{'runtime.remat': ''})
  assert everything['kept'] > 3 * two['kept']


def test_devices_share_rows_and_microbatches_keep_as_much(tiny_config):
  built, one = least(tiny_config)
  _, four = least(tiny_config, devices=4)
  _, parts = least(tiny_config, **{'runtime.microbatches': 2})
  assert four['state'] == one['state']
  assert four['batch'] * 4 == one['batch']
  assert four['kept'] == pytest.approx(one['kept'] / 4, rel=0.02)
  assert parts['kept'] == pytest.approx(one['kept'], rel=0.02)
