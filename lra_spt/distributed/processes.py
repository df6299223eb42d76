"""Start and agreement of the processes of one run, and requests to end; needs only jax."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import threading

import jax
import numpy as np
from jax._src import distributed  # barriers of its service have no public name; Orbax does the same
from jax.experimental import multihost_utils

from lra_spt.distributed import joining, signals
from lra_spt.errors import ConfigError

# Two or more host names; libtpu may put a warning text there.
_SEVERAL_HOSTS = re.compile(r'[\w.:-]+(,[\w.:-]+)+')
_NOTEBOOKS = {'COLAB_RELEASE_TAG', 'KAGGLE_KERNEL_RUN_TYPE'}  # one TPU host without a metadata server
# PCI device ids of TPU v2/v3, v4, v5p, v5e, v6e, v7x; Google's network cards and disks share its vendor id.
_TPU_DEVICES = {'0x0027', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076'}

JOIN = 300.0  # seconds that the first of several processes waits for the last one
MEETING = 3600_000  # ms; the heartbeat ends a process earlier if another one is lost

_asked_to_end = threading.Event()
_busy = ''
_meetings = itertools.count()  # makes names of barriers unique
_answers = itertools.count()  # makes names of answers unique
_questions = itertools.count()  # jax numbers the points at which all can stop


@contextlib.contextmanager
def heeding_signals():
  """Turns signals into a request to end, see `asked_to_end`; a second SIGINT or SIGTERM ends the process.

  With several processes, jax.distributed catches SIGTERM, like a notice of preemption, and informs all of
  them; the other signals of `signals.NUMBERS` are passed on as SIGTERM. Outside of the main thread nothing
  changes.
  """
  several = distributed.global_state.num_processes > 1
  first = True

  def ask(number):
    nonlocal first
    if several:
      os.kill(os.getpid(), signal.SIGTERM)
    else:
      _asked_to_end.set()
    after = f' after {_busy}' if _busy else ''
    if number == signal.SIGINT:
      signals.say(f'the run saves its state and ends{after}; interrupt again to end it at once.')
    elif first:
      signals.say(f'{signal.Signals(number).name}: the run saves its state and ends{after}.')
    first = False

  try:
    with signals.heeded(ask, leave=(signal.SIGTERM,) if several else ()):
      yield
  finally:
    _asked_to_end.clear()
    busy_with('')


def busy_with(what: str) -> None:
  """Notes what a request to end waits for, such as 'the training steps in progress', for the sentence that a
  signal prints; '' is nothing."""
  global _busy
  _busy = what


def asked_to_end() -> bool:
  """True if the run was asked to end, by a signal to any of its processes or a notice of preemption.

  Several processes get the same answer, if all of them call it equally often.
  """
  if jax.process_count() == 1:
    return _asked_to_end.is_set()
  return multihost_utils.reached_preemption_sync_point(next(_questions))


def start_processes(
  distributed: bool | None = None,
  coordinator: str | None = None,
  processes: int | None = None,
  process: int | None = None,
) -> bool:
  """Joins the processes of one run; does nothing for a single process.

  If not all processes join within JOIN, this one ends with status 75.

  Args:
    distributed: True starts `jax.distributed`, False does not, None starts it in a cluster of several
      processes: Cloud TPU (TPU_WORKER_HOSTNAMES with several names), SLURM (a step of several tasks),
      Kubernetes (JOB_COMPLETION_INDEX with JAX_COORDINATOR_ADDRESS, set by JobSet).
    coordinator: host:port of process 0, outside of such a cluster.
    processes: number of processes, outside of such a cluster; 1 without a coordinator is a process alone, in
      a cluster too.
    process: rank of this process, outside of such a cluster.

  Returns:
    True if `jax.distributed` is running.

  Raises:
    ConfigError: distributed is True without an address and outside of a cluster, numbers of processes are
      given without an address or do not fit each other, or the address cannot be used.
  """
  if jax.distributed.is_initialized():
    return True
  joining.check_flags(coordinator, processes, process)
  if distributed is None:
    distributed = coordinator is not None or (processes != 1 and _cluster_recognised(os.environ))
  if not distributed:
    if processes != 1 and (processes is not None or process is not None):
      raise ConfigError(
        '--processes and --process are for a run of several processes, which need an address: add '
        '--coordinator=HOST:PORT, or --distributed in a cluster, or leave them out'
      )
    return False
  joining.join(coordinator, processes, process, JOIN)
  return True


def _cluster_recognised(environment) -> bool:
  """True if the environment describes several processes of one job."""
  if _SEVERAL_HOSTS.fullmatch(environment.get('TPU_WORKER_HOSTNAMES', '')):
    return True  # a TPU slice on GKE
  if 'TPU_WORKER_HOSTNAMES' not in environment and not _NOTEBOOKS & environment.keys() and _has_tpu_chips():
    return True  # a Cloud TPU VM: jax asks the metadata server; a slice of one host is one process
  if (joining.slurm_tasks(environment) or 0) > 1 and 'SLURM_STEP_NODELIST' in environment:
    return True
  return 'JOB_COMPLETION_INDEX' in environment and 'JAX_COORDINATOR_ADDRESS' in environment


def _has_tpu_chips(devices: str = '/sys/bus/pci/devices') -> bool:
  """True if the PCI bus of this host has a TPU; starts no runtime."""
  for vendor in pathlib.Path(devices).glob('*/vendor'):
    device = vendor.with_name('device').read_text().strip()
    if vendor.read_text().strip() == '0x1ae0' and device in _TPU_DEVICES:
      return True
  return False


def agreed(value: int, what: str, advice='give a --workdir on a file system that all of them share') -> int:
  """Returns `value` if it is equal on all processes.

  Args:
    what: name of the value, for the error.
    advice: the remedy, for the error.

  Raises:
    ConfigError: on every process, if the values differ.
  """
  if jax.process_count() > 1:
    values = multihost_utils.process_allgather(np.int32(value))
    if (values != values[0]).any():
      raise ConfigError(f'the processes of this run do not agree on {what} ({values.tolist()}); {advice}')
  return value


def first_says(answer: bool) -> bool:
  """The answer of the first process, for questions that depend on a clock or a file."""
  return bool(first_chooses([bool(answer)])[0])


def first_chooses(numbers: list, dtype=np.int32) -> list:
  """The numbers of the first process, as `dtype` holds them.

  They go through the service that joined the processes and need no devices: training asks while steps are in
  flight, and on CPUs two programs that need all processes can wait for each other for ever.
  """
  if jax.process_count() == 1 or not numbers:
    return numbers
  client, key = distributed.global_state.client, f'lra_spt/answer/{next(_answers)}'
  if is_first():
    client.key_value_set(key, json.dumps(np.array(numbers, dtype).tolist()))
  return json.loads(client.blocking_key_value_get(key, MEETING))


def any_says(answer: bool) -> bool:
  """True if the answer of any process is true."""
  if jax.process_count() == 1:
    return bool(answer)
  return bool(multihost_utils.process_allgather(np.bool_(answer)).any())


def raise_together(error: Exception | None) -> None:
  """Raises the error of the first process there, and a ConfigError that points to it on the others."""
  failed = first_says(error is not None)
  if error is not None:
    raise error
  if failed:
    raise ConfigError('the first process of this run refuses to start; see its message')


def wait_for_everybody(name: str) -> None:
  """A barrier for all processes; `name` must be equal on all of them."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def meet(name: str) -> None:
  """A barrier that needs no devices, so that a thread may wait there while training continues."""
  if jax.process_count() > 1:
    distributed.global_state.client.wait_at_barrier(f'lra_spt/{name}/{next(_meetings)}', MEETING)


def is_first() -> bool:
  """True on the process that writes the files of the run."""
  return jax.process_index() == 0


def host_memory() -> int:
  """Bytes of memory of this host; 0 if the system does not report them."""
  return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') if hasattr(os, 'sysconf') else 0
