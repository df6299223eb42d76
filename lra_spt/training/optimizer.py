"""AdamW with a learning rate and weight decay per leaf, and the schedules of the published code.

`lra_spt.config.schema` holds their settings.

The optimizer state mirrors the parameters. Everything that a decision may change (learning rate, decay,
plateau counters) is an array in `state['control']`, so that a state can be vmapped over members with
different settings.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from lra_spt.config.schema import OptimizerSpec, ScheduleSpec
from lra_spt.models import ParameterGroup


def transform(spec: OptimizerSpec) -> optax.GradientTransformation:
  """Adam's direction, before learning rate and decay."""
  adam = optax.scale_by_adam(b1=spec.b1, b2=spec.b2, eps=spec.eps)
  return optax.chain(optax.clip_by_global_norm(spec.clip_norm), adam) if spec.clip_norm > 0 else adam


def directions(spec: OptimizerSpec, grads, opt, params):
  """(directions, new optimizer state) for the gradients of one step."""
  with jax.numpy_dtype_promotion('standard'):  # optax raises a float to an int32 count
    return transform(spec).update(grads, opt, params)


def multiplier(schedule: ScheduleSpec, step: jax.Array, steps_per_epoch: float) -> jax.Array:
  """Factor float32 [] on every learning rate at `step` (0 = first update). The factor of 'plateau' is
  `control['lr_scale']` instead."""
  step = step.astype(jnp.float32)
  warm = jnp.minimum(1.0, step / schedule.warmup_steps) if schedule.warmup_steps > 0 else jnp.float32(1)
  if schedule.ends:
    progress = jnp.maximum(
      (step - schedule.warmup_steps) / (schedule.total_steps - schedule.warmup_steps), 0.0
    )
    progress = progress if schedule.goes_on else jnp.minimum(progress, 1.0)
    return warm * (1 - progress if schedule.name == 'linear' else 0.5 * (1 + jnp.cos(math.pi * progress)))
  if schedule.name == 'multistep':
    for epoch in schedule.milestones:
      warm = warm * jnp.where(step >= epoch * steps_per_epoch, jnp.float32(schedule.factor), 1.0)
  return warm


def apply_update(params, directions, groups, control, multiplier):
  """New parameters; `groups` mirrors `params` with a ParameterGroup per leaf. Frozen ones stay."""
  scale = multiplier * control['lr_scale']

  def update(group: ParameterGroup, p, direction):
    if group.frozen:
      return p
    lr = control['learning_rate'] if group.learning_rate is None else jnp.float32(group.learning_rate)
    decay = control['weight_decay'] if group.decay else jnp.float32(0)
    return p - scale * lr * (direction + decay * p)

  return jax.tree.map(update, groups, params, directions, is_leaf=lambda x: isinstance(x, ParameterGroup))


def initial_control(optimizer: OptimizerSpec, mode: str) -> dict:
  """The arrays that decisions read and change. `mode` is 'max' or 'min' of the metric that chooses the best
  checkpoint."""
  worst = jnp.float32(-jnp.inf if mode == 'max' else jnp.inf)
  return {
    'learning_rate': jnp.float32(optimizer.lr),
    'weight_decay': jnp.float32(optimizer.weight_decay),
    'lr_scale': jnp.float32(1),
    'best': worst,
    'best_step': jnp.int32(-1),
    'bad_evaluations': jnp.int32(0),
    'plateau_best': worst,
    'plateau_bad': jnp.int32(0),
    'seconds': jnp.float32(0),
    'failed_step': jnp.int32(-1),
    'failed_leaf': jnp.int32(-1),
  }


# The power of two is exact in float32, and puts an evaluation without a score behind all that have one.
WITHOUT_SCORE = 2.0**32


def compared(metrics: Mapping[str, float | None], metric: str, mode: str) -> float:
  """The number by which validations are compared: the value of `metric`, or where it is not defined the loss
  with the sign of `mode`."""
  if (value := metrics[metric]) is not None:
    return value
  loss = min(WITHOUT_SCORE * metrics['loss'], float(jnp.finfo(jnp.float32).max))
  return -loss if mode == 'max' else loss


def after_evaluation(
  control: dict, metric: jax.Array, step: jax.Array, mode: str, schedule: ScheduleSpec
) -> dict:
  """Control after one validation: best metric and step, evaluations without improvement, the plateau's
  learning-rate scale.

  The plateau follows torch's ReduceLROnPlateau: an improvement beats the best by a relative 1e-4, and
  `patience` bad evaluations are forgiven.
  """
  sign = 1.0 if mode == 'max' else -1.0
  better = sign * metric > sign * control['best']
  control = control | {
    'best': jnp.where(better, metric, control['best']),
    'best_step': jnp.where(better, step, control['best_step']),
    'bad_evaluations': jnp.where(better, 0, control['bad_evaluations'] + 1),
  }
  if schedule.name != 'plateau':
    return control
  margin = 1e-4 * jnp.abs(control['plateau_best'])
  improved = sign * metric > sign * control['plateau_best'] + jnp.where(jnp.isfinite(margin), margin, 0.0)
  bad = jnp.where(improved, 0, control['plateau_bad'] + 1)
  reduce = bad > schedule.patience
  return control | {
    'plateau_best': jnp.where(improved, metric, control['plateau_best']),
    'plateau_bad': jnp.where(reduce, 0, bad),
    'lr_scale': control['lr_scale'] * jnp.where(reduce, jnp.float32(schedule.factor), 1.0),
  }
