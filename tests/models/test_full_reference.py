"""The whole model against a Transformer written from the formulas in NumPy, float64: values and gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models import HeadSpec

HEADS, LENGTHS = 2, (6, 4)


def reference(params, x, *, rotary, causal, sinusoid):
  """The logits [B, classes] of one pre-norm block, final norm, mean pool and an MLP head, row by row and
  query by query."""
  p = params['encoder']

  def layer(x, weights):
    return x @ weights['kernel'] + weights['bias']

  def norm(x, weights):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights['scale'] + weights['bias']

  def turn(x, position):
    pairs = x[0::2] + 1j * x[1::2]
    pairs = pairs * np.exp(1j * position * 10000.0 ** (-np.arange(0, len(x), 2) / len(x)))
    return np.stack([pairs.real, pairs.imag], -1).reshape(-1)

  def attend(x, weights):
    size = x.shape[-1] // HEADS
    q, k, v = (layer(x, weights[name]) for name in ('query', 'key', 'value'))
    out = np.zeros_like(x)
    for head in range(HEADS):
      part = slice(head * size, (head + 1) * size)
      for t in range(len(x)):
        seen = range(t + 1) if causal else range(len(x))
        query = turn(q[t, part], t) if rotary else q[t, part]
        scores = np.array(
          [query @ (turn(k[s, part], s) if rotary else k[s, part]) for s in seen]
        ) / math.sqrt(size)
        weight = np.exp(scores - scores.max())
        out[t, part] = weight / weight.sum() @ v[: len(seen), part]
    return layer(out, weights['out'])

  rows = []
  for row, length in zip(x, LENGTHS, strict=True):
    h = layer(row[:length], p['embed'])
    if sinusoid:
      width = h.shape[-1]
      angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
      h = h + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, width)
    block = jax.tree.map(lambda leaf: leaf[0], p['blocks'])
    h = h + attend(norm(h, block['mixer_norm']['norm']), block['mixer'])
    hidden = layer(norm(h, block['feed_forward_norm']['norm']), block['feed_forward']['up'])
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
    h = norm(h + layer(hidden, block['feed_forward']['down']), p['norm']['norm'])
    rows.append(layer(np.maximum(layer(h.mean(0), params['head']['hidden']), 0), params['head']['out']))
  return np.stack(rows)


def cross_entropy(logits, labels):
  shifted = logits - logits.max(-1, keepdims=True)
  log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
  return -sum(log_probabilities[row, label] for row, label in enumerate(labels))


@pytest.mark.parametrize('rotary, causal', [(False, False), (True, True)])
def test_model_equals_the_formulas(make_model, rotary, causal):
  model = make_model(
    depth=1,
    mixer={'name': 'attention', 'heads': HEADS, 'rotary': rotary},
    position='none' if rotary else 'sinusoidal',
    causal=causal,
    head=HeadSpec('mlp', 3, 'mean'),
  )
  rng = np.random.default_rng(0)
  graphdef, params, stats = nnx.split(model, nnx.Param, ...)
  # Gains differ from 1 and biases from 0, so that a missing one changes the result.
  params = jax.tree.map(
    lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), nnx.to_pure_dict(params)
  )
  x = rng.normal(size=(2, 6, 2)).astype(np.float32)
  labels = np.array([2, 0], np.int32)

  def loss(params):
    logits = nnx.merge(graphdef, params, stats)(jnp.asarray(x), lengths_B=jnp.array(LENGTHS, jnp.int32))
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(2), labels]), logits

  (value, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  options = {'rotary': rotary, 'causal': causal, 'sinusoid': not rotary}
  wide = jax.tree.map(lambda leaf: np.array(leaf, np.float64), params)
  expected = reference(wide, x.astype(np.float64), **options)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(value, cross_entropy(expected, labels), rtol=1e-4)

  def entry_gradient(leaf, index, step=1e-5):
    losses = []
    for shift in (step, -step):
      before = leaf[index]
      leaf[index] = before + shift  # `leaf` belongs to `wide`
      losses.append(cross_entropy(reference(wide, x.astype(np.float64), **options), labels))
      leaf[index] = before
    return (losses[0] - losses[1]) / (2 * step)

  for (path, leaf), grad in zip(
    jax.tree_util.tree_leaves_with_path(wide), jax.tree.leaves(grads), strict=True
  ):
    for index in {tuple(rng.integers(size) for size in leaf.shape) for _ in range(2)}:
      np.testing.assert_allclose(
        grad[index], entry_gradient(leaf, index), rtol=2e-3, atol=2e-4, err_msg=str(path)
      )
