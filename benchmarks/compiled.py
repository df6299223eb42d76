"""Programs compiled for TPUs, without a TPU: do they fit, and what do they move between chips and to memory?

Each case is `lra-spt compile` in a process that is ended after --limit seconds. Nothing runs on a TPU. Bytes
are counted in compiled programs, and the best times are bounds by arithmetic, memory and links. If a case
cannot be compiled, its row has the reason. Compiled cases stay in the file, and --resume continues from them.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import harness
from lra_spt.config import mixers

LIMIT = 900.0  # seconds of a case
MODELS = ('transformer_rotary', 's4')
CONFIGS = {'image': 'configs/image.py', 'pathx': 'configs/pathx.py'}

FIELD_KEYS = ('length', 'batch_size', 'parameters', 'compile_seconds', 'hbm', 'fits', 'flops_per_step')
FIELD_KEYS += ('memory_bytes_per_device', 'seconds_at_best')
MODEL_OF = {'attention': 'transformer_rotary'}  # the model of a mixer, where its name is another

SLICES = {  # case: config, its slice, further flags
  'listops': ('listops.py:', 'v5e:4x4'),
  'text': ('text.py:', 'v5e:2x2'),
  'retrieval': ('retrieval.py:', 'v5e:2x2'),
  'image': ('image.py:', 'v5e:2x2'),
  'scifar': ('scifar.py:', 'v5e:2x2'),
  'pathfinder': ('pathfinder.py:', 'v5e:2x2'),
  'pathx': ('pathx.py:', 'v5e:2x4'),
  'pathx64': ('pathx.py:resolution=64,', 'v5e:2x2'),
  'pathx256': ('pathx.py:resolution=256,', 'v5e:4x4', '--config.runtime.mesh.seq=2'),
  'speech_commands': ('speech_commands.py:', 'v5e:2x4'),
  'bidmc': ('bidmc.py:', 'v5e:2x2'),
}

TOPOLOGIES = ('v5e:2x2', 'v5e:4x4', 'v5e:8x8', 'v5e:16x16', '2xv5e:4x4', '4xv5e:4x4', '4xv5e:8x8')
BATCH = 256  # rows of a step in `chips`

TRAFFIC = {  # case: model, flags
  'rotary': ('transformer_rotary', ()),
  's4': ('s4', ()),
  'dlr': ('dlr', ()),
  's5': ('s5', ()),
  's5 by pallas': ('s5', ('--config.runtime.scan=pallas',)),
  's5 keeping states': ('s5', ('--config.runtime.remat=mixers',)),
  's5 by pallas keeping states': ('s5', ('--config.runtime.scan=pallas', '--config.runtime.remat=mixers')),
  's4 unrolled': ('s4', ('--config.runtime.scan_layers=never',)),
  's5 by pallas unrolled': ('s5', ('--config.runtime.scan=pallas', '--config.runtime.scan_layers=never')),
}
TRAFFIC_KEYS = ('length', 'batch_size', 'devices', 'remat', 'precision', 'compile_seconds', 'seconds_at_best')
TRAFFIC_KEYS += ('memory_bytes_per_device', 'least_memory_bytes_per_device', 'largest_traffic')


def compiled(config: str, topology: str, *flags: str, stage: str = 'pretrain', limit: float = LIMIT) -> dict:
  """The report of `lra-spt compile` about a stage, or {'not_run': why there is none}."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'stages.json'
    words = [sys.executable, '-m', 'lra_spt', 'compile', f'--config={config}', f'--topology={topology}']
    words += [*flags, f'--stage={stage}', '--smallest=false', f'--json={path}']
    environment = os.environ | {'JAX_PLATFORMS': 'cpu'}
    try:
      done = subprocess.run(
        words, cwd=harness.ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
      )
    except subprocess.TimeoutExpired:
      return {'not_run': f'not compiled within {limit:.0f} s'}
    if done.returncode:
      return {'not_run': ' '.join(done.stderr.strip().splitlines()[-1:])[:300]}
    return json.loads(path.read_text())[stage]


def of_mixer(mixer: str, task: str, topology: str, limit: float) -> dict:
  """The columns of a row of `field_compiled`."""
  config = f'{CONFIGS[task]}:model={MODEL_OF.get(mixer, mixer)},regime=masked'
  stage = compiled(config, topology, limit=limit)
  if 'not_run' in stage:
    return stage
  return {key: stage.get(key) for key in FIELD_KEYS} | {
    'bytes_per_device': stage['bytes_per_device']['total']
  }


def run_field_compiled(arguments):
  """Tests that a training step of every mixer compiles and fits a small TPU slice, at Image and at PathX.

  Compiles the step of masked pretraining with the config of the task and the default row of the mixer.
  """
  parser = harness.parser(run_field_compiled, 'field_compiled.json')
  harness.add_names(parser, '--mixers', sorted({*mixers.rows()} - {'none'}))  # `none` is no model
  harness.add_names(parser, '--tasks', CONFIGS)
  parser.add_argument('--topology', default='v5e:2x2', help='slice (%(default)s)')
  harness.add_resume(parser, LIMIT)
  given = parser.parse_args(arguments)
  report = harness.report('field_compiled', 'steps of all mixers on a TPU slice', topology=given.topology)
  report['command'] += f' --tasks={",".join(given.tasks)}'
  cases = [{'mixer': mixer, 'task': task} for task in given.tasks for mixer in given.mixers]
  measure = functools.partial(of_mixer, topology=given.topology, limit=given.limit)
  harness.fill(given, report, cases, measure)


def of_config(case: str, model: str, limit: float) -> dict:
  """The columns of a row of `configs_compiled`: those of each stage."""
  config, topology, *flags = SLICES[case]
  config = f'configs/{config}model={model},regime=masked'
  row = {'topology': topology}
  for stage in ('pretrain', 'finetune'):
    flags_of = (*flags, '--config.runtime.precision=bfloat16')
    row[stage] = _columns(compiled(config, topology, *flags_of, stage=stage, limit=limit))
  return row


def _columns(stage: dict) -> dict:
  if 'not_run' in stage:
    return stage
  columns = {key: stage[key] for key in ('devices', 'batch_size', 'hbm', 'compile_seconds')}
  columns['bytes_per_device'] = stage['bytes_per_device']['total']
  if 'collectives' not in stage:  # it does not fit, and the compiler gave up
    return columns
  best = stage['seconds_at_best']
  sent = sum(c['sent'] for c in stage['collectives'].values())
  return columns | {
    'sent_per_device': sent,
    'seconds_at_best': max(best.values()),
    'bound_by': max(best, key=best.get),
  }


def run_configs_compiled(arguments):
  """Tests that the config of every task fits the TPU slice named for it, and counts the bytes between chips.

  Compiles both stages with the values of the config in bfloat16.
  """
  parser = harness.parser(run_configs_compiled, 'configs_compiled.json')
  harness.add_names(parser, '--cases', SLICES)
  harness.add_names(parser, '--models', MODELS)
  harness.add_resume(parser, LIMIT)
  given = parser.parse_args(arguments)
  report = harness.report(
    'configs_compiled', 'configs on the TPU slices named for them', precision='bfloat16'
  )
  cases = [{'case': case, 'model': model} for case in given.cases for model in given.models]
  harness.fill(given, report, cases, functools.partial(of_config, limit=given.limit))


def on_chips(model: str, topology: str, limit: float) -> dict:
  """The columns of a row of `chips`."""
  flags = f'--config.pretrain.batch_size={BATCH}', '--config.runtime.precision=bfloat16'
  stage = compiled(f'configs/image.py:model={model},regime=masked', topology, *flags, limit=limit)
  if 'not_run' in stage:
    return stage
  exchanged = {kind: {key: c[key] for key in ('count', 'bytes')} for kind, c in stage['collectives'].items()}
  return {
    'devices': stage['devices'],
    'bytes_per_device': stage['bytes_per_device']['total'],
    'collectives': exchanged,
    'sent_per_device': sum(c['sent'] for c in stage['collectives'].values()),
    'between_slices_per_device': sum(c['bytes'] for c in stage.get('between_slices', {}).values()),
    'seconds_at_best': stage['seconds_at_best'],
    'compile_seconds': stage['compile_seconds'],
  }


def run_chips(arguments):
  """Counts the bytes that one training step moves between 4 to 256 chips, in one TPU slice and in several.

  Compiles the step of masked pretraining on Image with 256 rows, whatever the number of chips.
  """
  parser = harness.parser(run_chips, 'chips_compiled.json')
  harness.add_names(parser, '--topologies', TOPOLOGIES)
  harness.add_names(parser, '--models', MODELS)
  harness.add_resume(parser, LIMIT)
  given = parser.parse_args(arguments)
  head = {'batch_size': BATCH, 'precision': 'bfloat16'}
  report = harness.report('chips', 'a training step on 4 to 256 TPU chips', **head)
  cases = [{'model': model, 'topology': name} for name in given.topologies for model in given.models]
  harness.fill(given, report, cases, functools.partial(on_chips, limit=given.limit))


def traffic(case: str, task: str, topology: str, limit: float) -> dict:
  """The columns of a row of `tpu_traffic`."""
  model, flags = TRAFFIC[case]
  config = f'{CONFIGS[task]}:model={model},regime=masked'
  stage = compiled(config, topology, *flags, stage='finetune', limit=limit)
  return stage if 'not_run' in stage else {key: stage[key] for key in TRAFFIC_KEYS}


def run_tpu_traffic(arguments):
  """Counts the bytes that a training step moves to and from a TPU's memory, beside the least possible.

  Compiles the finetuning step of Image and PathX with the values of their configs. The least is to read and
  write the state once, to read the batch, and to write and read once what the backward pass needs (see
  `least_traffic` of `lra_spt.runs.aot.compile`). Recurrences compile as a tree of logarithmic depth, the
  default, and as the Pallas kernel; layers as a loop, the default, and one after the other
  (runtime.scan_layers=never).
  """
  parser = harness.parser(run_tpu_traffic, 'tpu_traffic.json')
  harness.add_names(parser, '--cases', TRAFFIC)
  harness.add_names(parser, '--tasks', CONFIGS)
  parser.add_argument('--topology', default='v5e:4x4', help='slice (%(default)s)')
  harness.add_resume(parser, LIMIT)
  given = parser.parse_args(arguments)
  report = harness.report('tpu_traffic', 'memory traffic of a step on a TPU', topology=given.topology)
  cases = [{'case': case, 'task': task} for task in given.tasks for case in given.cases]
  harness.fill(given, report, cases, functools.partial(traffic, topology=given.topology, limit=given.limit))
