"""What a run reports about its stages while it trains, and the notes it keeps."""

import pathlib

import jax

from lra_spt import files
from lra_spt.distributed import processes, sharding
from lra_spt.ops import selection
from lra_spt.report.runs import run_folder
from lra_spt.runs import provenance
from lra_spt.runs.build import Built
from lra_spt.training import autotune
from lra_spt.training.checkpoints.digests import of_all
from lra_spt.training.loop import Stage


def announce(stage: Stage, say) -> dict[str, str]:
  """Says what is trained, on what, and how much; kernels prove themselves first, and are returned."""
  name, built, members = stage.name, stage.built, len(stage.members)
  together = f', {members} runs as one program' if members > 1 else ''
  say(
    f'{name}: {built.model_name} on {built.task.name}, {built.model.parameter_count:,} parameters, '
    f'{stage.total:,} steps of {built.spec.batch_size} on {stage.mesh.size} device(s), '
    f'training examples on the {stage.placement}{together}'
  )
  kernels = _kernels(stage, say)
  say(f'{name}: {_where(built, stage.mesh)}')
  return kernels


def remark_on_memory(built: Built, mesh, members: int) -> str | None:
  """That a later stage may not fit on the devices, so that it is known before an earlier one has trained;
  None where it fits, and on CPUs."""
  if sharding.platform() == 'cpu':
    return None
  kept, there = built.kept_for_gradient(mesh, members), sharding.device_memory(mesh)
  if kept <= there:
    return None
  whole, rows = kept * built.runtime.microbatches, built.spec.batch_size // sharding.row_shards(mesh)
  fitting = (parts for parts in range(2, rows + 1) if not rows % parts and whole / parts <= there / 2)
  parts = next(fitting, None)
  return (
    f'{built.name}: a step keeps about {kept / 2**30:,.0f} GiB on each device for its gradient (less what '
    f'XLA saves), but there are {there / 2**30:,.0f}: if it does not fit, continue with '
    + (f'--config.runtime.microbatches={parts}' if parts else 'more devices')
  )


def note(built: Built, folder, outcome, stage: Stage, kernels: dict[str, str]) -> dict:
  """What stage.json notes of a stage that a run has trained; it is written."""
  seen = outcome.steps * built.spec.batch_size
  report = {
    'steps': outcome.steps,
    'examples': seen,
    'epochs': seen / len(stage.train),
    'seconds': round(outcome.seconds, 2),
    'flops_per_step': built.flops_per_step,
    'best_step': outcome.best_step,
    'best_digest': of_all(outcome.state),
    'metrics': outcome.metrics,
    'folder': folder.name,
    'diverged': _diverged(built, folder),
    'time': {part: round(seconds, 2) for part, seconds in outcome.time.items()},
    'computed': {
      'commit': provenance.commit(),
      'hardware': provenance.hardware(),
      'precision': built.runtime.precision,
    },
  }
  report |= {'kernels': kernels} if kernels else {}
  report |= {'members': len(stage.members)} if len(stage.members) > 1 else {}
  if processes.is_first():
    run_folder.write_stage(folder, report)
  processes.wait_for_everybody(built.name)
  return report


def _kernels(stage: Stage, say) -> dict[str, str]:
  """What proved itself for the calls of a stage's step, and runs: {call: implementation}; nothing on CPUs."""
  if not stage.built.runtime.prove_kernels or not autotune.wanted():
    return {}
  folder = jax.config.jax_compilation_cache_dir
  folder = None if not folder or files.is_bucket(folder) else pathlib.Path(folder)
  calls = autotune.calls_of(stage.program, stage.built.abstract_step(stage.mesh, len(stage.members)))
  chosen = {call: found['chosen'] for call, found in autotune.choose(calls, stage.mesh, folder, say).items()}
  for call, name in chosen.items():
    say(f'{stage.name}: {name} runs {call}')
  return chosen


def _where(built: Built, mesh) -> str:
  """On what a stage computes, and how much, as a phrase."""
  runtime, devices = built.runtime, mesh.devices.flat[0].device_kind
  axes = ', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())
  rows = built.spec.batch_size / sharding.row_shards(mesh)
  used = {
    f', {autotune.OPTIONS[call.operation]} by {selection.chosen(call)}' for call in built.layer_calls(mesh)
  }
  return (
    f'on {devices} as mesh {axes}: {rows:g} sequences a device and step'
    f'{" in " + str(runtime.microbatches) + " parts" if runtime.microbatches > 1 else ""}, '
    f'{built.flops_per_step:.3g} operations a step, {runtime.precision}{"".join(sorted(used))}'
  )


def _diverged(built: Built, folder) -> bool:
  """Whether training ended above twice the loss of an answer that ignores the input."""
  constant, last = getattr(built.objective, 'constant_loss', None), run_folder.last_loss(folder)
  return constant is not None and last is not None and last > 2 * constant


def precisions(config, reports) -> list[str]:
  """A sentence where a stage was trained, before, in another precision than the run has now."""
  now = config.runtime.precision
  before = {name: report.get('computed', {}).get('precision', now) for name, report in reports.items()}
  return [
    f'The {name} stage was trained in {precision}, and what followed was computed in {now}.'
    for name, precision in before.items()
    if precision != now
  ]


def divergences(config, reports) -> list[str]:
  """A sentence for every stage that diverged."""
  return [
    f'The {name} stage of regime {config.regime}, seed {config.seed}, diverged: its training loss ended '
    f'above twice that of an answer that ignores the input; lower {name}.optimizer.lr.'
    for name, report in reports.items()
    if report.get('diverged')
  ]
