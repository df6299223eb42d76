"""`lra-spt compare`: a mixer among the baselines of a fixed recipe, in one table."""

from lra_spt.cli import flags
from lra_spt.cli.commands import study as study_command


def parser() -> flags.Parser:
  parser = flags.Parser(
    'compare',
    'Trains a mixer by a fixed recipe, configs/compare.py, and writes its table among the baselines; the '
    'same command resumes.',
  )
  parser.add_argument('--model', required=True, help='name of the mixer, of the package or of --register')
  parser.add_argument('--workdir', required=True, help='folder of the runs and the report')
  parser.add_argument('--data_dir', default='data', help='folder of prepared sets (default: data)')
  parser.add_argument(
    '--tasks', default='', help='of listops, pathfinder, text, image (default: the first two) and your own'
  )
  parser.add_argument('--regimes', default='', help='masked, causal or both (default: masked)')
  parser.add_argument(
    '--match', choices=('parameters', 'operations'), help='make it as large as the first baseline'
  )
  parser.add_argument('--train_baselines', action='store_true', help='train baselines that have no runs')
  parser.add_argument(
    '--processes', type=flags.whole(1), default=1, help='runs at a time (default: 1), as in study'
  )
  parser.add_argument(
    '--quick', action='store_true', help='a first look: one task, one seed, ten minutes on two cores'
  )
  parser.add_argument('--smoke', action='store_true', help='a few steps of everything; numbers mean nothing')
  flags.add_register(parser)
  flags.add_accept_changed_code(parser)
  return parser


def main(argv: list[str]) -> int:
  """Returns the exit status of `study`."""
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  from lra_spt import files
  from lra_spt.report import export
  from lra_spt.report.runs import run_folder
  from lra_spt.report.study.any_folder import read_any
  from lra_spt.studies import compare, runner, study
  from lra_spt.studies.study import folder_of

  workdir = run_folder.local_folder(arguments.workdir, '--workdir')
  data_dir = run_folder.local_folder(arguments.data_dir, '--data_dir')
  arguments.overrides, arguments.stages = [f'runtime.data_dir={data_dir}'], None
  alone = arguments.quick or arguments.smoke
  others = [] if alone else [name for name in compare.recipe().BASELINES if name != arguments.model]
  chosen = compare.load([arguments.model, *others], arguments.tasks, arguments.regimes, arguments.quick)
  if arguments.smoke:
    chosen = study.shortened(chosen)
  study.jobs(chosen)  # refuses unknown mixers before anything is made
  compare.prepare(chosen, data_dir)
  if arguments.match:
    chosen = compare.apart(compare.matched, arguments.register, chosen, arguments.model, arguments.match)
  jobs = study.jobs(chosen, overrides=arguments.overrides)
  if alone:
    print(f'Baselines are shown without --{"quick" if arguments.quick else "smoke"}.')
  else:
    compare.restore(jobs, workdir)
    baselines = [job for job in jobs if job.config.model.name != arguments.model]
    missing = [] if arguments.train_baselines else compare.lacking(baselines, workdir)
    if missing:
      jobs = [job for job in jobs if job not in missing]
      chosen, sentence = compare.without(chosen, missing)
      print(sentence)
  costs, left = {}, {folder_of(job.cell) for job in jobs if runner.state(workdir, job) != runner.FINISHED}
  if left:
    costs = compare.apart(compare.costs, arguments.register, chosen, left, workdir, arguments.overrides)
    print(compare.outlook(costs, jobs, arguments.processes), flush=True)
  status = study_command.run(chosen, jobs, workdir, arguments, compare.by_cost(costs, workdir))
  path = workdir / 'compare.md'
  files.write_text(path, export.gains_and_cost(read_any(workdir)))
  print(f'The table as Markdown is in {path}')
  return status
