"""`lra-spt doctor`: compares stored runs and prepared sets with their checksums."""

from lra_spt.cli import flags
from lra_spt.errors import ConfigError


def parser() -> flags.Parser:
  parser = flags.Parser(
    'doctor',
    'Reads all stored files and compares them with their checksums: files and checkpoints of runs, files and '
    'fingerprints of prepared sets. Prints each problem with its remedy, and exits with 1 if there is one.',
  )
  parser.add_argument('--workdir', help='folder of a run, or one that holds several, at any depth')
  parser.add_argument('--data_dir', help='folder of prepared sets')
  return parser


def main(argv: list[str]) -> int:
  """0, or 1 where something is wrong."""
  arguments = parser().parse_args(argv)
  if arguments.workdir is None and arguments.data_dir is None:
    raise ConfigError('lra-spt doctor needs --workdir or --data_dir, or both: see lra-spt doctor --help.')
  from lra_spt.runs import doctor

  health = doctor.Health()
  if arguments.data_dir is not None:
    doctor.examine_sets(arguments.data_dir, health)
  if arguments.workdir is not None:
    doctor.examine_runs(arguments.workdir, health)
  for line in (*health.notes, *health.problems):
    print(f'- {line}')
  print(health.summary)
  return 1 if health.problems else 0
