"""`lra-spt report`: report.html of all finished runs under a folder."""

import pathlib

from lra_spt import flags
from lra_spt.errors import MissingFile


def parser() -> flags.Parser:
  parser = flags.Parser('report', 'Writes report.html from finished runs, and prints their table.')
  parser.add_argument('--workdir', required=True, help='folder that holds the run folders, at any depth')
  parser.add_argument('--output', help='file to write; default: report.html in the workdir')
  parser.add_argument('--title', default='Self-pretraining against training from scratch')
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  output = pathlib.Path(arguments.output or pathlib.Path(arguments.workdir) / 'report.html')
  from lra_spt.report import page

  runs = page.collect(arguments.workdir)
  if not runs:
    raise MissingFile(
      f'there is no finished run in or below {arguments.workdir} (a run is finished when its folder holds a '
      'result.json): run `lra-spt train` or `lra-spt demo` first.'
    )
  flags.check_output('--output', output)
  page.write_report(runs, output, arguments.title)
  print(page.text_table(runs))
  print(f'\nThe report is in {output}')
  return 0
