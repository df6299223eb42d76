"""Do 1, 2 and 4 processes over loopback train alike at equal batches, and what grows with their number.

  python -m benchmarks processes [--json PATH] [--models NAME,...] [--counts 1,2,4] [--resume]

Masked pretraining and finetuning on the demo's images, a few steps of each, one CPU device per process, all
on one machine. Losses are those of every step and evaluation; memory is the maximum over processes;
collectives and bytes are those of the pretraining step, compiled for as many devices (they do not depend on
how processes share the devices). Time is not measured: with processes that share two cores it would mean
nothing.
"""

import contextlib
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from benchmarks import field_compiled, harness

MODELS = ('transformer', 's4')
BATCH, STEPS = 48, 20


def flags_of(model: str, data) -> list[str]:
  """Of both `train` and `compile`."""
  stages = {'batch_size': BATCH, 'max_steps': STEPS, 'evaluate_every': STEPS // 2}
  flags = [f'--config.{stage}.{key}={v}' for stage in ('pretrain', 'finetune') for key, v in stages.items()]
  runtime = {'devices': 0, 'evaluation_batch_size': 240, 'steps_per_dispatch': 1, 'log_every': 1}
  flags += [f'--config.runtime.{key}={value}' for key, value in runtime.items()]
  flags.append(f'--config.runtime.data_dir={data}')
  return [f'--config=configs/demo.py:model={model},regime=masked', *flags]


def trained(flags: list[str], count: int, workdir: pathlib.Path) -> tuple[dict[str, float], float]:
  """(losses by stage, step and split, most megabytes of a process) of a run by so many processes."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{probe.getsockname()[1]}'
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'PYTHONPATH': str(harness.ROOT)}
  command = [sys.executable, '-m', 'lra_spt', 'train', *flags, f'--workdir={workdir}']
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


def measured(model: str, counts: list[int], limit: float) -> dict:
  """The columns of a row; `by_processes` has the numbers."""
  found, first = [], None
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    flags = flags_of(model, folder / 'data')
    prepare = ['prepare', 'stripes', f'--data_dir={folder / "data"}', '--examples=960']
    environment = os.environ | {'PYTHONPATH': str(harness.ROOT)}
    subprocess.run([sys.executable, '-m', 'lra_spt', *prepare], check=True, env=environment)
    for count in counts:
      losses, megabytes = trained(flags, count, folder / str(count))
      first = first or losses
      topology = ['compile', *flags, '--stage=pretrain', f'--topology=cpu:{count}', '--smallest=false']
      stage = field_compiled.compiled(topology, limit)
      made = {'processes': count, 'losses': len(losses), 'megabytes': round(megabytes)}
      made['difference'] = max(abs(losses[key] - first[key]) / abs(first[key]) for key in first)
      made['bytes_per_device'] = stage['bytes_per_device']['total']
      made['collectives'] = stage['collectives']
      found.append(made)
  return {'by_processes': found}


def main(arguments=None):
  parser = harness.parser('processes', __doc__, 'processes.json')
  parser.add_argument('--models', default=','.join(MODELS), help='%(default)s')
  parser.add_argument('--counts', default='1,2,4', help='of processes, the first one is compared with')
  harness.add_resume(parser, limit=600)
  given = parser.parse_args(arguments)
  models = harness.chosen(parser, 'model', given.models, MODELS)
  what = 'the same run by several processes on one machine'
  report = harness.report('processes', what, batch_size=BATCH, steps=STEPS, rows=[])
  counts = [int(count) for count in given.counts.split(',')]
  measure = functools.partial(measured, counts=counts, limit=given.limit)
  harness.fill(given, report, [{'model': model} for model in models], measure)


if __name__ == '__main__':
  main()
