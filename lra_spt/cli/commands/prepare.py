"""`lra-spt prepare`: makes a prepared data set from official files or a generator."""

from lra_spt.cli import flags
from lra_spt.config import user_files


def parser() -> flags.Parser:
  parser = flags.Parser('prepare', 'Makes a data set from official files or with a generator.')
  parser.add_argument('dataset', metavar='DATASET', help='one of `lra-spt list sets`')
  parser.add_argument('--data_dir', required=True, help='folder for prepared sets')
  parser.add_argument(
    '--raw_dir', help='folder of official files, to use instead of a download or the generator'
  )
  parser.add_argument('--accept_unverified', action='store_true', help='import files that cannot be verified')
  parser.add_argument(
    '--accept_incomplete', action='store_true', help='import fewer examples than the official set has'
  )
  parser.add_argument(
    '--dry_run', action='store_true', help='only print what would be read and made, and what it needs'
  )
  parser.add_argument('--examples', type=flags.whole(), help='how many to generate (default: as published)')
  parser.add_argument(
    '--workers', type=flags.whole(), help='processes of the generators (default: all cores)'
  )
  parser.add_argument('--seed', type=flags.whole(), default=0, help='seed of the generators (default: 0)')
  parser.add_argument('--runner', default='local', help='how generators run: local, or beam (Apache Beam)')
  parser.add_argument('--beam_options', default='', help='pipeline options of --runner=beam, as one string')
  parser.add_argument('--name', help='name of the set, for npz and ts (your own files)')
  parser.add_argument('--train', type=flags.path, metavar='FILE', help='for ts: the training examples')
  parser.add_argument(
    '--validation', type=flags.path, metavar='FILE', help='for ts (default: a share of the training examples)'
  )
  parser.add_argument('--test', type=flags.path, metavar='FILE', help='for ts: the test examples')
  parser.add_argument(
    '--linoss_seed',
    type=flags.whole(0),
    help='for ts: join and split the files as LinOSS does with this seed (2345, 3456, 4567, 5678, 6789)',
  )
  parser.add_argument(
    '--longest',
    type=flags.whole(),
    help='for ts: means over neighbours make the longest training series at most as long as this',
  )
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  from lra_spt.report.runs import run_folder

  run_folder.local_folder(arguments.data_dir, '--data_dir')
  user_files.claim_data_prep()
  from data_prep import prepare

  options = vars(arguments)
  dataset = options.pop('dataset')
  del options['register']
  prepare.prepare(dataset, **options)
  return 0
