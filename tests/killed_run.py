"""`lra-spt`, killed at a moment: python killed_run.py MOMENT:STAGE:STEP train --config=... --workdir=...

The process sends SIGKILL to itself, so that the moment does not depend on the speed of the machine. SIGKILL
gives a process no chance to clean up, whoever sends it. Moments:

  logged: the training line of the step is in metrics.jsonl.
  saving: `latest` of the step is being written under a temporary name.
  between: `best` of the step is written, `latest` is not.
  saving_best: `best` of the step is being written.
  asked, interrupted: the moment `logged`, but with SIGTERM or SIGINT, which a process can handle. One of
    several processes then waits for jax.distributed, which passes the signal on once a second.
  quick: never; but another process counts as lost after 8 s without a heartbeat.
"""

import os
import signal
import sys
import threading
import time

import jax

from lra_spt.cli import main as cli
from lra_spt.distributed import heartbeat
from lra_spt.training import loop
from lra_spt.training.checkpoints import store as checkpoints

SIGNALS = {'logged': signal.SIGKILL, 'asked': signal.SIGTERM, 'interrupted': signal.SIGINT}


def die():
  os.kill(os.getpid(), signal.SIGKILL)


def install(moment, stage, step):
  """Makes the process die at the moment."""
  if moment == 'quick':
    heartbeat.BEAT, heartbeat.SILENCE = 0.5, 8.0
    return
  if moment in SIGNALS:
    create = loop.create_writer  # all processes have a writer, but only that of the first one writes

    def create_and_watch(directory, *options):
      writer = create(directory, *options)
      write = writer.write_scalars

      def write_and_die(at, scalars):
        write(at, scalars)
        writer.flush()
        if at == step and stage in directory.name:
          os.kill(os.getpid(), SIGNALS[moment])
          if jax.distributed.is_initialized():  # a fast machine would end the run before the others know
            time.sleep(3)

      writer.write_scalars = write_and_die
      return writer

    loop.create_writer = create_and_watch
    return
  name = 'best' if moment == 'saving_best' else 'latest'
  save = getattr(checkpoints.Checkpoints, f'save_{name}')

  def save_and_die(self, state):
    if int(state['step']) == step and stage in str(self.directory):
      self.wait()
      if moment == 'between':
        die()
      threading.Thread(target=die_at_temporary, args=(self.directory / name,), daemon=True).start()
      save(self, state)
      self.wait()
      raise SystemExit('the save ended before a temporary name was seen')
    save(self, state)

  setattr(checkpoints.Checkpoints, f'save_{name}', save_and_die)


def die_at_temporary(folder):
  while not any('tmp' in name for name in os.listdir(folder)):
    pass
  die()


if __name__ == '__main__':
  name, where, number = sys.argv[1].split(':')
  install(name, where, int(number or 0))
  sys.exit(cli.main(sys.argv[2:]))
