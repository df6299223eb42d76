"""The launch scripts with stand-ins for gcloud, ssh, srun, scontrol and xpk; a host is a folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

import pytest

SCRIPTS = ('gke_xpk.sh', 'multi_gpu.sh', 'queued_resource.sh', 'slurm.sbatch', 'tpu_vm.sh')
SLICE = {'NAME': 'lra', 'ZONE': 'here', 'BUCKET': 'bucket', 'SHARE': 'server:/lra', 'POLL_SECONDS': '0.05'}

# Further flags of `lra-spt train`, which every shell on the way must leave unchanged.
FLAGS = ('--seeds=0..2', '--config.note=it\'s  a "$HOME" \\ `note`; *', '--register=my file.py', '')

# Writes every call to $CLOUD/calls. `describe` answers with the next line of $CLOUD/states; the last line is
# repeated. ssh, installing, starting and deleting fail once for each line of $CLOUD/ssh_fails and its like.
GCLOUD = """#!/usr/bin/env bash
set -eu
fails() {
  [ -s "$CLOUD/$1" ] || return 1
  sed -i 1d "$CLOUD/$1"
}
short="$3 $4"
host() {  # the folder of slice NAME or NAME:FILE; the folder of `lra` is `host`
  local name=${1%%:*}
  [ "$name" = lra ] && name=host
  mkdir -p "$CLOUD/$name"
  echo "$CLOUD/$name"
}
for word in "$@"; do case $word in --command=*) command=${word#--command=} ;; esac; done
case $short in
  'queued-resources describe')
    state=$(head -n 1 "$CLOUD/states")
    [ "$(wc -l < "$CLOUD/states")" = 1 ] || sed -i 1d "$CLOUD/states"
    echo "describe $state" >> "$CLOUD/calls"
    case $state in
      NONE) echo 'ERROR: (gcloud) NOT_FOUND: no such request' >&2; exit 1 ;;
      NETWORK) echo 'ERROR: (gcloud) no route to host' >&2; exit 1 ;;
      *) echo "$state" ;;
    esac
    ;;
  'queued-resources create') echo create >> "$CLOUD/calls"; echo "$*" >> "$CLOUD/created" ;;
  'queued-resources delete' | 'tpu-vm delete')
    echo delete >> "$CLOUD/calls"
    ! fails delete_fails
    ;;
  'tpu-vm ssh')
    if fails ssh_fails; then echo 'ssh failed' >> "$CLOUD/calls"; exit 255; fi
    cd "$(host "$5")"
    case $command in
      *apt-get*)
        echo install >> "$CLOUD/calls"
        if fails install_fails; then exit 1; fi
        mkdir -p lra_spt/.venv/bin && tar -xzf lra_spt.tar.gz -C lra_spt
        cp "$CLOUD/lra-spt" lra_spt/.venv/bin/
        ;;
      *rsync*) echo data >> "$CLOUD/calls" ;;
      *)
        case $command in
          *nohup*)
            echo train >> "$CLOUD/calls"
            if fails train_fails; then exit 255; fi
            ;;
          *) echo ask >> "$CLOUD/calls" ;;
        esac
        setsid --wait bash -c "$command"   # another machine: signals to this one do not reach it
        ;;
    esac
    ;;
  'tpu-vm scp')
    case $5 in
      --recurse) echo fetch >> "$CLOUD/calls"; cp -r "${6#*:}" "$7/" ;;
      *) cp "$5" "$(host "$6")/lra_spt.tar.gz" ;;
    esac
    ;;
  *) echo "gcloud: what is $short?" >&2; exit 2 ;;
esac
"""
# The tools of a Mac, which lack options of GNU's.
MKTEMP = """#!/usr/bin/env bash
for word in "$@"; do case $word in --* | -p*) echo 'mktemp: illegal option' >&2; exit 1 ;; esac; done
PATH=${PATH#*:}
exec mktemp "$@"
"""
GREP = """#!/usr/bin/env bash
for word in "$@"; do case $word in *'\\|'* | -P | --*) echo 'grep: what is this?' >&2; exit 2 ;; esac; done
PATH=${PATH#*:}
exec grep "$@"
"""
# The training command: waits for $CLOUD/go, then ends as the next line of $CLOUD/ends says; the last line is
# repeated.
TRAIN = """#!/usr/bin/env bash
echo "$@" >> "$CLOUD/starts"
printf '%s\\n' "$@" > "$CLOUD/words"
echo "trained by process $$"
for word in "$@"; do case $word in --workdir=*) workdir=${word#--workdir=} ;; esac; done
for turn in {1..2400}; do [ -e "$CLOUD/go" ] && break; sleep 0.05; done
ends=$(head -n 1 "$CLOUD/ends")
[ "$(wc -l < "$CLOUD/ends")" -le 1 ] || sed -i 1d "$CLOUD/ends"
case $ends in good) ;; again) exit 75 ;; elsewhere) exit 0 ;; *) exit 1 ;; esac
mkdir -p "$workdir" && touch "$workdir/result.json"
"""


def checker(name):
  """The path of a program of the extra `test`, whose environment may not be on the PATH."""
  return shutil.which(name, path=sysconfig.get_path('scripts')) or name


def test_shellcheck_finds_nothing(repository):
  scripts = [repository / 'launch' / name for name in (*SCRIPTS, '../.ci/run')]
  done = subprocess.run(
    [checker('shellcheck'), '--exclude=SC1091', *scripts], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout


def test_hadolint_finds_nothing(repository):
  command = [checker('hadolint'), '--no-color', repository / 'Dockerfile']
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout


@pytest.fixture
def checkout(repository, tmp_path):
  """A small repository in which our scripts are committed."""
  folder = tmp_path / 'checkout'
  shutil.copytree(repository / 'launch', folder / 'launch')
  (folder / 'code.py').write_text('committed\n')
  (folder / '.gitignore').write_text('/launch_logs/\n/.venv/\n/ignored\n')
  (folder / 'ignored').write_text('large\n')
  name = ['-c', 'user.name=tests', '-c', 'user.email=tests@example.org', '-c', 'commit.gpgsign=false']
  for words in (['init', '-q'], ['add', '-A'], [*name, 'commit', '-q', '-m', 'all']):
    subprocess.run(['git', *words], cwd=folder, check=True)
  return folder


def executable(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  path.chmod(0o755)


class Cloud:
  """The stand-ins: files that direct them (`put`), files that they write (`lines`), and scripts to run."""

  def __init__(self, folder, checkout):
    self.folder, self.checkout, self.workdir = folder, checkout, folder / 'share' / 'my run'
    for path in (folder / 'host', folder / 'share'):
      path.mkdir(parents=True)
    for name, text in (('gcloud', GCLOUD), ('mktemp', MKTEMP), ('grep', GREP)):
      executable(folder / 'bin' / name, text)
    executable(folder / 'lra-spt', TRAIN)
    self.put('go', '')
    self.put('ends', 'good')
    self.environment = os.environ | SLICE
    self.environment |= {'CLOUD': str(folder), 'WORKDIR': str(self.workdir), 'TMPDIR': str(folder)}
    self.environment['PATH'] = f'{folder / "bin"}:{os.environ["PATH"]}'

  def put(self, name, text):
    (self.folder / name).write_text(text)

  def lines(self, name):
    path = self.folder / name
    return path.read_text().splitlines() if path.exists() else []

  def calls(self):
    """Calls that change something."""
    return [call for call in self.lines('calls') if call.split()[0] not in ('describe', 'ask', 'ssh')]

  def start(self, script, *words, **environment):
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    command = ['bash', self.checkout / 'launch' / script, *words]
    return subprocess.Popen(command, env=self.environment | environment, start_new_session=True, **pipes)

  def run(self, script, *words, **environment):
    """(status, printed text)."""
    process = self.start(script, *words, **environment)
    try:
      printed, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      raise
    return process.returncode, printed

  def until(self, true):
    """Waits until `true()`."""
    end = time.monotonic() + 60
    while not true():
      assert time.monotonic() < end, self.lines('calls')
      time.sleep(0.02)


@pytest.fixture
def cloud(tmp_path, checkout):
  made = Cloud(tmp_path / 'cloud', checkout)
  yield made
  made.put('go', '')  # ends a training command that still waits


def test_spot_run_from_request_to_result(cloud):
  cloud.put('states', 'NONE\nACCEPTED\nPROVISIONING\nACTIVE\n')
  status, printed = cloud.run('queued_resource.sh', CONFIG='configs/a.py:model=x,regime=masked')
  assert status == 0, printed
  assert cloud.calls() == ['create', 'install', 'data', 'train', 'fetch', 'delete']
  (command,) = cloud.lines('starts')
  assert command == (
    f'train --distributed --config=configs/a.py:model=x,regime=masked --workdir={cloud.workdir}'
  )
  (log,) = (cloud.checkout / 'launch_logs').rglob('*.log')
  assert re.fullmatch(r'--- started \d{4}-.*Z\ntrained by process \d+\n', log.read_text())
  assert (cloud.folder / 'host/lra_spt/code.py').read_text() == 'committed\n'
  assert not list(cloud.folder.glob('tmp*')), 'the archive is left behind'


def test_a_run_over_two_slices_uses_both(cloud):
  """While one of them does not answer, the run counts as alive."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  process = cloud.start('queued_resource.sh', SLICES='2')
  cloud.until(lambda: len(cloud.lines('starts')) == 2)
  cloud.put('ssh_fails', 'x\n')
  cloud.until(lambda: 'ssh failed' in cloud.lines('calls'))
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  (created,) = cloud.lines('created')
  assert ' --node-count=2 --node-prefix=lra --spot ' in created
  both = ['install', 'install', 'data', 'data', 'train', 'train']
  assert cloud.calls() == ['create', *both, 'fetch', 'fetch', 'delete']
  for name in ('lra-0', 'lra-1'):
    assert (cloud.folder / name / 'lra_spt' / 'code.py').exists()
    assert list((cloud.checkout / 'launch_logs' / name).rglob('*.log'))


@pytest.mark.parametrize('trouble', ['ssh', 'service', 'script'])
def test_a_run_that_may_live_gets_no_second_copy(cloud, trouble):
  """ssh or the service fails for a while, or the script is started again."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  if trouble == 'ssh':
    cloud.put('ssh_fails', 'x\n' * 4)
    cloud.until(lambda: cloud.lines('calls').count('ssh failed') == 4)
  elif trouble == 'service':
    cloud.put('states', 'NETWORK\n' * 4 + 'ACTIVE\n')
    cloud.until(lambda: cloud.lines('calls').count('describe NETWORK') == 4)
  else:
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    process = cloud.start('queued_resource.sh')
  asked = len(cloud.lines('calls'))
  cloud.until(lambda: len(cloud.lines('calls')) >= asked + 4)
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  assert len(cloud.lines('starts')) == 1
  assert cloud.lines('calls').count('create') == 1


def test_a_slice_that_is_taken_away_is_requested_again(cloud):
  """Ends of training before the loss do not count on the next slice."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', 'bad\nbad\nbad\nbad\ngood\n')
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  cloud.put('states', 'SUSPENDED\nNONE\nCREATING\nCREATING\nACTIVE\n')
  cloud.until(lambda: 'delete' in cloud.lines('calls'))
  cloud.put('go', '')  # the processes of the lost slice end
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 1, printed
  calls = [call for call in cloud.calls() if call not in ('install', 'data')]
  assert calls == ['create', 'train', 'delete', 'create', *['train'] * 3, 'fetch', 'delete']
  (log,) = (cloud.checkout / 'launch_logs').rglob('*.log')
  assert log.read_text().count('--- started') == 4  # the log of the lost slice is there too


@pytest.mark.parametrize(
  ('fails', 'ends', 'status', 'calls', 'starts'),
  [
    ({'delete_fails': 2}, 'bad', 1, ['fetch', 'delete', 'delete', 'delete'], 3),
    ({}, 'again\n' * 5 + 'good\n', 0, ['fetch', 'delete'], 6),
    ({'install_fails': 9}, 'good', 1, [*['install'] * 5, 'fetch', 'fetch', 'fetch', 'delete'], 0),
    ({'ssh_fails': 12}, 'good', 1, ['create', 'fetch', 'fetch', 'fetch', 'delete'], 0),
  ],
)
def test_a_slice_is_given_up_only_after_repeated_failures(cloud, fails, ends, status, calls, starts):
  """Three ends without a result, five failures to prepare it, or five to reach it; status 75 never counts."""
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', ends)
  for name, times in fails.items():
    cloud.put(name, 'x\n' * times)
  assert cloud.run('queued_resource.sh')[0] == status
  assert cloud.calls()[-len(calls) :] == calls
  assert len(cloud.lines('starts')) == starts
  logs = [path.read_text() for path in (cloud.checkout / 'launch_logs').rglob('*.log')]
  assert sum(text.count('trained by') for text in logs) == starts


def test_a_slice_that_is_prepared_in_the_end_is_kept(cloud):
  """Only failures in a row count, and a start of training ends the row."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', 'again\ngood\n')
  cloud.put('install_fails', 'x\n' * 4)
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  cloud.put('train_fails', 'x\n' * 4)
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  assert [cloud.lines('calls').count(call) for call in ('create', 'install', 'train')] == [1, 10, 6]


def test_a_run_whose_results_lie_elsewhere_is_done_when_it_ends_well(cloud):
  """Results of --seeds do. A command that ended before this script started may have been another one."""
  cloud.put('states', 'ACTIVE\n')
  cloud.put('ends', 'elsewhere')
  assert cloud.run('tpu_vm.sh', 'install')[0] == 0
  assert cloud.run('tpu_vm.sh', 'train', '--dry_run') == (0, '')
  cloud.until(lambda: cloud.run('tpu_vm.sh', 'status') == (0, 'ended\n'))
  status, printed = cloud.run('queued_resource.sh', '--seeds=0..2')
  assert status == 0, printed
  assert [line.split()[-1] for line in cloud.lines('starts')] == ['--dry_run', '--seeds=0..2']


@pytest.mark.parametrize('script', ['tpu_vm.sh', 'queued_resource.sh', 'two slices'])
def test_further_flags_reach_every_host(cloud, script):
  slices = '2' if script == 'two slices' else '1'
  cloud.put('states', 'NONE\nACTIVE\n')
  if script == 'tpu_vm.sh':
    assert cloud.run(script, 'install')[0] == 0
    assert cloud.run(script, 'train', *FLAGS) == (0, '')
    cloud.until(lambda: cloud.run(script, 'status') == (0, 'finished\n'))
  else:
    status, printed = cloud.run('queued_resource.sh', *FLAGS, SLICES=slices)
    assert status == 0, printed
  assert cloud.lines('words')[:2] == ['train', '--distributed']
  assert cloud.lines('words')[4:] == [*FLAGS]
  starts = cloud.lines('starts')
  assert len(starts) == int(slices)
  assert len({*starts}) == 1


def test_a_slice_that_cannot_be_deleted_is_reported(cloud):
  cloud.put('states', 'ACTIVE\n')
  cloud.workdir.mkdir()
  (cloud.workdir / 'result.json').touch()
  cloud.put('delete_fails', 'x\n' * 9)
  status, printed = cloud.run('queued_resource.sh')
  assert status == 1
  assert 'gcloud compute tpus queued-resources delete lra' in printed


@pytest.mark.parametrize('script', ['queued_resource.sh', 'tpu_vm.sh'])
def test_uncommitted_files_are_refused_or_taken_along(cloud, script):
  words = ['install'] if script == 'tpu_vm.sh' else []
  cloud.put('states', 'NONE\nACTIVE\n')
  (cloud.checkout / 'code.py').write_text('changed\n')
  (cloud.checkout / 'a new file').write_text('new\n')
  status, printed = cloud.run(script, *words)
  assert status == 1
  assert all(part in printed for part in ('code.py', 'a new file', 'UNCOMMITTED'))
  assert cloud.lines('calls') == []
  status, printed = cloud.run(script, *words, UNCOMMITTED='include')
  assert status == 0, printed
  installed = cloud.folder / 'host' / 'lra_spt'
  assert (installed / 'code.py').read_text() == 'changed\n'
  assert (installed / 'a new file').read_text() == 'new\n'
  assert (installed / 'launch' / 'tpu_vm.sh').exists()
  assert not (installed / 'ignored').exists()


def test_one_slice_by_hand(cloud):
  """A second start is no second run; hosts report the status; deleting fetches the log first."""
  (cloud.folder / 'go').unlink()
  assert cloud.run('tpu_vm.sh', 'install')[0] == 0
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'stopped\n')
  assert cloud.run('tpu_vm.sh', 'train') == (0, '')
  cloud.until(lambda: cloud.lines('starts'))
  assert cloud.run('tpu_vm.sh', 'train')[0] == 0
  assert not list(cloud.folder.glob('tmp*')), 'the archive is left behind'
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'running\n')
  cloud.put('ssh_fails', 'x\n')
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'unknown\n')
  cloud.put('go', '')
  cloud.until(lambda: cloud.run('tpu_vm.sh', 'status') == (0, 'finished\n'))
  assert len(cloud.lines('starts')) == 1
  assert cloud.run('tpu_vm.sh', 'delete')[0] == 0
  assert cloud.lines('calls')[-2:] == ['fetch', 'delete']
  assert cloud.run('tpu_vm.sh', 'alive')[0] == 2


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


def test_all_gpus_of_one_machine(checkout):
  command = ['bash', checkout / 'launch' / 'multi_gpu.sh', *FLAGS]
  missing = subprocess.run(command, capture_output=True, text=True, check=False)
  assert missing.returncode == 2
  assert f'{checkout}/.venv/bin/lra-spt' in missing.stderr
  executable(checkout / '.venv/bin/lra-spt', '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
  environment = os.environ | {'CONFIG': 'configs/a.py', 'WORKDIR': 'runs/my run'}
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  assert done.stdout.splitlines() == ['train', '--config=configs/a.py', '--workdir=runs/my run', *FLAGS]


# Writes its arguments, one a line; like xpk's container, it passes SIGTERM to a subshell around the command.
XPK = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$CLOUD/calls"
for word in "$@"; do case $word in --command=*) command=${word#--command=} ;; esac; done
eval "($command; true) &"
trap 'kill -TERM $!' TERM
while kill -0 $! 2>/dev/null; do sleep 0.05; done
wait $!
"""
CONTAINER = """#!/usr/bin/env bash
trap 'exit 75' TERM
printf '%s\\n' "$@" > "$CLOUD/starts"
for turn in {1..400}; do sleep 0.05; done
"""


def test_gke_restarts_a_run_that_asks_for_it(cloud):
  for name, text in (('xpk', XPK), ('lra-spt', CONTAINER)):
    executable(cloud.folder / 'bin' / name, text)
  places = {'CLUSTER': 'c', 'PROJECT': 'p', 'IMAGE': 'i:1', 'STORAGE': 's', 'MOUNT': '/lra'}
  places |= {'SLICES': '2', 'CONFIG': 'configs/a.py:model=x,regime=masked'}
  process = cloud.start('gke_xpk.sh', *FLAGS, **places)
  cloud.until(lambda: len(cloud.lines('starts')) == 5 + len(FLAGS))
  process.send_signal(signal.SIGTERM)
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 75, printed
  assert cloud.lines('starts') == [
    'train',
    '--distributed',
    '--config=configs/a.py:model=x,regime=masked',
    f'--workdir={cloud.workdir}',
    '--config.runtime.data_dir=/lra/data',
    *FLAGS,
  ]
  calls = cloud.lines('calls')
  assert calls[:2] == ['workload', 'create']
  assert {'--num-slices=2', '--restart-on-exit-codes=75', '--max-restarts=50', '--storage=s'} <= {*calls}


def test_gke_names_a_setting_that_is_missing(cloud):
  status, printed = cloud.run('gke_xpk.sh', CLUSTER='c', PROJECT='p', IMAGE='i:1', STORAGE='s')
  assert status != 0
  assert 'MOUNT' in printed
