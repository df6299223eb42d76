"""`lra-spt report`: report.html of all runs under a folder."""

from lra_spt import files
from lra_spt.cli import flags
from lra_spt.errors import DamagedFile, MissingFile

TITLE = 'Self-pretraining against training from scratch'


def parser() -> flags.Parser:
  parser = flags.Parser('report', 'Writes report.html from finished runs, and prints their table.')
  parser.add_argument('--workdir', required=True, help='folder that holds the run folders, at any depth')
  parser.add_argument('--output', help='file to write (default: report.html in the workdir)')
  parser.add_argument('--title', help='title of the page')
  parser.add_argument(
    '--leaderboard',
    action='store_true',
    help='write leaderboard.html instead: the runs among published rows, one table per task',
  )
  return parser


def main(argv: list[str]) -> int:
  """0, or 1 where a run is damaged, its files contradict each other, runs that should have a gain were tested
  on different examples, or runs of a study failed; the report is written all the same."""
  arguments = parser().parse_args(argv)
  workdir = files.place(arguments.workdir)
  if arguments.leaderboard:
    return _leaderboard(workdir, arguments)
  output = files.place(arguments.output or workdir / 'report.html')
  from lra_spt.report import text
  from lra_spt.report.study import arms as tables
  from lra_spt.report.study import notes
  from lra_spt.report.study import table as studies
  from lra_spt.report.survey import survey

  if studies.is_study(workdir):
    flags.check_output('--output', output)
    table = studies.read_table(workdir)
    print(studies.text(table), flush=True)  # before what draws charts is imported
    from lra_spt.report.pages import study as study_page

    study_page.write(table, output, arguments.title or '')
    print(f'\nThe report is in {output}')
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
  parts = text.text_table(found.runs), text.unfinished_text(found.started), text.damaged_text(found.damaged)
  print('\n\n'.join(filter(None, parts)), flush=True)
  from lra_spt.report import page

  page.write_report(
    found.runs, output, arguments.title or TITLE, started=found.started, damaged=found.damaged
  )
  print(f'\nThe report is in {output}')
  apart = any(group.apart for group in tables.summarise(found.runs))
  return 1 if found.damaged or apart or notes.contradictions(found.runs) else 0


def _leaderboard(workdir, arguments) -> int:
  from lra_spt.report import text
  from lra_spt.report.pages import leaderboard
  from lra_spt.report.study import notes
  from lra_spt.report.survey import survey

  output = files.place(arguments.output or workdir / 'leaderboard.html')
  found = survey(workdir)
  flags.check_output('--output', output)
  title = arguments.title or 'Long Range Arena: published rows and own runs'
  leaderboard.write(found.runs, output, title, damaged=found.damaged)
  for finding in leaderboard.check(leaderboard.rows()):
    print(f'! {finding.row.name} {finding.sentence}.')
  if found.damaged:
    print(f'\n{text.damaged_text(found.damaged)}')
  contradictions = notes.contradictions(found.runs)
  for sentence in contradictions:
    print(f'! {sentence}')
  print(f'\nThe leaderboard of {len(found.runs)} runs among published rows is in {output}')
  return 1 if found.damaged or contradictions else 0
