"""The parts of accelerator.py: what their processes run. Each is a generator of rows, one per measured case.

Arguments of each part: the command's options, and `known`, the rows of earlier runs by case, which are not
measured again.
"""

import dataclasses
import functools
import json
import subprocess

import jax

from benchmarks import accelerator_attention, accelerator_steps, harness, members, ssm_parts
from lra_spt.distributed import sharding
from lra_spt.runs import provenance
from lra_spt.runs.build import build_stage

PACKAGES = 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'nvidia-cudnn-cu12', 'nvidia-cudnn-cu13', 'torch'
SSM_SIZES = ssm_parts.Size(8, 1024, 128, 4), ssm_parts.Size(2, 4096, 128, 4)
PATHX_SIZE = ssm_parts.Size(16, 16384, 256, 6)
# Least milliseconds of that S4 step in float32: operations of the FFTs of 16 sequences and of the kernels of
# all layers, forward and backward, at the 67 Tflop/s of an H100-class GPU; memory traffic takes 2.8 ms there.
PATHX_FLOOR = 1e3 * (16 * 9.89e9 + 145e9) / 67e12


def machine(options, known):
  """One row: hardware and versions, or why jax does not see the platform."""
  del options, known
  try:
    hardware = provenance.hardware()
  except RuntimeError as error:
    yield {'case': 'machine', 'not_run': str(error).splitlines()[0]}
    return
  query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader']
  try:
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    hardware['nvidia_smi'] = done.stdout.splitlines()
  except (OSError, subprocess.CalledProcessError):
    hardware['nvidia_smi'] = None
  yield {'case': 'machine', 'hardware': hardware, 'versions': harness.versions(*PACKAGES)}


def proofs(options, known):
  """A row per call of the steps of some configs: every implementation as `training.autotune` finds it."""
  from lra_spt.config import loading
  from lra_spt.training import autotune

  pairs = [(task, model) for task in ('image', 'pathx') for model in ('transformer_rotary', 's5', 'rglru')]
  configs = [f'configs/{task}.py:model={model},regime=masked' for task, model in pairs]
  for name in ['configs/demo.py'] if options.tiny else configs:
    config = loading.load(name, {'runtime.precision': 'bfloat16'})
    built = build_stage(config, 'finetune')
    mesh = sharding.make_mesh(**built.runtime.mesh)
    with jax.set_mesh(mesh):
      calls = autotune.calls_of(built.typical_program, built.abstract_step(mesh))
      for call in calls:
        if call.text not in known:
          findings = autotune.prove(call, autotune.OPERATIONS[call.operation])
          rows = [dataclasses.asdict(finding) for finding in findings]
          chosen = autotune.fastest(findings)
          yield {'case': call.text, 'config': name, 'ok': bool(chosen), 'chosen': chosen, 'findings': rows}
    yield {'case': name, 'calls': len(calls)}


def benchmarks(options, known):
  """Attention alone, then whole steps."""
  yield from accelerator_attention.full_attention(options, known)
  yield from accelerator_steps.step_rows(options, known)


def ssm(options, known):
  """Steps of state-space models beside plain implementations, then S4 on PathX beside its floor."""
  cases = [(size, kind, 'float32') for size in SSM_SIZES for kind in ssm_parts.CONTENDERS]
  cases += [(PATHX_SIZE, 's4', precision) for precision in ('float32', 'bfloat16')]
  if options.tiny:
    size = ssm_parts.Size(2, 32, 8, 2)
    cases = [(size, 's4 plain', 'float32'), (size, 's4', 'float32')]
  # What others are compared with comes before them, and all of a size before the next.
  cases.sort(key=lambda case: (case[0].length, bool(ssm_parts.COMPARED[case[1]])))
  for size, kind, precision in cases:
    shape = f'ssm {size.batch}x{size.length} width {size.width}, {size.layers} layers'
    case = f'{shape} {kind} {precision}'
    if case in known:
      continue
    row = {'case': case} | size._asdict()
    try:
      run, sizes, _ = ssm_parts.training_step(kind, size, precision=precision)
      count = 2 if options.tiny else accelerator_steps.STEPS_BETWEEN_WAITS
      times = harness.milliseconds(harness.sampled(functools.partial(run, count)), per=count)
    except Exception as error:  # a peer that does not fit must not end the comparison
      yield row | harness.not_run(error)
      continue
    row |= sizes | times
    for other in ssm_parts.COMPARED[kind]:
      base = known.get(f'{shape} {other} float32', {}).get('milliseconds')
      row |= {f'times_faster_than {other}': base / row['milliseconds']} if base else {}
    yield row | ({'time_over_floor': row['milliseconds'] / PATHX_FLOOR} if size == PATHX_SIZE else {})


def populations(options, known):
  """Steps of several runs as one program, beside programs of one run."""
  counts, steps, rounds = ((2,), 2, 1) if options.tiny else ((2, 8, 32), 16, 5)
  for config in members.CASES[-1:] if options.tiny else members.CASES:
    for count in counts:
      case = f'{config}, {count} runs'
      if case not in known:
        yield {'case': case} | members.measured(config, count, steps, rounds)


def training(options, known):
  """A row per run of configs/studies/image_epochs.py: what result.json says. The folder is the study's, which
  `lra-spt study` and `benchmarks.mini` read."""
  from configs.studies import image_epochs
  from lra_spt.runs import experiment
  from lra_spt.studies import study

  runtime = {'data_dir': str(options.data_dir), 'tensorboard': False, 'progress': False}
  limits = {}
  if options.tiny:
    from data_prep.prepare import prepare

    prepare('stripes', options.workdir / 'data', examples=100)
    runtime['data_dir'] = str(options.workdir / 'data')
    limits = {'task': 'stripes', 'model.width': 16, 'model.depth': 2, 'model.feed_forward': 16}
    for stage in ('pretrain', 'finetune'):
      limits |= {f'{stage}.max_steps': 4, f'{stage}.evaluate_every': 4}
  else:
    runtime |= {'precision': 'bfloat16', 'steps_per_dispatch': 32, 'evaluation_batch_size': 500}
  limits |= {f'runtime.{key}': value for key, value in runtime.items()}
  overrides = [f'{key}={value}' for key, value in limits.items()]
  for job in study.jobs(image_epochs.get_study(options.study), overrides=overrides):
    case = f'{options.study} {job.folder}'
    if case not in known:
      result = experiment.run(job.config, options.workdir / 'image_epochs' / job.folder)
      kept = ('metrics', 'stages', 'parameters', 'seed', 'protocol', 'date', 'config', 'fingerprints')
      row = {'case': case, 'test_accuracy': result['metrics']['test']['accuracy']}
      yield row | {'runtime': job.config.runtime.to_dict()} | {key: result[key] for key in kept}


PARTS = {
  'machine': machine,
  'kernels': accelerator_attention.kernels,
  'proofs': proofs,
  'attention': accelerator_attention.block_attention,
  'benchmarks': benchmarks,
  'profile': accelerator_steps.profile,
  'members': populations,
  'ssm': ssm,
  'training': training,
  'tune': accelerator_attention.tune,
}


def rows_of(part, options):
  """The rows of a part that the output file does not hold yet; what failed is measured again."""
  known = {}
  if part != 'machine' and options.output.exists():
    stored = json.loads(options.output.read_text(encoding='utf-8'))['parts'].get(part, {}).get('rows', [])
    known = {row['case']: row for row in stored if row.get('ok', True) and 'not_run' not in row}
  for row in PARTS[part](options, known):
    known[row['case']] = row
    yield row
