"""Several labels and several dimensions against NumPy in float64."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.data.tasks import Bytes, MultiLabel, Real, Task
from lra_spt.objectives import MultiLabelClassification, Regression

MEAN, STD, RANGE = (2.0, -10.0, 0.5), (0.5, 4.0, 1.0), ((0.0, 4.0), (-30.0, 10.0), (-1.0, 1.0))
LABELS = Task('labels', 'none', Bytes(8), MultiLabel(3))
NUMBERS = Task('numbers', 'none', Bytes(8), Real(MEAN, STD, RANGE))
OUTPUTS_BK = np.random.default_rng(0).normal(size=(5, 3))


def batch_of(label_BK):
  """The last of the five rows is padding."""
  return {
    'inputs': np.zeros((5, 8), np.uint8),
    'lengths': np.full(5, 8, np.int32),
    'label': label_BK,
    'weight': np.array([1, 1, 1, 1, 0], np.float32),
    'index': np.arange(5, dtype=np.int32),
  }


@pytest.mark.parametrize('weights', [(), (0.5, 1.0, 4.0)])
def test_several_labels(weights):
  label_BK = np.random.default_rng(1).random((5, 3)) < 0.5
  objective = MultiLabelClassification(LABELS, class_weights=weights)
  prepared, outputs = objective.prepare(batch_of(label_BK), None), jnp.asarray(OUTPUTS_BK, jnp.float32)
  total, count = objective.loss(outputs, prepared)
  probability_BK = 1 / (1 + np.exp(-OUTPUTS_BK))
  loss_BK = -np.log(np.where(label_BK, probability_BK, 1 - probability_BK))[:4]
  weight_BK = np.broadcast_to(np.array(weights or (1.0, 1.0, 1.0)), (4, 3))
  wanted = (weight_BK * loss_BK).sum() / weight_BK.sum()
  measured = objective.measure(outputs, prepared).compute()
  np.testing.assert_allclose([total / count, measured['loss']], wanted, rtol=1e-6)
  np.testing.assert_allclose(objective.predictions(outputs), probability_BK, rtol=1e-6)
  assert objective.head.outputs == 3
  assert objective.selection == ('macro_f1', 'max')
  by_auroc = MultiLabelClassification(dataclasses.replace(LABELS, metric='auroc'))
  assert by_auroc.of_all_predictions == ('auroc',)


@pytest.mark.parametrize('protocol', [CLEAN, PAPER])
def test_several_dimensions(protocol):
  offset_K, scale_K = np.array(MEAN), np.array(STD)
  if protocol is PAPER:
    low_K, high_K = np.transpose(RANGE)
    offset_K, scale_K = (low_K + high_K) / 2, (high_K - low_K) / 2
  label_BK = np.random.default_rng(1).normal(MEAN, STD, (5, 3))
  objective = Regression(NUMBERS, protocol)
  prepared = objective.prepare(batch_of(label_BK.astype(np.float32)), None)
  outputs = jnp.asarray(OUTPUTS_BK, jnp.float32)
  total, count = objective.loss(outputs, prepared)
  error_BK = (OUTPUTS_BK - (label_BK - offset_K) / scale_K)[:4]
  measured = objective.measure(outputs, prepared).compute()
  np.testing.assert_allclose([total / count, measured['loss']], (error_BK**2).mean(), rtol=1e-5)
  np.testing.assert_allclose(measured['mae'], np.abs(error_BK * scale_K).mean(), rtol=1e-5)
  np.testing.assert_allclose(objective.predictions(outputs), OUTPUTS_BK * scale_K + offset_K, rtol=1e-5)
  assert objective.of_all_predictions == ('r2',)
  assert objective.head.outputs == 3
