"""AdamW agrees with torch's formula; schedules and the plateau agree with values computed by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.config.schema import NO_LIMIT, OptimizerSpec, ScheduleSpec, StageSpec
from lra_spt.errors import FieldError
from lra_spt.models import HeadSpec, InputSpec, Model, ModelSpec, ParameterGroup
from lra_spt.models.execution import ExecutionSpec
from lra_spt.training import state as states
from lra_spt.training.optimizer import (
  after_evaluation,
  apply_update,
  compared,
  directions,
  initial_control,
  multiplier,
  transform,
)


def torch_adamw(p, grads, *, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8):
  """The algorithm box of torch.optim.AdamW, in float64; `lr` per step."""
  m, v = np.zeros_like(p), np.zeros_like(p)
  for t, (g, rate) in enumerate(zip(grads, lr, strict=True), start=1):
    p = p - rate * weight_decay * p
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    p = p - rate * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
  return p


def run(spec, groups, params, grads, multipliers):
  """Returns the parameters after one of our updates for each element of `grads`."""
  control, opt = initial_control(spec, 'max'), transform(spec).init(params)

  @jax.jit
  def update(params, opt, g, factor):
    ours, opt = directions(spec, g, opt, params)
    return apply_update(params, ours, groups, control, factor), opt

  for g, factor in zip(grads, multipliers, strict=True):
    params, opt = update(params, opt, g, jnp.float32(factor))
  return params


def test_adamw_with_groups_equals_torch():
  rng = np.random.default_rng(0)
  params = {name: rng.normal(size=(3, 2)).astype(np.float32) for name in ('usual', 'own_rate', 'no_decay')}
  grads = [{name: rng.normal(size=(3, 2)).astype(np.float32) * 10.0**-k for name in params} for k in range(5)]
  groups = {
    'usual': ParameterGroup(),
    'own_rate': ParameterGroup(learning_rate=3e-3),
    'no_decay': ParameterGroup(decay=False),
  }
  multipliers = [0.0, 0.5, 1.0, 1.0, 0.2]
  spec = OptimizerSpec(lr=0.05, weight_decay=0.1, b2=0.98)
  ours = run(spec, groups, params, grads, multipliers)
  for name, lr, decay in (('usual', 0.05, 0.1), ('own_rate', 3e-3, 0.1), ('no_decay', 0.05, 0.0)):
    expected = torch_adamw(
      params[name].astype(np.float64),
      [g[name].astype(np.float64) for g in grads],
      lr=[lr * m for m in multipliers],
      weight_decay=decay,
      betas=(0.9, 0.98),
    )
    np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_clip_norm_is_global_and_off_at_zero():
  params = {'a': np.zeros(2, np.float32), 'b': np.zeros(1, np.float32)}
  grads = {'a': np.array([3.0, 0.0], np.float32), 'b': np.array([4.0], np.float32)}  # norm 5
  for clip_norm, factor in ((0.0, 1.0), (10.0, 1.0), (1.0, 0.2)):
    spec = OptimizerSpec(
      lr=1.0, weight_decay=0.0, b1=0.0, b2=0.0, eps=1.0, clip_norm=clip_norm
    )  # g / (|g| + 1)
    ours, _ = directions(spec, grads, transform(spec).init(params), params)
    for name, g in grads.items():
      np.testing.assert_allclose(ours[name], factor * g / (np.abs(factor * g) + 1), rtol=1e-5)


def multipliers(schedule, steps, steps_per_epoch=10):
  values = jax.vmap(lambda step: multiplier(schedule, step, steps_per_epoch))(jnp.array(steps, jnp.int32))
  assert values.dtype == jnp.float32
  return np.asarray(values)


def test_constant_and_plateau_warm_up_from_zero():
  for name in ('constant', 'plateau'):
    np.testing.assert_allclose(
      multipliers(ScheduleSpec(name, warmup_steps=4), [0, 1, 3, 4, 5, 1000]), [0, 0.25, 0.75, 1, 1, 1]
    )
    np.testing.assert_array_equal(multipliers(ScheduleSpec(name), [0, 7]), [1, 1])


@pytest.mark.parametrize('field', ['warmup_steps', 'total_steps', 'patience'])
def test_counts_that_no_step_can_compare_with_are_refused(field):
  with pytest.raises(FieldError, match=f'{field} is 2147483648, but it must be .* below 2147483648'):
    ScheduleSpec('plateau', **{field: 2**31})


def test_cosine():
  schedule = ScheduleSpec('cosine', warmup_steps=10, total_steps=110)
  expected = [0, 0.5, 1, 0.5 * (1 + math.cos(math.pi / 4)), 0.5, 0.5 * (1 + math.cos(0.9 * math.pi)), 0, 0]
  np.testing.assert_allclose(multipliers(schedule, [0, 5, 10, 35, 60, 100, 110, 200]), expected, atol=1e-6)
  assert ScheduleSpec('cosine', warmup_steps=10).resolved(50) == ScheduleSpec(
    'cosine', warmup_steps=10, total_steps=50
  )
  assert schedule.resolved(50) is schedule
  assert ScheduleSpec('constant').resolved(50) == ScheduleSpec('constant')
  # A constant schedule needs no total_steps, also during its warmup.
  constant = ScheduleSpec('constant', warmup_steps=10)
  np.testing.assert_allclose(multipliers(constant, [0, 5, 10, 500]), [0, 0.5, 1, 1])
  with pytest.raises(
    ValueError, match='warmup_steps is 10, but .* total_steps above warmup_steps, and its total_steps are 10'
  ):
    ScheduleSpec('cosine', warmup_steps=10, total_steps=10)
  with pytest.raises(
    ValueError, match='warmup_steps is 20, but .* total_steps above warmup_steps, and its total_steps are 10'
  ):
    ScheduleSpec('cosine', warmup_steps=20).resolved(10)


def test_cosine_that_rises_is_that_of_transformers():
  schedule = ScheduleSpec('cosine', warmup_steps=10, total_steps=110, rises=True)
  steps = [0, 5, 10, 60, 110, 135, 210, 235, 1000]

  def published(step):  # get_cosine_schedule_with_warmup, num_cycles 0.5
    if step < 10:
      return step / 10
    return max(0.0, 0.5 * (1 + math.cos(math.pi * 0.5 * 2 * (step - 10) / 100)))

  np.testing.assert_allclose(multipliers(schedule, steps), [published(step) for step in steps], atol=1e-5)
  falls = ScheduleSpec('linear', warmup_steps=10, total_steps=110, rises=True)
  np.testing.assert_array_equal(multipliers(falls, [110, 200]), [0, 0])


def test_a_stage_ends_where_its_learning_rate_does():
  def steps(name, total, rises=False, **limits):
    schedule = ScheduleSpec(name, total_steps=total, rises=rises)
    spec = StageSpec(batch_size=10, optimizer=OptimizerSpec(1e-3, 0.0), schedule=schedule, **limits)
    return spec.total_steps(1000)

  for name in ('cosine', 'linear'):
    assert steps(name, 300, epochs=20.0) == 300
    assert steps(name, 300, epochs=2.0) == 200
    assert steps(name, 300, epochs=20.0, max_steps=50) == 50
    assert steps(name, 0, epochs=20.0) == 2000
    assert steps(name, 300, epochs=0.0) == 300
  assert steps('cosine', 300, rises=True, epochs=20.0) == 2000
  assert steps('linear', 300, rises=True, epochs=20.0) == 300
  assert steps('constant', 300, epochs=20.0) == 2000


def test_time_alone_may_limit_a_stage():
  def stage(name='constant', total=0, **limits):
    schedule = ScheduleSpec(name, total_steps=total)
    return StageSpec(batch_size=64, optimizer=OptimizerSpec(1e-3, 0.0), schedule=schedule, **limits)

  assert stage(epochs=0.0, max_seconds=60.0).total_steps(300) == NO_LIMIT
  assert stage('linear', 500, epochs=0.0, max_seconds=60.0).total_steps(300) == 500
  with pytest.raises(
    FieldError, match='epochs is 0, and so are max_steps and max_seconds, so nothing bounds'
  ):
    stage(epochs=0.0).total_steps(300)
  with pytest.raises(
    FieldError, match='schedule.total_steps is 0, the end of the stage, but max_seconds alone'
  ):
    stage('cosine', epochs=0.0, max_seconds=60.0).total_steps(300)


def test_linear():
  schedule = ScheduleSpec('linear', warmup_steps=10, total_steps=110)
  expected = [0, 0.5, 1, 0.75, 0.5, 0.1, 0, 0]
  np.testing.assert_allclose(multipliers(schedule, [0, 5, 10, 35, 60, 100, 110, 200]), expected, atol=1e-6)
  assert ScheduleSpec('linear').resolved(50) == ScheduleSpec('linear', total_steps=50)
  with pytest.raises(ValueError, match='warmup_steps is 10, but a linear schedule needs total_steps above'):
    ScheduleSpec('linear', warmup_steps=10, total_steps=10)


def test_multistep():
  schedule = ScheduleSpec('multistep', factor=0.5, milestones=(2, 4))
  np.testing.assert_allclose(multipliers(schedule, [0, 19, 20, 39, 40, 500]), [1, 1, 0.5, 0.5, 0.25, 0.25])
  with pytest.raises(ValueError, match="name is 'straight'; choose"):
    ScheduleSpec('straight')


def reduce_on_plateau(values, mode, factor, patience, threshold=1e-4):
  """Returns the scale after every evaluation, as torch's ReduceLROnPlateau with cooldown 0 computes it."""
  best, bad, scale, scales = None, 0, 1.0, []
  for value in values:
    if best is None or (value > best * (1 + threshold) if mode == 'max' else value < best * (1 - threshold)):
      best, bad = value, 0
    else:
      bad += 1
    if bad > patience:
      scale, bad = scale * factor, 0
    scales.append(scale)
  return scales


@pytest.mark.parametrize('mode', ['max', 'min'])
def test_plateau_and_best(mode):
  rng = np.random.default_rng(3)
  values = np.concatenate(
    [[0.5, 0.50001, 0.6, 0.6, 0.55, 0.1, 0.6, 0.60004, 0.7], 0.4 + 0.3 * rng.random(15)]
  )
  schedule = ScheduleSpec('plateau', factor=0.2, patience=2)
  spec = OptimizerSpec(lr=1.0, weight_decay=0.0)
  control, scales, best_steps, bad = initial_control(spec, mode), [], [], []
  after = jax.jit(lambda control, value, step: after_evaluation(control, value, step, mode, schedule))
  for step, value in enumerate(values):
    control = after(control, jnp.float32(value), jnp.int32(step))
    scales.append(float(control['lr_scale']))
    best_steps.append(int(control['best_step']))
    bad.append(int(control['bad_evaluations']))
  np.testing.assert_allclose(scales, reduce_on_plateau(values, mode, 0.2, 2), rtol=1e-5)
  assert scales[-1] < 0.1, 'the plateau was never left behind twice'
  pick = np.argmax if mode == 'max' else np.argmin
  assert best_steps == [int(pick(values[: n + 1])) for n in range(len(values))]
  assert bad == [n - best for n, best in enumerate(best_steps)]
  np.testing.assert_allclose(control['best'], values.max() if mode == 'max' else values.min(), rtol=1e-6)
  np.testing.assert_allclose(initial_control(spec, mode)['lr_scale'], 1)


@pytest.mark.parametrize('mode', ['max', 'min'])
def test_a_validation_without_a_score_is_compared_by_its_loss(mode):
  """Without a score, the loss decides on the plateau and on the best step. Any score is better than none."""
  losses = np.concatenate([[2e-9, 1e-9, 0.5, 0.6, 1e30], 0.4 + 0.3 * np.random.default_rng(0).random(9)])
  spec, schedule = OptimizerSpec(lr=1.0, weight_decay=0.0), ScheduleSpec('plateau', factor=0.2, patience=1)
  actual = initial_control(spec, mode)
  expected = initial_control(spec, 'min')
  for step, loss in enumerate(losses):
    value = compared({'r': None, 'loss': float(loss)}, 'r', mode)
    actual = after_evaluation(actual, jnp.float32(value), jnp.int32(step), mode, schedule)
    expected = after_evaluation(expected, jnp.float32(loss), jnp.int32(step), 'min', schedule)
    for name in ('best_step', 'bad_evaluations', 'plateau_bad', 'lr_scale'):
      assert actual[name] == expected[name]
  assert int(actual['best_step']) == 1
  for score in (-0.9, 0.0, 0.9):
    unscored, scored = (compared({'r': r, 'loss': 0.01}, 'r', mode) for r in (None, score))
    assert (scored > unscored) == (mode == 'max')


def test_only_the_plateau_touches_the_rate_and_nan_is_never_best():
  control = initial_control(OptimizerSpec(lr=1.0, weight_decay=0.0), 'max')
  for step in range(5):
    control = after_evaluation(
      control, jnp.float32(math.nan if step < 2 else 0.5), jnp.int32(step), 'max', ScheduleSpec(patience=0)
    )
  assert (int(control['best_step']), float(control['best']), float(control['lr_scale'])) == (2, 0.5, 1.0)


def groups_of(decay_everything):
  spec = ModelSpec('test', 8, 2, {'name': 'attention', 'heads': 2}, feed_forward=8, position='learned')

  def make(rngs):
    return Model(
      spec,
      InputSpec(6, vocabulary=5),
      HeadSpec('linear', 3),
      causal=False,
      protocol=protocol.CLEAN,
      execution=ExecutionSpec(),
      rngs=rngs,
    )

  return states.blueprint(make, 6, decay_everything=decay_everything)


def test_decay_leaves_out_biases_norms_and_tables_unless_as_published():
  clean, paper = groups_of(False), groups_of(True)
  assert all(jax.tree.leaves(jax.tree.map(lambda group: group.decay, paper.groups)))
  names = states.leaf_names(clean.params)
  groups = jax.tree.leaves(clean.groups)
  assert jax.tree.structure(clean.groups) == jax.tree.structure(clean.params)
  assert len(names) == len(groups)
  decayed = {name for name, group in zip(names, groups, strict=True) if group.decay}
  assert decayed == {name for name in names if name.endswith('/kernel')}
  assert {'encoder/embed/embedding', 'encoder/position', 'encoder/norm/norm/scale'} <= set(names) - decayed
  assert all(group.learning_rate is None for group in groups)


def test_what_a_module_declares_wins():
  class Declared(nnx.Module):
    def __init__(self, rngs):
      self.weight = nnx.Param(jnp.ones((2, 2)), group=ParameterGroup(1e-3, decay=False))
      self.kernel = nnx.Param(jnp.ones((2, 2)))

    def flops(self, length):
      return length

  groups = states.blueprint(lambda rngs: Declared(rngs), 3, decay_everything=True).groups
  assert groups == {'weight': ParameterGroup(1e-3, decay=False), 'kernel': ParameterGroup(decay=True)}
