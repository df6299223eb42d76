"""What a training step moves to and from a TPU's memory, against the least that it can.

  python -m benchmarks tpu_traffic [--json PATH] [--topology v5e:4x4] [--cases NAME,...] [--resume]

`lra-spt compile` of the finetuning step of Image and PathX with the values of their configs, each in a
process of its own: nothing runs on a TPU. The least is to read and write the state once, read the batch, and
write and read once what is kept for the backward pass (`lra_spt.runs.aot.least`). Recurrences compile as the
tree of logarithmic depth, the default, and as the Pallas kernel; layers as a loop, the default, and one after
the other (runtime.scan_layers=never). Compiled cases stay in the file; --resume continues from them.
"""

import functools

from benchmarks import field_compiled, harness

TASKS = {'image': 'configs/image.py', 'pathx': 'configs/pathx.py'}
CASES = {  # model, overrides
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
KEPT = ('length', 'batch_size', 'devices', 'remat', 'precision', 'compile_seconds', 'seconds_at_best')
KEPT += ('memory_bytes_per_device', 'least_memory_bytes_per_device', 'largest_traffic')


def measured(case: str, task: str, topology: str, limit: float) -> dict:
  """The columns of a row: of what was compiled, or why it was not."""
  model, overrides = CASES[case]
  config = f'{TASKS[task]}:model={model},regime=masked'
  flags = ['compile', f'--config={config}', '--stage=finetune', f'--topology={topology}', '--smallest=false']
  stage = field_compiled.compiled([*flags, *overrides], limit, 'finetune')
  if 'not_run' in stage:
    return stage
  return {key: stage[key] for key in KEPT}


def main(arguments=None):
  parser = harness.parser('tpu_traffic', __doc__, 'tpu_traffic.json')
  parser.add_argument('--cases', help='some of them, separated by commas; default: all')
  parser.add_argument('--tasks', default=','.join(TASKS), help='of %(default)s')
  parser.add_argument('--topology', default='v5e:4x4', help='slice (%(default)s)')
  harness.add_resume(parser, limit=900)
  given = parser.parse_args(arguments)
  cases = harness.chosen(parser, 'case', given.cases or ','.join(CASES), CASES)
  tasks = harness.chosen(parser, 'task', given.tasks, TASKS)
  report = harness.report('tpu_traffic', __doc__.splitlines()[0], topology=given.topology, rows=[])
  cases = [{'case': case, 'task': task} for task in tasks for case in cases]
  measure = functools.partial(measured, topology=given.topology, limit=given.limit)
  harness.fill(given, report, cases, measure)


if __name__ == '__main__':
  main()
