"""`lra-spt report`: report.html of all runs under a folder."""

import pathlib

from lra_spt import flags
from lra_spt.errors import DamagedFile, MissingFile


def parser() -> flags.Parser:
  parser = flags.Parser('report', 'Writes report.html from finished runs, and prints their table.')
  parser.add_argument('--workdir', required=True, help='folder that holds the run folders, at any depth')
  parser.add_argument('--output', help='file to write; default: report.html in the workdir')
  parser.add_argument('--title', default='Self-pretraining against training from scratch')
  return parser


def main(argv: list[str]) -> int:
  """0, or 1 where a run is damaged, its files contradict each other, or runs of a study failed; the report is
  written all the same."""
  arguments = parser().parse_args(argv)
  workdir = pathlib.Path(arguments.workdir)
  output = pathlib.Path(arguments.output or workdir / 'report.html')
  from lra_spt.report import notes, page, studies, study_page, text
  from lra_spt.report.survey import survey

  if studies.is_study(workdir):
    flags.check_output('--output', output)
    table = studies.read_table(workdir)
    study_page.write(table, output)
    print(f'{studies.text(table)}\n\nThe report is in {output}')
    return 1 if table.counts['failed'] or notes.contradictions(table.runs) else 0
  found = survey(workdir)
  if not (found.runs or found.started or found.damaged):
    raise MissingFile(
      f'there is no finished run in or below {arguments.workdir} (a run is finished when its folder holds a '
      'result.json): run `lra-spt train` or `lra-spt demo` first.'
    )
  if found.damaged and not (found.runs or found.started):
    raise DamagedFile(found.damaged[0].sentence)
  flags.check_output('--output', output)
  page.write_report(found.runs, output, arguments.title, started=found.started, damaged=found.damaged)
  parts = text.text_table(found.runs), text.unfinished_text(found.started), text.damaged_text(found.damaged)
  print('\n\n'.join(filter(None, parts)))
  print(f'\nThe report is in {output}')
  return 1 if found.damaged or notes.contradictions(found.runs) else 0
