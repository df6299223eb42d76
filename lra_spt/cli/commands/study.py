"""`lra-spt study`: all runs of a table or figure, and its report."""

import os
import pathlib
import signal
import sys

from lra_spt.cli import flags
from lra_spt.distributed import signals
from lra_spt.errors import ConfigError, Interrupted

QUEUES = ('plain', 'slurm', 'xpk')


def parser() -> flags.Parser:
  parser = flags.Parser(
    'study',
    'Trains the unfinished runs of a study and writes its report; the same command resumes where it stopped.',
    overrides=True,
  )
  parser.add_argument('file', metavar='FILE', help='study file, e.g. configs/studies/table2.py')
  parser.add_argument('--workdir', required=True, help='folder of the runs and the report')
  parser.add_argument(
    '--stages',
    metavar='DIR',
    help='folder of stages that several studies can share (default: workdir/stages)',
  )
  parser.add_argument(
    '--seeds', type=flags.seeds, help='seeds to use instead of those of the study: 0,1,2 or 0..4'
  )
  parser.add_argument(
    '--only', default='', metavar='KEY=VALUE,...', help='only these runs, such as task=image,model=s4'
  )
  parser.add_argument(
    '--processes',
    type=flags.whole(1),
    default=1,
    help='runs at a time; each gets its share of the cores, or a GPU of its own (default: 1)',
  )
  parser.add_argument(
    '--dry_run', action='store_true', help='only say what would be run and about how long it would take'
  )
  parser.add_argument(
    '--print', choices=QUEUES, dest='queue', help='run nothing, print the commands for a queue instead'
  )
  smoke_help = 'a few steps and one seed, to see that everything works; the numbers mean nothing'
  parser.add_argument('--smoke', action='store_true', help=smoke_help)
  flags.add_register(parser)
  flags.add_accept_changed_code(parser)
  return parser


def main(argv: list[str]) -> int:
  """Returns 0; 1 if a run failed; 75 if a run was asked to end and the same command continues it."""
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  from lra_spt.report.runs import run_folder
  from lra_spt.studies import choice, study

  chosen_study = study.load(arguments.file)
  if arguments.smoke:
    chosen_study = study.shortened(chosen_study)
  jobs = study.jobs(
    chosen_study,
    seeds=arguments.seeds,
    only=choice.selection(arguments.only),
    overrides=arguments.overrides,
  )
  workdir = run_folder.local_folder(arguments.workdir, '--workdir')
  if arguments.stages is not None:
    arguments.stages = run_folder.local_folder(arguments.stages, '--stages')
  from lra_spt.studies import budget, runner, search

  if arguments.queue:
    from lra_spt.studies import queues

    decided = search.decide(chosen_study, jobs, workdir, arguments.overrides)
    if decided.problems and not (decided.open or decided.jobs):
      raise ConfigError(
        f'All runs of the search failed ({", ".join(decided.problems)}): see the logs in '
        f'{workdir / run_folder.SEARCH}, and correct the values or move that folder away.'
      )
    next_jobs = decided.open or decided.jobs
    more = arguments.register, arguments.stages, chosen_study.name
    print(queues.script(next_jobs, workdir, arguments.queue, *more))
    if decided.open:
      print(
        '# These runs search hyperparameters. Once they have finished, the same command prints the next ones.'
      )
    return 0
  if arguments.dry_run:
    from lra_spt.studies import estimate

    runner.check(workdir, search.decide(chosen_study, jobs, workdir, arguments.overrides).jobs)
    jobs = search.all_jobs(chosen_study, jobs, arguments.overrides) + jobs
    print(estimate.describe(chosen_study, jobs, *budget.plan(jobs), workdir, arguments.processes))
    return 0
  budget.check(jobs)
  return run(chosen_study, jobs, workdir, arguments)


def run(chosen_study, jobs, workdir: pathlib.Path, arguments, pick=None) -> int:
  """Trains and reports as `main`.

  arguments: has register, overrides, processes and stages. pick: returns the runs to train next, given (open
  runs of the search, runs with chosen values); None: all open runs of the search come first.
  """
  from lra_spt.studies import runner

  try:
    with _ending_at_signals():
      return _run(
        chosen_study, jobs, workdir, arguments, pick or (lambda searched, chosen: searched or chosen)
      )
  except KeyboardInterrupt as stop:
    what = 'and its runs are saved; the same command resumes it'
    if isinstance(stop, runner.Killed):
      what = f'before {stop} of its runs had saved; the same command resumes from their last checkpoints'
    print(f'lra-spt: the study was stopped {what}.', file=sys.stderr)
    return Interrupted.status


def _ending_at_signals():
  """Returns a context in which the first signal that asks to end raises KeyboardInterrupt. A second SIGINT or
  SIGTERM raises it again."""
  asked = False

  def ask(number):
    nonlocal asked
    if not asked:
      asked = True
      raise KeyboardInterrupt

  return signals.heeded(ask, terminate=signal.default_int_handler)


def _run(chosen_study, chosen, workdir: pathlib.Path, arguments, pick) -> int:
  from lra_spt import files
  from lra_spt.report.pages import report
  from lra_spt.report.study import any_folder, text
  from lra_spt.report.study import record as study_record
  from lra_spt.studies import records, runner, search

  cores = os.cpu_count() or 1
  if arguments.processes > max(cores, len(chosen)):
    raise ConfigError(f'--processes is {arguments.processes}, but there are {len(chosen)} runs: lower it.')
  runner.check_processes(arguments.processes)
  with files.owned(workdir, 'running a study in'):
    tried = set()
    while True:
      decided = search.decide(chosen_study, chosen, workdir, arguments.overrides)
      runner.check(workdir, decided.jobs)  # before anything is noted
      # Runs that failed under an earlier command are tried once.
      open_jobs = [job for job in decided.open if job not in decided.stuck or job.folder not in tried]
      named = {job.folder for job in decided.jobs}
      all_runs = [*decided.jobs, *(job for job in chosen if job.folder not in named)]
      record = records.record(chosen_study, all_runs, decided.records) | {'register': arguments.register}
      left_out = study_record.claim(workdir, record)
      now = pick(open_jobs, decided.jobs)
      tried |= {job.folder for job in now}
      states = _run_all(now, workdir, arguments)
      if runner.WAITING in states.values() or not open_jobs and len(now) == len(decided.jobs):
        break
    if chosen_study.show == 'kernels':
      _draw_kernels(workdir / job.folder for job, state in states.items() if state == runner.FINISHED)
    table = any_folder.read_any(workdir)
    page = report.write(table)
  print(f'\n{text.text(table)}\n\nThe report is in {page}')
  if left_out:
    print(
      f'Runs in {workdir} that do not belong to the study as this command runs it: {"; ".join(left_out)}.'
    )
  if open_jobs:  # what fails in a search loses, or is tried again
    return runner.AGAIN
  if decided.problems or runner.FAILED in states.values():
    return 1
  return runner.AGAIN if runner.WAITING in states.values() else 0


def _run_all(jobs, workdir, arguments):
  from lra_spt.studies import budget, progress, runner

  with progress.Progress(jobs, workdir, budget.check(jobs), arguments.processes) as shown:
    return runner.run_all(
      jobs,
      workdir,
      processes=arguments.processes,
      register=[os.path.abspath(path) for path in arguments.register],
      stages=arguments.stages,
      tell=shown.tell,
      watch=shown.watch,
      ending=shown.ending,
    )


def _draw_kernels(folders) -> None:
  """Writes kernels.json of every run that has none."""
  from lra_spt.errors import UserError
  from lra_spt.report.runs import run_folder
  from lra_spt.runs import kernels

  for folder in folders:
    if not (folder / run_folder.KERNELS).exists():
      try:
        kernels.write(folder, kernels.compute(folder))
      except UserError as error:  # one run has failed, the others go on
        print(f'{folder}: {error}')
