"""Objectives against cases computed by hand, and against NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.data.tasks import Bytes, Classes, PerPosition, Published, Task, Tokens, Values, get_task
from lra_spt.errors import ConfigError, FieldError
from lra_spt.models.heads import HeadSpec
from lra_spt.objectives import (
  CausalDenoising,
  Classification,
  MaskedDenoising,
  Mean,
  PositionClassification,
)

TOKENS = Task('tokens', 'none', Tokens(8, vocabulary=9), Classes(4))
BYTES = Task('bytes', 'none', Bytes(8), Classes(4))
COLOURS = Task('colours', 'none', Values(8, mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1)), Classes(4))


def make_batch(task, rows=3, length=8, seed=0):
  rng = np.random.default_rng(seed)
  shape = (rows, length) if task.channels <= 1 else (rows, length, task.channels)
  inputs = rng.integers(2, task.vocabulary or 256, shape).astype(np.uint8)
  lengths = np.full(rows, length, np.int32)
  if isinstance(task.inputs, Tokens):
    lengths = rng.integers(2, length + 1, rows).astype(np.int32)
    inputs = np.where(np.arange(length)[None] < lengths[:, None], inputs, task.inputs.pad_id).astype(np.uint8)
  label = rng.integers(0, task.classes, rows).astype(np.int32)
  return {
    'inputs': inputs,
    'lengths': lengths,
    'label': label,
    'weight': np.ones(rows, np.float32),
    'index': np.arange(rows, dtype=np.int32),
  }


def keys(rows, seed=0):
  return jax.random.split(jax.random.key(seed), rows)


def part(batch, rows):
  return {name: x[rows] for name, x in batch.items()}


def test_masked_tokens():
  batch = make_batch(TOKENS, rows=64)
  objective = MaskedDenoising(TOKENS, mask_rate=0.4)
  prepared = objective.prepare(batch, keys(64))
  hidden = np.asarray(prepared.weights) == 1
  valid = np.arange(8)[None] < batch['lengths'][:, None]
  assert set(np.unique(prepared.weights)) == {0, 1}
  np.testing.assert_array_equal(prepared.inputs, np.where(hidden, 0, batch['inputs']))
  np.testing.assert_array_equal(prepared.targets, batch['inputs'])
  assert not hidden[~valid].any(), 'padding was hidden'
  assert (np.asarray(prepared.inputs)[~valid] == TOKENS.inputs.pad_id).all()
  np.testing.assert_allclose(hidden[valid].mean(), 0.4, atol=0.08)
  np.testing.assert_array_equal(prepared.lengths_B, batch['lengths'])
  assert prepared.inputs.dtype == prepared.targets.dtype == jnp.int32
  assert objective.channels == 0
  assert objective.head == HeadSpec('tokens', 9)


def test_masked_bytes_as_tokens():
  task = BYTES.with_byte_tokens()
  batch = make_batch(BYTES, rows=64)
  objective = MaskedDenoising(task, mask_rate=0.4)
  prepared = objective.prepare(batch, keys(64))
  hidden = np.asarray(prepared.weights) == 1
  np.testing.assert_array_equal(prepared.inputs, np.where(hidden, 256, batch['inputs'].astype(np.int32)))
  np.testing.assert_array_equal(prepared.targets, batch['inputs'])
  np.testing.assert_allclose(hidden.mean(), 0.4, atol=0.08)
  assert prepared.lengths_B is None  # rows are full
  assert objective.channels == 0
  assert objective.head == HeadSpec('tokens', 256)


@pytest.mark.parametrize('task', [BYTES, COLOURS], ids=lambda task: task.name)
def test_masked_values_are_zero_in_normalised_space_with_a_flag_last(task):
  batch = make_batch(task, rows=40)
  objective = MaskedDenoising(task, mask_rate=0.5)
  prepared = objective.prepare(batch, keys(40))
  inputs, hidden = np.asarray(prepared.inputs), np.asarray(prepared.weights) == 1
  raw = batch['inputs'].reshape(40, 8, task.channels).astype(np.float64)
  normalised = (raw / 255 - np.array(task.inputs.mean)) / np.array(task.inputs.std)
  assert inputs.shape == (40, 8, task.channels + 1) == (40, 8, objective.channels)
  np.testing.assert_array_equal(inputs[..., -1], hidden)
  np.testing.assert_array_equal(inputs[hidden][:, :-1], 0)  # every channel of a hidden position
  np.testing.assert_allclose(inputs[~hidden][:, :-1], normalised[~hidden], atol=1e-5)
  np.testing.assert_allclose(hidden.mean(), 0.5, atol=0.1)
  assert prepared.lengths_B is None
  if task is BYTES:
    np.testing.assert_array_equal(prepared.targets, batch['inputs'])
    assert prepared.targets.dtype == jnp.int32
    assert objective.head == HeadSpec('tokens', 256)
  else:
    np.testing.assert_allclose(prepared.targets, normalised, atol=1e-5)
    assert objective.head == HeadSpec('tokens', 3)


def test_causal_targets_are_the_next_ones():
  batch = part(make_batch(TOKENS), slice(0, 2)) | {
    'inputs': np.array([[5, 6, 7, 8, 1, 1], [3, 4, 5, 6, 7, 8]], np.uint8),
    'lengths': np.array([4, 6], np.int32),
  }
  prepared = CausalDenoising(TOKENS).prepare(batch, keys(2))
  np.testing.assert_array_equal(prepared.inputs, batch['inputs'])
  np.testing.assert_array_equal(prepared.weights, [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
  np.testing.assert_array_equal(np.asarray(prepared.targets)[0, :3], [6, 7, 8])
  np.testing.assert_array_equal(np.asarray(prepared.targets)[1, :5], [4, 5, 6, 7, 8])


def test_causal_values_stay_clean_without_flag():
  batch = make_batch(COLOURS)
  objective = CausalDenoising(COLOURS)
  prepared = objective.prepare(batch, keys(3))
  assert prepared.inputs.shape == (3, 8, 3)
  assert objective.channels == 3
  np.testing.assert_allclose(prepared.targets[:, :-1], prepared.inputs[:, 1:], atol=1e-6)
  np.testing.assert_array_equal(prepared.weights, np.broadcast_to(np.arange(8) < 7, (3, 8)))


def test_loss_is_the_mean_over_hidden_positions_and_channels():
  objective = MaskedDenoising(COLOURS, mask_rate=0.5)
  prepared = objective.prepare(make_batch(COLOURS), keys(3))
  outputs = np.random.default_rng(1).normal(size=(3, 8, 3)).astype(np.float32)
  total, count = objective.loss(jnp.asarray(outputs), prepared)
  hidden = np.asarray(prepared.weights) == 1
  errors = np.abs(outputs - np.asarray(prepared.targets))[hidden]  # [hidden positions, 3]
  assert int(count) == hidden.sum()
  np.testing.assert_allclose(total / count, errors.mean(), rtol=1e-5)
  # Predictions at other positions do not matter.
  elsewhere = np.where(hidden[..., None], outputs, 1e3).astype(np.float32)
  np.testing.assert_allclose(objective.loss(jnp.asarray(elsewhere), prepared)[0], total, rtol=1e-6)


def test_cross_entropy_by_hand():
  objective = CausalDenoising(BYTES)
  batch = part(make_batch(BYTES, length=3), slice(0, 1))
  prepared = objective.prepare(batch, keys(1))
  logits = np.zeros((1, 3, 256), np.float32)
  logits[0, 0, batch['inputs'][0, 1]] = 2.0  # sure of the second byte, undecided about the third
  total, count = objective.loss(jnp.asarray(logits), prepared)
  expected = math.log(255 + math.exp(2)) - 2 + math.log(256)
  assert count == 2
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  measured = objective.measure(jnp.asarray(logits), prepared).compute()
  hits = 1 + (batch['inputs'][0, 2] == 0)
  np.testing.assert_allclose([measured['loss'], measured['accuracy']], [expected / 2, hits / 2], rtol=1e-5)


@pytest.mark.parametrize('objective', [MaskedDenoising(TOKENS, mask_rate=0.5), CausalDenoising(TOKENS)])
def test_rows_of_weight_zero_count_nowhere(objective):
  batch = make_batch(TOKENS, rows=4)
  logits = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8, 9)).astype(np.float32))
  padded = batch | {'weight': np.array([1, 1, 0, 0], np.float32)}
  a = objective.measure(logits, objective.prepare(padded, keys(4))).compute()
  b = objective.measure(logits[:2], objective.prepare(part(batch, slice(0, 2)), keys(4)[:2])).compute()
  for name in a:
    np.testing.assert_allclose(a[name], b[name], rtol=1e-6)
  classify = Classification(TOKENS)
  a = classify.measure(logits[:, 0], classify.prepare(padded, None)).compute()
  b = classify.measure(logits[:2, 0], classify.prepare(part(batch, slice(0, 2)), None)).compute()
  for name in a:
    np.testing.assert_allclose(a[name], b[name], rtol=1e-6)


@pytest.mark.parametrize('task', [TOKENS, BYTES, COLOURS], ids=lambda task: task.name)
def test_masks_belong_to_rows_whatever_the_batch(task):
  objective, batch, row_keys = MaskedDenoising(task, mask_rate=0.5), make_batch(task, rows=6), keys(6)
  whole = objective.prepare(batch, row_keys)
  for rows in (np.array([0, 1, 2]), np.array([5, 3]), np.array([4])):
    some = objective.prepare(part(batch, rows), row_keys[rows])
    np.testing.assert_array_equal(some.weights, np.asarray(whole.weights)[rows])
    np.testing.assert_array_equal(some.inputs, np.asarray(whole.inputs)[rows])
  again = objective.prepare(batch, keys(6, seed=1))
  assert not np.array_equal(again.weights, whole.weights)


@pytest.mark.parametrize('per_position', [False, True])
def test_class_weights(per_position):
  """sum w l / sum w in float64, as PyTorch's CrossEntropyLoss(weight); accuracy does not know them."""
  weight_K, rng = np.array([0.5, 1.0, 2.0, 8.0]), np.random.default_rng(2)
  task = dataclasses.replace(TOKENS, labels=PerPosition(4)) if per_position else TOKENS
  batch = make_batch(TOKENS, rows=5) | {'weight': np.array([1, 1, 1, 1, 0], np.float32)}
  if per_position:
    batch['label'] = rng.integers(-1, 4, (5, 8)).astype(np.int32)
  logits = rng.normal(size=(*batch['label'].shape, 4))
  objective = (PositionClassification if per_position else Classification)(
    task, class_weights=tuple(weight_K)
  )
  prepared = objective.prepare(batch, None)
  outputs = jnp.asarray(logits.astype(np.float32))
  total, count = objective.loss(outputs, prepared)
  measured = objective.measure(outputs, prepared).compute()

  label, logits = batch['label'][:4], logits[:4]
  counted = label >= 0
  label, logits = label[counted], logits[counted]
  losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(label)), label]
  wanted = (weight_K[label] * losses).sum() / weight_K[label].sum()
  np.testing.assert_allclose([total / count, measured['loss']], [wanted, wanted], rtol=1e-5)
  np.testing.assert_allclose(measured['accuracy'], (logits.argmax(-1) == label).mean(), rtol=1e-6)
  assert count >= len(label)  # a step divides by a count of 1 or more
  with pytest.raises(FieldError, match='has 3 numbers, but tokens has 4 classes'):
    Classification(TOKENS, class_weights=(1.0, 2.0, 3.0))


ADDITIVE = {
  objective: jax.jit(
    lambda batch, keys_B, outputs, objective=objective: (
      objective.loss(outputs, objective.prepare(batch, keys_B)),
      objective.measure(outputs, objective.prepare(batch, keys_B)),
    )
  )
  for objective in (
    MaskedDenoising(TOKENS, mask_rate=0.3),
    CausalDenoising(BYTES),
    MaskedDenoising(COLOURS, mask_rate=0.5),
    Classification(TOKENS),
  )
}


@settings(max_examples=20, deadline=None)
@given(
  objective=st.sampled_from(list(ADDITIVE)),
  chosen=st.lists(st.booleans(), min_size=6, max_size=6),
  seed=st.integers(0, 9),
)
def test_sums_and_counts_add_up_over_any_split(objective, chosen, seed):
  batch, row_keys = make_batch(objective.task, rows=6, seed=seed), keys(6, seed)
  outputs = np.random.default_rng(seed).normal(size=(6, 8, objective.head.outputs)).astype(np.float32)
  outputs = outputs[:, 0] if isinstance(objective, Classification) else outputs

  def losses(rows):
    return ADDITIVE[objective](batch | {'weight': np.asarray(rows, np.float32)}, row_keys, outputs)

  (total, count), whole = losses([True] * 6)
  (total_1, count_1), first = losses(chosen)
  (total_2, count_2), second = losses([not row for row in chosen])
  assert count == count_1 + count_2
  np.testing.assert_allclose(total, total_1 + total_2, rtol=1e-5)
  merged, whole = first.merge(second).compute(), whole.compute()
  for name in whole:
    np.testing.assert_allclose(merged[name], whole[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_denoising_measures_of_values():
  objective = MaskedDenoising(COLOURS, mask_rate=0.5)
  prepared = objective.prepare(make_batch(COLOURS), keys(3))
  outputs = np.random.default_rng(1).normal(size=(3, 8, 3)).astype(np.float32)
  measured = objective.measure(jnp.asarray(outputs), prepared).compute()
  hidden = np.asarray(prepared.weights) == 1
  y, p = np.asarray(prepared.targets, np.float64)[hidden], outputs[hidden]
  np.testing.assert_allclose(measured['mae'], np.abs(y - p).mean(), rtol=1e-5)
  np.testing.assert_allclose(measured['loss'], measured['mae'])
  np.testing.assert_allclose(
    measured['r2'], 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum(), rtol=1e-4
  )


def test_classification():
  objective = Classification(COLOURS, pool='max', head_kind='mlp')
  batch = make_batch(COLOURS, rows=4) | {'label': np.array([0, 1, 2, 3], np.int32)}
  prepared = objective.prepare(batch, None)
  assert prepared.inputs.shape == (4, 8, 3)
  assert objective.channels == 3
  assert objective.head == HeadSpec('mlp', 4, 'max')
  logits = np.log(np.array([[4, 2, 1, 1], [1, 5, 1, 1], [1, 5, 1, 1], [1, 1, 1, 5]], np.float32))
  total, count = objective.loss(jnp.asarray(logits), prepared)
  np.testing.assert_allclose(total, -np.log([4 / 8, 5 / 8, 1 / 8, 5 / 8]).sum(), rtol=1e-5)
  assert count == 4
  np.testing.assert_array_equal(objective.predictions(jnp.asarray(logits)), [0, 1, 1, 3])
  measured = objective.measure(jnp.asarray(logits), prepared).compute()
  np.testing.assert_allclose([measured['accuracy'], measured['loss']], [3 / 4, total / 4], rtol=1e-6)


def test_identity_head_scores_ids_with_hidden_units():
  published = dataclasses.replace(TOKENS, published=Published(identity_head=True))
  objective = MaskedDenoising(published, PAPER, mask_rate=0.5)
  assert objective.head == HeadSpec('identity', 9)
  for other in (
    MaskedDenoising(TOKENS, PAPER, mask_rate=0.5),
    MaskedDenoising(published, CLEAN, mask_rate=0.5),
  ):
    assert other.head == HeadSpec('tokens', 9)
  prepared = objective.prepare(make_batch(TOKENS), keys(3))
  hidden_BLD = np.random.default_rng(0).normal(size=(3, 8, 12)).astype(np.float32)  # 12 units, ids below 9
  total, _ = objective.loss(jnp.asarray(hidden_BLD), prepared)
  log_p = hidden_BLD - np.log(np.exp(hidden_BLD).sum(-1, keepdims=True))
  picked = np.take_along_axis(log_p, np.asarray(prepared.targets)[..., None], -1)[..., 0]
  np.testing.assert_allclose(total, -(picked * np.asarray(prepared.weights)).sum(), rtol=1e-5)


def test_selection_follows_loss_and_protocol():
  assert CausalDenoising(TOKENS).selection == ('accuracy', 'max')
  assert CausalDenoising(COLOURS).selection == ('r2', 'max')
  assert CausalDenoising(COLOURS, PAPER).selection == ('mae', 'min')
  assert CausalDenoising(get_task('speech_commands')).selection == ('r2', 'max')
  assert CausalDenoising(get_task('speech_commands'), PAPER).selection == ('mae', 'max')
  assert Classification(TOKENS).selection == ('accuracy', 'max')
  assert Classification(TOKENS).of_all_predictions == ()
  by_f1 = Classification(dataclasses.replace(TOKENS, metric='macro_f1'))
  assert (by_f1.selection, by_f1.of_all_predictions) == (('macro_f1', 'max'), ('macro_f1',))
  with pytest.raises(ConfigError, match="metric 'r2', but the main score of such labels is one of accuracy"):
    dataclasses.replace(TOKENS, metric='r2')


def test_wrong_mask_rates_are_refused():
  for rate in (0.0, 1.0, -0.1):
    with pytest.raises(ValueError, match='pretrain.mask_rate is .* choose a rate between 0 and 1'):
      MaskedDenoising(TOKENS, mask_rate=rate)


def test_mean_of_nothing_hidden_is_finite_in_sums():
  objective = MaskedDenoising(TOKENS, mask_rate=0.5)
  prepared = objective.prepare(make_batch(TOKENS) | {'weight': np.zeros(3, np.float32)}, keys(3))
  total, count = objective.loss(jnp.ones((3, 8, 9)), prepared)
  assert (total, count) == (0, 0)
  merged = Mean.weighted(jnp.ones(2), jnp.ones(2)).merge(Mean.weighted(jnp.ones(2), jnp.zeros(2)))
  assert (merged.compute(), merged.count) == (1, 2)


def test_published_inputs_of_the_real_tasks():
  """d_input of the published code: the flag makes 2 channels of a gray pixel and 4 of a colour."""
  widths = {
    name: MaskedDenoising(get_task(name), mask_rate=0.5).channels
    for name in ('listops', 'image', 'scifar', 'pathfinder')
  }
  assert widths == {'listops': 0, 'image': 2, 'scifar': 4, 'pathfinder': 2}
  heads = {name: MaskedDenoising(get_task(name), mask_rate=0.5).head.outputs for name in widths}
  assert heads == {'listops': 19, 'image': 1, 'scifar': 3, 'pathfinder': 256}
  gray = dataclasses.replace(BYTES, inputs=Values(8, mean=(0.5,), std=(0.5,)))
  batch = make_batch(gray)
  prepared = MaskedDenoising(gray, mask_rate=0.5).prepare(batch, keys(3))
  assert prepared.targets.shape == (3, 8, 1)
