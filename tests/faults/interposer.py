"""Sees every operation of a process on files before it happens, and lets it pass, fails it, or kills there.

Linux hands system calls to another process by seccomp's user notification, for C++ and child processes as for
Python, without a compiler, a preloaded library or special rights. The watched process calls `watch_me`, which
installs the filter and sends its listener over a UNIX socket; `Supervisor` answers from a thread of the test.
"""

import array
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import pathlib
import platform
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading

# Numbers of the calls that change files, by machine; those that only some machines have are left out there.
CALLS = {
  'x86_64': {
    'write': 1, 'open': 2, 'pwrite64': 18, 'writev': 20, 'sendfile': 40, 'fsync': 74, 'fdatasync': 75,
    'truncate': 76, 'ftruncate': 77, 'rename': 82, 'mkdir': 83, 'rmdir': 84, 'creat': 85, 'link': 86,
    'unlink': 87, 'symlink': 88, 'openat': 257, 'mkdirat': 258, 'unlinkat': 263, 'renameat': 264,
    'linkat': 265, 'symlinkat': 266, 'fallocate': 285, 'pwritev': 296, 'renameat2': 316,
    'copy_file_range': 326, 'pwritev2': 328,
  },
  'aarch64': {
    'mkdirat': 34, 'unlinkat': 35, 'symlinkat': 36, 'linkat': 37, 'renameat': 38, 'truncate': 45,
    'ftruncate': 46, 'fallocate': 47, 'openat': 56, 'write': 64, 'writev': 66, 'pwrite64': 68,
    'pwritev': 70, 'sendfile': 71, 'fsync': 82, 'fdatasync': 83, 'renameat2': 276, 'copy_file_range': 285,
    'pwritev2': 287,
  },
}  # fmt: skip
AUDIT_ARCH = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
SECCOMP, PIDFD_OPEN, PIDFD_GETFD = {'x86_64': 317, 'aarch64': 277}, 434, 438

# How a call names what it touches: an open descriptor (its argument), or paths, as (folder, path) arguments.
DESCRIPTOR = dict.fromkeys(
  ('write', 'pwrite64', 'writev', 'pwritev', 'pwritev2', 'fsync', 'fdatasync', 'ftruncate', 'fallocate'), 0
) | {'sendfile': 0, 'copy_file_range': 2}
PATHS = {
  'open': [(None, 0)], 'creat': [(None, 0)], 'truncate': [(None, 0)], 'mkdir': [(None, 0)],
  'rmdir': [(None, 0)], 'unlink': [(None, 0)], 'rename': [(None, 0), (None, 1)],
  'link': [(None, 0), (None, 1)], 'symlink': [(None, 1)], 'openat': [(0, 1)], 'mkdirat': [(0, 1)],
  'unlinkat': [(0, 1)], 'renameat': [(0, 1), (2, 3)], 'renameat2': [(0, 1), (2, 3)],
  'linkat': [(0, 1), (2, 3)], 'symlinkat': [(1, 2)],
}  # fmt: skip
WRITES = {'write', 'pwrite64', 'writev', 'pwritev', 'pwritev2', 'sendfile', 'copy_file_range', 'fallocate'}
MAKES = {'mkdir', 'mkdirat', 'link', 'linkat', 'symlink', 'symlinkat', 'creat'}
OPENS = {'open': 1, 'openat': 2}  # the argument that holds the flags

_RET_ALLOW, _RET_NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the filter's machine
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of the listener
_CONTINUE = 1


def unavailable() -> str | None:
  """Why nothing can be watched here, or None."""
  machine = platform.machine()
  if platform.system() != 'Linux' or machine not in CALLS:
    return f'watching system calls is written for Linux on {" and ".join(CALLS)}, not {machine}'
  # In a process of its own, not a fork: this one may have threads.
  trial = 'import interposer, os, socket; a, b = socket.socketpair(); interposer.watch_me(b); os._exit(0)'
  command = [sys.executable, '-c', trial]
  here = pathlib.Path(__file__).parent
  tried = subprocess.run(command, cwd=here, capture_output=True, check=False)
  return 'this system refuses seccomp user notifications' if tried.returncode else None


def _program(machine: str) -> bytes:
  """The filter: what CALLS names is notified, opening only where it makes or empties a file."""

  def step(code, value=0, yes=0, no=0):
    return struct.pack('HBBI', code, yes, no, value)

  numbers = CALLS[machine]
  steps = [step(_LOAD, 4), step(_EQUAL, AUDIT_ARCH[machine], yes=1), step(_RETURN, _RET_ALLOW)]
  steps.append(step(_LOAD, 0))
  for name, number in numbers.items():
    if name in OPENS:
      flags = 16 + 8 * OPENS[name]
      steps += [step(_EQUAL, number, no=4), step(_LOAD, flags)]
      steps += [step(_ANY_BIT, os.O_CREAT | os.O_TRUNC, no=1), step(_RETURN, _RET_NOTIFY)]
      steps.append(step(_RETURN, _RET_ALLOW))
    else:
      steps += [step(_EQUAL, number, no=1), step(_RETURN, _RET_NOTIFY)]
  return b''.join([*steps, step(_RETURN, _RET_ALLOW)])


def watch_me(to: socket.socket) -> None:
  """Has this process, and all that it starts, watched by whoever reads the listener from the socket.

  It cannot be undone. There must be one thread only.

  Raises:
    OSError: the system refuses.
  """
  machine = platform.machine()
  libc = ctypes.CDLL(None, use_errno=True)
  content = _program(machine)
  code = ctypes.create_string_buffer(content, len(content))
  program = struct.pack('HxxxxxxP', len(content) // 8, ctypes.addressof(code))
  no_new_privileges, set_filter, new_listener, wait_killable = 38, 1, 8, 32
  if libc.prctl(no_new_privileges, 1, 0, 0, 0):
    raise OSError(ctypes.get_errno(), 'prctl')
  # A call that waits for its answer is not begun again by a signal, where the kernel can do that.
  for flags in (new_listener | wait_killable, new_listener):
    listener = libc.syscall(SECCOMP[machine], set_filter, flags, program)
    if listener >= 0:
      break
  else:
    raise OSError(ctypes.get_errno(), 'seccomp')
  to.sendmsg([b'l'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [listener]))])
  os.close(listener)


def receive_listener(source: socket.socket) -> int:
  """The listener's descriptor, from the other end of `watch_me`."""
  _, rights, _, _ = source.recvmsg(1, socket.CMSG_SPACE(4))
  if not rights:
    raise OSError('the watched process sent no listener')
  return array.array('i', rights[0][2])[0]


@dataclasses.dataclass(frozen=True)
class Operation:
  """One call on the watched folders; paths are absolute, `other` is where a rename or link comes from."""

  call: str
  path: str
  other: str = ''
  makes: bool = False  # whether it needs room on the disk
  kind: str = ''  # call and path without what differs between runs


@dataclasses.dataclass(frozen=True)
class Fault:
  """A fault, from the first operation on that fits `at`.

  at: the number of the operation, from 1; or a kind. action: the name of an errno; 'kill' (SIGKILL to the
  process group before it happens) or 'torn' (after half of a write has happened); 'SIGTERM' or 'SIGINT'
  (to the process, before the operation, which then happens).
  """

  at: int | str
  action: str

  def hits(self, number: int, operation: Operation) -> bool:
    return self.at in (number, operation.kind)


FULL = ('ENOSPC', 'EDQUOT')  # last from the first time on, until the process ends, as does
LIMITED = 'EFBIG'  # for writes


class Supervisor:
  """Answers the calls of a watched process and the ones it started, until all have ended.

  Args:
    listener: see `receive_listener`; closed at the end.
    group: the watched process, leader of its group.
    watched: {name: folder}: what lies elsewhere passes and is not counted.
    fault: None: nothing happens.

  Attributes:
    operations: all of them, in order.
    struck: the operation that the fault met first, None so far.
  """

  def __init__(self, listener: int, group: int, watched: dict, fault: Fault | None = None):
    self.operations: list[Operation] = []
    self.struck: Operation | None = None
    self._listener, self._group, self._fault = listener, group, fault
    self._watched = {name: os.path.realpath(folder) for name, folder in watched.items()}
    self._calls = {number: name for name, number in CALLS[platform.machine()].items()}
    self._error = None
    self._thread = threading.Thread(target=self._serve, daemon=True)
    self._thread.start()

  def join(self) -> None:
    """Returns when nothing is left to watch; raises what went wrong here."""
    self._thread.join()
    if self._error is not None:
      raise self._error

  def _serve(self):
    poll = select.poll()
    poll.register(self._listener, select.POLLIN)
    try:
      while True:
        ((_, event),) = poll.poll()
        if not event & select.POLLIN:
          return  # the last watched process has ended
        notice = bytearray(80)
        try:
          fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError as error:
          if error.errno in (errno.ENOENT, errno.EINTR):
            continue  # it died meanwhile
          raise
        number, thread, _, call, *_ = struct.unpack_from('QIIi', notice)
        arguments = struct.unpack_from('6Q', notice, 32)
        code = self._answer(thread, self._calls[call], arguments)
        reply = struct.pack('QqiI', number, 0, -code, 0 if code else _CONTINUE)
        with contextlib.suppress(FileNotFoundError):  # it died meanwhile
          fcntl.ioctl(self._listener, _SEND, reply)
    except Exception as error:
      self._error = error
    finally:
      os.close(self._listener)

  def _answer(self, thread, call, arguments) -> int:
    """The errno for the call; 0 lets it pass."""
    try:
      operation = self._operation(thread, call, arguments)
    except (OSError, ValueError):
      return 0  # it died meanwhile
    if operation is None:
      return 0
    self.operations.append(operation)
    fault = self._fault
    if fault is None:
      return 0
    first = self.struck is None and fault.hits(len(self.operations), operation)
    if first:
      self.struck = operation
    if self.struck is None:
      return 0
    if fault.action in FULL:
      return getattr(errno, fault.action) if first or operation.makes else 0
    if fault.action == LIMITED:
      return errno.EFBIG if operation.call in WRITES else 0
    if not first:
      return 0
    if fault.action in ('SIGTERM', 'SIGINT'):
      os.kill(self._group, getattr(signal, fault.action))
      return 0
    if fault.action in ('kill', 'torn'):
      if fault.action == 'torn' and call in ('write', 'pwrite64'):
        self._write_half(thread, call, arguments)
      os.killpg(self._group, signal.SIGKILL)
      return errno.EIO  # to a process that is dead
    return getattr(errno, fault.action)

  def _operation(self, thread, call, arguments) -> Operation | None:
    if call in DESCRIPTOR:
      paths = [os.readlink(f'/proc/{thread}/fd/{arguments[DESCRIPTOR[call]]}')]
    else:
      paths = [self._path(thread, arguments, *where) for where in PATHS[call]]
    names = [self._name(path) for path in paths]
    if not any(names):
      return None
    makes = call in WRITES | MAKES or (call in OPENS and not os.path.exists(paths[-1]))
    other = paths[0] if len(paths) > 1 else ''
    kind = ' '.join([call, *(name or 'elsewhere' for name in names)])
    return Operation(call, paths[-1], other, makes, kind)

  def _path(self, thread, arguments, folder, path):
    with open(f'/proc/{thread}/mem', 'rb', buffering=0) as memory:
      memory.seek(arguments[path])
      given = os.fsdecode(memory.read(4096).partition(b'\0')[0])
    base = 'cwd'
    if folder is not None:
      number = ctypes.c_int32(arguments[folder] & 0xFFFFFFFF).value
      base = base if number < 0 else f'fd/{number}'
    given = os.path.join(os.readlink(f'/proc/{thread}/{base}'), given)
    return os.path.join(os.path.realpath(os.path.dirname(given)), os.path.basename(given))

  def _name(self, path):
    """The path with the name of its watched folder and without what differs between runs; None outside."""
    for name, folder in self._watched.items():
      if path == folder or path.startswith(folder + '/'):
        return normalised(name + path[len(folder) :])
    return None

  def _write_half(self, thread, call, arguments):
    """Does half of a write for the process: on its own open file, and so at its position."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = libc.syscall(PIDFD_OPEN, self._group, 0)
    file = libc.syscall(PIDFD_GETFD, process, int(arguments[0]), 0)
    if file < 0:  # of a process that the watched one started
      return
    with open(f'/proc/{thread}/mem', 'rb', buffering=0) as memory:
      memory.seek(arguments[1])
      half = memory.read(arguments[2] // 2)
    if call == 'write':
      os.write(file, half)
    else:
      os.pwrite(file, half, arguments[3])
    os.close(file)
    os.close(process)


_DIFFERS = (
  (r'\b[0-9a-f]{32}\b', 'HASH'),
  (r'(pretrain|finetune)-[0-9a-f]{8}\b', r'\1'),
  (r'\.orbax-checkpoint-tmp(-\d+)?', '.tmp'),
  (r'tfevents\..*', 'tfevents'),
  (r'incomplete\.\w+', 'incomplete'),
  (r'/(latest|best)/\d+', r'/\1/STEP'),
  (r' \(deleted\)$', ''),
  (r'-\d{5}-of-\d{5}', ''),
)


def normalised(path: str) -> str:
  """A path without hashes, temporary names, numbers of steps and shards."""
  for pattern, instead in _DIFFERS:
    path = re.sub(pattern, instead, path)
  return path


def leftovers(folder) -> list[str]:
  """Names below a folder that only an unfinished writer has."""
  actual = (path.relative_to(folder) for path in pathlib.Path(folder).rglob('*'))
  pattern = re.compile(r'tmp|\.part$|^incomplete|^unfinished$|^\.lock$')
  return sorted(str(path) for path in actual if pattern.search(path.name))
