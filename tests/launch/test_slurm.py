"""The batch script with stand-ins for srun, scontrol and the training command."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.cloud import FLAGS, executable

# Runs the command as two tasks. As in SLURM, a bad end of one and a signal to srun itself are passed to the
# other one, but not to the programs that it runs; srun reports a signal before a status, else the highest.
SRUN = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys, time
notes = pathlib.Path(os.environ['NOTES'])
with notes.open('a') as file:
  print('srun', sys.argv[1], file=file)
notes.with_name('notes.cores').write_text(os.environ['SRUN_CPUS_PER_TASK'])
tasks = [subprocess.Popen(sys.argv[2:], env=os.environ | {{'SLURM_PROCID': str(i)}}) for i in range(2)]
def end(*_):
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  for task in tasks:
    task.terminate()
signal.signal(signal.SIGTERM, end)
notes.with_name('notes.step').write_text(str(os.getpid()))
while None in (ends := [task.poll() for task in tasks]):
  if any(ends) and signal.getsignal(signal.SIGTERM) is end:
    end()
  time.sleep(0.02)
status = 128 - min(ends) if min(ends) < 0 else max(ends)
notes.with_name('notes.status').write_text(str(status))
sys.exit(status)
"""

# One process of training: waits for $NOTES.go and ends as its word there says; one word may stand for all
# tasks. A status is also its answer to a signal. No process ends before all of them are there.
PROCESS = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$NOTES.words$SLURM_PROCID"
for turn in {1..400}; do [ -s "$NOTES.go" ] && break; sleep 0.05; done
read -ra ends < "$NOTES.go"
end=${ends[$SLURM_PROCID]:-${ends[0]}}
case $end in
  saves) trap 'sleep 0.2; exit 75' TERM ;;
  [0-9]*) trap 'exit $end' TERM ;;
esac
touch "$NOTES.ready$SLURM_PROCID"
for turn in {1..400}; do [ -e "$NOTES.ready0" ] && [ -e "$NOTES.ready1" ] && break; sleep 0.05; done
case $end in
  killed) kill -KILL $$ ;;
  task-killed) kill -KILL $PPID $$ ;;
  saves | waits) for turn in {1..400}; do sleep 0.05; done ;;   # for the other one
  *) exit "$end" ;;
esac
"""


@pytest.fixture
def slurm(tmp_path):
  """(a function that starts the batch script, the file to which its stand-ins write)."""
  folder, notes = tmp_path / 'bin', tmp_path / 'notes'
  executable(folder / 'srun', SRUN)
  executable(tmp_path / '.venv' / 'bin' / 'lra-spt', PROCESS)
  scontrol = 'echo "scontrol $*" >> "$NOTES"\n[ -z "${REFUSED:-}" ] || exit 1\nkill "$(cat "$NOTES.step")"\n'
  executable(folder / 'scontrol', f'#!/usr/bin/env bash\n{scontrol}')
  started = []

  def start(script, *words, **environment):
    environment = os.environ | {'PATH': f'{folder}:{os.environ["PATH"]}', 'NOTES': str(notes)} | environment
    environment |= {'SLURM_JOB_ID': '77', 'SLURM_SUBMIT_DIR': str(tmp_path)}
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    command = ['bash', script, *words]
    started.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))
    end = time.monotonic() + 60
    while not notes.with_name('notes.step').exists():
      assert time.monotonic() < end
      time.sleep(0.02)
    return started[-1]

  yield start, notes
  for process in started:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope='module')
def batch_script(repository):
  return repository / 'launch' / 'slurm.sbatch'


def test_slurm_reads_all_directives(batch_script):
  """sbatch stops reading them at the first command."""
  lines = batch_script.read_text().splitlines()
  directives = [line.removeprefix('#SBATCH ') for line in lines if line.startswith('#SBATCH')]
  head = lines[: next(i for i, line in enumerate(lines) if line and not line.startswith('#'))]
  assert len([line for line in head if line.startswith('#SBATCH')]) == len(directives)
  assert {'--requeue', '--signal=B:USR1@120', '--open-mode=append'} <= set(directives)


@pytest.mark.parametrize('refused', [False, True])
def test_slurm_requeues_before_its_time_limit(slurm, batch_script, refused):
  start, notes = slurm
  process = start(batch_script, REFUSED='1' if refused else '')
  process.send_signal(signal.SIGUSR1)
  if refused:  # training uses the remaining minutes
    while 'scontrol' not in notes.read_text():
      time.sleep(0.02)
    assert process.poll() is None
    notes.with_name('notes.go').write_text('0')
  printed, _ = process.communicate(timeout=60)
  assert ('submit it again' in printed) == refused
  assert process.returncode == (0 if refused else 128 + signal.SIGTERM)
  step, requeued = notes.read_text().splitlines()
  assert step == 'srun --kill-on-bad-exit=1'
  assert requeued == 'scontrol requeue 77'
  assert not list(notes.parent.glob('*.ends'))


@pytest.mark.parametrize(
  ('ends', 'reported', 'status', 'restarts'),  # ends of the tasks, status of srun and of the job
  [
    ('0', 0, 0, 0),
    ('3', 3, 3, 0),
    ('75', 75, 75, 20),
    ('2 waits', 143, 2, 0),
    ('waits 1', 143, 1, 0),
    ('127 waits', 143, 127, 0),
    ('2 saves', 75, 2, 0),
    ('killed waits', 143, 143, 20),
  ],
)
def test_slurm_does_not_requeue_a_run_that_is_done_failed_or_restarted_too_often(
  slurm, batch_script, ends, reported, status, restarts
):
  """After an error srun reports its signal to the other tasks, or the 75 with which they answer."""
  start, notes = slurm
  stale = notes.with_name('lra_spt-77.ends')  # left by a start that was killed
  stale.mkdir()
  (stale / '5').write_text('3\n')
  notes.with_name('notes.go').write_text(ends)
  process = start(batch_script, SLURM_RESTART_COUNT=str(restarts))
  process.communicate(timeout=60)
  assert int(notes.with_name('notes.status').read_text()) == reported
  assert process.returncode == status
  assert 'scontrol' not in notes.read_text()
  assert not stale.exists()


@pytest.mark.parametrize(
  ('ends', 'status', 'restarts'),
  [
    ('75', 75, 3),
    ('75 saves', 75, 3),
    ('75 waits', 143, 3),
    ('killed saves', 137, 19),
    ('task-killed waits', 137, 3),
  ],
)
def test_slurm_requeues_a_run_that_asks_for_it(slurm, batch_script, ends, status, restarts):
  """A process that was killed asks too: srun reports its signal instead of the 75 of the others."""
  start, notes = slurm
  notes.with_name('notes.go').write_text(ends)
  process = start(batch_script, SLURM_RESTART_COUNT=str(restarts), SLURM_CPUS_PER_TASK='6')
  process.communicate(timeout=60)
  assert process.returncode == status
  assert notes.with_name('notes.cores').read_text() == '6'
  assert 'scontrol requeue 77' in notes.read_text()
  assert not list(notes.parent.glob('*.ends'))


def test_slurm_passes_further_flags_on(slurm, batch_script):
  start, notes = slurm
  notes.with_name('notes.go').write_text('0')
  process = start(batch_script, *FLAGS, WORKDIR='runs/my run', CONFIG='configs/a.py:model=x,regime=masked')
  printed, _ = process.communicate(timeout=60)
  assert (process.returncode, printed) == (0, '')
  for task in range(2):
    assert notes.with_name(f'notes.words{task}').read_text().splitlines() == [
      'train',
      '--distributed',
      '--config=configs/a.py:model=x,regime=masked',
      '--workdir=runs/my run',
      *FLAGS,
    ]
