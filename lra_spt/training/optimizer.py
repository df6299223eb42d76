"""AdamW with a learning rate and weight decay per leaf, and the schedules of the published code.

The optimizer state mirrors the parameters. Everything that a decision may change (learning rate, decay,
plateau counters) is an array in `state['control']`, so that a state can be vmapped over members with
different settings.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from lra_spt.errors import FieldError, check_least, nearest
from lra_spt.models import ParameterGroup


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
  """AdamW (Loshchilov & Hutter 2019) as in torch: p -= lr * (m / (sqrt(v) + eps) + weight_decay * p).
  clip_norm 0: no clipping."""

  lr: float
  weight_decay: float
  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8
  clip_norm: float = 0.0

  def __post_init__(self):
    check_least(self, 0, 'lr', 'weight_decay', 'b1', 'b2', 'eps', 'clip_norm')
    for field in ('b1', 'b2'):
      if getattr(self, field) >= 1:
        raise FieldError(field, f'is {getattr(self, field)}, but it must be below 1; correct it')

  def transform(self) -> optax.GradientTransformation:
    """Adam's direction, before learning rate and decay."""
    adam = optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps)
    return optax.chain(optax.clip_by_global_norm(self.clip_norm), adam) if self.clip_norm > 0 else adam

  def directions(self, grads, opt, params):
    """(directions, new optimizer state)."""
    with jax.numpy_dtype_promotion('standard'):  # optax raises a float to an int32 count
      return self.transform().update(grads, opt, params)


@dataclasses.dataclass(frozen=True)
class ScheduleSpec:
  """The course of the learning rate.

  constant: min(1, step / warmup_steps).
  cosine: that warmup, then half a cosine to 0 at total_steps (0: the stage's last); with `rises` the cosine
    goes on, up again and down (protocol.cosine_rises).
  linear: likewise a straight line.
  plateau: constant, times `factor` after more than `patience` evaluations without improvement.
  multistep: that warmup, times `factor` at each of `milestones` (epochs).
  """

  name: str = 'constant'
  warmup_steps: int = 0
  total_steps: int = 0
  factor: float = 0.2
  patience: int = 20
  milestones: tuple[int, ...] = ()
  rises: bool = False

  def __post_init__(self):
    names = ('constant', 'cosine', 'linear', 'plateau', 'multistep')
    if self.name not in names:
      raise FieldError(
        'name', f'is {self.name!r}; choose one of {", ".join(names)}.{nearest(self.name, names)}'
      )
    check_least(self, 0, 'warmup_steps', 'total_steps', 'factor', 'patience')
    for field in ('warmup_steps', 'total_steps', 'patience'):  # steps are counted in int32
      if getattr(self, field) >= 2**31:
        raise FieldError(field, f'is {getattr(self, field)}, but it must be below {2**31}; correct it')
    if any(epoch < 0 for epoch in self.milestones):
      raise FieldError('milestones', f'are {self.milestones}; give epochs of at least 0')
    if self.ends and self.total_steps and self.total_steps <= self.warmup_steps:
      raise FieldError(
        'warmup_steps',
        f'is {self.warmup_steps}, but a {self.name} schedule needs total_steps above warmup_steps, and its '
        f'total_steps are {self.total_steps}; lower the one or raise the other',
      )

  @property
  def ends(self) -> bool:
    """Whether the learning rate reaches 0 at total_steps."""
    return self.name in ('cosine', 'linear')

  @property
  def last_step(self) -> int:
    """After which the learning rate stays 0; 0: none is known."""
    return self.total_steps if self.ends and not self._goes_on else 0

  @property
  def _goes_on(self) -> bool:
    return self.rises and self.name == 'cosine'

  def resolved(self, steps: int) -> 'ScheduleSpec':
    """The schedule for a stage of `steps` steps: they stand in for total_steps = 0."""
    return self if self.total_steps or not self.ends else dataclasses.replace(self, total_steps=steps)

  def multiplier(self, step: jax.Array, steps_per_epoch: float) -> jax.Array:
    """Factor float32 [] on every learning rate at `step` (0 = first update); plateau's own factor is
    `control['lr_scale']`."""
    step = step.astype(jnp.float32)
    warm = jnp.minimum(1.0, step / self.warmup_steps) if self.warmup_steps > 0 else jnp.float32(1)
    if self.ends:
      progress = jnp.maximum((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 0.0)
      progress = progress if self._goes_on else jnp.minimum(progress, 1.0)
      return warm * (1 - progress if self.name == 'linear' else 0.5 * (1 + jnp.cos(math.pi * progress)))
    if self.name == 'multistep':
      for epoch in self.milestones:
        warm = warm * jnp.where(step >= epoch * steps_per_epoch, jnp.float32(self.factor), 1.0)
    return warm


def apply_update(params, directions, groups, control, multiplier):
  """New parameters; `groups` mirrors `params` with a ParameterGroup per leaf."""
  scale = multiplier * control['lr_scale']

  def update(group: ParameterGroup, p, direction):
    lr = control['learning_rate'] if group.learning_rate is None else jnp.float32(group.learning_rate)
    decay = control['weight_decay'] if group.decay else jnp.float32(0)
    return p - scale * lr * (direction + decay * p)

  return jax.tree.map(update, groups, params, directions, is_leaf=lambda x: isinstance(x, ParameterGroup))


def initial_control(optimizer: OptimizerSpec, mode: str) -> dict:
  """What decisions need, as arrays; `mode` is 'max' or 'min' of the metric that chooses the best
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
