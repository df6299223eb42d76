"""The cost of several runs as one program, and the agreement of one run by several processes."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import jax
import numpy as np

from benchmarks import compiled, harness
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.build import build, resolve
from lra_spt.runs.cluster.checks import random_batches
from lra_spt.training import population
from lra_spt.training.programs import forget_programs
from lra_spt.training.step import train_steps

CASES = [f'{task}:model={model}' for task in ('text', 'image') for model in ('transformer_rotary', 's4')]
MEMBERS = ('2', '4', '8')

MODELS = ('transformer', 's4')  # cases of `processes`
BATCH, STEPS = 48, 20


class Dispatches:
  """A dispatch of `members` runs as one program; a call runs it `repeats` times and waits.

  vectorised: members are stacked in every operation, whatever the platform.
  """

  def __init__(self, built, members: int, steps: int, *, repeats: int = 1, vectorised: bool = False):
    self._mesh = sharding.make_mesh(devices=jax.devices()[:1], members=members)
    rows, self._repeats = built.spec.batch_size, repeats
    with self._in_force(vectorised):
      seeds = [dataclasses.replace(built, seed=seed) for seed in range(members)]
      self._state = population.stack([each.fresh_state(self._mesh) for each in seeds], self._mesh)
      chunks = [random_batches(built.task, steps, rows, seed) for seed in range(members)]
      stacked = population.stacks(self._mesh)
      chunk = jax.tree.map(lambda *x: np.stack(x) if stacked else x[0], *chunks)
      chunk = sharding.to_devices(chunk, self._mesh, rows, np.arange(rows), leading=1, stacked=stacked)
      keys = population.stack([each.key for each in seeds], self._mesh)
      counts = np.full((members,) if stacked else (), steps, np.int32)
      self._arguments = chunk, counts, keys
      self._program = train_steps(built.typical_program).lower(self._state, *self._arguments).compile()
    self.known = harness.compiled_bytes(self._program)

  @contextlib.contextmanager
  def _in_force(self, vectorised):
    before, population.ONE_BY_ONE = population.ONE_BY_ONE, () if vectorised else population.ONE_BY_ONE
    forget_programs()
    with jax.set_mesh(self._mesh):
      yield
    population.ONE_BY_ONE = before
    forget_programs()

  def __call__(self) -> None:
    for _ in range(self._repeats):
      self._state, records = self._program(self._state, *self._arguments)
    jax.block_until_ready(records)


def measured(case: str, members: int, steps: int, rounds: int) -> dict:
  """The columns of a row of `members`; times are those of a step of all members."""
  built = build(resolve(loading.load(f'configs/mini/{case.replace(":", ".py:", 1)}')), 'pretrain')
  runs = {
    'alone': Dispatches(built, 1, steps, repeats=members),
    'together': Dispatches(built, members, steps),
  }
  if jax.default_backend() in population.ONE_BY_ONE:
    runs['vectorised'] = Dispatches(built, members, steps, vectorised=True)
  samples = harness.turns(runs, rounds)
  row = {'batch': built.spec.batch_size, 'length': built.task.length, 'steps': steps}
  for name, each in samples.items():
    row[name] = harness.milliseconds(each, per=steps) | runs[name].known
    if name != 'alone':
      row[name]['times_faster'] = harness.ratios(samples['alone'], each)
  return row


def run_members(arguments):
  """Measures the cost of a step of several runs as one program, beside as many programs of one run.

  Pretraining steps of LRA-mini's models on random examples, in dispatches of `--steps`, on one device. They
  take turns:

    alone        the dispatches of all members, one after the other
    together     the dispatch of the population, as `runtime.members` trains it on CPUs: one member after the
                 other within the program
    vectorised   the members stacked in every operation, as on accelerators

  `python -m benchmarks accelerator` measures the same on a GPU.
  """
  parser = harness.parser(run_members, 'members.json')
  harness.add_names(parser, '--cases', CASES)
  harness.add_names(parser, '--members', MEMBERS)
  parser.add_argument('--steps', type=int, default=8, help='of a dispatch (%(default)s)')
  parser.add_argument('--rounds', type=int, default=5, help='turns of each (%(default)s)')
  harness.add_resume(parser)
  options = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('members', 'steps of several runs as one program')
  rows = [{'case': case, 'members': int(members)} for members in options.members for case in options.cases]
  measure = functools.partial(measured, steps=options.steps, rounds=options.rounds)
  harness.fill(options, report, rows, measure)


def flags_of(model: str, data) -> list[str]:
  """Flags that override the config, for both `train` and `compile`."""
  stages = {'batch_size': BATCH, 'max_steps': STEPS, 'evaluate_every': STEPS // 2}
  flags = [f'--config.{stage}.{key}={v}' for stage in ('pretrain', 'finetune') for key, v in stages.items()]
  runtime = {'devices': 0, 'evaluation_batch_size': 240, 'steps_per_dispatch': 1, 'log_every': 1}
  flags += [f'--config.runtime.{key}={value}' for key, value in runtime.items()]
  flags.append(f'--config.runtime.data_dir={data}')
  return flags


def trained(
  config: str, flags: list[str], count: int, workdir: pathlib.Path
) -> tuple[dict[str, float], float]:
  """(losses by stage, step and split, peak megabytes of a process) of a run by `count` processes."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{probe.getsockname()[1]}'
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'PYTHONPATH': str(harness.ROOT)}
  command = [sys.executable, '-m', 'lra_spt', 'train', f'--config={config}', *flags]
  command.append(f'--workdir={workdir}')
  logs, started = [workdir.with_name(f'{workdir.name}.{i}') for i in range(count)], []
  with contextlib.ExitStack() as files:
    for i, log in enumerate(logs):
      several = [f'--coordinator={address}', f'--processes={count}', f'--process={i}'] if count > 1 else []
      options = {'stdout': files.enter_context(log.open('w')), 'stderr': subprocess.STDOUT}
      started.append(subprocess.Popen([*command, *several], cwd=harness.ROOT, env=environment, **options))
    ended = [os.wait4(process.pid, 0) for process in started]
  for (_, status, _), log in zip(ended, logs, strict=True):
    if status:
      raise SystemExit(f'a process of {count} failed: {log.read_text()[-2000:]}')
  losses = {}
  for path in workdir.glob('*/metrics.jsonl'):
    for line in map(json.loads, path.read_text().splitlines()):
      losses[f'{path.parent.name} {line["step"]} {line["split"]}'] = line['loss']
  return losses, max(used.ru_maxrss for _, _, used in ended) / 1e3


def by_processes(model: str, counts: list[int], limit: float) -> dict:
  """The columns of a row of `processes`."""
  rows, first = [], None
  config = f'configs/demo.py:model={model},regime=masked'
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    flags = flags_of(model, folder / 'data')
    prepare = ['prepare', 'stripes', f'--data_dir={folder / "data"}', '--examples=960']
    environment = os.environ | {'PYTHONPATH': str(harness.ROOT)}
    subprocess.run([sys.executable, '-m', 'lra_spt', *prepare], check=True, env=environment)
    for count in counts:
      losses, megabytes = trained(config, flags, count, folder / str(count))
      first = first or losses
      stage = compiled.compiled(config, f'cpu:{count}', *flags, limit=limit)
      row = {'processes': count, 'losses': len(losses), 'megabytes': round(megabytes)}
      row['difference'] = max(abs(losses[key] - first[key]) / abs(first[key]) for key in first)
      row['bytes_per_device'] = stage['bytes_per_device']['total']
      row['collectives'] = stage['collectives']
      rows.append(row)
  return {'by_processes': rows}


def run_processes(arguments):
  """Compares the training of 1, 2 and 4 processes over loopback at equal batches, and what grows with them.

  Masked pretraining and finetuning on the demo's images, a few steps of each, one CPU device per process, all
  on one machine. Losses are those of every step and evaluation; memory is the maximum over processes;
  collectives and bytes are those of the pretraining step, compiled for as many devices (they do not depend on
  how processes share the devices). Time is not measured: with processes that share two cores it would mean
  nothing.
  """
  parser = harness.parser(run_processes, 'processes.json')
  harness.add_names(parser, '--models', MODELS)
  parser.add_argument('--counts', type=int, nargs='*', default=(1, 2, 4), help='of processes (%(default)s)')
  harness.add_resume(parser, limit=600)
  given = parser.parse_args(arguments)
  what = 'the same run by several processes on one machine'
  report = harness.report('processes', what, batch_size=BATCH, steps=STEPS)
  measure = functools.partial(by_processes, counts=given.counts, limit=given.limit)
  harness.fill(given, report, [{'model': model} for model in given.models], measure)
