"""How long the loop waits for a save of the best and of the latest state: in the foreground, and as it does.

  python -m benchmarks saves [--json PATH] [--cases image:model=s4,...] [--processes 1,2] [--devices 1,8]

States are those of finetuning with the config: whole on every CPU device of one process, or on one device of
each of several processes over loopback, on the same machine.

  foreground   saves both states and returns when they are on disk
  background   copies both and returns while a thread writes
  written      how long that thread takes from then on, when nothing else runs
  defaults     `foreground` with Orbax's defaults: each device writes a part of every array
  first        the first save of `foreground` and of `defaults`, which may compile programs
"""

import contextlib
import json
import pathlib
import socket
import tempfile
from unittest import mock

import jax
import numpy as np

from benchmarks import harness
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.build import build_stage
from lra_spt.training.checkpoints import store as checkpoints_lib
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.checkpoints.digests import digests
from lra_spt.training.checkpoints.store import Checkpoints

CASES = [f'{task}:model={model}' for task in ('image', 'pathx') for model in ('transformer_rotary', 's4')]

ROW = 'row.json'


def measured(case: str, devices: int, rounds: int, folder: pathlib.Path) -> dict:
  """The columns of a row; devices: of all processes."""
  built = build_stage(loading.load(f'configs/{case.replace(":", ".py:", 1)}'), 'finetune')
  mesh = sharding.make_mesh(devices=jax.devices()[:devices])
  with contextlib.ExitStack() as opened:
    opened.enter_context(jax.set_mesh(mesh))
    before, now = (
      opened.enter_context(contextlib.closing(Checkpoints(folder / name, background=background)))
      for name, background in (('foreground', None), ('background', Background()))
    )
    with mock.patch.object(checkpoints_lib, 'PART', 0):
      plain = opened.enter_context(contextlib.closing(Checkpoints(folder / 'defaults')))
    state = jax.block_until_ready(_as_trained(built.fresh_state(mesh)))

    def save(checkpoints):
      state['step'] = state['step'] + 1
      checkpoints.save_best(state)
      checkpoints.save_latest(state)

    runs = {'foreground': lambda: save(before), 'defaults': lambda: save(plain)}
    digests(state | {'step': state['step'] + 1})  # compiled before any of them
    first = {name: harness.milliseconds([harness.timed(run)]) for name, run in runs.items()}
    runs |= {'background': lambda: save(now), 'written': now.wait}
    samples = harness.turns(runs, rounds)
  return {
    'megabytes': round(sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6, 2),
    'arrays': len(jax.tree.leaves(state)),
    **{name: harness.milliseconds(each) for name, each in samples.items()},
    'first': first,
  }


def _as_trained(state):
  """With something in Adam's moments, which are 0 at first, so that they are not compressed to nothing."""
  rng = np.random.default_rng(0)

  def filled(x):
    return jax.device_put(rng.normal(size=x.shape).astype(x.dtype), x.sharding) if x.ndim else x

  return state | {'opt': jax.tree.map(filled, state['opt'])}


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
  parser.add_argument('--devices', default='1,8', help='how many of one process (%(default)s)')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each (%(default)s)')
  harness.add_resume(parser)
  for flag in ('--coordinator', '--process', '--folder'):
    parser.add_argument(flag, help='of a process that this starts')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  if options.process:
    jax.distributed.initialize(options.coordinator, int(options.processes), int(options.process))
    folder = pathlib.Path(options.folder)
    row = measured(options.cases, jax.device_count(), options.rounds, folder)
    if options.process == '0':
      (folder / ROW).write_text(json.dumps(row))  # others write to standard output, too
    return
  jax.config.update('jax_num_cpu_devices', max(map(int, options.devices.split(','))))
  report = harness.report('saves', 'how long the loop waits for a save', rows=[])
  processes, devices = (
    [int(count) for count in each.split(',')] for each in (options.processes, options.devices)
  )
  chosen = harness.chosen(parser, 'case', options.cases, CASES)
  setups = [(1, count) for count in devices if 1 in processes] + [
    (count, 1) for count in processes if count > 1
  ]
  cases = [{'case': case, 'processes': p, 'devices': d} for p, d in setups for case in chosen]

  def measure(case, processes, devices):
    if processes > 1:
      return of_several(case, options.rounds, processes)
    with tempfile.TemporaryDirectory() as folder:
      return measured(case, devices, options.rounds, pathlib.Path(folder))

  harness.fill(options, report, cases, measure)


if __name__ == '__main__':
  main()
