"""`lra-spt submit`: finished runs as one file that others can check."""

from lra_spt.cli import flags
from lra_spt.cli.commands import verify


def parser() -> flags.Parser:
  parser = flags.Parser(
    'submit',
    'Writes finished runs into one zip file: results, predictions, configs, versions, curves and the source '
    'of your own mixer. Then checks it as `lra-spt verify` does.',
  )
  parser.add_argument('--workdir', required=True, help='folder of a study, or of runs at any depth')
  parser.add_argument('--out', required=True, type=flags.path, metavar='FILE', help='zip file to write')
  parser.add_argument(
    '--weights', action='store_true', help='also the encoder of every run (encoder.safetensors)'
  )
  parser.add_argument('--data_dir', help='folder of prepared sets, to compare the labels with')
  parser.add_argument(
    '--register',
    metavar='FILE',
    action='append',
    type=flags.path,
    default=[],
    help='Python file with a mixer, objective or task of your own that the runs trained, or that such a file '
    'imports; may be given several times',
  )
  return parser


def main(argv: list[str]) -> int:
  """Returns 0, or 1 if the file would not pass `lra-spt verify`."""
  arguments = parser().parse_args(argv)
  flags.check_output('--out', arguments.out)
  from lra_spt.report.runs import run_folder
  from lra_spt.report.study import submission

  out = run_folder.local_folder(arguments.out, '--out')
  encoder = None
  if arguments.weights:
    from lra_spt.cli.commands import export
    from lra_spt.runs import api

    flags.register(arguments)  # only weights need the classes themselves

    def encoder(folder, path):
      export.write_encoder(api.load_run(folder), path)

  submission.pack(arguments.workdir, out, arguments.register, encoder)
  return verify.report(out, arguments.data_dir)
