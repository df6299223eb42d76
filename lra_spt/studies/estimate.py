"""`lra-spt study --dry_run`: counts runs and steps, and estimates time and disk space from a few steps."""

import dataclasses
import pathlib
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from lra_spt.config import loading
from lra_spt.config.schema import NO_LIMIT
from lra_spt.distributed import settings, sharding
from lra_spt.errors import ConfigError, counted
from lra_spt.report.study.arms import duration, scaled
from lra_spt.runs.build import build, resolve, stages_of
from lra_spt.runs.stage import Built
from lra_spt.studies import runner
from lra_spt.studies.budget import Steps
from lra_spt.studies.study import Job, Study, folder_of
from lra_spt.training.duration import A_YEAR
from lra_spt.training.step import StepProgram, train_steps

LARGE = 1e10  # FLOPs from which one step is measured; smaller steps are measured several at a time
MOST_FLOPS = {'cpu': 2e10}  # of a step that is measured on a platform; it takes seconds
MOST_FLOPS_ELSEWHERE = 1e13
MOST_SECONDS = 60.0  # for measuring, most of it compiling
COPIES = 7  # of the parameters on the disk: best, and twice (during a save) latest with its two moments


@dataclasses.dataclass(frozen=True)
class Share:
  """A stage that has to be trained once."""

  stage: str
  job: Job
  model: str
  steps: int  # 0 if only time ends the stage
  most_seconds: float  # of such a stage; 0 for others
  flops: int  # per step
  parameters: int
  program: str  # digest; equal for stages that compile to the same program


def describe(
  study: Study, jobs: Sequence[Job], steps: Steps, missing: Sequence[str], workdir, processes: int
) -> str:
  """The text of a dry run.

  Args:
    study: the study.
    jobs: its runs.
    steps, missing: from `budget.plan`.
    workdir: folder of the study; runs that are finished there do not count.
    processes: number of runs at a time.

  Raises:
    ConfigError: a model or stage cannot be built; the message names the run.
  """
  workdir = pathlib.Path(workdir)
  left, done = _left(jobs, workdir)
  shares = stages_to_train(left, steps, done)
  seconds, measured = _measured(shares)
  total = sum(seconds[share.program] * share.steps + share.most_seconds for share in shares if measured)
  flops = sum(share.flops * share.steps for share in shares)
  bytes_needed = sum(4 * COPIES * share.parameters for share in shares)
  shared = len([key for job in left for key in job.stages.values() if key not in done]) - len(shares)
  kind = sharding.all_devices()[0].device_kind
  how = f'{measured} of {counted(len(seconds), "program")} measured, others by FLOPs'
  if measured:
    took = f'about {duration(total / processes)} on {kind}, {processes} at a time, '
    took += f'without compiling and evaluations ({how})'
    if total / processes > A_YEAR:  # a number of years tells nobody what would be needed
      took = f'not feasible here: {scaled(flops, "FLOP")} on {kind}'
  elif shares:
    least = scaled(min(share.flops for share in shares), 'FLOP')
    took = f'not measured: the smallest step has {least}, too much to try on {kind}'
  else:
    took = 'none'
  timed = sum(share.most_seconds > 0 for share in shares)
  by_time = f', without stages that only max_seconds ends: {timed}' if timed else ''
  lines = [
    f'{study.title} (study {study.name}): {counted(len(jobs), "run")}, {len(jobs) - len(left)} of them '
    'finished',
    f'stages      {len(shares)} to train, {shared} more are shared',
    f'steps       {sum(share.steps for share in shares):,} at most{by_time}',
    f'operations  {scaled(flops, "FLOP")}',
    f'time        {took}',
    f'disk        about {scaled(bytes_needed, "B")} of checkpoints in {workdir}',
    '',
    *_table(shares, seconds),
  ]
  if missing:
    lines += ['', 'Not prepared yet, counted as published:', *missing]
  return '\n'.join([*lines, '', 'Nothing was written: this was --dry_run.'])


def seconds_of_cells(jobs: Sequence[Job], steps: Steps, workdir) -> dict[PurePosixPath, float]:
  """{folder of a cell: seconds of the steps that its runs still need}; {} if steps are too large.

  Args: as of `describe`. A stage that several runs share counts for the first.
  """
  left, done = _left(jobs, pathlib.Path(workdir))
  shares = stages_to_train(left, steps, done)
  seconds, measured = _measured(shares)
  took = {}
  for share in shares if measured else ():
    folder = folder_of(share.job.cell)
    took[folder] = took.get(folder, 0.0) + seconds[share.program] * share.steps + share.most_seconds
  return took


def _left(jobs, workdir):
  """(runs that are not finished, keys of the stages of the others)."""
  finished = {job for job in jobs if runner.state(workdir, job) == runner.FINISHED}
  done = {key for job in finished for key in job.stages.values()}
  return [job for job in jobs if job not in finished], done


def _table(shares, seconds):
  """Yields a line per cell and stage."""
  by_place = {}
  for share in shares:
    by_place.setdefault((share.job.place, share.stage), []).append(share)
  for (place, stage), same in by_place.items():
    first, took = same[0], seconds.get(same[0].program)
    speed = '' if took is None else f' of {took:.3g} s' if took > 1 else f' of {1000 * took:.3g} ms'
    times = f'{len(same)} x ' if len(same) > 1 else ''
    yield (
      f'  {place}, {stage}: {times}{_length(first)}{speed}, '
      f'{first.parameters:,} parameters, {scaled(first.flops, "FLOP")} a step'
    )


def _length(share):
  return f'{share.most_seconds:g} s of steps' if share.most_seconds else f'{share.steps:,} steps'


def stages_to_train(jobs: Sequence[Job], steps: Steps, done: Collection[str] = ()) -> list[Share]:
  """Lists every stage of the runs once, without those that are done.

  Args:
    jobs: runs.
    steps: from `budget.plan`.
    done: keys of the stages that are trained.

  Raises:
    ConfigError: a model or stage cannot be built; the message names the run.
  """
  shares, built = {}, {}
  for job in tqdm.tqdm(jobs, desc='building', unit=' runs', disable=None):
    new = [stage for stage, key in job.stages.items() if key not in shares and key not in done]
    if not new:
      continue
    if job.program not in built:
      try:
        built[job.program] = stages_of(resolve(job.config))
      except ConfigError as error:
        raise ConfigError(f'{job.name}: {error}') from error
    for stage in new:
      shares[job.stages[stage]] = _share(job, stage, built[job.program][stage], steps[job])
  return list(shares.values())


def _share(job, stage, built: Built, steps: Mapping[str, int]) -> Share:
  identity = loading.identity(job.config)
  program = {key: identity[key] for key in ('task', 'model', 'protocol', 'regime', 'causal')}
  program |= {'stage': stage, 'batch_size': built.spec.batch_size}
  by_time = steps[stage] == NO_LIMIT
  return Share(
    stage,
    job,
    built.model_name,
    0 if by_time else steps[stage],
    built.spec.max_seconds if by_time else 0,
    built.flops_per_step,
    built.model.parameter_count,
    loading.digest(program),
  )


def _measured(shares) -> tuple[dict[str, float], int]:
  """({program: seconds per step}, the number of measured programs).

  It measures the cheapest program of every model first, then others, within MOST_SECONDS. The rest get the
  speed of the largest measured program of their model, or of another model. If the steps of all programs are
  too large, it measures none.
  """
  seconds, speeds = {}, {}
  programs = sorted({share.program: share for share in shares}.values(), key=lambda share: share.flops)
  first = {share.model: share for share in reversed(programs)}
  order = [*first.values(), *(share for share in programs if share is not first[share.model])]
  order.sort(key=lambda share: (share is not first[share.model], share.flops))
  start, most = time.monotonic(), MOST_FLOPS.get(sharding.platform(), MOST_FLOPS_ELSEWHERE)
  for share in tqdm.tqdm(order, desc='measuring', unit=' programs', disable=None):
    if share.flops <= most and (not speeds or time.monotonic() - start < MOST_SECONDS):
      seconds[share.program] = _step_seconds(share)
      speeds.setdefault(share.model, []).append(share.flops / seconds[share.program])
  measured = len(seconds)
  for share in programs if measured else ():
    like = speeds.get(share.model) or [speed for known in speeds.values() for speed in known]
    seconds.setdefault(share.program, share.flops / like[-1])
  return seconds, measured


@settings.fixed()
def _step_seconds(share: Share) -> float:
  """Measures the seconds of a training step on examples of zeros."""
  built = build(resolve(share.job.config), share.stage)
  runtime, rows = built.runtime, built.spec.batch_size
  mesh = sharding.mesh_of(runtime)
  count = 1 if share.flops > LARGE else 4
  batch = {name: np.zeros((count, *part.shape), part.dtype) for name, part in built.task.batch(rows).items()}
  batch['lengths'] += built.task.length
  batch['weight'] += 1
  program = StepProgram(
    built.model,
    built.objective,
    built.spec.optimizer,
    built.spec.schedule.resolved(share.steps),
    share.steps,
    runtime.microbatches,
  )
  with settings.fixed(runtime.matmul_precision), jax.set_mesh(mesh):
    run, state = train_steps(program), built.fresh_state(mesh)
    here = sharding.local_rows(mesh, rows)
    took = []
    for _ in range(3):  # the first compiles
      sent = sharding.to_devices(batch, mesh, rows, here, leading=1)
      start = time.perf_counter()
      state, records = run(state, sent, jnp.int32(count), built.training_key)
      jax.block_until_ready(records)
      took.append(time.perf_counter() - start)
  return min(took[1:]) / count
