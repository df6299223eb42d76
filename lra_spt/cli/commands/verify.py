"""`lra-spt verify`: checks the file of a submission."""

from lra_spt.cli import flags
from lra_spt.errors import counted


def parser() -> flags.Parser:
  parser = flags.Parser(
    'verify',
    'Checks a file of `lra-spt submit`: computes every score again from predictions and labels, and compares '
    'checksums, configs, and digests of source files. Runs no code from it, and exits with 1 if something '
    'differs.',
  )
  parser.add_argument('file', metavar='FILE', type=flags.path, help='the file')
  parser.add_argument(
    '--data_dir', help='folder of prepared sets, whose labels are used (default: those in the file)'
  )
  return parser


def main(argv: list[str]) -> int:
  """Returns 0, or 1 if something differs."""
  arguments = parser().parse_args(argv)
  return report(arguments.file, arguments.data_dir)


def report(path, data_dir: str | None) -> int:
  """Prints a line for every run, and what was compared with what; returns the exit status."""
  from lra_spt.report.runs import run_folder
  from lra_spt.report.study import submission

  path = run_folder.local_folder(path, 'FILE')
  with submission.unpacked(path) as folder:
    runs, sentences = submission.verify(folder, data_dir)
  lines = [
    f'{"WRONG" if run.faults else "ok":<5}  {run.name}: {"; ".join([run.shown, *run.faults])}' for run in runs
  ]
  for line in (*lines, *(f'- {sentence}' for sentence in sentences)):
    print(line if line.isprintable() else ascii(line))  # names in the file may hold codes for the terminal
  wrong, size = sum(bool(run.faults) for run in runs), path.stat().st_size / 1e6
  print(f'{path} ({size:.2f} MB), {counted(len(runs), "run")}: {f"{wrong:,} wrong" if wrong else "good"}')
  return 1 if wrong else 0
