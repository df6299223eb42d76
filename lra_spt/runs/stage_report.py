"""The lines that a run prints about its stages while it trains, and the content of stage.json."""

import pathlib

import jax

from lra_spt import files
from lra_spt.config.schema import NO_LIMIT, StageSpec
from lra_spt.distributed import processes, sharding
from lra_spt.errors import counted
from lra_spt.ops import selection
from lra_spt.report.runs import run_folder
from lra_spt.runs import provenance
from lra_spt.runs.stage import Built
from lra_spt.training import autotune
from lra_spt.training.checkpoints.digests import of_all
from lra_spt.training.loop import StageLoop
from lra_spt.training.member import Member
from lra_spt.training.monitoring import timing


def limit(spec: StageSpec, examples: int) -> str:
  """The limit of a stage on `examples` of training, with the exact number of epochs: 'at most 5 steps of 64
  (1 epoch and 20 of 300 examples)'."""
  if (steps := spec.total_steps(examples)) == NO_LIMIT:
    return f'steps of {spec.batch_size} for {spec.max_seconds:g} s'
  epochs, rest = divmod(steps * spec.batch_size, examples)
  parts = [counted(epochs, 'epoch')] if epochs else []
  parts += [f'{rest:,} of {examples:,} examples'] if rest else []
  return f'at most {counted(steps, "step")} of {spec.batch_size} ({" and ".join(parts)})'


def announce(stage: StageLoop, say) -> dict[str, str]:
  """Says what is trained, on which devices and how much; tries kernels before that.

  Returns:
    {call: implementation} of the kernels that were tried.
  """
  name, built, members = stage.name, stage.built, len(stage.members)
  together = f', {members} runs as one program' if members > 1 else ''
  say(
    f'{name}: {built.model_name} on {built.task.name}, {built.model.parameter_count:,} parameters, '
    f'{limit(built.spec, len(stage.train))} on {stage.mesh.size} device(s), '
    f'training examples on the {stage.placement}{together}'
  )
  if frozen := built.model.frozen_count:
    say(f'{name}: {frozen:,} parameters are frozen (finetune.freeze); the others train')
  kernels = _kernels(stage, say)
  say(f'{name}: {_where(built, stage.mesh)}')
  return kernels


def warn_of_memory(built: Built, mesh, members: int, say) -> None:
  """Warns before a long pretraining that a step of finetuning may not fit on the devices; never on CPUs."""
  if not members or sharding.platform() == 'cpu':
    return
  needed, there = built.residual_bytes(mesh, members), sharding.device_memory(mesh)
  if needed <= there:
    return
  whole, rows = needed * built.runtime.microbatches, built.spec.batch_size // sharding.row_shards(mesh)
  fitting = (parts for parts in range(2, rows + 1) if not rows % parts and whole / parts <= there / 2)
  parts = next(fitting, None)
  say(
    f'{built.name}: a step keeps about {needed / 2**30:,.0f} GiB on each device for its gradient (less what '
    f'XLA saves), but there are {there / 2**30:,.0f}: if it does not fit, continue with '
    + (f'--config.runtime.microbatches={parts}' if parts else 'more devices')
  )


def note_attempt(say, members: list[Member], step: int) -> None:
  """Notes in each folder of a stage how it is computed from `step` on, and says what has changed since the
  checkpoint of that step."""
  for member in members:
    now = provenance.computed(member.built.runtime)
    before = run_folder.read_attempts(member.directory) if step > 0 else []
    if before and (changed := provenance.changes(before[-1], now)):
      say(f'{member.built.name}: {member.directory} goes on with {", ".join(changed)}')
    if processes.is_first() and (not before or changed):
      run_folder.write_attempts(member.directory, [*before, now])
  processes.wait_for_everybody('attempt')


def note(member: Member, stage: StageLoop, kernels: dict[str, str]) -> dict:
  """Writes stage.json of a stage that a run has trained, and returns its content."""
  built, seen = member.built, member.steps * member.built.spec.batch_size
  *before, computed = run_folder.read_attempts(member.directory) or [provenance.computed(built.runtime)]
  report = {
    'steps': member.steps,
    'examples': seen,
    'epochs': seen / len(stage.train),
    'seconds': round(member.seconds, 2),
    'flops_per_step': built.flops_per_step,
    'best_step': member.best_step,
    'best_digest': of_all(member.state),
    'metrics': member.metrics,
    'folder': member.directory.name,
    'diverged': _diverged(built, member.directory),
    'time': {part: round(seconds, 2) for part, seconds in member.time.items()},
    'computed': computed,
  }
  report |= {'flops_at_least': True} if built.flops_at_least else {}
  report |= {'computed_before': before} if before else {}
  report |= {'kernels': kernels} if kernels else {}
  report |= {'members': len(stage.members)} if len(stage.members) > 1 else {}
  report |= {'undefined': member.undefined} if member.undefined else {}
  if processes.is_first():
    run_folder.write_stage(member.directory, report)
  processes.wait_for_everybody(built.name)
  return report


def say_score(member: Member, stage: StageLoop, run: str, say) -> None:
  """Says the best validation of a run in a stage."""
  known = {key: value for key, value in member.metrics.items() if value is not None}
  numbers = ', '.join(f'{key} {value:.4f}' for key, value in known.items())
  place = f' of {run}' if len(stage.members) > 1 else ''
  by = '' if stage.objective.selection[0] in known else ' by the loss'
  why = ''.join(f'; {reason}' for reason in dict.fromkeys(member.undefined.values()))
  say(
    f'{stage.name}{place}: best validation{by} at step {member.best_step}: {numbers}{why} '
    f'({member.seconds:.0f} s)'
  )


def say_time(stage: StageLoop, say) -> None:
  """Says how the time of a stage was spent, if a run has finished it."""
  if times := [member.time for member in stage.members if member.error is None]:
    say(f'{stage.name}: {timing.in_words(times[-1])}')


def _kernels(stage: StageLoop, say) -> dict[str, str]:
  """Tries the kernels of a stage's step and says which ones run: {call: implementation}, empty on CPUs."""
  if not stage.built.runtime.prove_kernels or not autotune.wanted():
    return {}
  folder = jax.config.jax_compilation_cache_dir
  folder = None if not folder or files.is_bucket(folder) else pathlib.Path(folder)
  calls = autotune.calls_of(stage.program, stage.built.abstract_step(stage.mesh, len(stage.members)))
  chosen = {call: tried['chosen'] for call, tried in autotune.choose(calls, stage.mesh, folder, say).items()}
  for call, name in chosen.items():
    say(f'{stage.name}: {name} runs {call}')
  return chosen


def _where(built: Built, mesh) -> str:
  """A phrase on the devices of a stage, and on how much each of them computes."""
  runtime, devices = built.runtime, mesh.devices.flat[0].device_kind
  axes = ', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())
  rows = built.spec.batch_size / sharding.row_shards(mesh)
  used = {
    f', {autotune.OPERATIONS[call.operation].option} by {selection.chosen(call)}'
    for call in built.layer_calls(mesh)
  }
  return (
    f'on {devices} as mesh {axes}: {rows:g} sequences a device and step'
    f'{" in " + str(runtime.microbatches) + " parts" if runtime.microbatches > 1 else ""}, '
    f'{built.operations} operations a step, {runtime.precision}{"".join(sorted(used))}'
  )


def _diverged(built: Built, folder) -> bool:
  """Says if training ended above twice the loss of an answer that ignores the input."""
  constant, last = getattr(built.objective, 'constant_loss', None), run_folder.last_loss(folder)
  return constant is not None and last is not None and last > 2 * constant
