"""The runs of a study as commands for a queue. Runs that share a stage are one line, one task of an array, or
one workload, because one of them trains the stage for the others.
"""

import pathlib
import re
import shlex
from collections.abc import Sequence

from lra_spt.studies.study import Job, command, together


def groups(jobs: Sequence[Job]) -> list[list[list[Job]]]:
  """Groups the jobs of each command (see `together`) by shared stages, in the order of the jobs."""
  by_stages: list[tuple[set, list]] = []
  for trained in together(jobs):
    keys = {key for job in trained for key in job.stages.values()}
    sharing = [group for group in by_stages if group[0] & keys]
    merged = (
      keys.union(*(group[0] for group in sharing)),
      [each for group in sharing for each in group[1]] + [trained],
    )
    by_stages = [group for group in by_stages if group not in sharing] + [merged]
  order = {job: number for number, job in enumerate(jobs)}
  return sorted((members for _, members in by_stages), key=lambda members: order[members[0][0]])


def script(
  jobs: Sequence[Job],
  workdir: pathlib.Path,
  queue: str,
  register: Sequence[str] = (),
  stages: pathlib.Path | None = None,
  name: str = 'study',
) -> str:
  """The text of `lra-spt study --print`. Every command can be run again, and continues where it stopped.

  Args:
    queue: 'plain', 'slurm' or 'xpk'.
    stages: see `study.command`.
    name: of the study.
  """
  more = ''.join(f' --register={shlex.quote(str(pathlib.Path(path).absolute()))}' for path in register)
  lines = [
    _in_sequence([shlex.join(command(trained, workdir, stages)) + more for trained in group])
    for group in groups(jobs)
  ]
  name = re.sub('[^a-z0-9]+', '-', name.lower())  # of a workload
  if queue == 'plain':
    return '\n'.join(lines)
  if queue == 'slurm':
    return _slurm(lines, name)
  start = 'xpk workload create --cluster="$CLUSTER" --tpu-type="$TPU" --docker-image="$IMAGE"'
  start += ' --storage="$STORAGE" --max-restarts=50 --restart-on-exit-codes=75'
  # SIGTERM reaches the shell. With `exec`, a single command takes the place of the shell.
  lines = [line if line.startswith('(') else f'exec {line}' for line in lines]
  return _XPK + '\n'.join(
    f'{start} --workload={name}-{number} --command={shlex.quote(line)}' for number, line in enumerate(lines)
  )


_XPK = """# A workload per line. Print it with --workdir and --config.runtime.data_dir where hosts see STORAGE
# (`xpk storage list`; launch/gke_xpk.sh says what it has to be).
: "${CLUSTER:?name of the cluster}" "${TPU:?as in TPU=v5litepod-16}" "${IMAGE:?container with lra-spt}"
: "${STORAGE:?as in xpk storage list}"
"""


def _in_sequence(commands: list[str]) -> str:
  """A shell line that runs the commands one after the other.

  After a failed command the next ones still run, and the line ends with the first status that is not 0. If a
  command asks to be queued again (status 75), the line ends there with 75.
  """
  if len(commands) == 1:
    return commands[0]
  check = ' || { s=$?; [ $s != 75 ] || exit 75; bad=${bad:-$s}; }'
  return f'(bad=; {"; ".join(each + check for each in commands)}; exit ${{bad:-0}})'


def _slurm(lines, name) -> str:
  tasks = '\n'.join(f'  {number}) {line} ;;' for number, line in enumerate(lines))
  return f"""#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{len(lines) - 1}
#SBATCH --gpus-per-task=1
#SBATCH --requeue
# Runs that share a stage are one task. A run that is asked to end saves and exits 75: it is queued again.
case "$SLURM_ARRAY_TASK_ID" in
{tasks}
esac
status=$?
if [ $status = 75 ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; fi
exit $status"""
