"""The loop of one stage: batches -> dispatches -> evaluations -> checkpoints; it can stop at any moment."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.config.schema import NO_LIMIT
from lra_spt.data import pipeline
from lra_spt.distributed import processes, sharding
from lra_spt.errors import ConfigError, Interrupted, NonFiniteError, UserError, one_line
from lra_spt.training import device_data, duration, population
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.evaluate import evaluator_of
from lra_spt.training.in_flight import InFlight
from lra_spt.training.member import Member
from lra_spt.training.monitoring.hooks import Profile, ReportProgress, TrainLog, mean_of
from lra_spt.training.monitoring.metric_writers import create_writer, lacks_validation
from lra_spt.training.monitoring.timing import StageTiming
from lra_spt.training.optimizer import after_evaluation, compared
from lra_spt.training.step import StepProgram, train_steps


class StageLoop:
  """Trains one stage of a run, or of the several runs of a population. `run()` resumes the members whose
  folders hold a checkpoint.

  Args:
    members: the runs. Their stages may differ in seed, learning rate and weight decay only.
    data: {'train', 'validation': `Examples`}.
    mesh: the devices to train on. For several members it has the axis 'member', see `population`.
    later: the stages that the run goes on with, for the estimate of its duration.
  """

  def __init__(self, members: list[Member], data, mesh, later=()):
    self.members, self.mesh, self._examples, self._later = members, mesh, len(data['train']), later
    self.built = built = members[0].built
    spec, loop, protocol = built.spec, built.runtime, built.protocol
    self.train, self.validation = built.train_examples(data), data['validation']
    some = (loop.training_examples or 1) + 0.5  # `part` rounds down
    self.some_of_training = self.train.part(min(1.0, some / len(self.train)))
    self.name, self.spec, self.loop, self.objective = built.name, spec, loop, built.objective
    self.redraw_validation = protocol.redraw_validation_masks and built.name == 'pretrain'
    steps_per_epoch = len(self.train) / spec.batch_size
    self.total = spec.total_steps(len(self.train))
    self.placement = device_data.choose(loop.placement, self.train, mesh)
    schedule = spec.schedule.resolved(self.total)
    self.program = StepProgram(
      built.model, built.objective, spec.optimizer, schedule, steps_per_epoch, loop.microbatches
    )
    self.evaluator = evaluator_of(built, mesh)
    self._evaluate_every = spec.evaluate_every or max(1, int(steps_per_epoch))
    self._at_once = 1  # steps of a dispatch; slow steps are given out one by one, see `InFlight`

  def run(self, started: Callable[[list[Member], int], None] | None = None) -> list[Member | UserError]:
    """Trains to the end; returns each member with its best state, or the error that ended it.

    Members whose checkpoints are of different steps go on in several populations, one after the other.

    Args:
      started: called with the members and the step from which they go on, once their states are there.

    Raises:
      NonFiniteError: the only member met a non-finite number; names the step and the parameter.
      CheckpointError: the checkpoint to resume from is damaged or of another model.
      Interrupted: the process was asked to end, and the state is saved.
    """
    waiting = self.members
    with _naming_lack_of_memory(self.name, self.spec.batch_size):
      while waiting:
        background = Background()
        with contextlib.ExitStack() as opened:
          for member in waiting:
            opened.enter_context(member.opened(background))
          together, step, state = self._first_states(waiting)
          if started is not None:
            started(together, step)
          before = [float(control['seconds']) for control in self._controls(state, together)]
          with (timing := StageTiming(before)).listening():
            with contextlib.ExitStack() as closing:
              self._steps(together, step, state, timing, closing)
            self._measure_best([member for member in together if member.error is None], timing)
        waiting = [member for member in waiting if member not in together]
    self._raise_of_the_only_one()
    return [member.error or member for member in self.members]

  def _first_states(self, members):
    """Returns (members, step, state) of those that go on together from the step of the last one.

    A member that has no checkpoint of that step any more is left out.
    """
    pairs = [(member, member.first_state(self.mesh)) for member in members]
    least = min(int(state['step']) for _, state in pairs)
    for i, (member, state) in enumerate(pairs):
      if int(state['step']) > least:
        state = member.checkpoints.load_latest_at(least, member.built.abstract_state(self.mesh))
        pairs[i] = member, state
    together = [member for member, state in pairs if state is not None]
    state = population.stack([state for _, state in pairs if state is not None], self.mesh)
    return together, least, state

  def _measure_best(self, members, timing) -> None:
    """Gives members the state of their best validation, and its metrics."""
    if not members:
      return
    with timing.on('checkpoints'):
      best = [member.checkpoints.load_best(member.built.abstract_state(self.mesh)) for member in members]
    with timing.on('evaluation'):
      steps = [int(state['step']) for state in best]
      measured = self._measured(members, population.stack(best, self.mesh), self.validation, steps)
    for member, state, result in zip(members, best, measured, strict=True):
      if isinstance(result, NonFiniteError):
        member.ends_with(result)
      else:
        member.state, member.time = state, timing.parts
        member.metrics, member.undefined = result.metrics, result.undefined

  def _steps(self, members, step, state, timing, closing) -> None:
    for member in members:
      member.writer = create_writer(
        member.directory, step, self.loop.tensorboard, self.loop.tracker_names, member.built.described()
      )
      closing.callback(member.writer.close)
    progress = ReportProgress(
      self.name,
      total=self.total if self.total < NO_LIMIT else None,
      initial=step,
      batch_size=self.spec.batch_size * len(members),
      enabled=self.loop.progress,
      compiling=lambda: timing.parts['compiling'],
      estimate=self._estimate,
    )
    # The first dispatch compiles; a profile is of the steps after it.
    profile = Profile(
      members[0].directory / 'profile',
      first_step=step + 2 * self.loop.steps_per_dispatch,
      steps=self.loop.profile_steps,
    )
    dispatch = train_steps(self.program)
    for resource in (progress, profile):
      closing.callback(resource.close)
    log = TrainLog(
      members,
      progress,
      batch_size=self.spec.batch_size,
      every=self.loop.log_every,
      flops=self.built.flops_per_step,
      mesh=self.mesh,
    )
    keys = population.stack([member.built.training_key for member in members], self.mesh)
    in_flight = InFlight('training steps')
    chunks = closing.enter_context(contextlib.closing(self._chunks(members, step)))
    alone, chunk_start, due = jax.process_count() == 1, step, True
    saved, saved_step = timing.elapsed, step
    if step > 0:  # a limit of time ends no member before its first evaluation
      lacking = [self._is_due(step) and lacks_validation(member.directory, step) for member in members]
      if any(lacking := processes.first_chooses(lacking)):
        state = self._evaluate(members, step, state, timing, progress, lacking)
      evaluated = [control['best_step'] >= 0 for control in self._controls(state, members)]
      self._end_finished(members, state, step, timing, evaluated)
    while any(member.active for member in members):
      timing.share_among(member.active for member in members)
      if alone or due:  # To decide together costs processes a message, so they do it when a log line is due.
        (self._at_once,) = processes.first_chooses([in_flight.at_once(self.loop.steps_per_dispatch)])
        due = False
      with timing.on('steps'):
        in_flight.wait_for_room(self._at_once)
      if processes.asked_to_end():
        if new := saved_step != step:
          in_flight.wait()
          log.write()
          self._guard(members, state)
        self._end(members, state, step, timing, save=new)
      members[0].checkpoints.check()
      profile(step)
      with timing.on('data'):
        chunk, count, whole = next(chunks)
      with timing.on('steps'):
        state, records = dispatch(state, chunk, self._counts(members, count), keys)
        in_flight.add(records['loss'], count)
        step += count
        log.add(step, count, records, whole)  # reads earlier dispatches, so the device waits for no host
      if log.met_non_finite:
        self._guard(members, state)
        log.met_non_finite = False
      progress(step, in_flight.seconds if in_flight.warm else None)
      if not whole:
        continue
      due = alone or step // self.loop.log_every > chunk_start // self.loop.log_every
      chunk_start = step
      late = self._out_of_time(timing) if due else [False] * len(members)
      save = self.loop.checkpoint_every and step % self.loop.checkpoint_every == 0
      evaluated = [one.active and (self._is_due(step) or out) for one, out in zip(members, late, strict=True)]
      if not (any(evaluated) or save or (due and self._save_is_due(timing.elapsed - saved))):
        continue
      with timing.on('steps'):
        in_flight.wait()
        log.write()
      if any(evaluated):
        state = self._evaluate(members, step, state, timing, progress, evaluated)
        self._end_finished(members, state, step, timing, evaluated)
      else:
        self._guard(members, state)
        state = self._save(members, state, timing)
      saved, saved_step = timing.elapsed, step
      log.restart_clock()

  def _end(self, members, state, step, timing, save: bool = True) -> NoReturn:
    if save:
      self._save(members, state, timing)
    members[0].checkpoints.wait()
    raise Interrupted(
      f'{self.name} was asked to end and stopped at step {step}; the same command resumes there.'
    )

  def _estimate(self, step: int, seconds: float) -> str | None:
    stages = [self.built, *self._later]
    left = duration.seconds(stages, self._examples, len(self.validation), seconds, step)
    return duration.sentence(self.name, *left, seconds, self.mesh.devices.flat[0].platform == 'cpu')

  def _is_due(self, step: int) -> bool:  # the validation of all members
    return step % self._evaluate_every == 0 or step >= self.total

  def _counts(self, members, count: int):
    """The number of steps of a chunk that each member takes: int32 [], or [members] if they are stacked."""
    if not population.stacks(self.mesh):
      return jnp.int32(count)
    counts = [count if member.active else 0 for member in members]
    return np.array(population.filled(counts, self.mesh), np.int32)

  def _controls(self, state, members) -> list[dict]:
    return population.numbers(state['control'], len(members), self.mesh)

  def _save_is_due(self, since: float) -> bool:
    return bool(minutes := self.loop.checkpoint_minutes) and processes.first_says(since >= 60 * minutes)

  def _end_finished(self, members, state, step, timing, evaluated) -> None:
    """Ends members that have had all steps, no patience left, or, where `evaluated`, no time left."""
    late, controls = self._out_of_time(timing), self._controls(state, members)
    for i, (member, control) in enumerate(zip(members, controls, strict=True)):
      out_of_patience = self.spec.patience and control['bad_evaluations'] >= self.spec.patience
      if member.active and (step >= self.total or out_of_patience or (late[i] and evaluated[i])):
        member.active, member.steps, member.seconds = False, step, timing.seconds[i]

  def _out_of_time(self, timing) -> list[bool]:
    """Says of each member if its time is over, by the clock of the first process."""
    if not (most := self.spec.max_seconds):
      return [False] * len(timing.seconds)
    return [late > 0 for late in processes.first_chooses([seconds >= most for seconds in timing.seconds])]

  def _chunks(self, members, step: int):
    """Yields (k batches for the dispatch, count <= k of them to run, whole) from `step` on.

    A chunk has k steps, or ends at the next evaluation, checkpoint or end, so that a restart cuts the same
    chunks. The first chunk of a stage has one step, so that its user soon sees that training works. Slow
    steps are given out in parts of a chunk, of at most `_at_once` steps; `whole` marks the last part.
    """
    k = self.loop.steps_per_dispatch
    make, send = self._positions() if self.placement == 'device' else self._batches()
    with contextlib.ExitStack() as closing:
      streams = [closing.enter_context(contextlib.closing(make(member, step))) for member in members]
      while step < self.total:
        every = [n for n in (self._evaluate_every, self.loop.checkpoint_every) if n]
        boundary = min([self.total, *(step // n * n + n for n in every)])
        end = min(boundary, step + (k if step else 1))
        while step < end:
          count = min(self._at_once, end - step)
          chunks = []
          for stream in streams:
            chunk = [next(stream) for _ in range(count)]
            chunk += [chunk[-1]] * (k - count)  # never run: the dispatch stops after `count`
            chunks.append(jax.tree.map(lambda *parts: np.stack(parts), *chunk))
          if population.stacks(self.mesh):
            chunks = [jax.tree.map(lambda *parts: np.stack(parts), *population.filled(chunks, self.mesh))]
          step += count
          yield send(chunks[0]), count, step == end

  def _batches(self):
    """Returns two functions: one reads a member's batches from a step on, one sends k of them to devices."""
    rows = sharding.local_rows(self.mesh, self.spec.batch_size)

    def read(member, step):
      return pipeline.train_batches(
        self.train,
        batch_size=self.spec.batch_size,
        seed=member.built.stream_seed,
        start_step=step,
        rows=rows,
        threads=-(-self.loop.threads // len(self.members)),
      )

    stacked = population.stacks(self.mesh)
    return read, lambda chunk: sharding.to_devices(
      chunk, self.mesh, self.spec.batch_size, rows, leading=1, stacked=stacked
    )

  def _positions(self):
    """Returns the same two functions for a set on the devices, to which only positions are sent."""
    examples = device_data.place(self.train, self.mesh, progress=self.loop.progress)

    def stream(member, step):
      return (
        pipeline.train_indices(len(self.train), member.built.stream_seed, step, self.spec.batch_size)
        for step in itertools.count(step)
      )

    return stream, lambda chunk: device_data.PlacedChunk(examples, sharding.everywhere(chunk, self.mesh))

  def _guard(self, members, state) -> None:
    """Ends members that met a non-finite number; raises the error of the only member."""
    for i, (member, control) in enumerate(zip(members, self._controls(state, members), strict=True)):
      member.guard(control, functools.partial(population.member, state, i, self.mesh))
    self._raise_of_the_only_one()

  def _raise_of_the_only_one(self) -> None:
    if len(self.members) == 1 and self.members[0].error is not None:
      raise self.members[0].error

  def _with_seconds(self, state, timing):
    # Every process has its own clock, but the state is one.
    seconds = np.array(processes.first_chooses(timing.seconds, np.float32), np.float32)
    seconds = population.from_numbers([*seconds], state['control']['seconds'], self.mesh)
    return state | {'control': state['control'] | {'seconds': seconds}}

  def _evaluate(self, members, step, state, timing, progress, evaluated) -> dict:
    self._guard(members, state)
    with timing.on('evaluation'):
      try:
        measured = self._measured(members, state, self.validation, [step] * len(members))
        curves = [None] * len(members)
        if self.loop.training_examples:
          curves = self._measured(members, state, self.some_of_training)
      except Interrupted:  # the resumed stage starts with this evaluation
        self._end(members, state, step, timing)
    controls, lines = self._controls(state, members), []
    for i, (member, result, curve) in enumerate(zip(members, measured, curves, strict=True)):
      if evaluated[i] and member.active and self._is_finite(member, step, result, curve):
        lines.append({'split': 'validation', **result.metrics, 'seconds': round(timing.seconds[i], 3)})
        member.writer.write_scalars(step, lines[-1])
        if curve is not None:
          member.writer.write_scalars(step, {'split': 'training', **curve.metrics})
        member.writer.flush()
        controls[i] = self._decided(controls[i], step, result.metrics)
    self._raise_of_the_only_one()
    control = population.from_numbers(controls, state['control'], self.mesh)
    best = [int(control['best_step']) == step for control in controls]
    state = self._save(members, state | {'control': control}, timing, best)
    if lines:  # after the save has started, since nobody may be there to read this
      progress.note(step, mean_of(lines))
    return state

  def _measured(self, members, state, examples, steps=None) -> list:  # steps: only validations have them
    seeds, redraw = [member.built.seed for member in members], steps if self.redraw_validation else None
    return self.evaluator.of_each(state, examples, seeds, redraw=redraw, whole=steps is None)

  def _is_finite(self, member, step, *measured) -> bool:
    for error in measured:
      if isinstance(error, NonFiniteError):
        named = NonFiniteError(f'{self.name}, step {step}: {error}')
        named.__cause__ = error
        member.ends_with(named)
    return member.error is None

  def _decided(self, control, step, metrics) -> dict:
    """Returns a member's control after a validation, as NumPy."""
    metric, mode = self.objective.selection
    value = jnp.float32(compared(metrics, metric, mode))
    return jax.device_get(after_evaluation(control, value, jnp.int32(step), mode, self.spec.schedule))

  def _save(self, members, state, timing, best=()) -> dict:
    """Saves the active members; `best` says of each if its validation was its best one so far."""
    state = self._with_seconds(state, timing)
    with timing.on('checkpoints'):
      for i, member in enumerate(members):
        if member.active:
          one = population.member(state, i, self.mesh)
          if best and best[i]:
            member.checkpoints.save_best(one)
          member.checkpoints.save_latest(one)
    return state


@contextlib.contextmanager
def _naming_lack_of_memory(name: str, batch_size: int):
  """Turns the error of a failed allocation, on the host or a device, into a ConfigError."""
  try:
    yield
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not sharding.lacks_memory(error):
      raise
    raise ConfigError(
      f'{name}.batch_size is {batch_size}, which does not fit into memory ({one_line(error)}); lower it, or '
      'raise runtime.microbatches, or set runtime.remat=mixers or blocks'
    ) from error
