"""Checkpoints and checksums: how long training waits for a save, and what checksums cost."""

import argparse
import contextlib
import functools
import json
import pathlib
import socket
import tempfile
from unittest import mock

import jax
import numpy as np

from benchmarks import harness
from data_prep import builders
from lra_spt.config import loading
from lra_spt.data import examples, prepared, tasks
from lra_spt.distributed import sharding
from lra_spt.runs.build import build, resolve
from lra_spt.training.checkpoints import store as checkpoints_lib
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.checkpoints.digests import digests
from lra_spt.training.checkpoints.store import Checkpoints

CASES = [f'{task}:model={model}' for task in ('image', 'pathx') for model in ('transformer_rotary', 's4')]
ROW = 'row.json'

LENGTH = 1024  # bytes of a row of the set of `digests`
TASK = tasks.Task('random', 'random', tasks.Tokens(LENGTH, vocabulary=256), tasks.Classes(2))


def measured(case: str, devices: int, rounds: int, folder: pathlib.Path) -> dict:
  """The columns of a row of `saves`; devices: number over all processes."""
  built = build(resolve(loading.load(f'configs/{case.replace(":", ".py:", 1)}')), 'finetune')
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
    digests(state | {'step': state['step'] + 1})  # compiles them before any is timed
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
  """The state with random moments of Adam: zeros would be compressed to nothing."""
  rng = np.random.default_rng(0)

  def filled(x):
    return jax.device_put(rng.normal(size=x.shape).astype(x.dtype), x.sharding) if x.ndim else x

  return state | {'opt': jax.tree.map(filled, state['opt'])}


def of_several(case: str, rounds: int, processes: int) -> dict:
  """The columns that the first of several processes measured."""
  with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
    probe.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{probe.getsockname()[1]}'
    probe.close()
    common = f'--cases={case}', f'--rounds={rounds}', '--serve', folder, address, processes
    workers = [harness.Worker('saves', *common, number) for number in range(processes)]
    for worker in workers:
      worker.close()
    return json.loads((pathlib.Path(folder) / ROW).read_text())


def serve(case: str, rounds: int, folder: str, address: str, processes: str, number: str) -> None:
  """Measures as one of several processes; the first one writes the columns into the folder."""
  jax.distributed.initialize(address, int(processes), int(number))
  folder = pathlib.Path(folder)
  row = measured(case, jax.device_count(), rounds, folder)
  if number == '0':
    (folder / ROW).write_text(json.dumps(row))  # in a file, because libraries write to standard output


def run_saves(arguments):
  """Times how long training waits for a save of the best and of the latest state.

  States are those of finetuning with the config: whole on every CPU device of one process, or on one device
  of each of several processes over loopback, on the same machine.

    foreground   saves both states and returns when they are on disk
    background   copies both and returns while a thread writes
    written      how long that thread takes from then on, when nothing else runs
    defaults     `foreground` with Orbax's defaults: each device writes a part of every array
    first        the first save of `foreground` and of `defaults`, which may compile programs
  """
  parser = harness.parser(run_saves, 'saves.json')
  harness.add_names(parser, '--cases', CASES)
  parser.add_argument('--processes', type=int, nargs='*', default=(1, 2), help='how many (%(default)s)')
  parser.add_argument('--devices', type=int, nargs='*', default=(1, 8), help='of one process (%(default)s)')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each (%(default)s)')
  parser.add_argument('--serve', nargs=4, help=argparse.SUPPRESS)
  harness.add_resume(parser)
  options = parser.parse_args(arguments)
  harness.cpu_only()
  if options.serve:
    return serve(options.cases[0], options.rounds, *options.serve)
  jax.config.update('jax_num_cpu_devices', max(options.devices))
  report = harness.report('saves', 'how long the loop waits for a save')
  setups = [(1, count) for count in options.devices if 1 in options.processes]
  setups += [(count, 1) for count in options.processes if count > 1]
  cases = [{'case': case, 'processes': p, 'devices': d} for p, d in setups for case in options.cases]

  def measure(case, processes, devices):
    if processes > 1:
      return of_several(case, options.rounds, processes)
    with tempfile.TemporaryDirectory() as folder:
      return measured(case, devices, options.rounds, pathlib.Path(folder))

  harness.fill(options, report, cases, measure)


def of_a_checkpoint(config: str, folder: pathlib.Path) -> dict:
  """Milliseconds of a save and of its checksums alone."""
  built = build(resolve(loading.load(config)), 'pretrain')
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh), contextlib.closing(Checkpoints(folder)) as checkpoints:
    state = jax.block_until_ready(built.fresh_state(mesh))
    runs = {
      'save': lambda: checkpoints.save_latest(state),
      'digests': lambda: digests(state).block_until_ready(),
    }
    samples = harness.turns(runs, rounds=7)
  times = {name: harness.milliseconds(each) for name, each in samples.items()}
  return times | {'megabytes': round(sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6, 2)}


def of_a_set(megabytes: float, data_dir: pathlib.Path) -> dict:
  """Milliseconds of opening a set whose files were not verified before, and of opening it again."""
  rows = max(8, round(megabytes * 1e6 / LENGTH))
  counts = {'train': rows - 4, 'validation': 2, 'test': 2}

  def random(file, seed):
    rng = np.random.default_rng(seed)
    return ((rng.integers(4, 256, LENGTH, np.uint8), k % 2) for k in range(counts[file]))

  files = {file: functools.partial(random, file, seed) for seed, file in enumerate(counts)}
  vocabulary = ['<mask>', '<pad>', '<unk>', '<eos>', *map(str, range(252))]
  source = harness.random_source(files, counts, classes=2, shape=None, extra={'vocabulary': vocabulary})
  builders.prepare_set('random', data_dir, {'counts': counts}, lambda work: source)
  verified = data_dir / 'random' / prepared.VERSION / prepared.CHECKED

  def open_unknown():
    verified.unlink(missing_ok=True)
    examples.open_splits(TASK, data_dir)

  runs = {'first': open_unknown, 'again': lambda: examples.open_splits(TASK, data_dir)}
  samples = harness.turns(runs, rounds=5)
  return {name: harness.milliseconds(each) for name, each in samples.items()} | {'megabytes': megabytes}


def run_digests(arguments):
  """Times the checksums of a checkpoint when it is saved, and of a prepared set when it is opened.

  The checkpoint is that of the config's pretraining: first a save, then its checksums alone. The set is
  random bytes in rows of 1,024. It is opened twice: when nothing is known of its files, so that all of them
  are read, and again.
  """
  parser = harness.parser(run_digests, 'digests.json')
  parser.add_argument('--megabytes', type=float, default=200.0, help='of the set (%(default)s)')
  parser.add_argument('--config', default='configs/image.py:regime=masked', help='(%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('digests', 'what digests cost', config=options.config)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    report['checkpoint'] = of_a_checkpoint(options.config, folder / 'checkpoints')
    report['set'] = of_a_set(options.megabytes, folder / 'data')
  print(json.dumps({key: report[key] for key in ('checkpoint', 'set')}, indent=1))
  harness.write(options.json, report)
