"""How many examples a second the input pipeline delivers.

  python benchmarks/input_pipeline.py [--consumer EXAMPLES_PER_SECOND]

Writes two sets of random data the size of the real examples (1,024 bytes as in Image and Pathfinder, up to
2,048 tokens as in ListOps) with the real builder, and reads shuffled training batches from them: a first
pass, which decodes ArrayRecord files, and later ones, which copy from memory. --consumer is what a training
step consumes; the printed ratio says how many times over the pipeline feeds it. Results go to
benchmarks/results/input_pipeline.json.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time

import grain
import numpy as np
import tensorflow_datasets as tfds

from data_prep import builders
from lra_spt.data import pipeline, tasks

RESULTS = pathlib.Path(__file__).parent / 'results' / 'input_pipeline.json'
EXAMPLES = 20_000
LENGTHS = (500, 2000)


def write_sets(data_dir):
  """The two sets, and the tasks that read them."""
  rng = np.random.default_rng(0)

  def values():
    return ((rng.integers(0, 256, 1024).astype(np.uint8), i % 10) for i in range(EXAMPLES))

  def tokens():
    return ((rng.integers(4, 19, rng.integers(*LENGTHS)).astype(np.uint8), i % 10) for i in range(EXAMPLES))

  bytes_task = tasks.Task(
    name='bytes_1024',
    dataset='bytes',
    modality='values',
    length=1024,
    channels=1,
    classes=10,
    denoising_loss='l1',
    denoising_classes=0,
    mean=(0.5,),
    std=(0.5,),
    splits='random',
  )
  tokens_task = tasks.Task(
    name='tokens_2048',
    dataset='tokens',
    modality='tokens',
    length=2048,
    vocabulary=19,
    classes=10,
    denoising_loss='ce',
    denoising_classes=19,
    splits='random',
  )
  for task, read, shape in ((bytes_task, values, (1024,)), (tokens_task, tokens, None)):
    source = builders.Source(
      description='random',
      citation='none',
      files={'train': read},
      counts={'train': EXAMPLES},
      classes=10,
      shape=shape,
      origin='random numbers',
      verified=False,
    )
    builders.prepare_set(task.dataset, data_dir, {'examples': EXAMPLES}, lambda work, source=source: source)
  return bytes_task, tokens_task


def measure(task, data_dir, batch_size, threads, repeats):
  """Median examples/s of the first pass through the data and of the second, over `repeats` fresh starts."""
  first, later = [], []
  for seed in range(repeats):
    examples = pipeline.open_split(task, 'train', data_dir)
    steps = len(examples) // batch_size
    batches = pipeline.train_batches(examples, batch_size=batch_size, seed=seed, threads=threads)
    next(batches)  # opens the files and starts the threads
    for rates in (first, later):
      start = time.perf_counter()
      for _ in range(steps):
        next(batches)
      rates.append(steps * batch_size / (time.perf_counter() - start))
  return {'first_pass': round(statistics.median(first)), 'from_memory': round(statistics.median(later))}


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--consumer', type=float, help='examples/s that a training step consumes')
  parser.add_argument('--threads', type=int, default=4)
  parser.add_argument('--repeats', type=int, default=3)
  options = parser.parse_args()
  rows = []
  with tempfile.TemporaryDirectory() as data_dir:
    for task in write_sets(data_dir):
      for batch_size in (32, 128):
        row = {
          'task': task.name,
          'batch_size': batch_size,
          **measure(task, data_dir, batch_size, options.threads, options.repeats),
        }
        if options.consumer:
          row['first_pass_over_consumer'] = round(row['first_pass'] / options.consumer, 1)
        rows.append(row)
        print(
          '  '.join(f'{key} {value:,}' if not isinstance(value, str) else value for key, value in row.items())
        )
  RESULTS.parent.mkdir(exist_ok=True)
  RESULTS.write_text(
    json.dumps(
      {
        'unit': 'examples per second',
        'rows': rows,
        'consumer': options.consumer,
        'threads': options.threads,
        'repeats': options.repeats,
        'hardware': {'machine': platform.machine(), 'cpu_count': os.cpu_count()},
        'versions': {
          'python': platform.python_version(),
          'numpy': np.__version__,
          'grain': grain.__version__,
          'tensorflow_datasets': tfds.__version__,
        },
        'date': datetime.date.today().isoformat(),
      },
      indent=2,
    )
    + '\n'
  )
  print(f'wrote {RESULTS}')


if __name__ == '__main__':
  main()
