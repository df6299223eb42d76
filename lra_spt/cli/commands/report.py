"""`lra-spt report`: report.html of all runs under a folder."""

from lra_spt import files
from lra_spt.cli import flags
from lra_spt.errors import counted


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
  """Writes the report. Returns 0, or 1 if a run is damaged, its files contradict each other, runs that should
  have a gain were tested on different examples, or runs of a study failed."""
  arguments = parser().parse_args(argv)
  from lra_spt.report.study import any_folder, notes, text

  table = any_folder.read_any(arguments.workdir, may_be_empty=arguments.leaderboard)
  name = 'leaderboard.html' if arguments.leaderboard else 'report.html'
  output = files.place(arguments.output or table.workdir / name)
  flags.check_output('--output', output)
  if arguments.leaderboard:
    from lra_spt.report.pages import leaderboard

    leaderboard.write(table, output, arguments.title or leaderboard.TITLE)
    for sentence in (*notes.failures(table), *notes.unscored(table), *notes.contradictions(table.runs)):
      print(f'! {sentence}')
    print(f'\nThe leaderboard of {counted(len(table.runs), "run")} among published rows is in {output}')
  else:
    print(text.text(table), flush=True)  # before what writes pages is imported
    from lra_spt.report.pages import report

    report.write(table, output, arguments.title or '')
    print(f'\nThe report is in {output}')
    if table.findings.mismatched:
      return 1
  failed = table.is_study and table.counts['failed']
  return 1 if table.damaged or failed or notes.contradictions(table.runs) else 0
