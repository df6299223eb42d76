"""The jitted, sharded train dispatch: several optimizer steps per call, with accumulated gradients and a
guard against non-finite numbers."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt import objectives
from lra_spt.config.schema import OptimizerSpec, ScheduleSpec
from lra_spt.distributed.sharding import constrain_rows
from lra_spt.models import ParameterGroup
from lra_spt.training import optimizer as optimizers
from lra_spt.training import population
from lra_spt.training.device_data import PlacedChunk
from lra_spt.training.programs import shared
from lra_spt.training.state import Blueprint


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """All static parts of a train step; see `train_steps`."""

  model: Blueprint
  objective: object
  optimizer: OptimizerSpec
  schedule: ScheduleSpec
  steps_per_epoch: float
  microbatches: int = 1


def row_keys(key: jax.Array, step: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns a key per row of the global batch of `step`, the same for any number of devices, processes and
  microbatches."""
  key = jax.random.fold_in(key, step)
  return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def summed_loss(program: StepProgram, stats, batch, keys_B) -> Callable:
  """Returns a function of params for one microbatch: (summed loss, (number of terms, new BatchNorm
  statistics))."""
  task = program.objective.task
  prepared = program.objective.prepare(batch, jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys_B))
  prepared = jax.tree.map(constrain_rows, prepared)  # not over 'seq', where shifted targets would move

  def total_loss(params):
    model = program.model.merge(_without_frozen_gradients(program.model.groups, params), stats)
    dropout_keys_B = objectives.row_keys(task, jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys_B))
    outputs = model(prepared.inputs, lengths_B=prepared.lengths_B, deterministic=False, rngs=dropout_keys_B)
    loss, count = program.objective.loss(outputs, prepared)
    moved = nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param)))
    return loss, (count, _unless(program.model.frozen_stats, stats, moved))

  return total_loss


def _without_frozen_gradients(groups, params):
  """The parameters; gradients of frozen ones are zeros, which XLA does not compute."""
  return _of_groups(lambda group, p: lax.stop_gradient(p) if group.frozen else p, groups, params)


def _of_groups(function, groups, *trees):
  return jax.tree.map(function, groups, *trees, is_leaf=lambda x: isinstance(x, ParameterGroup))


def _unless(frozen, old, new):
  return jax.tree.map(lambda is_frozen, x, y: x if is_frozen else y, frozen, old, new)


def _microbatch(program: StepProgram, params, stats, batch, keys_B):
  """Returns (gradient of the summed loss, loss sum, count, new BatchNorm statistics) of one microbatch."""
  total_loss = summed_loss(program, stats, batch, keys_B)
  (loss, (count, stats)), grads = jax.value_and_grad(total_loss, has_aux=True)(params)
  return grads, loss, count, stats


def _gradients(program: StepProgram, state, batch, key):
  """Returns (gradient of the mean loss, loss, new statistics) of the whole batch. Microbatches accumulate
  sums, so the mean is exact."""
  parts = program.microbatches
  keys_B = row_keys(key, state['step'], jnp.arange(batch['weight'].shape[0]))
  if parts == 1:
    grads, loss, count, stats = _microbatch(program, state['params'], state['stats'], batch, keys_B)
  else:
    # Microbatch m takes rows m, m + parts, ..., so that no row moves to another device.
    split = jax.tree.map(
      lambda x: jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0), (batch, keys_B)
    )

    def accumulate(carry, part):
      grads, loss, count, stats = carry
      part_batch, part_keys = jax.tree.map(constrain_rows, part[0]), part[1]
      part_grads, part_loss, part_count, stats = _microbatch(
        program, state['params'], stats, part_batch, part_keys
      )
      grads = jax.tree.map(jnp.add, grads, part_grads)
      return (grads, loss + part_loss, count + part_count, stats), None

    zeros = jax.tree.map(jnp.zeros_like, state['params'])
    (grads, loss, count, stats), _ = lax.scan(
      accumulate, (zeros, jnp.float32(0), jnp.float32(0), state['stats']), split
    )
  count = jnp.maximum(count, 1)
  return jax.tree.map(lambda g: g / count, grads), loss / count, stats


def _first_bad_leaf(groups, grads, params, stats, loss) -> jax.Array:
  """Returns -1 if all is finite, else the index of the first leaf of the parameters that is not. For the loss
  or the statistics it is the number of these leaves. Frozen leaves count as finite."""

  def finite(group, g, p):
    return jnp.array(True) if group.frozen else jnp.isfinite(jnp.sum(g * g)) & jnp.all(jnp.isfinite(p))

  flags = jax.tree.leaves(_of_groups(finite, groups, grads, params))
  rest = functools.reduce(
    jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(stats)], jnp.isfinite(loss)
  )
  bad = ~jnp.stack([*flags, rest])
  return jnp.where(jnp.any(bad), jnp.argmax(bad), -1).astype(jnp.int32)


def train_step(program: StepProgram, state: dict, batch: dict, key: jax.Array):
  """One update; a non-finite step, and every step after it, leaves the state as it was and is recorded in
  `control`.

  Returns:
    (state, (loss, gradient norm, learning rate)), each float32 [].
  """
  control = state['control']
  grads, loss, stats = _gradients(program, state, batch, key)
  directions, opt = optimizers.directions(program.optimizer, grads, state['opt'], state['params'])
  multiplier = optimizers.multiplier(program.schedule, state['step'], program.steps_per_epoch)
  params = optimizers.apply_update(state['params'], directions, program.model.groups, control, multiplier)

  bad_leaf = _first_bad_leaf(program.model.groups, grads, params, stats, loss)
  failed_before = control['failed_step'] >= 0
  keep = failed_before | (bad_leaf >= 0)
  new = {'step': state['step'] + 1, 'params': params, 'stats': stats, 'opt': opt, 'control': control}
  state = jax.tree.map(lambda old, fresh: jnp.where(keep, old, fresh), state, new)
  first_failure = (bad_leaf >= 0) & ~failed_before
  state['control'] = control | {
    'failed_step': jnp.where(first_failure, state['step'], control['failed_step']),
    'failed_leaf': jnp.where(first_failure, bad_leaf, control['failed_leaf']),
  }
  norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
  return state, (loss, norm, multiplier * control['lr_scale'] * control['learning_rate'])


def _batch(examples, chunk, i):
  """Returns batch i of a chunk, which holds batches, or positions if the examples lie on the devices."""
  if examples is not None:
    batch = examples.gather(chunk[i])
  else:
    batch = jax.tree.map(lambda x: constrain_rows(lax.dynamic_index_in_dim(x, i, keepdims=False)), chunk)
  # The barrier makes both the same program. Without it XLA uses constants of a batch, such as weights that
  # are all 1, to simplify the step, which then rounds differently.
  return lax.optimization_barrier(batch)


@shared
def train_steps(program: StepProgram) -> Callable:
  """Jitted `(state, chunk, count, key) -> (state, records)`; the state is donated.

  chunk: k batches with leaves [k, B, ...], rows split over ('data', 'fsdp'), or a `device_data.PlacedChunk`.
  count: int32 [], the number of the k batches to run, so that one compiled program serves every chunk.
  records: loss, gradient_norm, learning_rate, float32 [k].

  On a mesh for several runs all of these are stacked, see `population`; a member whose count is 0 waits.
  """

  def steps(examples, state, chunk, count, key):
    k = len(chunk if examples is not None else chunk['weight'])

    def body(i, carry):
      state, records = carry
      state, values = train_step(program, state, _batch(examples, chunk, i), key)
      return state, tuple(r.at[i].set(v) for r, v in zip(records, values, strict=True))

    records = tuple(jnp.zeros(k, jnp.float32) for _ in range(3))
    state, records = lax.fori_loop(0, count, body, (state, records))
    return state, dict(zip(('loss', 'gradient_norm', 'learning_rate'), records, strict=True))

  def run(state, chunk, count, key):
    examples, chunk = chunk if isinstance(chunk, PlacedChunk) else (None, chunk)
    return population.each(steps)(examples, state, chunk, count, key)

  return jax.jit(run, donate_argnums=0)
