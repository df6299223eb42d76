"""Stand-ins for gcloud, ssh and the training command; a host is a folder."""

import os
import signal
import subprocess
import time

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
