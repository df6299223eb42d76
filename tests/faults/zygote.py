"""Starts watched processes at the price of a fork: it has imported what they need, and started no backend.

Driven by `Processes`: for every request it forks; the child takes its standard streams, has itself watched,
and then is `lra-spt ...` (or another function of this repository) to the end, interpreter's exit included.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

if __name__ == '__main__':  # also when it is run as a script
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))

from tests.faults import interposer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NEEDED = (  # what commands import, lazily
  'lra_spt.cli.main', 'lra_spt.runs.experiment', 'lra_spt.cli.commands.train', 'lra_spt.cli.commands.prepare',
  'lra_spt.cli.commands.report', 'data_prep.prepare', 'data_prep.sources.stripes',
  'lra_spt.report.pages.report', 'lra_spt.report.runs.unfinished', 'tensorboardX', 'matplotlib.pyplot',
)  # fmt: skip


def compiled_in(folder: pathlib.Path) -> dict[str, str]:
  """Environment variables of processes that compute on CPUs and share their compiled programs in `folder`."""
  return {
    'JAX_PLATFORMS': 'cpu',
    'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '0',
  }


class Outcome(NamedTuple):
  """How a process ended: its status (negative: the signal), what it printed, and what was seen of it."""

  status: int
  printed: str
  complained: str
  operations: list[interposer.Operation]
  struck: interposer.Operation | None


class Processes:
  """Runs functions in watched processes, one after the other.

  Args:
    folder: for their output; it is not watched.
    environment: what they have beside this process's variables.
  """

  def __init__(self, folder, environment):
    self._folder = pathlib.Path(folder)
    self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
      self._zygote = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env=os.environ | environment | {'PYTHONPATH': str(ROOT), 'PYTHONFAULTHANDLER': '1'},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        cwd=self._folder,
      )

  def run(self, function: str, arguments: Sequence, watched, fault=None, timeout: float = 300) -> Outcome:
    """One process: 'module:function'(arguments), whose value is its status. One that hangs is ended with
    SIGABRT, and its threads' stacks are in what it complained."""
    out, err = self._folder / 'stdout', self._folder / 'stderr'
    request = {'function': function, 'arguments': list(map(str, arguments)), 'out': str(out), 'err': str(err)}
    ours, theirs = socket.socketpair()
    with ours:
      with theirs:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [theirs.fileno()]))]
        self._socket.sendmsg([json.dumps(request).encode()], rights)
      process = int(self._socket.recv(100))
      supervisor = interposer.Supervisor(interposer.receive_listener(ours), process, watched, fault)
      ours.sendall(b'g')
      try:
        if not select.select([self._socket], [], [], timeout)[0]:
          os.kill(process, signal.SIGABRT)
        status = int(self._socket.recv(100))
      finally:
        with contextlib.suppress(ProcessLookupError):  # what it started, or itself after the time limit
          os.killpg(process, signal.SIGKILL)
        supervisor.join()
    return Outcome(status, out.read_text(), err.read_text(), supervisor.operations, supervisor.struck)

  def lra_spt(self, *arguments, watched, fault=None, timeout: float = 300) -> Outcome:
    """`lra-spt ARGUMENTS`, see `run`."""
    return self.run('lra_spt.cli.main:main', arguments, watched, fault, timeout)

  def close(self) -> None:
    """Ends the zygote."""
    self._socket.close()
    self._zygote.wait(timeout=60)


def _main(requests: socket.socket) -> None:
  for name in NEEDED:
    importlib.import_module(name)
  gc.freeze()  # children neither copy nor collect what is there
  while True:
    line, rights, _, _ = requests.recvmsg(65536, socket.CMSG_SPACE(4))
    if not line:
      return
    supervised = socket.socket(fileno=array.array('i', rights[0][2])[0])
    process = os.fork()
    if not process:
      requests.close()
      sys.exit(_be(supervised, **json.loads(line)))
    supervised.close()
    requests.send(str(process).encode())
    requests.send(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())


def _be(supervised, function, arguments, out, err) -> int:
  """Runs the function in the child process."""
  os.setsid()
  for number, path in ((1, out), (2, err)):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, number)
    os.close(file)
  with supervised:
    interposer.watch_me(supervised)
    supervised.recv(1)
  module, _, name = function.partition(':')
  return getattr(importlib.import_module(module), name)(arguments)


if __name__ == '__main__':
  _main(socket.socket(fileno=int(sys.argv[1])))
