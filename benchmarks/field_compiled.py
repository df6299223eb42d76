"""Does a training step of every mixer compile and fit a small TPU slice, at Image and at PathX.

  python -m benchmarks field_compiled [--json PATH] [--mixers NAME,...] [--topology v5e:2x2] [--resume]

`lra-spt compile` of the masked pretraining step with the config of the task and the default row of the mixer,
each in a process of its own that is ended after --limit seconds. Nothing runs on a TPU. Times at best are
what arithmetic, memory and interconnect allow, not measurements. If a step cannot be compiled, the result is
the sentence that says why. Compiled cases stay in the file; --resume continues from them.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import harness
from lra_spt.config import mixers as mixer_rows

CONFIGS = {'image': 'configs/image.py', 'pathx': 'configs/pathx.py'}
CALLED = {'attention': 'transformer_rotary'}  # as a model, where it is not called as the mixer
KEPT = ('length', 'batch_size', 'parameters', 'compile_seconds', 'hbm', 'fits', 'flops_per_step')
KEPT += ('memory_bytes_per_device', 'seconds_at_best')


def command(mixer: str, task: str, topology: str) -> list[str]:
  config = f'{CONFIGS[task]}:model={CALLED.get(mixer, mixer)},regime=masked'
  return ['compile', f'--config={config}', '--stage=pretrain', f'--topology={topology}', '--smallest=false']


def compiled(flags: list[str], limit: float, stage: str = 'pretrain') -> dict:
  """What `lra-spt compile` says of a stage, or {'not_run': why it does not come that far}."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'stages.json'
    words = [sys.executable, '-m', 'lra_spt', *flags, f'--json={path}']
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


def measured(mixer: str, task: str, topology: str, limit: float) -> dict:
  """The columns of a row: of what was compiled, or why it was not."""
  stage = compiled(command(mixer, task, topology), limit)
  if 'not_run' in stage:
    return stage
  return {key: stage.get(key) for key in KEPT} | {'bytes_per_device': stage['bytes_per_device']['total']}


def main(arguments=None):
  parser = harness.parser('field_compiled', __doc__, 'field_compiled.json')
  parser.add_argument('--mixers', help='some of them, separated by commas; default: all')
  parser.add_argument('--tasks', default=','.join(CONFIGS), help='of %(default)s')
  parser.add_argument('--topology', default='v5e:2x2', help='slice (%(default)s)')
  harness.add_resume(parser, limit=900)
  given = parser.parse_args(arguments)
  known = sorted({*mixer_rows.rows()} - {'none'})  # that one is no model
  mixers = harness.chosen(parser, 'mixer', given.mixers or ','.join(known), known)
  tasks = harness.chosen(parser, 'task', given.tasks, CONFIGS)
  report = harness.report('field_compiled', __doc__.splitlines()[0], topology=given.topology, rows=[])
  report['command'] += f' --tasks={given.tasks}'
  cases = [{'mixer': mixer, 'task': task} for task in tasks for mixer in mixers]
  measure = functools.partial(measured, topology=given.topology, limit=given.limit)
  harness.fill(given, report, cases, measure)


if __name__ == '__main__':
  main()
