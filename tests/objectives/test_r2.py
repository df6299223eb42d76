"""R2 over a whole split against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.data import scorable
from lra_spt.objectives import R2


@pytest.mark.parametrize(
  ('targets', 'why'),
  [
    (np.full((5, 40), 97.3), 'values that do not vary'),
    (np.full((5, 40), -1e-30), 'values that do not vary'),
    (np.full((5, 40), 1e30), 'values that do not vary'),
    (np.zeros((5, 40)), 'values that do not vary'),
    (np.nextafter(np.full((5, 40), 97.3, np.float32), np.tile(np.float32([0, 200]), 20)), 'do not vary'),
    (np.full((1, 1), 97.3), 'one example'),
    (97.3 + 1e-4 * np.arange(200).reshape(5, 40), ''),
    (np.arange(2.0).reshape(2, 1), ''),
  ],
)
def test_r2_is_not_defined_where_values_do_not_vary(targets, why):
  """Sums in float32 leave a variation of rounding. Rows of weight 0 do not count, whatever they hold."""
  merged, targets = R2.empty(), targets.astype(np.float32)
  for row in targets:
    padded, weights = np.append(row, 0).astype(np.float32), np.append(np.ones_like(row), 0).astype(np.float32)
    merged = merged.merge(R2.from_values(*(jnp.asarray(x) for x in (padded + 1, padded, weights))))
  assert why in merged.why_undefined()
  assert bool(merged.why_undefined()) == bool(why)
  assert np.isnan(merged.compute()) == bool(why)
  assert bool(scorable.why_no_r2_of(targets.ravel())) == bool(why)  # reports decide alike


def test_r2_is_global_not_the_mean_of_batches():
  rng = np.random.default_rng(0)
  targets = rng.normal(size=(10, 8, 3)).astype(np.float32) + np.arange(10, dtype=np.float32)[:, None, None]
  predictions = targets + 0.5 * rng.normal(size=targets.shape).astype(np.float32)
  weights = (rng.random(targets.shape) < 0.5).astype(np.float32)
  merged = R2.empty()
  for rows in (slice(0, 1), slice(1, 7), slice(7, 10)):
    merged = merged.merge(R2.from_values(*(jnp.asarray(x[rows]) for x in (predictions, targets, weights))))
  y, p = (x[weights == 1].astype(np.float64) for x in (targets, predictions))
  expected = 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum()
  np.testing.assert_allclose(merged.compute(), expected, rtol=1e-4)
  batch_mean = np.mean(
    [
      1 - ((t - p) ** 2).sum() / ((t - t.mean()) ** 2).sum()
      for t, p in zip(targets, predictions, strict=True)
    ]
  )
  assert abs(batch_mean - expected) > 0.05
  np.testing.assert_allclose(
    R2.from_values(*(jnp.asarray(x) for x in (targets, targets, weights))).compute(), 1
  )


@pytest.mark.parametrize('mean, deviation', [(0, 1), (40, 1), (2000, 5), (-2000, 5)])
def test_r2_of_targets_far_from_0(mean, deviation):
  """Two runs at once, in batches of which some examples, or all, have weight 0."""
  rng = np.random.default_rng(0)
  targets = (mean + deviation * rng.normal(size=(100, 50))).astype(np.float32)
  predictions = (targets + deviation * 0.5 * rng.normal(size=(2, 100, 50))).astype(np.float32)
  weights = ((rng.random(targets.shape) < 0.9) & (np.arange(100) % 7 > 0)[:, None]).astype(np.float32)

  def merged(predictions):
    def add(total, batch):
      return total.merge(R2.from_values(*batch)), None

    return jax.lax.scan(add, R2.empty(), (predictions, targets, weights))[0].compute()

  y, p = targets[weights == 1].astype(np.float64), predictions[:, weights == 1].astype(np.float64)
  expected = 1 - ((y - p) ** 2).sum(-1) / ((y - y.mean()) ** 2).sum()
  actual = jax.jit(jax.vmap(merged))(predictions)
  np.testing.assert_allclose(actual, expected, atol=1e-6)
