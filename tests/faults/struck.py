"""`lra-spt`, struck by a fault when it comes to a phase: python struck.py FAULT PHASE train --config=...

Faults: SIGTERM, SIGINT, SIGKILL, to itself; `twice`, SIGINT two times; `later` and `earlier`, its wall clock
is an hour off from then on (as Python sees it: jax's service has its own clocks); `read` and `reads`, its
next read of examples fails, or all do; `full`, what it saves from then on finds the disk full; `none`.
Phases: see PHASES. A collective that a thread starts beside the main one is a fault of ours.
"""

import errno
import os
import pathlib
import signal
import sys
import threading
import time

import jax
from jax.experimental import multihost_utils

from lra_spt.cli import main as cli
from lra_spt.data import examples
from lra_spt.distributed import heartbeat, processes
from lra_spt.runs import experiment
from lra_spt.training import loop
from lra_spt.training.checkpoints import store as checkpoints
from lra_spt.training.evaluate import Evaluator

NOTE = 'LRA_SPT_STRUCK'  # names the file to which it writes when it was struck, by the clock of the machine
QUICK = 'LRA_SPT_QUICK'  # another process counts as lost after 8 s, not 40
JOIN = 30.0  # seconds for processes to come together, not 300


def _always(*arguments, **keywords):
  return True


def _second_step(log, step, *rest):
  return step == 2  # the one before is on its way to the disk


PHASES = {  # what is called then: of what, by what name, with which arguments, and for the how many-th time
  'joining': (processes, 'start_processes', _always, 1),
  'compiling': (loop, 'train_steps', _always, 1),
  'pretraining': (loop.TrainLog, 'add', _second_step, 1),
  'evaluating': (Evaluator, 'of_each', _always, 1),
  'saving': (checkpoints, '_save', _always, 2),
  'between stages': (experiment, '_from_pretrained', _always, 1),
  'finetuning': (loop.TrainLog, 'add', _second_step, 2),
  'testing': (Evaluator, 'of_each', lambda *_, predictions=False, **__: predictions, 1),
  'leaving': (heartbeat._Watch, 'leave', _always, 1),
}


def before(owner, name, strike, when, turn):
  """Has `strike()` called before the call of that number; 0: before every one."""
  call, turns = getattr(owner, name), [turn]

  def struck(*arguments, **keywords):
    if when(*arguments, **keywords):
      turns[0] -= 1
      if turns[0] == 0 or turn == 0:  # 0: every time
        strike()
    return call(*arguments, **keywords)

  setattr(owner, name, struck)


def install(fault, phase):
  def strike():
    pathlib.Path(os.environ[NOTE]).write_text(str(time.monotonic()))
    FAULTS[fault]()

  for name in ('sync_global_devices', 'broadcast_one_to_all', 'process_allgather'):
    before(multihost_utils, name, refuse_threads, _always, 0)
  processes.JOIN = JOIN
  if os.environ.get(QUICK):
    heartbeat.BEAT, heartbeat.SILENCE, heartbeat.GRACE, examples.PAUSES = 0.5, 8.0, 2.0, (0.1, 0.2)
  if fault != 'none':
    before(*PHASES[phase][:2], strike, *PHASES[phase][2:])


def refuse_threads():
  if threading.current_thread() is not threading.main_thread():
    os.write(2, b'a thread started a collective\n')
    os._exit(70)


def asked(number):
  os.kill(os.getpid(), number)
  if jax.distributed.is_initialized():  # the others look each second, and this small run may be over before
    time.sleep(3)


def asked_twice():
  for _ in range(2):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)


def shift(seconds):
  now, nanoseconds = time.time, time.time_ns
  time.time = lambda: now() + seconds
  time.time_ns = lambda: nanoseconds() + int(seconds * 1e9)


def refuse(times):
  read, left = examples._Stored._records, [times]

  class Refusing:
    def __init__(self, reader):
      self._reader = reader

    def read(self, places):
      if left[0]:
        left[0] -= 1
        raise RuntimeError('pread() failed: Input/output error')  # as ArrayRecord says it
      return self._reader.read(places)

  def refusing(stored, shard, places):
    if not isinstance(stored._readers[shard], Refusing):
      stored._readers[shard] = Refusing(stored._readers[shard])
      opened = stored._open
      stored._open = lambda path: Refusing(opened(path))
    return read(stored, shard, places)

  examples._Stored._records = refusing


def full(folder):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


FAULTS = {
  'SIGTERM': lambda: asked(signal.SIGTERM),
  'SIGINT': lambda: asked(signal.SIGINT),
  'twice': asked_twice,
  'SIGKILL': lambda: os.kill(os.getpid(), signal.SIGKILL),
  'later': lambda: shift(3600.0),
  'earlier': lambda: shift(-3600.0),
  'read': lambda: refuse(1),
  'reads': lambda: refuse(1 << 30),
  'full': lambda: setattr(checkpoints.files, 'sync', full),
}

if __name__ == '__main__':
  signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background ignores it
  install(*sys.argv[1:3])
  sys.exit(cli.main(sys.argv[3:]))
