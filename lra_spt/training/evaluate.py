"""Evaluation on all examples of a split, each once, for any batch size, number of devices and processes.

Sums and counts are float32, so metrics over more than 2^24 positions are accurate to about seven digits.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.data import measures, pipeline
from lra_spt.data.examples import Examples
from lra_spt.distributed import processes, settings, sharding
from lra_spt.errors import ConfigError, Interrupted, NonFiniteError
from lra_spt.training import population
from lra_spt.training.in_flight import InFlight
from lra_spt.training.programs import shared
from lra_spt.training.state import not_finite


@shared
def evaluation_step(model, objective):
  """Jitted `(params, stats, batch, key, collected) -> (collected, predictions [B])`.

  Masks come from `key` folded with each example's index, so they are the same at every evaluation, on any
  machine. On a mesh for several runs everything but the batch is stacked, see `population`.
  """

  def one(batch, params, stats, key, collected):
    keys_B = jax.vmap(lambda index: jax.random.fold_in(key, index))(batch['index'])
    prepared = objective.prepare(batch, keys_B)
    outputs = model.merge(params, stats)(prepared.inputs, lengths_B=prepared.lengths_B, deterministic=True)
    return collected.merge(objective.measure(outputs, prepared)), objective.predictions(outputs)

  def run(params, stats, batch, key, collected):
    return population.each(one)(batch, params, stats, key, collected)

  return jax.jit(run)


def evaluation_key(seed: int) -> jax.Array:
  """The key of the masks in a run's evaluations."""
  return jax.random.fold_in(settings.random_key(seed), 0x5EED)


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
  """An evaluation of one run.

  metrics: {name: value}, None for a metric that is not defined.
  undefined: {name: why} of these.
  predictions: arrays index, label and prediction, each [N] in stored order, the latter two [N, L] for labels
    of positions and [N, K] for several labels or dimensions; None if nothing needs them.
  """

  metrics: dict[str, float | None]
  undefined: dict[str, str] = dataclasses.field(default_factory=dict)
  predictions: dict[str, np.ndarray] | None = None


class Evaluator:
  """Evaluates one objective on whole splits with one compiled program.

  Args:
    drop_last: leave the last incomplete batch out, as the published code does
      (protocol.drop_last_evaluation_batch).
  """

  def __init__(self, model, objective, *, mesh, batch_size: int, drop_last: bool = False, threads: int = 4):
    sharding.check_batch_size(batch_size, mesh, 'the evaluation batch size')
    self.objective, self.mesh, self.batch_size, self.drop_last = objective, mesh, batch_size, drop_last
    self.threads = threads
    self._step = evaluation_step(model, objective)
    self._empty = _nothing_yet(objective)
    self._everywhere = population.gathering(mesh)

  def of_each(
    self,
    state: dict,
    examples: Examples,
    seeds: list[int],
    *,
    redraw: list[int] | None = None,
    predictions: bool = False,
    whole: bool = False,
  ) -> 'list[Measured | NonFiniteError]':
    """Evaluates each run of a state, which is stacked if the mesh has members, see `population`.

    Args:
      seeds: of the runs; the state of one run takes one.
      redraw: a number for each run that is folded into its key, because the published code draws new masks at
        every validation; None: the same masks every time.
      predictions: return also the predictions.
      whole: evaluate also the last incomplete batch, whatever `drop_last` says.

    Returns:
      For each run what was measured; a NonFiniteError where its loss is not finite.

    Raises:
      Interrupted: the process was asked to end.
    """
    drop_last, further = self.drop_last and not whole, getattr(self.objective, 'of_all_predictions', ())
    gathers = predictions or bool(further)
    if drop_last:
      check_fills_a_batch(examples, self.batch_size)
    count, keys = len(seeds), [evaluation_key(seed) for seed in seeds]
    if redraw is not None:
      keys = [jax.random.fold_in(key, number) for key, number in zip(keys, redraw, strict=True)]
    key = population.stack(keys, self.mesh)
    collected = population.stack([self._empty()] * count, self.mesh)
    rows = sharding.local_rows(self.mesh, self.batch_size)
    parts, in_flight = [], InFlight('batches of an evaluation')
    batches = pipeline.evaluation_batches(
      examples, batch_size=self.batch_size, rows=rows, drop_last=drop_last, threads=self.threads
    )
    with contextlib.closing(batches):  # ends the threads that read ahead
      for local in batches:
        in_flight.wait_for_room(1)
        if processes.asked_to_end():
          raise Interrupted(
            f'the evaluation on the {examples.split} split was asked to end; the same command repeats it.'
          )
        batch = sharding.to_devices(local, self.mesh, self.batch_size, rows)
        collected, predicted = self._step(state['params'], state['stats'], batch, key, collected)
        in_flight.add(jax.tree.leaves(collected)[0], 1)
        if gathers:
          parts.append(self._everywhere((batch['weight'], batch['index'], batch['label'], predicted)))
    members = [population.member(collected, i, self.mesh) for i in range(count)]
    answers = [None] * count
    if gathers:
      answers = _concatenate(parts, count, population.stacks(self.mesh))
    return [
      _measured(*each, examples, functools.partial(population.member, state, i, self.mesh), further)
      for i, each in enumerate(zip(members, answers, strict=True))
    ]


def check_fills_a_batch(examples: Examples, batch_size: int) -> None:
  """Raises a ConfigError if no batch is complete, for a protocol that leaves incomplete batches out."""
  if len(examples) < batch_size:
    raise ConfigError(
      f'the {len(examples)} examples of the {examples.split} split do not fill one batch of {batch_size}, '
      'and protocol paper leaves incomplete batches out; set a smaller batch_size or use protocol clean'
    )


def _measured(collected, predictions, examples, state, further=()) -> Measured | NonFiniteError:
  """Makes what was measured from the merged collection of a run; state() returns its state.

  further: names of metrics that are computed from the predictions.
  """
  metrics = {name: float(value) for name, value in collected.compute().items()}
  if not float(getattr(collected.loss, 'count', 1)):
    return NonFiniteError(
      f'the {examples.split} split has nothing to predict, so it has no loss; where positions are '
      'hidden, raise pretrain.mask_rate'
    )
  if not np.isfinite(metrics['loss']):
    if (held := not_finite(state())) is not None:
      return NonFiniteError(
        f'loss of the {examples.split} split is {metrics["loss"]}, because {held} of the model holds a '
        'number that is not finite; use another checkpoint, or other weights'
      )
    return NonFiniteError(
      f'loss of the {examples.split} split is {metrics["loss"]}; check the set with lra-spt inspect, or '
      'train with a lower optimizer.lr in another --workdir'
    )
  undefined = {}
  for name, value in metrics.items():
    reason = getattr(getattr(collected, name), 'why_undefined', str)()
    if reason or not np.isfinite(value):
      undefined[name] = reason or f'{name} is {value} over these examples'
  if further:
    label, prediction = predictions['label'], predictions['prediction']
    metrics |= measures.measured(further, label, prediction)
    undefined |= {n: measures.why_undefined(n, label) for n in further if not np.isfinite(metrics[n])}
  return Measured(metrics | dict.fromkeys(undefined), undefined, predictions)


@shared
def _nothing_yet(objective):
  return jax.jit(lambda: jax.tree.map(jnp.asarray, objective.metrics.empty()))


def evaluator_of(built, mesh) -> Evaluator:
  """Makes the Evaluator of a stage, a `lra_spt.runs.stage.Built`."""
  # With drop_last the batch size decides which examples are left out. It is then always that of the stage.
  drop_last, size = built.protocol.drop_last_evaluation_batch, built.spec.batch_size
  return Evaluator(
    built.model,
    built.objective,
    mesh=mesh,
    drop_last=drop_last,
    batch_size=size if drop_last else built.runtime.evaluation_batch_size or size,
    threads=built.runtime.threads,
  )


def _concatenate(batches, count: int, stacked: bool) -> list[dict[str, np.ndarray]]:
  """Joins (weight, index, label, predictions) of batches for each run: [B, ...] each, predictions [runs, B,
  ...] if stacked."""
  parts = [[np.asarray(part) for part in parts] for parts in zip(*batches, strict=True)]
  weight, index, label = (np.concatenate(part) for part in parts[:3])
  predicted = np.concatenate(parts[3], axis=int(stacked))
  real = weight > 0
  return [
    {'index': index[real], 'label': label[real], 'prediction': of_run[real]}
    for of_run in (predicted[:count] if stacked else [predicted])
  ]
