"""Measurements of speed, memory and small trainings.

  python -m benchmarks                  # lists them, with their result files
  python -m benchmarks NAME --help      # explains one
  python -m benchmarks NAME [FLAG ...]  # runs it, and writes JSON into benchmarks/results
  python -m benchmarks.tables           # then makes the tables that pages show

A result has hardware, versions, commit and load average. Benchmarks about TPUs compile programs and run
nothing.
"""

import argparse
import importlib
import json
import sys

from benchmarks import harness

FILES = {  # {file: {NAME of a function `run_NAME` in it: the question that it answers}}
  'accelerator': {'accelerator': 'everything worth measuring on a fresh GPU machine, in an hour'},
  'attention': {
    'attention': 'a training step of a Transformer beside PyTorch: time and memory',
    'block_attention': 'does the cost of block attention grow with the visible pairs alone?',
  },
  'ssm': {'ssm': 'a training step of state-space models beside plain implementations'},
  'field': {
    'field': 'the cost of a training step of every mixer, beside full attention',
    'ways': 'the cost of the same mathematics by other implementations',
    'slopes': 'the growth of time and memory with length, batch, width and members',
    'huge_pages': 'the gain from huge pages in a training step',
  },
  'compiled': {
    'field_compiled': 'does a step of every mixer compile for a TPU slice and fit it?',
    'configs_compiled': 'does every config fit the TPU slice named for it?',
    'chips': 'the bytes that a training step moves between 4 to 256 TPU chips',
    'tpu_traffic': 'the memory traffic of a training step on a TPU, beside the least',
  },
  'data': {
    'data': 'the examples per second that reach training, beside TFDS and Grain',
    'data_scale': 'the cost of drawing and assembling Pathfinder images at scale',
    'large_set': 'the memory that preparing values larger than it takes',
    'generator': 'the time of one Pathfinder image, beside the official code',
  },
  'saves': {
    'saves': 'the time that training waits for a checkpoint',
    'digests': 'the cost of checksums of checkpoints and prepared sets',
  },
  'first_step': {'first_step': 'the time from the shell to the first training step'},
  'epoch': {
    'epoch': 'the share of evaluation and checkpoints in an epoch',
    'mini_minutes': 'the minutes of a whole run of LRA-mini on this machine',
  },
  'several': {
    'members': 'the cost of training several runs as one program',
    'processes': 'do several processes train like one, and what grows with their number?',
  },
  'trained': {
    'demo_seeds': 'the gain of self-pretraining in the demo, over five fresh seeds',
    'demo_minutes': 'the minutes of the demo on this machine',
    'own_mixer': "the same for the README's own mixer",
    'small_runs': 'S4 and DLR on real data at CPU size, from scratch and after self-pretraining',
  },
  'compare_runs': {
    'compare_runs': 'the runs of baselines that come with `lra-spt compare`',
    'compare_quick': 'the first look of `lra-spt compare --quick` at every newer mixer',
  },
  'lab': {'inside': 'how far models read before, during and after pretraining and finetuning'},
  'mini': {'mini': 'the results of LRA-mini and other studies of ours, and their runs as files'},
  'suite': {
    'numerics': 'the errors of kernels at 16,384 and 65,536 positions against float64',
    'slow_tests': 'the outcome and seconds of every slow test',
  },
  'studies': {
    'study_costs': "the runs, steps and operations of the paper's studies",
    'study_page': 'the time that the page of a study of 500 runs takes',
  },
}
BENCHMARKS = {name: file for file, names in FILES.items() for name in names}


def results() -> dict[str, list[str]]:
  """{name: its result files, with the date of each}."""
  files = {}
  for path in sorted(harness.RESULTS.glob('*.json')):
    content = json.loads(path.read_text(encoding='utf-8'))
    words = (content.get('command') or f'python -m benchmarks {path.stem}').split()
    name = 'mini' if words[:2] == ['lra-spt', 'study'] else words[3] if words[2:3] == ['benchmarks'] else ''
    files.setdefault(name, []).append(f'{path.name} {content.get("date", "")}'.strip())
  return files


def main(arguments=None) -> int | None:
  words = sys.argv[1:] if arguments is None else list(arguments)
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser('python -m benchmarks', description=__doc__, formatter_class=raw)
  parser.add_argument('name', nargs='?', help='one of the list; without it, the list')
  name = parser.parse_args(words[:1]).name
  if name is None:
    files = results()
    for names in FILES.values():
      for name, question in names.items():
        print(f'{name:17} {question}: {", ".join(files.get(name, ["no result file"]))}')
    return 0
  if name not in BENCHMARKS:
    parser.error(f'there is no benchmark {name!r}; choose from {", ".join(BENCHMARKS)}')
  return getattr(importlib.import_module(f'benchmarks.{BENCHMARKS[name]}'), f'run_{name}')(words[1:])


if __name__ == '__main__':
  sys.exit(main())
