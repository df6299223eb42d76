"""What one training step moves between 4 to 256 chips, in one TPU slice and in several.

  python -m benchmarks chips [--json PATH] [--topologies NAME,...] [--models NAME,...] [--resume]

`lra-spt compile` of the masked pretraining step on Image with 256 rows, whatever the number of chips. Nothing
runs on a TPU: these are bytes of compiled programs. Compiled cases stay in the file; --resume continues from
them.
"""

import functools

from benchmarks import field_compiled, harness

TOPOLOGIES = ('v5e:2x2', 'v5e:4x4', 'v5e:8x8', 'v5e:16x16', '2xv5e:4x4', '4xv5e:4x4', '4xv5e:8x8')
MODELS = ('transformer_rotary', 's4')
BATCH = 256


def measured(model: str, topology: str, limit: float) -> dict:
  """The columns of a row: of what was compiled, or why it was not."""
  config = f'configs/image.py:model={model},regime=masked'
  flags = ['compile', f'--config={config}', '--stage=pretrain', f'--topology={topology}', '--smallest=false']
  flags += [f'--config.pretrain.batch_size={BATCH}', '--config.runtime.precision=bfloat16']
  stage = field_compiled.compiled(flags, limit)
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


def main(arguments=None):
  parser = harness.parser('chips', __doc__, 'chips_compiled.json')
  parser.add_argument('--topologies', default=','.join(TOPOLOGIES), help='%(default)s')
  parser.add_argument('--models', default=','.join(MODELS), help='%(default)s')
  harness.add_resume(parser, limit=900)
  given = parser.parse_args(arguments)
  models = harness.chosen(parser, 'model', given.models, MODELS)
  report = harness.report('chips', __doc__.splitlines()[0], batch_size=BATCH, precision='bfloat16', rows=[])
  cases = [{'model': model, 'topology': name} for name in given.topologies.split(',') for model in models]
  harness.fill(given, report, cases, functools.partial(measured, limit=given.limit))


if __name__ == '__main__':
  main()
