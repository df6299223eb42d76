"""`lra-spt inside`: how far the model of a run reads, by distance, as inside.json."""

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser(
    'inside',
    'Measures how far the model of a run reads at the start, after pretraining, after finetuning and from '
    'scratch: receptive field, attention weights and kernels, by distance. Writes inside.json into the '
    'folder of the run; `lra-spt report` shows it.',
  )
  parser.add_argument('--workdir', required=True, help='folder of a run')
  parser.add_argument(
    '--scratch', help='folder of a run from scratch of the same model and seed, shown beside it'
  )
  parser.add_argument(
    '--examples', type=flags.whole(1), default=32, help='number of validation examples (default: 32)'
  )
  parser.add_argument('--data_dir', help='folder of prepared sets (default: the one used in training)')
  flags.add_run(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register_run(arguments)
  from lra_spt import files
  from lra_spt.report.runs import run_folder

  workdir = run_folder.local_folder(arguments.workdir, '--workdir')
  from lra_spt.runs.inside import look_inside

  inside = look_inside(workdir, arguments.scratch, examples=arguments.examples, data_dir=arguments.data_dir)
  files.write_text(workdir / run_folder.INSIDE, inside.to_json())
  print(describe(inside))
  print(f'{workdir / run_folder.INSIDE} holds every curve; `lra-spt report` draws them.')
  return 0


def describe(inside) -> str:
  """Formats a line per state: its reach and, for attention, the mean distance per layer."""
  from lra_spt.report.runs.inside import STATES

  lines = []
  for state in inside.field:
    line = f'{STATES[state]}: 90 % of the gradient within {inside.reach(state):,} positions'
    if state in inside.spans:
      means = inside.mean_spans(state)
      layers = range(1, len(inside.spans[state]) + 1)
      spans = ', '.join(f'{means[layer]:,.1f}' if layer in means else 'none' for layer in layers)
      line += f'; mean distance of attention, by layer: {spans} (uniform {inside.uniform_span:,.1f})'
    lines.append(line)
  return '\n'.join([*lines, *filter(None, [inside.left_out])])
