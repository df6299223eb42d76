"""Evaluation over every example of a split, each once, for any batch size, number of devices and processes.

Sums and counts are float32, so metrics of more than 2^24 positions are good to about seven digits.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt import parallel
from lra_spt.data import pipeline
from lra_spt.data.examples import Examples
from lra_spt.errors import ConfigError, NonFiniteError
from lra_spt.training.sharing import shared


@shared
def evaluation_step(model, objective):
  """Jitted `(params, stats, batch, key, collected) -> (collected, predictions [B])`.

  Masks come from `key` folded with each example's index, so they are the same at every evaluation, on any
  machine.
  """

  def run(params, stats, batch, key, collected):
    keys_B = jax.vmap(lambda index: jax.random.fold_in(key, index))(batch['index'])
    prepared = objective.prepare(batch, keys_B)
    outputs = model.merge(params, stats)(prepared.inputs, lengths_B=prepared.lengths_B, deterministic=True)
    return collected.merge(objective.measure(outputs, prepared)), objective.predictions(outputs)

  return jax.jit(run)


def evaluation_key(seed: int) -> jax.Array:
  """What the masks of a run's evaluations are drawn from."""
  return jax.random.fold_in(jax.random.key(seed), 0x5EED)


class Evaluator:
  """Evaluates one objective on whole splits with one compiled program.

  Args:
    drop_last: leave the last incomplete batch out, as the published code does
      (protocol.drop_last_evaluation_batch).
  """

  def __init__(
    self, model, objective, *, mesh, batch_size: int, seed: int, drop_last: bool = False, threads: int = 4
  ):
    parallel.check_batch_size(batch_size, mesh, 'the evaluation batch size')
    self.objective, self.mesh, self.batch_size, self.drop_last = objective, mesh, batch_size, drop_last
    self.threads = threads
    self.key = evaluation_key(seed)
    self._step = evaluation_step(model, objective)
    self._empty = _nothing_yet(objective)
    self._everywhere = _gathering(mesh)

  def __call__(
    self, state: dict, examples: Examples, *, redraw: int | None = None, predictions: bool = False
  ):
    """Metrics of a split as a dict of floats; with `predictions` also arrays index, label, prediction
    ([N], in stored order).

    redraw: folds this number into the key, for the published code's fresh masks at every validation.

    Raises:
      NonFiniteError: a metric is not finite.
    """
    if self.drop_last and len(examples) < self.batch_size:
      raise ConfigError(
        f'the {len(examples)} examples of the {examples.split} split do not fill one batch of '
        f'{self.batch_size}, and protocol paper leaves incomplete batches out; set a smaller '
        'batch_size or use protocol clean'
      )
    key = self.key if redraw is None else jax.random.fold_in(self.key, redraw)
    rows = parallel.local_rows(self.mesh, self.batch_size)
    collected = self._empty()
    kept = []
    batches = pipeline.evaluation_batches(
      examples, batch_size=self.batch_size, rows=rows, drop_last=self.drop_last, threads=self.threads
    )
    with contextlib.closing(batches):  # which are read ahead in threads
      for local in batches:
        batch = parallel.to_devices(local, self.mesh, self.batch_size, rows)
        collected, predicted_B = self._step(state['params'], state['stats'], batch, key, collected)
        if predictions:
          kept.append(self._everywhere((batch['weight'], batch['index'], batch['label'], predicted_B)))
    metrics = {name: float(value) for name, value in collected.compute().items()}
    for name, value in metrics.items():
      if not np.isfinite(value):
        raise NonFiniteError(
          f'{name} of the {examples.split} split is {value}; look at the set with lra-spt inspect, or train '
          'with a lower optimizer.lr in another --workdir'
        )
    return (metrics, _concatenate(kept)) if predictions else metrics


@shared
def _nothing_yet(objective):
  return jax.jit(lambda: jax.tree.map(jnp.asarray, objective.metrics.empty()))


@shared
def _gathering(mesh):
  return jax.jit(lambda x: x, out_shardings=parallel.replicated(mesh))


def evaluator_of(built, mesh) -> Evaluator:
  """The Evaluator of a stage, see `lra_spt.build.Built`."""
  # Where the batch size decides which examples are left out, it is the stage's, whatever the runtime says.
  drop_last, size = built.protocol.drop_last_evaluation_batch, built.spec.batch_size
  return Evaluator(
    built.model,
    built.objective,
    mesh=mesh,
    seed=built.seed,
    drop_last=drop_last,
    batch_size=size if drop_last else built.runtime.evaluation_batch_size or size,
    threads=built.runtime.threads,
  )


def _concatenate(kept) -> dict[str, np.ndarray]:
  weight, index, label, prediction = (
    np.concatenate([np.asarray(part) for part in parts]) for parts in zip(*kept, strict=True)
  )
  real = weight > 0
  return {'index': index[real], 'label': label[real], 'prediction': prediction[real]}
