"""How the processes of a run meet: in a cluster that jax recognises, or at an address that the user gives."""

import contextlib
import errno
import os
import re
import socket
import sys
import time

import jax

from lra_spt.distributed import heartbeat
from lra_spt.errors import ConfigError, one_line

RESOLVE = 30.0  # seconds until the name of a host has to be known; that of a new pod comes late
_ADDRESS = re.compile(r'(\[[\da-fA-F:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})')
# {environment: (variables by which jax recognises it, those that count its processes)}, in the order of jax.
_CLUSTERS = {
  'Open MPI': (('OMPI_MCA_orte_hnp_uri',), ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK')),
  'SLURM': (('SLURM_STEP_NODELIST',), ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS', 'SLURM_PROCID')),
  'Cloud TPU': (('TPU_WORKER_HOSTNAMES',), ('TPU_WORKER_HOSTNAMES', 'TPU_WORKER_ID')),
  'Kubernetes': (('JAX_COORDINATOR_ADDRESS', 'JOB_COMPLETION_INDEX'),) * 2,
}


def slurm_tasks(environment) -> int | None:
  """The number of tasks of the SLURM step; None outside of SLURM.

  In an interactive step SLURM_NTASKS, which jax reads, counts the tasks of the whole allocation, because
  salloc starts that step with `srun --preserve-env`.
  """
  for name in ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS'):
    if (tasks := environment.get(name, '')).isdecimal():
      return int(tasks)
  return None


def check_flags(coordinator: str | None, processes: int | None, process: int | None) -> None:
  """Raises a ConfigError for --coordinator, --processes and --process that cannot be used."""
  if processes and process is not None and process >= processes:
    raise ConfigError(
      f'--process is {process}, but the ranks of --processes={processes} go from 0 to {processes - 1}; '
      'correct it.'
    )
  if coordinator is None:
    return
  match = _ADDRESS.fullmatch(coordinator)
  if match is None or not 0 < int(match[2]) < 2**16:
    raise ConfigError(
      f'--coordinator is {coordinator}, but it takes HOST:PORT with a port from 1 to 65535, such as '
      '10.0.0.1:5999 or [::1]:5999.'
    )
  if (processes is None or process is None) and cluster(os.environ) is None:
    missing = ' and '.join(
      name for name, value in (('--processes=N', processes), ('--process=I', process)) if value is None
    )
    raise ConfigError(f'--coordinator is given, but no cluster was recognised: add {missing}.')
  _check_host(match[1].strip('[]'))
  if process == 0:
    _check_port(int(match[2]), coordinator)


def _check_host(host: str) -> None:
  limit = time.monotonic() + RESOLVE
  while True:
    try:
      socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
      if time.monotonic() > limit or isinstance(error, UnicodeError):
        raise ConfigError(
          f'the host {host} of --coordinator cannot be found ({getattr(error, "strerror", error)}): correct '
          'its name, or give its address.'
        ) from error
      time.sleep(1)
    else:
      return


def _check_port(port: int, coordinator: str) -> None:
  """Raises a ConfigError if jax could not listen on the port, or would share it with another run."""
  family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
  with contextlib.suppress(OSError), socket.socket(family) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may linger
    try:
      probe.bind(('', port))
    except OSError as error:
      if error.errno in (errno.EADDRINUSE, errno.EACCES):
        raise ConfigError(
          f'the port of --coordinator={coordinator} cannot be used here ({error.strerror}): choose another '
          'one, for all processes.'
        ) from error


def cluster(environment) -> tuple[str, str] | None:
  """The environment from which jax reads the processes of a run, and its variables as 'NAME=value, ...'; None
  if no variable tells of one."""
  for name, (needed, shown) in _CLUSTERS.items():
    if all(variable in environment for variable in needed):
      return name, ', '.join(f'{each}={environment[each]}' for each in shown if each in environment)
  return None


def join(coordinator: str | None, processes: int | None, process: int | None, seconds: float) -> None:
  """Starts `jax.distributed`; if not all processes join within `seconds`, this one ends with status 75.

  Raises:
    ConfigError: there is neither an address nor a cluster, or jax refuses the process, as on a port in use.
  """
  late = f'not all processes of this run have joined within {seconds:.0f} s; start all of them again'
  name, variables = cluster(os.environ) or ('', '')
  if coordinator is None and name:
    if name == 'SLURM' and processes is None and 'SLURM_STEP_NUM_TASKS' in os.environ:
      processes = slurm_tasks(os.environ)
    late += f', or give --processes=1 to train with this one alone ({name} was recognised: {variables})'
    if variables.endswith('=0'):  # the rank
      alone = 'to train with one process alone, give --processes=1.'
      print(f'lra-spt: {name} was recognised ({variables}); {alone}', file=sys.stderr, flush=True)
  apart = (
    'jax ended this process while it joined the others, see its words above; start all of them again, each '
    'with a rank of its own.'
  )
  try:  # jax alone would abort and dump its stack
    with heartbeat.ended_after(seconds, f'{late}.'), heartbeat.ended_at_abort(apart):
      jax.distributed.initialize(coordinator, processes, process, initialization_timeout=int(seconds) + 60)
  except ValueError as error:
    if name:
      raise ConfigError(
        f'{name} was recognised ({variables}), but it lacks a part of what jax needs ({error}); give '
        '--coordinator=HOST:PORT --processes=N --process=I, or --processes=1 to train with one process alone'
      ) from error
    raise ConfigError(
      '--distributed found no cluster environment (Cloud TPU, SLURM, Kubernetes); give '
      f'--coordinator=HOST:PORT --processes=N --process=I, or leave the flag out on one machine ({error})'
    ) from error
  except jax.errors.JaxRuntimeError as error:
    remedy = 'start all of them again, each with a rank of its own'
    if 'RPC server' in str(error):
      remedy = 'set JAX_COORDINATOR_PORT to a port that is free, for all of them'
    raise ConfigError(
      f'this process cannot join the others of its run ({one_line(error)}); {remedy}.'
    ) from error
