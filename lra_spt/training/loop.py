"""The loop of one stage: batches -> dispatches -> evaluations -> checkpoints; it can stop at any moment."""

import contextlib
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from lra_spt import parallel, processes
from lra_spt.data import pipeline
from lra_spt.errors import ConfigError, FieldError, Interrupted, NonFiniteError, check_least
from lra_spt.training import resident, trackers
from lra_spt.training import state as states
from lra_spt.training.checkpoints import Checkpoints
from lra_spt.training.evaluate import evaluator_of
from lra_spt.training.hooks import Profile, ReportProgress, TrainLog
from lra_spt.training.ledger import Ledger
from lra_spt.training.metric_writers import create_writer
from lra_spt.training.optimizer import OptimizerSpec, ScheduleSpec, after_evaluation
from lra_spt.training.step import StepProgram, train_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSpec:
  """How long and how a stage trains. Limits of 0 do not limit; the first one reached ends the stage.

  evaluate_every: in steps; 0 = once per epoch. patience: evaluations without improvement. data_fraction: of
  the training examples that are used, see `Examples.part`.
  """

  batch_size: int
  epochs: float
  optimizer: OptimizerSpec
  schedule: ScheduleSpec
  max_steps: int = 0
  max_seconds: float = 0
  patience: int = 0
  evaluate_every: int = 0
  data_fraction: float = 1.0

  def __post_init__(self):
    check_least(self, 1, 'batch_size')
    check_least(self, 0, 'epochs', 'max_steps', 'max_seconds', 'patience', 'evaluate_every')
    if not 0 < self.data_fraction <= 1:
      raise FieldError(
        'data_fraction', f'is {self.data_fraction}, but it must be above 0 and at most 1; correct it'
      )

  def total_steps(self, examples: int) -> int:
    """Steps that epochs and max_steps allow on `examples` of training; FieldError when neither limits."""
    steps = pipeline.total_steps(examples, self.batch_size, self.epochs, self.max_steps)
    if steps is None:
      raise FieldError('epochs', 'is 0 and max_steps is 0, so nothing bounds the stage; set one of them')
    return steps


@dataclasses.dataclass(frozen=True)
class LoopSpec:
  """How a stage is run; changes nothing about its result beyond rounding.

  microbatches: parts of a batch whose gradients are accumulated (BatchNorm's statistics are then those of the
  parts). placement: where training examples lie, see `resident.choose`. log_every: steps between log lines.
  checkpoint_every, checkpoint_minutes: steps and time between checkpoints beside those at evaluations; 0 =
  none. evaluation_batch_size: 0 = as in training. training_examples: so many are evaluated whenever the
  validation set is, for curves only. trackers: see `trackers.names`.
  """

  steps_per_dispatch: int = 8
  microbatches: int = 1
  placement: str = ''
  log_every: int = 50
  checkpoint_every: int = 0
  checkpoint_minutes: float = 10.0
  threads: int = 4
  evaluation_batch_size: int = 0
  training_examples: int = 0
  tensorboard: bool = True
  trackers: str = ''
  progress: bool = True
  profile_steps: int = 0

  def __post_init__(self):
    check_least(self, 1, 'steps_per_dispatch', 'microbatches', 'log_every')
    check_least(self, 0, 'checkpoint_every', 'checkpoint_minutes', 'threads')
    check_least(self, 0, 'evaluation_batch_size', 'training_examples', 'profile_steps')
    resident.check_placement(self.placement)
    trackers.names(self.trackers)


@dataclasses.dataclass
class StageResult:
  """state: {step, params, stats} of the best validation; time: `Ledger.parts` of this process. The rest is
  what result.json reports."""

  state: dict
  steps: int
  seconds: float
  best_step: int
  metrics: dict
  time: dict


def stage_key(seed: int, stage_number: int) -> jax.Array:
  """The key that all random numbers of a stage are drawn from."""
  return jax.random.fold_in(jax.random.key(seed), stage_number)


def initial_key(stage_key: jax.Array) -> jax.Array:
  """The key of a stage's initial values."""
  return jax.random.fold_in(stage_key, 0)


class Stage:
  """Trains one stage. `run()` starts or resumes; the folder decides which.

  Args:
    built: what to train, see `lra_spt.Built`.
    data: {'train', 'validation': `Examples`}.
    mesh: to train on.
    directory: where checkpoints and metrics go.
    start: makes the state to start from, from a fresh one (loading a pretrained encoder), and is called only
      when there is nothing to resume; None: the fresh one.
    again: what else to write when the run is started again otherwise, as part of a sentence.
  """

  def __init__(self, built, data, mesh, directory, start=None, again=''):
    self.built, self.mesh, self.directory, self.start, self.again = built, mesh, directory, start, again
    spec, loop, protocol = built.spec, built.runtime, built.protocol
    self.train, self.validation = data['train'].part(spec.data_fraction), data['validation']
    self.some_of_training = self.train.part(min(1.0, (loop.training_examples or 1) / len(self.train)))
    self.name, self.spec, self.loop, self.objective = built.name, spec, loop, built.objective
    self.redraw_validation = protocol.redraw_validation_masks and built.name == 'pretrain'
    steps_per_epoch = len(self.train) / spec.batch_size
    self.total = spec.total_steps(len(self.train))
    self.placement = resident.choose(loop.placement, self.train, mesh)
    schedule = spec.schedule.resolved(self.total)
    self.program = StepProgram(
      built.model, built.objective, spec.optimizer, schedule, steps_per_epoch, loop.microbatches
    )
    self.evaluator = evaluator_of(built, mesh)
    self._evaluate_every = spec.evaluate_every or max(1, int(steps_per_epoch))

  def run(self) -> StageResult:
    """Trains to the end and returns the best state.

    Raises:
      NonFiniteError: with the step and the parameter.
      CheckpointError: when the checkpoint to resume from is damaged or of another model.
      Interrupted: the process was asked to end, and the state is saved.
    """
    with _naming_lack_of_memory(self.name, self.spec.batch_size):
      opened = Checkpoints(self.directory / 'checkpoints', in_background=True)
      with contextlib.closing(opened) as checkpoints:
        return self._run(checkpoints)

  def _first_state(self, checkpoints):
    latest = checkpoints.latest_step()
    if processes.agreed(-1 if latest is None else latest, 'the latest checkpoint') >= 0:
      state = checkpoints.load_latest(self.built.abstract_state(self.mesh))
      if int(state['control']['best_step']) >= 0:  # or its loss would be noticed only at the end
        checkpoints.check_best()
      return state
    fresh = self.built.fresh_state(self.mesh)
    return fresh if self.start is None else self.start(fresh)

  def _run(self, checkpoints) -> StageResult:
    state = self._first_state(checkpoints)
    ledger = Ledger(float(state['control']['seconds']))
    with ledger.listening():
      with contextlib.ExitStack() as closing:
        state, step, seconds = self._steps(state, checkpoints, ledger, closing)
      with ledger.on('checkpoints'):
        best = checkpoints.load_best(self.built.abstract_state(self.mesh))
      with ledger.on('evaluation'):
        metrics = self.evaluator(best, self.validation)
    # The best on disk may be newer than the control says: when a process died between saving the two, and
    # another machine, which rounds otherwise, went on.
    return StageResult(best, step, seconds, int(best['step']), metrics, ledger.parts)

  def _steps(self, state, checkpoints, ledger, closing):
    step = int(state['step'])
    writer = create_writer(
      self.directory, step, self.loop.tensorboard, self.loop.trackers, self.built.described()
    )
    progress = ReportProgress(
      self.name, total=self.total, initial=step, batch_size=self.spec.batch_size, enabled=self.loop.progress
    )
    # The first dispatch compiles; a profile is of the steps after it.
    profile = Profile(
      self.directory / 'profile',
      first_step=step + 2 * self.loop.steps_per_dispatch,
      steps=self.loop.profile_steps,
    )
    dispatch = train_steps(self.program)
    for resource in (writer, progress, profile):
      closing.callback(resource.close)
    log = TrainLog(
      writer,
      progress,
      batch_size=self.spec.batch_size,
      every=self.loop.log_every,
      flops=self.built.flops_per_step,
      mesh=self.mesh,
    )
    dropout_key = jax.random.fold_in(self.built.key, 1)
    chunks = closing.enter_context(contextlib.closing(self._chunks(step)))
    saved, saved_step = ledger.seconds, step
    stopped = step > 0 and self._finished(state, step, ledger)  # no limit is so short that nothing is best
    while not stopped:
      if processes.asked_to_end():  # here, where an evaluation that was due has been made
        if saved_step != step:
          log.write()
          self._guard(state)
          checkpoints.save_latest(self._with_seconds(state, ledger))
        checkpoints.wait()
        raise Interrupted(
          f'{self.name} was asked to end and stopped at step {step}; the same command goes on there.'
        )
      checkpoints.check()
      profile(step)
      with ledger.on('data'):
        chunk, count = next(chunks)
      with ledger.on('steps'):
        state, records = dispatch(state, chunk, jnp.int32(count), dropout_key)
        step += count
        log.add(step, count, records)  # reads earlier dispatches, so that the device never waits for the host
      if log.met_non_finite:
        self._guard(state)
      progress(step)
      # Several processes must decide as one, which costs a message: only when a log line is due, then.
      due = jax.process_count() == 1 or step // self.loop.log_every > (step - count) // self.loop.log_every
      out_of_time = due and self._out_of_time(ledger)
      save = self.loop.checkpoint_every and step % self.loop.checkpoint_every == 0
      evaluate = step % self._evaluate_every == 0 or step >= self.total or out_of_time
      if not (evaluate or save or (due and self._save_is_due(ledger.seconds - saved))):
        continue
      with ledger.on('steps'):
        log.write()  # waits for the devices
      if evaluate:
        state = self._evaluate(state, step, ledger, checkpoints, writer, progress)
        stopped = out_of_time or self._finished(state, step, ledger)
      else:
        self._guard(state)
        with ledger.on('checkpoints'):
          checkpoints.save_latest(self._with_seconds(state, ledger))
      saved, saved_step = ledger.seconds, step
    return state, step, ledger.seconds

  def _save_is_due(self, seconds_since: float) -> bool:
    minutes = self.loop.checkpoint_minutes
    return bool(minutes) and processes.first_says(seconds_since >= 60 * minutes)

  def _finished(self, state, step, ledger) -> bool:
    bad = int(state['control']['bad_evaluations'])
    out_of_patience = bool(self.spec.patience and bad >= self.spec.patience)
    return step >= self.total or out_of_patience or self._out_of_time(ledger)

  def _out_of_time(self, ledger) -> bool:
    if not self.spec.max_seconds:
      return False
    return processes.first_says(ledger.seconds >= self.spec.max_seconds)

  def _chunks(self, step: int):
    """(chunk of k steps for the dispatch, count <= k) from `step` on.

    A chunk ends at the next evaluation, checkpoint or end, so that a restart cuts the same ones. The first
    of a stage has one step, because somebody may wait to see it.
    """
    k = self.loop.steps_per_dispatch
    stream, send = (self._positions if self.placement == 'device' else self._batches)(step)
    with contextlib.closing(stream):  # which reads ahead in threads
      while step < self.total:
        every = [n for n in (self._evaluate_every, self.loop.checkpoint_every) if n]
        boundary = min([self.total, *(step // n * n + n for n in every)])
        count = min(k if step else 1, boundary - step)
        chunk = [next(stream) for _ in range(count)]
        chunk += [chunk[-1]] * (k - count)  # never run: the dispatch stops after `count`
        yield send(jax.tree.map(lambda *parts: np.stack(parts), *chunk)), count
        step += count

  def _batches(self, step: int):
    """Batches that the host reads, from `step` on, and how k of them get to the devices."""
    rows = parallel.local_rows(self.mesh, self.spec.batch_size)
    stream = pipeline.train_batches(
      self.train,
      batch_size=self.spec.batch_size,
      seed=self.built.stream_seed,
      start_step=step,
      rows=rows,
      threads=self.loop.threads,
    )
    return stream, lambda chunk: parallel.to_devices(chunk, self.mesh, self.spec.batch_size, rows, leading=1)

  def _positions(self, step: int):
    """The positions of the same batches in a set on the devices, which is moved there first; likewise."""
    examples = resident.place(self.train, self.mesh, progress=self.loop.progress)
    stream = (
      pipeline.train_indices(len(self.train), self.built.stream_seed, step, self.spec.batch_size)
      for step in itertools.count(step)
    )
    return stream, lambda chunk: resident.Chunk(examples, parallel.everywhere(chunk, self.mesh))

  def _guard(self, state) -> None:
    failed = int(state['control']['failed_step'])
    if failed < 0:
      return
    names = [*states.leaf_names(self.built.model.params), 'the loss or the BatchNorm statistics']
    leaf = names[int(state['control']['failed_leaf'])]
    raise NonFiniteError(
      f'{self.name} met a non-finite number at step {failed} in {leaf}; lower {self.name}.optimizer.lr or '
      f'set its clip_norm, with another --workdir{self.again} (nothing was saved since then; what was saved '
      f'before is in {self.directory / "checkpoints"})'
    )

  def _with_seconds(self, state, ledger):
    seconds = np.float32(ledger.seconds)
    if jax.process_count() > 1:  # every process has its own clock, but the state is one
      seconds = np.float32(multihost_utils.broadcast_one_to_all(seconds))
    seconds = jax.device_put(seconds, state['control']['seconds'].sharding)
    return state | {'control': state['control'] | {'seconds': seconds}}

  def _evaluate(self, state, step, ledger, checkpoints, writer, progress):
    self._guard(state)
    redraw = step if self.redraw_validation else None
    try:
      with ledger.on('evaluation'):
        metrics = self.evaluator(state, self.validation, redraw=redraw)
    except NonFiniteError as error:
      raise NonFiniteError(f'{self.name}, step {step}: {error}') from error
    scalars = {'split': 'validation', **metrics, 'seconds': round(ledger.seconds, 3)}
    writer.write_scalars(step, scalars)
    if self.loop.training_examples:
      with ledger.on('evaluation'):
        training = self.evaluator(state, self.some_of_training)
      writer.write_scalars(step, {'split': 'training', **training})
    writer.flush()
    selected = jnp.float32(metrics[self.objective.selection[0]])
    shardings = jax.tree.map(lambda x: x.sharding, state['control'])
    control = after_evaluation(
      state['control'], selected, state['step'], self.objective.selection[1], self.spec.schedule
    )
    state = self._with_seconds(state | {'control': jax.device_put(control, shardings)}, ledger)
    with ledger.on('checkpoints'):
      if int(control['best_step']) == step:
        checkpoints.save_best(state)
      checkpoints.save_latest(state)
    progress.note(step, scalars)  # once it is on its way to the disk: who reads this may have gone
    return state


@contextlib.contextmanager
def _naming_lack_of_memory(name: str, batch_size: int):
  """Turns what an allocation that fails raises, on the host or a device, into a ConfigError."""
  try:
    yield
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not parallel.lacks_memory(error):
      raise
    reason = ' '.join(str(error).split())[:200]
    raise ConfigError(
      f'{name}.batch_size is {batch_size}, for which the memory does not suffice ({reason}); lower it, or '
      'raise runtime.microbatches, or set runtime.remat=mixers or blocks'
    ) from error
