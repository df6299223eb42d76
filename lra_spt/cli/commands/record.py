"""`lra-spt record`: makes the folder of a run from predictions that were made elsewhere."""

import argparse
import math

from lra_spt.cli import flags


def parser() -> flags.Parser:
  parser = flags.Parser(
    'record',
    'Writes a run folder from predictions made elsewhere (PyTorch, another repository), after checking '
    'indices and labels against the prepared set. Reports mark its numbers as recorded.',
  )
  parser.add_argument('--task', required=True, help='name of the task, as in `lra-spt list tasks`')
  parser.add_argument('--model', required=True, help='name of the model in reports')
  parser.add_argument('--regime', required=True, help='scratch, masked, causal or one of your own')
  parser.add_argument(
    '--predictions',
    required=True,
    type=flags.path,
    metavar='FILE',
    help='.npz file with index, label and prediction of the test split',
  )
  parser.add_argument('--out', required=True, metavar='DIR', help='new folder for the run')
  parser.add_argument('--data_dir', required=True, help='folder of prepared sets')
  parser.add_argument('--seed', type=flags.whole(0), default=0, help='seed of the run (default: 0)')
  parser.add_argument('--protocol', default='clean', help='clean (default) or paper')
  parser.add_argument(
    '--causal', action='store_true', help='the model is causal: no position sees a later one'
  )
  parser.add_argument('--name', default='', help='name of this way of training in reports')
  parser.add_argument('--parameters', type=flags.whole(1), help='number of parameters of the model')
  parser.add_argument('--seconds', type=_seconds, help='seconds that all of its training took')
  parser.add_argument('--source', default='', help='where the predictions come from, such as a URL')
  flags.add_register(parser)
  return parser


def _seconds(text):
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise argparse.ArgumentTypeError(f'takes a number of seconds, not {text!r}')
  return value


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  from lra_spt.report.runs import record, run_folder
  from lra_spt.report.runs import run as runs
  from lra_spt.report.study.arms import score_text

  out = run_folder.local_folder(arguments.out, '--out')

  facts = record.StatedFacts(
    model=arguments.model,
    regime=arguments.regime,
    causal=arguments.causal,
    protocol=arguments.protocol,
    seed=arguments.seed,
    arm=arguments.name,
    source=arguments.source,
    parameters=arguments.parameters,
    seconds=arguments.seconds,
  )
  record.record(arguments.predictions, out, facts, arguments.task, arguments.data_dir)
  run = runs.read_run(out)
  counted = 'positions' if 'positions' in run.test else 'examples'
  print(f'{score_text(run)} over {run.examples:,} {counted}; recorded in {run.path}')
  return 0
