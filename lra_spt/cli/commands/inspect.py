"""`lra-spt inspect`: shows the contents of a prepared set, in the splits of a task."""

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser('inspect', 'Shows what is in a prepared set.')
  parser.add_argument(
    'dataset', metavar='DATASET', help='a set, as in `lra-spt prepare`, or a task that reads one'
  )
  parser.add_argument('--data_dir', required=True, help='folder of prepared sets')
  parser.add_argument(
    '--out', type=flags.path, help='also write a page with charts and examples to this file'
  )
  parser.add_argument(
    '--examples',
    type=flags.whole(1),
    default=8,
    help='how many to show: images per class, or texts or curves in total (default: 8)',
  )
  parser.add_argument(
    '--protocol', default='clean', choices=('clean', 'paper'), help='whose splits to use (default: clean)'
  )
  sampling = 'examples to read from every split, 0 for all (default: all of a small set, else a few thousand)'
  parser.add_argument('--sample', type=flags.whole(0), help=sampling)
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  if arguments.out is not None:
    flags.check_output('--out', arguments.out)
  flags.register(arguments)
  from lra_spt.report.datasets import inspect, text

  inspection = inspect.inspect_set(
    inspect.find_task(arguments.dataset, arguments.data_dir),
    arguments.data_dir,
    protocol=arguments.protocol,
    sample=arguments.sample,
    examples=arguments.examples,
  )
  print(text.text(inspection))
  if arguments.out is not None:
    from lra_spt.report.datasets import page

    page.write_page(inspection, arguments.out)
    print(f'\nThe page is in {arguments.out}')
  return 0
