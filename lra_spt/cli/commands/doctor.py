"""`lra-spt doctor`: compares stored runs and prepared sets with their checksums, or checks a cluster."""

import signal
import sys

from lra_spt.cli import flags
from lra_spt.errors import ConfigError

CONFIG = 'configs/image.py:model=transformer_rotary,regime=scratch'


def parser() -> flags.Parser:
  parser = flags.Parser(
    'doctor',
    'Reads all stored files and compares them with their checksums: files and checkpoints of runs, files and '
    'fingerprints of prepared sets. Prints each problem with its remedy, and exits with 1 if there is one. '
    'With --cluster it checks the devices of this run instead, in about ten minutes: collectives, the shared '
    'folder, a kill and a resume, the same losses on one device and on all, and speed from one to all. It '
    'prints a table and writes WORKDIR/cluster.json.',
  )
  parser.add_argument(
    '--workdir',
    help='folder of a run, or one that holds several, at any depth; with --cluster a new folder that all '
    'processes share',
  )
  parser.add_argument('--data_dir', help='folder of prepared sets')
  parser.add_argument('--cluster', action='store_true', help='check devices and processes')
  parser.add_argument(
    '--config',
    metavar='FILE',
    help=f'with --cluster: the config whose steps are compared and timed, on random inputs ({CONFIG})',
  )
  flags.add_joining(parser)
  return parser


def main(argv: list[str]) -> int:
  """Returns 0, or 1 if something is wrong or a check has failed."""
  arguments = parser().parse_args(argv)
  joining = flags.joining(arguments)
  if arguments.cluster:
    if arguments.workdir is None or arguments.data_dir is not None:
      raise ConfigError('lra-spt doctor --cluster needs --workdir, a new folder, and takes no --data_dir.')
    from lra_spt.runs.cluster import acceptance

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends what it has started
    return 0 if acceptance.run(arguments.workdir, arguments.config or CONFIG, joining) else 1
  if arguments.config is not None or any(value is not None for value in joining.values()):
    raise ConfigError('--config and the flags of several processes are for lra-spt doctor --cluster: add it.')
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
