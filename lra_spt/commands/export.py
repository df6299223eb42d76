"""`lra-spt export`: the table of a study, or of runs, for other programs."""

from lra_spt import flags
from lra_spt.errors import MissingFile

FORMATS = ('csv', 'json', 'latex', 'markdown')


def parser() -> flags.Parser:
  parser = flags.Parser(
    'export',
    'The table of a study, or a line per way of training of other runs: CSV and JSON with every number, '
    'LaTeX (booktabs) and Markdown to be read.',
  )
  parser.add_argument('--workdir', required=True, help='folder of a study, or of runs at any depth')
  parser.add_argument('--format', required=True, choices=FORMATS)
  parser.add_argument('--output', metavar='FILE', help='file to write; default: it is printed')
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  from lra_spt import files
  from lra_spt.report import export, runs, studies

  found = []
  if not studies.is_study(arguments.workdir):
    found = runs.collect(arguments.workdir)
    if not found:
      raise MissingFile(
        f'there is no finished run in or below {arguments.workdir}: run `lra-spt train` first.'
      )
  text = export.text(arguments.workdir, found, arguments.format)
  if arguments.output is None:
    print(text, end='')
    return 0
  flags.check_output('--output', arguments.output)
  files.write_text(arguments.output, text)
  print(f'The table is in {arguments.output}')
  return 0
