"""`lra-spt evaluate`: the metrics of a run on a split, with the weights of its best validation."""

import math
import os

from lra_spt.cli import flags
from lra_spt.errors import ConfigError, counted


def parser() -> flags.Parser:
  parser = flags.Parser(
    'evaluate',
    'Evaluates a run, also one of a study, with the weights of its best validation. On the test split it '
    'also compares the score with that of result.json.',
  )
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.add_argument(
    '--split', required=True, help='validation, test, or a longer test split such as test_2x'
  )
  parser.add_argument('--data_dir', help='folder of prepared sets (default: the one used in training)')
  parser.add_argument(
    '--predictions',
    type=flags.path,
    metavar='FILE',
    help='.npz file to write, with index, label and prediction',
  )
  flags.add_run(parser)
  return parser


def main(argv: list[str]) -> int:
  """Returns 0, or 1 if the test score differs from that of result.json."""
  arguments = parser().parse_args(argv)
  if arguments.split == 'train':
    raise ConfigError("--split is 'train': choose validation, test, or a longer test split of the task.")
  flags.register_run(arguments)
  if arguments.predictions is not None:
    flags.check_output('--predictions', arguments.predictions)
    if os.path.exists(arguments.predictions):
      raise ConfigError(f'--predictions is {arguments.predictions}, which exists: name a new file.')
  import numpy as np

  from lra_spt import files
  from lra_spt.runs import api

  run = api.load_run(arguments.workdir, data_dir=arguments.data_dir)
  metrics, arrays = run.evaluate(arguments.split)
  print(describe(run, arguments.split, metrics, arrays))
  if arguments.predictions is not None:
    with files.replacing(arguments.predictions, 'wb') as file:
      np.savez(file, **arrays)
    print(f'The predictions are in {arguments.predictions}')
  if arguments.split != 'test':
    return 0
  same, sentence = compare(run.workdir, metrics, arrays)
  print(sentence)
  return 0 if same else 1


def describe(run, split, metrics, arrays) -> str:
  """Formats the score with its interval, then every metric."""
  from lra_spt.data import measures
  from lra_spt.report.statistics import intervals, jackknife, scores

  score, what = scores.SCORES[run.built.objective.selection[0]], 'example'
  if run.task.per_position:
    arrays, what = measures.by_position(arrays), 'position'
  examples, group_N = len(arrays['index']), arrays.get('group')
  name = run.task.groups.name if run.task.groups and group_N is not None else 'examples'
  units = jackknife.score_units(score.key, arrays['label'], arrays['prediction'], group_N)
  grouped = group_N is not None
  listed = [
    f'  {key} {"not defined" if value is None else format(value, ".6g")}'
    for key, value in metrics.items()
    if key not in ('examples', 'positions')
  ]
  if metrics[score.key] is None:
    why = measures.why_undefined(score.key, arrays['label'])
    return '\n'.join([f'no {split} {score.name}: {why} ({examples:,} in all, step {run.step:,})', *listed])
  interval = intervals.score_interval(score, metrics[score.key], examples, units, grouped, name)
  known = 'no interval known' if math.isnan(interval.low) else f'95 % interval {score.limits(interval)}'
  return '\n'.join(
    [
      f'{split} {score.name} {score.show(metrics[score.key])} ({known}) over '
      f'{counted(examples, what)}, step {run.step:,}',
      *listed,
    ]
  )


def compare(workdir, metrics, arrays) -> tuple[bool, str]:
  """Compares a score with result.json and predictions with predictions.npz; returns (equal, a sentence)."""
  from lra_spt.data import measures
  from lra_spt.report.runs import run as runs
  from lra_spt.report.runs import run_folder

  if not (workdir / run_folder.RESULT).exists():
    return True, f'{workdir} has no result.json yet to compare with.'
  run = runs.read_run(workdir)
  score, before = run.score, run.predictions
  now = metrics[score.key]
  stored = f'no {score.name}' if run.value is None else score.show(run.value)
  parts = [f'result.json says {stored}']
  if before is not None:
    arrays = measures.by_position(arrays)
    order = arrays['index'].argsort()
    index_N, _, prediction_N = before
    if index_N.shape != order.shape or (index_N != arrays['index'][order]).any():
      return False, f'{parts[0]} on other test examples, so the two cannot be compared.'
    moved = abs(prediction_N - arrays['prediction'][order])
    tolerated = 1e-3 * max(1.0, abs(prediction_N).max()) if prediction_N.dtype.kind == 'f' else 0
    differ = (moved.reshape(len(moved), -1).max(1) > tolerated).sum()
    parts.append(f'{differ:,} of {len(index_N):,} predictions differ from predictions.npz')
  same = now is run.value is None if None in (now, run.value) else abs(now - run.value) <= score.tolerance
  return same, f'{"Equal" if same else "NOT equal"}: {", ".join(parts)}.'
