"""`lra-spt kernels`: convolution kernels of runs, learned and initial, as kernels.png and kernels.json."""

import argparse
import re

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser(
    'kernels',
    'Plots the largest absolute kernel value per layer and lag, as learned and at the start of the run, and '
    'writes kernels.png and kernels.json into the folder of the run; `lra-spt report` shows them too.',
  )
  parser.add_argument('--workdir', required=True, help='folder of a run, or one that holds several')
  parser.add_argument(
    '--stage',
    choices=('pretrain', 'finetune'),
    help='stage whose best checkpoint is read (default: pretrain, if the run has one)',
  )
  parser.add_argument(
    '--layers',
    type=_layers,
    default=(),
    help='layers to show, such as 1,3,5 (default: all if there are few, else every other one)',
  )
  parser.add_argument(
    '--lags', type=flags.whole(0), default=0, help='number of lags to show, from 0 on (default: all)'
  )
  flags.add_run(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register_run(arguments)
  from lra_spt.report.runs import run_folder

  workdir = run_folder.local_folder(arguments.workdir, '--workdir')
  from lra_spt.runs import kernels

  kernels.show(workdir, arguments.stage, arguments.layers, arguments.lags)
  return 0


def _layers(text):
  if not re.fullmatch(r'\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*', text):
    raise argparse.ArgumentTypeError(f'is {text!r}; give layers from 1, separated by commas, such as 1,3,5')
  return tuple(sorted({int(number) for number in text.split(',')}))
