"""How long the loop waits for a save of the best and of the latest state: in the foreground, and as it does.

  python -m benchmarks.saves [--json PATH] [--cases image:model=s4,...] [--processes 1,2] [--rounds N]

States are those of finetuning with the config, on one CPU device, or one of each of several processes over
loopback, on the same machine. `foreground` saves both and returns when they are on the disk; `background`
copies both and returns while a thread writes, and `written` is how long that takes from then on, when nothing
else runs.
"""

import contextlib
import json
import pathlib
import socket
import tempfile

import jax

from benchmarks import harness
from lra_spt import config as config_lib
from lra_spt import parallel
from lra_spt.build import build_stage
from lra_spt.training.background import Background
from lra_spt.training.checkpoints import Checkpoints

CASES = [f'{task}:model={model}' for task in ('image', 'pathx') for model in ('transformer_rotary', 's4')]

ROW = 'row.json'


def measured(case: str, rounds: int, folder: pathlib.Path) -> dict:
  """The columns of a row."""
  built = build_stage(config_lib.load(f'configs/{case.replace(":", ".py:", 1)}'), 'finetune')
  mesh = parallel.make_mesh(devices=jax.devices() if jax.process_count() > 1 else jax.devices()[:1])
  with contextlib.ExitStack() as opened:
    opened.enter_context(jax.set_mesh(mesh))
    before, now = (
      opened.enter_context(contextlib.closing(Checkpoints(folder / name, background=background)))
      for name, background in (('foreground', None), ('background', Background()))
    )
    state = jax.block_until_ready(built.fresh_state(mesh))

    def save(checkpoints):
      state['step'] = state['step'] + 1
      checkpoints.save_best(state)
      checkpoints.save_latest(state)

    runs = {'foreground': lambda: save(before), 'background': lambda: save(now), 'written': now.wait}
    samples = harness.turns(runs, rounds)
  return {
    'megabytes': round(sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6, 2),
    'arrays': len(jax.tree.leaves(state)),
    **{name: harness.milliseconds(each) for name, each in samples.items()},
  }


def of_several(case: str, rounds: int, processes: int) -> dict:
  """Those of the first one of several processes."""
  with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
    probe.bind(('127.0.0.1', 0))
    common = f'--cases={case}', f'--rounds={rounds}', f'--folder={folder}', f'--processes={processes}'
    address = f'--coordinator=127.0.0.1:{probe.getsockname()[1]}'
    probe.close()
    workers = [harness.Worker('saves', *common, address, f'--process={i}') for i in range(processes)]
    for worker in workers:
      worker.close()
    return json.loads((pathlib.Path(folder) / ROW).read_text())


def main(arguments=None):
  parser = harness.parser('saves', __doc__, 'saves.json')
  parser.add_argument('--cases', default=','.join(CASES), help='configs (%(default)s)')
  parser.add_argument('--processes', default='1,2', help='how many (%(default)s)')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each (%(default)s)')
  harness.add_resume(parser)
  for flag in ('--coordinator', '--process', '--folder'):
    parser.add_argument(flag, help='of a process that this starts')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  if options.process:
    jax.distributed.initialize(options.coordinator, int(options.processes), int(options.process))
    folder = pathlib.Path(options.folder)
    row = measured(options.cases, options.rounds, folder)
    if options.process == '0':
      (folder / ROW).write_text(json.dumps(row))  # others write to standard output, too
    return
  report = harness.report('saves', 'how long the loop waits for a save', rows=[])
  counts = [int(count) for count in options.processes.split(',')]
  chosen = harness.chosen(parser, 'case', options.cases, CASES)
  cases = [{'case': case, 'processes': count} for count in counts for case in chosen]

  def measure(case, processes):
    if processes > 1:
      return of_several(case, options.rounds, processes)
    with tempfile.TemporaryDirectory() as folder:
      return measured(case, options.rounds, pathlib.Path(folder))

  harness.fill(options, report, cases, measure)


if __name__ == '__main__':
  main()
