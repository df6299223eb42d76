"""Linear Transformer and Performer: golden values, both forms against a loop over positions, random features,
errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.linear_transformer import LinearTransformer
from lra_spt.models.mixers.performer import Performer, orthogonal_directions

L, D = 17, 16
NAMES = {f'{name}.kernel': f'attn/{name}/kernel' for name in ('query', 'key', 'value', 'out')}
MIXERS = [(LinearTransformer, {}), (Performer, {}), (Performer, {'features': 'favor', 'random_features': 6})]


def make(cls, causal, width=D, **options):
  options = {'heads': 2, 'head_dim': 4} | options
  return cls(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


class LooksAhead(Performer):
  """The published causal form, whose maximum runs over later positions too."""

  def key_shift(self, k_BLHM):
    return jnp.max(k_BLHM, axis=(1, 3), keepdims=True)


@pytest.mark.parametrize(
  'name, cls, options',
  [
    ('linear', *MIXERS[0]),
    ('performer_relu', *MIXERS[1]),
    ('performer_relu_causal', *MIXERS[1]),
    ('performer_favor', *MIXERS[2]),
    ('performer_favor_causal', LooksAhead, MIXERS[2][1]),
  ],
)
def test_layer_is_the_published_one(name, cls, options, golden, assert_golden):
  values = golden(f'lra_{name}')
  mixer = make(cls, name.endswith('causal'), **options)
  if options:
    mixer.directions.set_value(jnp.asarray(values['projection']))

  def ours(path, array):
    return array.reshape(-1, D) if path == 'out.kernel' else array.reshape(D, -1)

  # The first positions divide by few features, maybe all 1e-3, so their gradients depend on the processor.
  few = name == 'performer_relu_causal'
  assert_golden(mixer, values, NAMES, ours, backward=2e-5 if few else 5e-6)


def features(mixer, x_K, largest):
  """f(x). largest: the number that exponents subtract; None: the largest product."""
  if isinstance(mixer, LinearTransformer):
    return np.where(x_K > 0, x_K + 1, np.exp(np.minimum(x_K, 0)))
  if not mixer.random:
    return np.maximum(x_K, 0) + 1e-3
  p, x_K = np.float64(mixer.directions[...]), x_K / len(x_K) ** 0.25
  products = p @ x_K
  largest = products.max() if largest is None else largest
  return (np.exp(products - x_K @ x_K / 2 - largest) + 1e-6) / np.sqrt(len(p))


def reference(mixer, x_LD):
  """y in float64, query by query."""
  q, k, v, out = (np.float64(getattr(mixer, n).kernel[...]) for n in ('query', 'key', 'value', 'out'))
  x_LD = np.float64(x_LD)
  q, k, v = (np.split(x_LD @ kernel, mixer.heads, axis=1) for kernel in (q, k, v))
  y = np.zeros((mixer.heads, len(x_LD), mixer.head_dim))
  for head, t in np.ndindex(*y.shape[:2]):
    largest = 0.0
    if getattr(mixer, 'random', False) and not mixer.causal:
      largest = (k[head] / mixer.head_dim**0.25 @ np.float64(mixer.directions[...]).T).max()
    seen = range(t + 1 if mixer.causal else len(x_LD))
    weights = [features(mixer, q[head][t], None) @ features(mixer, k[head][s], largest) for s in seen]
    total = sum(weights)
    if isinstance(mixer, LinearTransformer):
      total += 1e-6
    elif mixer.random and total <= 1e-6:
      total += 2e-6
    y[head, t] = weights @ v[head][: len(seen)] / total
  return np.hstack(list(y)) @ out


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('cls, options', MIXERS)
def test_layer_matches_a_loop_over_positions(cls, options, causal, assert_follows_positions):
  assert_follows_positions(make(cls, causal, **options), reference, D, (L, 5, 1), 1, 3e-6)


@pytest.mark.parametrize('cls, options', MIXERS[::2])
def test_recurrent_form_is_the_scan(cls, options, assert_recurrent):
  assert_recurrent(make(cls, True, **options), make(cls, False, **options), L, D)


@pytest.mark.parametrize('cls, options, causal', [(*MIXERS[1], True), (*MIXERS[2], False)])
def test_a_row_without_valid_positions_stays_finite(cls, options, causal):
  mixer = make(cls, causal, **options)

  @nnx.jit
  def run(mixer, x):
    return jax.value_and_grad(lambda x: jnp.sum(mixer(x, lengths_B=jnp.int32([0, 3]))))(x)

  y, dx = run(mixer, 100 * jax.random.normal(jax.random.key(0), (2, L, D)))
  assert np.isfinite(y)
  assert np.isfinite(dx).all()
  assert not np.any(dx[0])


def test_random_features_are_orthogonal_and_make_softmax():
  p = np.asarray(orthogonal_directions(jax.random.key(0), 4096, 4), np.float64)
  first = p[:4] @ p[:4].T
  np.testing.assert_allclose(first - np.diag(np.diag(first)), 0, atol=1e-5)
  np.testing.assert_allclose(p.T @ p / len(p), np.eye(4), atol=0.06)
  mixer = make(Performer, True, features='favor', random_features=4096)
  q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 2, 4)).astype(np.float32)
  fq, fk = (np.float64(f)[0, 0] for f in mixer.features(q, k, None, None))
  ratio = (fq[0] @ fk[0]) / (fq[0] @ fk[1])
  assert ratio == pytest.approx(np.exp((q[0, 0, 0] @ k[0, 0, 0] - q[0, 0, 0] @ k[0, 0, 1]) / 2), rel=0.1)


@pytest.mark.parametrize('redraw', [False, True])
def test_training_draws_anew_and_evaluation_does_not(redraw):
  mixer = make(Performer, False, features='favor', random_features=6, redraw=redraw)
  x = jax.random.normal(jax.random.key(0), (2, L, D))
  run = nnx.jit(lambda mixer, x, keys: mixer(x, deterministic=keys is None, rngs=keys))
  first, second = (run(mixer, x, jax.random.split(jax.random.key(seed), 2)) for seed in range(2))
  evaluated = run(mixer, x, None)
  assert np.array_equal(first, second) == np.array_equal(first, evaluated) == (not redraw)
  np.testing.assert_array_equal(evaluated, run(mixer, x, None))
  assert not isinstance(mixer.directions, nnx.Param)


def test_operations_are_counted():
  assert make(LinearTransformer, False).flops(L) == L * 2 * 4 * 4 * 5
  assert make(LinearTransformer, True).flops(L) == L * 2 * (4 * 4 * 5 + 2 * 16 * (4 + 5))
  assert make(Performer, False, **MIXERS[2][1]).flops(L) == L * 2 * (4 * 6 * 5 + 4 * 6 * 4)


def test_heads_that_do_not_divide_the_width_are_refused():
  with pytest.raises(ValueError, match='model.width is 16, which model.mixer.heads=3 does not divide'):
    make(Performer, True, heads=3, head_dim=0)
