"""Evaluation counts every example once, for any batch size, and equals NumPy."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clu.metrics import Collection
from flax import struct

from lra_spt.data import pipeline
from lra_spt.distributed import sharding
from lra_spt.errors import NonFiniteError
from lra_spt.objectives import Mean
from lra_spt.training import evaluate as training_evaluate
from lra_spt.training.evaluate import Evaluator

N = 13


class Made:
  """13 examples in memory, with the methods of `examples_lib.Examples` that evaluation calls."""

  def __init__(self, task, batches):
    self.task, self.split = task, 'validation'
    self._examples = {name: x[0] for name, x in batches.items()} | {
      'index': 100 + np.arange(N, dtype=np.int32)
    }

  def __len__(self):
    return N

  def gather(self, positions):
    return {name: x[positions] for name, x in self._examples.items()}


@pytest.fixture(scope='module')
def stages(tiny, make_batches):
  """{name: (Tiny, examples, state of one device)} for a classification with lengths and a denoising of
  values."""
  mesh, made = sharding.make_mesh(devices=jax.devices()[:1]), {}
  for name, spec, stage in (
    ('listops', 'listops.py:regime=scratch', 'finetune'),
    ('image', 'image.py:regime=masked', 'pretrain'),
  ):
    chosen = tiny(spec, stage)
    with jax.set_mesh(mesh):
      made[name] = (
        chosen,
        Made(chosen.built.task, make_batches(chosen.built.task, 1, N, 10)),
        chosen.state(mesh),
      )
  return made


def evaluate(stage, batch_size, *, shape=(1, 1, 1), drop_last=False, state=None, **options):
  chosen, examples, first = stage
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  with jax.set_mesh(mesh):
    evaluator = Evaluator(
      chosen.built.model, chosen.built.objective, mesh=mesh, batch_size=batch_size, drop_last=drop_last
    )
    if shape != (1, 1, 1):
      first = jax.device_put(jax.tree.map(np.asarray, first), sharding.replicated(mesh))
    (answer,) = evaluator.of_each(first, examples, [3], **options)
  if isinstance(answer, NonFiniteError):
    raise answer
  return (answer.metrics, answer.predictions) if answer.predictions else answer.metrics


def test_classification_counts_every_example_once_for_any_batch_size(stages):
  chosen, examples, state = stages['listops']
  whole = examples.gather(np.arange(N))
  model = chosen.built.model.merge(state['params'], state['stats'])
  logits = np.asarray(
    jax.jit(lambda x, n: model(x, lengths_B=n))(whole['inputs'].astype(np.int32), whole['lengths']),
    np.float64,
  )
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  accuracy = np.mean(logits.argmax(-1) == whole['label'])
  for batch_size, shape in ((3, (1, 1, 1)), (4, (1, 1, 1)), (8, (2, 4, 1))):
    metrics, predictions = evaluate(stages['listops'], batch_size, shape=shape, predictions=True)
    np.testing.assert_allclose(metrics['accuracy'], accuracy, rtol=1e-7)
    np.testing.assert_allclose(metrics['loss'], -log_p[np.arange(N), whole['label']].mean(), rtol=1e-5)
    np.testing.assert_array_equal(predictions['index'], 100 + np.arange(N))
    np.testing.assert_array_equal(predictions['label'], whole['label'])
    np.testing.assert_array_equal(predictions['prediction'], logits.argmax(-1))
    assert all(x.dtype == np.int32 for x in predictions.values())


def test_a_metric_that_is_not_finite_is_never_returned(stages):
  chosen, examples, state = stages['listops']
  broken = jax.tree.map(lambda x: x * np.float32(np.nan), state['params'])
  with pytest.raises(NonFiniteError, match='loss of the validation split is nan, because encoder/.* holds a'):
    evaluate((chosen, examples, state | {'params': broken}), 4)


def test_a_metric_that_is_not_defined_is_none_with_its_reason(stages):
  chosen, examples, state = stages['image']
  constant = Made(examples.task, {})
  constant._examples = examples._examples | {'inputs': np.full_like(examples._examples['inputs'], 97)}
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    evaluator = Evaluator(chosen.built.model, chosen.built.objective, mesh=mesh, batch_size=3)
    (measured,) = evaluator.of_each(state, constant, [3])
  assert measured.metrics['r2'] is None
  assert measured.undefined == {'r2': 'R2 is not defined over values that do not vary'}
  assert measured.metrics['loss'] == measured.metrics['mae'] > 0


def test_an_own_metric_may_be_undefined(stages):
  @struct.dataclass
  class Recall(Mean):  # the class has no example
    def compute(self):
      return self.total / self.count

  @struct.dataclass
  class Metrics(Collection):
    loss: Mean
    recall: Recall

  collected = Metrics.empty().replace(loss=Mean(jnp.float32(3), jnp.float32(2)))
  measured = training_evaluate._measured(collected, None, stages['image'][1], dict)
  assert measured.metrics == {'loss': 1.5, 'recall': None}
  assert measured.undefined == {'recall': 'recall is nan over these examples'}


def test_a_split_in_which_nothing_is_hidden_is_an_error(stages):
  chosen, examples, state = stages['image']
  objective = dataclasses.replace(chosen.built.objective, mask_rate=1e-30)
  rare = types.SimpleNamespace(built=dataclasses.replace(chosen.built, objective=objective))
  with pytest.raises(
    NonFiniteError, match='the validation split has nothing to predict.* raise pretrain.mask_rate'
  ):
    evaluate((rare, examples, state), 4)


def test_drop_last_leaves_the_rest_out(stages):
  chosen, examples, state = stages['listops']
  metrics, predictions = evaluate(stages['listops'], 4, drop_last=True, predictions=True)
  np.testing.assert_array_equal(predictions['index'], 100 + np.arange(12))
  np.testing.assert_allclose(
    metrics['accuracy'], np.mean(predictions['prediction'] == predictions['label']), rtol=1e-7
  )
  with pytest.raises(ValueError, match='13 examples of the validation split do not fill one batch of 16'):
    evaluate(stages['listops'], 16, drop_last=True)


def test_curves_leave_nothing_out(stages):
  chosen, examples, state = stages['listops']
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    evaluator = Evaluator(
      chosen.built.model, chosen.built.objective, mesh=mesh, batch_size=16, drop_last=True
    )
    (measured,) = evaluator.of_each(state, examples, [3], whole=True)
  assert measured.metrics == evaluate(stages['listops'], 16)


def test_masks_are_fixed_per_example_and_redrawn_on_request(stages):
  first = evaluate(stages['image'], 3)
  assert set(first) == {'loss', 'mae', 'r2'}
  assert first == evaluate(stages['image'], 3)
  other = evaluate(stages['image'], 8)
  for name in first:
    np.testing.assert_allclose(other[name], first[name], rtol=1e-5, atol=1e-6)
  redrawn = [evaluate(stages['image'], 3, redraw=[step])['loss'] for step in (1, 2)]
  assert len({first['loss'], *redrawn}) == 3


def test_the_last_batch_is_padded_with_weight_zero(stages):
  _, examples, _ = stages['listops']
  batches = list(pipeline.evaluation_batches(examples, batch_size=4))
  assert [int(batch['weight'].sum()) for batch in batches] == [4, 4, 4, 1]
  assert all(batch['inputs'].shape == (4, 10) for batch in batches)


def test_a_batch_that_devices_cannot_share_is_named(stages):
  chosen, _, _ = stages['listops']
  with pytest.raises(
    ValueError, match='the evaluation batch size is 12, which 8 devices cannot share evenly'
  ):
    Evaluator(chosen.built.model, chosen.built.objective, mesh=sharding.make_mesh(), batch_size=12)
