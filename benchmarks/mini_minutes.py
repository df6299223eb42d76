"""How long a whole run of LRA-mini takes on this machine, if nothing else runs on it.

  python -m benchmarks mini_minutes --data_dir=data [--cases image:s4,...] [--resume]

Each case is a run with masked self-pretraining, `lra-spt train`, from the start of the program to its test,
without a compilation cache but with only STEPS steps and one validation in either stage. The steps and
validations that a whole run has in addition are added at the pace of these. The cases are all of
mini_table.py.
"""

import functools
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import harness
from configs.studies import mini_table
from lra_spt.config import loading
from lra_spt.report.runs import run_folder

CASES = [f'{task}:{model}' for task in mini_table.TASKS for model in mini_table.ALL]
STEPS = 250
STAGES = ('pretrain', 'finetune')
AGAIN = 1  # the best state is validated once more at the end of a stage


def measured(case: str, data_dir) -> dict:
  """Minutes of a whole run, and the seconds that they are computed from."""
  task, model = case.split(':')
  source = f'configs/mini/{task}.py:model={model},regime=masked'
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, '-m', 'lra_spt', 'train', f'--config={source}', f'--workdir={folder}/run']
    command += [f'--config.runtime.data_dir={data_dir}']
    for stage in STAGES:
      command += [f'--config.{stage}.{key}={STEPS}' for key in ('max_steps', 'evaluate_every')]
    alone = {key: value for key, value in os.environ.items() if key != 'LRA_SPT_CACHE'}
    run = functools.partial(subprocess.run, command, check=True, cwd=harness.ROOT, env=alone)
    seconds = harness.timed(run)['seconds']
    result = run_folder.read_result(pathlib.Path(folder) / 'run')
  return whole_run(seconds, {name: result['stages'][name]['time'] for name in STAGES}, loading.load(source))


def whole_run(seconds: float, times: dict, whole) -> dict:
  """The columns of a row.

  Args:
    seconds: of the shortened run.
    times: {stage: {part: seconds}} of its stages.
    whole: config of the whole run.
  """
  row, more = {}, 0.0
  for stage, spent in times.items():
    step = (spent['steps'] + spent['data']) / STEPS
    validation = (spent['evaluation'] + spent['checkpoints']) / (1 + AGAIN)
    validations = whole[stage].max_steps // whole[stage].evaluate_every
    more += (whole[stage].max_steps - STEPS) * step + (validations - 1) * validation
    row[f'{stage}_step_milliseconds'] = round(1e3 * step, 1)
    row[f'{stage}_validation_seconds'] = round(validation, 2)
  return {'minutes': round((seconds + more) / 60, 1), 'shortened_seconds': round(seconds, 1)} | row


def main(arguments=None):
  parser = harness.parser('mini_minutes', __doc__, 'mini_minutes.json')
  parser.add_argument('--data_dir', required=True, type=pathlib.Path, help='where the sets are prepared')
  parser.add_argument('--cases', default=','.join(CASES), help='TASK:MODEL,... (%(default)s)')
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  cases = harness.chosen(parser, 'case', given.cases, CASES)
  harness.cpu_only()
  report = harness.report('mini_minutes', __doc__.splitlines()[0], steps=len(STAGES) * STEPS, rows=[])
  harness.fill(
    given, report, [{'case': c} for c in cases], lambda case: measured(case, given.data_dir.resolve())
  )


if __name__ == '__main__':
  main()
