"""Does every task's config fit the TPU slice named for it, and what does a step move between chips?

  python -m benchmarks configs_compiled [--json PATH] [--cases NAME,...] [--models NAME,...] [--resume]

`lra-spt compile` of both stages with the values of the config in bfloat16, each in a process of its own that
is ended after --limit seconds. Nothing runs on a TPU. Times at best are what arithmetic, memory and links
allow, not measurements. Compiled cases stay in the file; --resume continues from them.
"""

import functools

from benchmarks import field_compiled, harness

SLICES = {  # case: config, its slice, and what else to say for it
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
MODELS = ('transformer_rotary', 's4')


def measured(case: str, model: str, limit: float) -> dict:
  """The columns of a row: of each stage what was compiled, or why it was not."""
  config, topology, *flags = SLICES[case]
  flags += [f'--config=configs/{config}model={model},regime=masked', f'--topology={topology}']
  flags += ['--smallest=false', '--config.runtime.precision=bfloat16']
  return {'topology': topology} | {
    stage: _columns(field_compiled.compiled(['compile', *flags, f'--stage={stage}'], limit, stage))
    for stage in ('pretrain', 'finetune')
  }


def _columns(stage: dict) -> dict:
  if 'not_run' in stage:
    return stage
  found = {key: stage[key] for key in ('devices', 'batch_size', 'hbm', 'compile_seconds')}
  found['bytes_per_device'] = stage['bytes_per_device']['total']
  if 'collectives' not in stage:  # it does not fit, and the compiler gave up
    return found
  return found | {
    'sent_per_device': sum(c['sent'] for c in stage['collectives'].values()),
    'seconds_at_best': max(stage['seconds_at_best'].values()),
    'bound_by': max(stage['seconds_at_best'], key=stage['seconds_at_best'].get),
  }


def main(arguments=None):
  parser = harness.parser('configs_compiled', __doc__, 'configs_compiled.json')
  parser.add_argument('--cases', default=','.join(SLICES), help='(%(default)s)')
  parser.add_argument('--models', default=','.join(MODELS), help='(%(default)s)')
  harness.add_resume(parser, limit=900)
  given = parser.parse_args(arguments)
  cases = harness.chosen(parser, 'case', given.cases, SLICES)
  models = harness.chosen(parser, 'model', given.models, MODELS)
  report = harness.report('configs_compiled', __doc__.splitlines()[0], precision='bfloat16', rows=[])
  rows = [{'case': case, 'model': model} for case in cases for model in models]
  harness.fill(given, report, rows, functools.partial(measured, limit=given.limit))


if __name__ == '__main__':
  main()
