"""`lra-spt demo`: pretrains and finetunes on generated data and writes a report."""

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser('demo', 'Pretrains and finetunes on generated data and writes report.html.')
  parser.add_argument(
    '--workdir',
    default='demo_run',
    help='folder for the data, the runs and the report (default: demo_run)',
  )
  parser.add_argument(
    '--seeds',
    type=flags.seeds,
    default=(101,),
    help='one or more, such as 101,102 or 101..105; each generates its own data (default: 101)',
  )
  smoke_help = 'a few steps only, to see that everything works; the numbers mean nothing'
  parser.add_argument('--smoke', action='store_true', help=smoke_help)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  from lra_spt.report.runs import run_folder

  workdir = run_folder.local_folder(arguments.workdir, '--workdir')
  from lra_spt.distributed import processes
  from lra_spt.studies import demo

  with processes.heeding_signals():
    demo.run_all(workdir, arguments.seeds, smoke=arguments.smoke)
  return 0
