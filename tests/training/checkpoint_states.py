"""Small states for tests of checkpoints."""

import jax
import numpy as np

from lra_spt.distributed import sharding


def make_state(step, mesh):
  """A small state of every kind of leaf, laid out on the mesh."""
  rng = np.random.default_rng(step)
  state = {
    'step': np.int32(step),
    'params': {
      'encoder': {'kernel': rng.normal(size=(64, 64)).astype(np.float32)},
      'head': {'bias': np.ones(3, np.float32)},
    },
    'stats': {'mean': rng.normal(size=8).astype(np.float32)},
    'opt': {'count': np.int32(7)},
    'control': {'best': np.float32(-np.inf)},
  }
  return jax.device_put(state, sharding.state_shardings(state, mesh))


def abstract(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def equal(a, b):
  return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b))
