"""The processes of a run find each other, or an error says why they cannot."""

import socket
import time

import jax
import pytest

from lra_spt.cli import main as cli
from lra_spt.distributed import joining, processes

SLURM = {
  'SLURM_JOB_ID': '1234',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '0',
  'SLURM_STEP_NODELIST': 'localhost',
}


@pytest.fixture
def started(monkeypatch):
  """Collects the arguments with which jax.distributed is started, in an environment without a cluster."""
  calls = []
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: False)
  monkeypatch.setattr(jax.distributed, 'initialize', lambda *args, **kwargs: calls.append(args))
  monkeypatch.setattr(processes, '_has_tpu_chips', lambda: False)
  monkeypatch.setattr(joining, 'RESOLVE', 0.0)
  for _, variables in joining._CLUSTERS.values():
    for name in (*variables, 'OMPI_MCA_orte_hnp_uri', *SLURM):
      monkeypatch.delenv(name, raising=False)
  return calls


def set_all(monkeypatch, variables):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)


@pytest.mark.parametrize('tasks', ['2', '4'])
def test_the_tasks_of_the_slurm_step_count(started, monkeypatch, capsys, tasks):
  """The allocation may have more tasks than the step."""
  set_all(monkeypatch, SLURM | {'SLURM_STEP_NUM_TASKS': tasks})
  assert processes.start_processes()
  assert started == [(None, int(tasks), None)]
  assert capsys.readouterr().err == (
    f'lra-spt: SLURM was recognised (SLURM_STEP_NUM_TASKS={tasks}, SLURM_NTASKS=4, SLURM_PROCID=0); to train '
    'with one process alone, give --processes=1.\n'
  )


def test_the_shell_of_an_allocation_is_one_process(started, monkeypatch, capsys):
  """`salloc -n 4` opens the shell as a step of one task."""
  set_all(monkeypatch, SLURM | {'SLURM_STEP_NUM_TASKS': '1'})
  assert not processes.start_processes()
  assert not started
  assert not capsys.readouterr().err


def test_one_process_trains_alone_if_the_user_says_so(started, monkeypatch):
  set_all(monkeypatch, SLURM)
  assert not processes.start_processes(processes=1)
  assert not processes.start_processes(processes=1, process=0)
  assert not started
  assert processes.start_processes(True, processes=2)
  assert started == [(None, 2, None)]


def test_a_process_that_waits_in_vain_ends_with_the_reason(started, monkeypatch):
  """`ended_after` ends the process with a sentence that names the variables."""
  sentences = []
  monkeypatch.setattr(
    joining.heartbeat, '_end', lambda sentence, status: sentences.append((sentence, status))
  )
  monkeypatch.setattr(jax.distributed, 'initialize', lambda *args, **kwargs: time.sleep(0.5))
  monkeypatch.setattr(processes, 'JOIN', 0.01)
  set_all(monkeypatch, SLURM)
  processes.start_processes()
  assert sentences == [
    (
      'not all processes of this run have joined within 0 s; start all of them again, or give --processes=1 '
      'to train with this one alone (SLURM was recognised: SLURM_NTASKS=4, SLURM_PROCID=0).',
      75,
    )
  ]


HERE = '--coordinator=127.0.0.1'


@pytest.mark.parametrize(
  'flags, words',
  [
    (f'{HERE} --processes=1 --process=0', 'coordinator is 127.0.0.1, but it takes HOST:PORT'),
    (f'{HERE}: --processes=1 --process=0', 'but it takes HOST:PORT'),
    (f'{HERE}:http --processes=1 --process=0', 'but it takes HOST:PORT'),
    (f'{HERE}:0 --processes=1 --process=0', 'with a port from 1 to 65535'),
    (f'{HERE}:65536 --processes=1 --process=0', 'with a port from 1 to 65535'),
    ('--coordinator=http://host:5999 --processes=1 --process=0', 'but it takes HOST:PORT'),
    ('--coordinator=::1:5999 --processes=1 --process=0', 'such as 10.0.0.1:5999 or [::1]:5999'),
    ('--coordinator=no.such.host.invalid:5999 --processes=1 --process=0', 'the host no.such.host.invalid of'),
    (
      f'{HERE}:BUSY --processes=2 --process=0',
      'cannot be used here (Address already in use): choose another',
    ),
    (f'{HERE}:5999 --processes=2 --process=2', 'process is 2, but the ranks of --processes=2 go from 0 to 1'),
    (f'{HERE}:5999 --processes=2', 'no cluster was recognised: add --process=I'),
    (f'{HERE}:5999 --process=0', 'no cluster was recognised: add --processes=N'),
    (f'{HERE}:5999', 'add --processes=N and --process=I'),
    ('--processes=1 --process=1', 'process is 1, but the ranks of --processes=1 go from 0 to 0'),
    ('--process=1', 'which need an address'),
    (f'{HERE}:5999 --processes=2 --process=-1', 'process takes a whole number of at least 0'),
    ('--distributed', 'jax needs (no address)'),
  ],
)
def test_an_address_that_cannot_be_used(started, monkeypatch, capsys, tiny_config, tmp_path, flags, words):
  def refuse(*args, **kwargs):
    raise ValueError('no address')

  monkeypatch.setattr(jax.distributed, 'initialize', refuse)
  if flags == '--distributed':
    set_all(monkeypatch, SLURM)
  with socket.socket() as busy:
    busy.bind(('127.0.0.1', 0))
    busy.listen()
    flags = flags.replace('BUSY', str(busy.getsockname()[1])).split()
    assert cli.main(['train', f'--config={tiny_config}', f'--workdir={tmp_path / "w"}', *flags]) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith('lra-spt: ')
  assert words in line, line
  assert not (tmp_path / 'w').exists()


def test_what_jax_refuses_is_a_sentence(started, monkeypatch):
  def refuse(*args, **kwargs):
    raise jax.errors.JaxRuntimeError('UNKNOWN: Failed to start RPC server')

  monkeypatch.setattr(jax.distributed, 'initialize', refuse)
  set_all(monkeypatch, SLURM)
  with pytest.raises(joining.ConfigError, match='RPC server.; set JAX_COORDINATOR_PORT'):
    processes.start_processes()
