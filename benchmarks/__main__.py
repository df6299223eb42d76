"""Measurements of speed, memory and small trainings.

  python -m benchmarks                  # lists them, with their result files
  python -m benchmarks NAME --help      # explains one
  python -m benchmarks NAME [FLAG ...]  # runs it, and writes JSON into benchmarks/results

A result has hardware, versions, commit and load average. Each measures on this machine, unless its line says
that it compiles for TPUs.
"""

import argparse
import importlib
import json
import sys

from benchmarks import harness

BENCHMARKS = {  # name: the question that it answers
  'accelerator': 'everything worth measuring on a fresh GPU machine, in 30 minutes',
  'attention': 'a training step of a Transformer beside PyTorch: time and memory',
  'block_attention': 'block-neighbour attention: does its cost grow with the visible pairs alone?',
  'chips': 'what a training step moves between 4 to 256 TPU chips; compiles only',
  'configs_compiled': 'does every config fit the TPU slice named for it? compiles only',
  'data': 'examples per second that reach training, beside TFDS and Grain',
  'data_scale': 'the cost of drawing and assembling Pathfinder images at scale',
  'demo_seeds': 'the gain of self-pretraining in the demo, over five fresh seeds',
  'digests': 'the cost of checksums of checkpoints and prepared sets',
  'epoch': 'the share of evaluation and checkpoints in an epoch',
  'field': 'the cost of a training step of every mixer, beside full attention',
  'field_compiled': 'does a step of every mixer compile for a TPU slice and fit it? compiles only',
  'first_step': 'the time from the shell to the first training step',
  'generator': 'the time of one Pathfinder image, beside the official code',
  'huge_pages': 'the gain from huge pages in a training step',
  'members': 'the cost of training several runs as one program',
  'mini': 'the results of the LRA-mini studies, and their runs as files',
  'mini_course': 'the learning curves of two cells of LRA-mini',
  'mini_minutes': 'the minutes of a whole run of LRA-mini on this machine',
  'numerics': 'the errors of kernels at 16,384 and 65,536 positions against float64',
  'processes': 'do several processes train like one, and what grows with their number?',
  'saves': 'the time that training waits for a checkpoint',
  'slopes': 'the growth of time and memory with length, batch, width and members',
  'slow_tests': 'the outcome and seconds of every slow test',
  'small_runs': 'S4 and DLR on real data at CPU size, from scratch and after self-pretraining',
  'ssm': 'a training step of state-space models beside plain implementations',
  'study_costs': "runs, steps and operations of the paper's studies",
  'study_page': 'the time that the page of a study of 500 runs takes',
  'tpu_traffic': 'the memory traffic of a training step on a TPU, beside the least; compiles only',
  'ways': 'the cost of the same mathematics by other implementations',
}


def results() -> dict[str, list[str]]:
  """{name: its result files, with the date of each}."""
  files = {}
  for path in sorted(harness.RESULTS.glob('*.json')):
    content = json.loads(path.read_text(encoding='utf-8'))
    words = (content.get('command') or f'python -m benchmarks {path.stem}').split()
    if words[:3] == ['python', '-m', 'benchmarks']:
      files.setdefault(words[3], []).append(f'{path.name} {content.get("date", "")}'.strip())
  return files


def main(arguments=None) -> int | None:
  words = sys.argv[1:] if arguments is None else list(arguments)
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser('python -m benchmarks', description=__doc__, formatter_class=raw)
  parser.add_argument('name', nargs='?', help='one of the list; without it, the list')
  name = parser.parse_args(words[:1]).name
  if name is None:
    files = results()
    for name, question in BENCHMARKS.items():
      print(f'{name:17} {question}: {", ".join(files.get(name, ["no result file"]))}')
    return 0
  harness.chosen(parser, 'benchmark', name, BENCHMARKS)
  return importlib.import_module(f'benchmarks.{name}').main(words[1:])


if __name__ == '__main__':
  sys.exit(main())
