"""The course of `lra-spt doctor --cluster`: starts the processes that use devices, and writes the report.

Every process of a launcher runs this. It does not use jax itself, so each of its children has the devices to
itself; the children of all processes join each other by the flags that this command was given.
"""

import contextlib
import datetime
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

from lra_spt import files
from lra_spt.config import loading
from lra_spt.distributed import children
from lra_spt.errors import ConfigError, touching
from lra_spt.report.runs import run_folder

REPORT, MEASURED = 'cluster.json', 'measured.json'
LIMIT = 1200.0  # seconds that a child may take
AGAIN, TRIES = 75, 5  # status of a child that asks to be started again; attempts
STEPS, SAVED_EVERY = 60, 10  # of the pretraining that is killed; a checkpoint takes longer than its steps
ROWS = 48  # the smallest number of rows of its batches
TRAINING = 'configs/demo.py:model=transformer,regime=masked'  # a small model: the kill is what matters
DETERMINISTIC = '--xla_gpu_deterministic_ops=true'  # without it sums on a GPU may run in another order


def run(workdir, config: str, joining: dict) -> bool:
  """Checks a machine or cluster, prints a table, and writes REPORT into `workdir`.

  Args:
    workdir: a folder that all processes share, without a report.
    config: whose finetuning steps are compared and timed.
    joining: the arguments of `processes.start_processes`.

  Returns:
    True if everything passed.

  Raises:
    ConfigError: a flag that cannot be used, or a workdir that has a report.
  """
  workdir = run_folder.local_folder(workdir, '--workdir')
  if (workdir / REPORT).exists():
    raise ConfigError(f'{workdir} holds the report of an earlier check; give another --workdir')
  loading.load(config)  # a wrong one is an error before anything starts
  start = time.monotonic()
  with touching(workdir, 'written to'):
    workdir.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as local:
    children = Children(workdir, pathlib.Path(local), joining)
    items, machine, place = children.check(config)
    if place is not None:
      items['kill and resume'] = children.kill_and_resume(place)
  good = all(item['passed'] for item in items.values())
  if place is None or place['process'] == 0:
    report = {
      'what': 'lra-spt doctor --cluster',
      'date': datetime.date.today().isoformat(),
      'seconds': round(time.monotonic() - start, 1),
      'config': config,
      **machine,
      'items': items,
    }
    files.write_json(workdir / REPORT, report)
    width = max(map(len, items))
    for name, item in items.items():
      print(f'{"passed" if item["passed"] else "FAILED"}  {name:<{width}}  {item["says"]}')
    print(f'{workdir / REPORT} ({report["seconds"]:.0f} s)')
  return good


class Children:
  """The processes that this one starts, one after the other; their output goes to a file in `workdir`.

  local: a folder of this process alone.
  """

  def __init__(self, workdir: pathlib.Path, local: pathlib.Path, joining: dict):
    self.workdir, self.local, self.joining = workdir, local, joining
    self.log = workdir / f'{socket.gethostname()}-{os.getpid()}.log'

  def run(self, *words: str, watch=lambda: False, **environment: str) -> int | None:
    """Runs `python -m WORDS` to its end; returns its status, or None where it took more than LIMIT.

    watch: called a few times a second; the child is killed when it returns True.
    """
    environment = os.environ | environment
    with self.log.open('ab') as log:
      options = {'stdin': subprocess.DEVNULL, 'stdout': log, 'stderr': subprocess.STDOUT, 'env': environment}
      child = subprocess.Popen([*children.python(), '-m', *words], **options)
    end = time.monotonic() + LIMIT
    try:
      while (status := child.poll()) is None:
        if time.monotonic() > end:
          return None
        if watch():
          child.kill()
        time.sleep(0.02)
      return status
    finally:
      child.kill()
      child.wait()

  def check(self, config: str) -> tuple[dict, dict, dict | None]:
    """Runs `checks`; returns (items by name, the machine, the place of this process or None if they fail)."""
    from_checks, place = self.workdir / MEASURED, self.local / 'place.json'
    given = {'workdir': str(self.workdir), 'config': config, 'place': str(place), 'joining': self.joining}
    from_checks.unlink(missing_ok=True)  # of a check that was interrupted
    status = self.run('lra_spt.runs.cluster.checks', json.dumps(given))
    measured = {'items': {}, 'machine': {}}
    with contextlib.suppress(FileNotFoundError):
      measured = json.loads(from_checks.read_text(encoding='utf-8'))
    if status == 0:
      return measured['items'], measured['machine'], json.loads(place.read_text(encoding='utf-8'))
    measured['items'][measured.get('running', 'joining')] = {'passed': False, 'says': self._ended(status)}
    return measured['items'], measured['machine'], None

  def _ended(self, status: int | None) -> str:
    how = f'did not end within {LIMIT:.0f} s' if status is None else f'ended with status {status}'
    return f'a process {how}; see {self.log}'

  def kill_and_resume(self, place: dict) -> dict:
    """Trains twice on all devices, kills and restarts one training, and compares both to the last bit."""
    rows = -(-ROWS // place['devices']) * place['devices']
    data = f'--data_dir={self.local / "data"}'
    status = self.run('lra_spt', 'prepare', 'stripes', data, f'--examples={4 * rows}')
    if status != 0:
      return {'passed': False, 'says': self._ended(status)}
    runtime = {'data_dir': self.local / 'data', 'devices': 0, 'evaluation_batch_size': rows}
    runtime |= {'progress': False, 'log_every': 1, 'steps_per_dispatch': 1, 'checkpoint_every': SAVED_EVERY}
    runtime |= {'prove_kernels': False}  # else timing might choose another kernel in the second training
    values = {f'runtime.{key}': value for key, value in runtime.items()}
    for stage, steps in (('pretrain', STEPS), ('finetune', SAVED_EVERY)):
      values |= {f'{stage}.batch_size': rows, f'{stage}.max_steps': steps, f'{stage}.evaluate_every': steps}
    flags = [f'--config.{key}={value}' for key, value in values.items()]
    joining = {key: value for key, value in self.joining.items() if value is not None}
    flags += ['--distributed'] * joining.pop('distributed', False)
    flags += [f'--{key}={value}' for key, value in joining.items()]
    killed_at = None

    def saved() -> bool:
      """True when the run to be killed has a checkpoint; only the first process kills its child."""
      nonlocal killed_at
      steps = [path.name for path in self.workdir.glob('killed/pretrain-*/checkpoints/latest/*')]
      if place['process'] == 0 and killed_at is None:
        killed_at = max((int(step) for step in steps if step.isdigit()), default=None)
        return killed_at is not None
      return False

    for name, watch in (('whole', lambda: False), ('killed', saved)):
      words = 'train', f'--config={TRAINING}', f'--workdir={self.workdir / name}', *flags
      environment = {'LRA_SPT_CACHE': str(self.workdir / 'compiled')}
      environment['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {DETERMINISTIC}'
      for _ in range(TRIES):
        before = killed_at
        status = self.run('lra_spt', *words, watch=watch, **environment)
        if status != AGAIN and killed_at == before:
          break
      if status != 0:
        return {'passed': False, 'says': f'{name}: {self._ended(status)}'}
    if place['process'] != 0:
      return {'passed': True, 'says': ''}  # the first process compares
    return self._compared(killed_at)

  def _compared(self, killed_at: int | None) -> dict:
    if killed_at is None:
      return {'passed': False, 'says': f'{STEPS} steps ended before the first checkpoint was seen'}
    whole, killed = (_trained(self.workdir / name) for name in ('whole', 'killed'))
    same = whole == killed
    how = 'are bitwise equal to' if same else 'differ from'
    numbers = f'{len(killed["losses"])} losses and the weights {how} those of an undisturbed run'
    return {'passed': same, 'says': f'killed after step {killed_at} of {STEPS}: {numbers}', 'step': killed_at}


def _trained(workdir: pathlib.Path) -> dict:
  """The losses of all steps and validations of a run, and the digests of the best weights of its stages."""
  result = run_folder.read_result(workdir)
  losses = {}
  for folder in run_folder.stages_in(workdir):
    for line in filter(None, run_folder.metrics_lines(folder / run_folder.METRICS)):
      losses[folder.name, line['split'], line['step']] = line['loss']
  return {'losses': losses, 'weights': {k: stage['best_digest'] for k, stage in result['stages'].items()}}
