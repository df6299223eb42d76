"""`lra-spt export`: the table of a study or of runs, or the encoder of a run, for other programs."""

import sys

from lra_spt.cli import flags
from lra_spt.errors import ConfigError

FORMATS = ('csv', 'json', 'latex', 'markdown', 'safetensors')


def parser() -> flags.Parser:
  parser = flags.Parser(
    'export',
    'Exports the table of a study, or of other runs with one line per way of training: CSV and JSON hold '
    'every number, LaTeX (booktabs) and Markdown are for readers. Or exports the encoder of one run as '
    'safetensors, from which other runs can start with --config.model.weights=FILE.',
  )
  parser.add_argument('--workdir', required=True, help='folder of a study, or of runs at any depth')
  parser.add_argument('--format', required=True, choices=FORMATS)
  parser.add_argument(
    '--output', type=flags.path, metavar='FILE', help='file to write (default: print the table)'
  )
  parser.add_argument(
    '--stage',
    choices=('pretrain', 'finetune'),
    default='finetune',
    help='with --format=safetensors: the stage whose best checkpoint is exported (default: finetune)',
  )
  flags.add_run(parser)
  return parser


def main(argv: list[str]) -> int:
  """Returns 0, or 1 if damaged runs are left out."""
  arguments = parser().parse_args(argv)
  if arguments.format == 'safetensors':
    return _encoder(arguments)
  from lra_spt import files
  from lra_spt.report import export
  from lra_spt.report.study import any_folder

  table = any_folder.read_any(arguments.workdir)
  damaged = [run.sentence for run in table.damaged]
  damaged += [run.failure for cell in table.cells.values() for run in cell.open if run.progress == 'damaged']
  text = export.text(table, arguments.format)
  for sentence in damaged:
    print(f'! {sentence}', file=sys.stderr)
  if arguments.output is None:
    print(text, end='')
  else:
    flags.check_output('--output', arguments.output)
    files.write_text(arguments.output, text)
    print(f'The table is in {arguments.output}')
  return 1 if damaged else 0


def _encoder(arguments) -> int:
  if arguments.output is None:
    raise ConfigError('--format=safetensors cannot be printed: name a file with --output=FILE.')
  flags.check_output('--output', arguments.output)
  from lra_spt.runs import api

  flags.register_run(arguments)
  run = api.load_run(arguments.workdir, arguments.stage)
  write_encoder(run, arguments.output)
  print(f'The encoder of {arguments.stage}, best validation at step {run.step}, is in {arguments.output}')
  return 0


def write_encoder(run, path) -> None:
  """Writes the encoder of an `lra_spt.Run` as safetensors."""
  from lra_spt.training.checkpoints import weights

  about = {'format': 'lra_spt', 'task': run.config.task, 'stage': run.stage, 'step': run.step}
  about |= {'flag': run.built.objective.channels > run.task.channels, 'model': run.config.model.to_dict()}
  weights.write(path, run.params, run.stats, about)
