"""Reformer: golden values of the code, the paper's form, draws, padding, causality, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.models import make_mixer
from lra_spt.ops.lsh_attention import lsh_buckets

L, D, H = 22, 8, 2


def make(causal=False, protocol=CLEAN, width=D, length=L, **options):
  common = {'length': length, 'causal': causal, 'protocol': protocol, 'rngs': nnx.Rngs(0)}
  return make_mixer('reformer', width, options={'heads': H, 'chunk': 4} | options, **common)


def test_code_is_the_published_one(golden, assert_golden):
  values = golden('lra_reformer')
  mixer = make(protocol=PAPER, width=16, length=23)
  names = {f'{name}.kernel': f'attn/{name}/kernel' for name in ('query', 'value')}
  key = jax.random.fold_in(jax.random.key(0), 1)
  np.testing.assert_allclose(jax.random.normal(key, (8, 1, 5)), values['rotations'], rtol=0, atol=1e-6)
  assert_golden(mixer, values, names, lambda path, array: array.reshape(len(array), -1))


def reference(mixer, x_LD):
  """y in float64 for one round. A query sees its bucket within two chunks or, if causal, the last chunk + 1
  positions of its bucket."""
  x, heads = np.float64(x_LD), (len(x_LD), H, -1)
  q, v = ((x @ np.float64(getattr(mixer, name).kernel[...])).reshape(heads) for name in ('query', 'value'))
  K = q.shape[-1]
  rotations = jax.random.normal(jax.random.fold_in(jax.random.key(0), 1), (K, 1, mixer.buckets // 2))
  buckets = np.asarray(lsh_buckets(jnp.asarray(q, jnp.float32)[None], rotations[None]))[0, 0]
  y = np.zeros_like(v)
  for h in range(H):
    order = sorted(range(len(x)), key=lambda t: (buckets[t, h], t))
    for place, t in enumerate(order):
      first = place - mixer.chunk if mixer.causal else (place // mixer.chunk - 1) * mixer.chunk
      end = place + 1 if mixer.causal else first + 2 * mixer.chunk
      seen = [s for s in order[max(first, 0) : end] if buckets[s, h] == buckets[t, h]]
      seen = [s for s in seen if s != t] or [t]
      k = q[seen, h] / np.sqrt((q[seen, h] ** 2).sum(-1, keepdims=True) + 1e-6)
      weights = np.exp(k @ q[t, h] / np.sqrt(K))
      y[t, h] = weights @ v[seen, h] / weights.sum()
  return y.reshape(len(x), -1) @ np.float64(mixer.out.kernel[...])


@pytest.mark.parametrize('causal', [False, True])
def test_paper_form(causal, assert_follows_positions):
  mixer = make(causal, buckets=4)
  assert_follows_positions(mixer, reference, D, (L, 13, 3), 2, 5e-6)


def test_rounds_are_drawn_by_row_in_training():
  """Only the key of a row determines its draw; another key gives another answer. Evaluation draws nothing."""
  mixer = make(hashes=2, buckets=8)
  x = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (1, L, D)), (3, L, D))
  keys = jax.random.split(jax.random.key(1), 2)[jnp.asarray([0, 1, 0])]

  @nnx.jit(static_argnames='deterministic')
  def run(mixer, x, keys, deterministic):
    return mixer(x, deterministic=deterministic, rngs=keys)

  y = np.asarray(run(mixer, x, keys, deterministic=False))
  np.testing.assert_array_equal(y[0], y[2])
  assert np.abs(y[0] - y[1]).max() > 0.01
  y = np.asarray(run(mixer, x, keys, deterministic=True))
  np.testing.assert_array_equal(y[0], y[1])


def test_sizes():
  """There are two buckets per chunk; operations count hashes and pairs with 2 chunks."""
  mixer = make()
  assert mixer.buckets == 12
  assert mixer.flops(L) == H * (D // H) * 24 * (12 + 8 * 4)
  code = make(protocol=PAPER)
  assert code.flops(L) == H * (D // H) * 30 * (10 + 8 * 3)
  assert not hasattr(code, 'out')


@pytest.mark.parametrize(
  'options, message',
  [
    ({'chunk': 23}, 'chunk is 23, but sequences have up to 22 positions; choose 1 to 22'),
    ({'buckets': 5}, 'buckets is 5, but a bucket and its opposite share a direction: choose an even number'),
    ({'buckets': 2**27}, 'too many to number'),
    ({'protocol': PAPER, 'head_dim': 3}, 'return 6 numbers, but without an output map .* model.width, 8'),
  ],
)
def test_options_out_of_range_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
