"""The script for GKE with stand-ins for xpk and its container."""

import signal

from tests.launch.cloud import FLAGS, executable

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
