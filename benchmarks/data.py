"""How many examples a second reach training: from the host, in a first pass and later ones, or on a device.

  python benchmarks/data.py

Writes sets of made-up data the size of the real examples with the real builder: 1,024 bytes (Image), up to
2,048 tokens (ListOps), pairs of 4,000 tokens (Retrieval), and images of 16,384 and 65,536 pixels, three
quarters of them black (Pathfinder 128 and 256). Shuffled training batches are read from them in a first pass,
which reads and decodes ArrayRecord files, and in a second, which copies from memory; sets of more than 2 GiB
are not kept in memory, and every pass over them is a first one. Beside it stands the usual way: Grain over
TFDS's data source.

Then the same batches on one device: handed over by the host, or gathered from a resident set. On a CPU, whose
devices have the host's memory, this shows what the resident set costs, not what it is for.

Results, with the load average of the machine, go to benchmarks/results/data.json.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import statistics
import tempfile
import time

import grain
import jax
import numpy as np

from data_prep import builders
from lra_spt import parallel, provenance
from lra_spt.data import examples as examples_lib
from lra_spt.data import pipeline, tasks
from lra_spt.training import resident

RESULTS = pathlib.Path(__file__).parent / 'results' / 'data.json'
BATCH_SIZE = 32
# Examples a second that the host has to deliver on 2 cores in its first pass; 3,500 are what an H200 can take
# of Path-X.
TARGETS = {'bytes_1024': 20_000, 'images_16384': 3_500}


def cases():
  """(task, number of examples, function that draws one example) of every set."""
  image, listops, retrieval = map(tasks.get_task, ('image', 'listops', 'retrieval'))
  rng = np.random.default_rng(0)

  def values(length, count):
    def draw():
      drawn = rng.integers(0, 256, length).astype(np.uint8)
      return drawn if length == 1024 else drawn * (rng.random(length) < 0.25)

    name = f'{"bytes" if length == 1024 else "images"}_{length}'
    task = image.with_inputs(length=length, grayscale=False)
    return dataclasses.replace(task, name=name, dataset=name, splits='random'), count, draw

  def tokens(task, name, count, shortest, longest):
    def document():
      return rng.integers(4, task.vocabulary, rng.integers(shortest, longest + 1)).astype(np.uint8)

    task = dataclasses.replace(task, name=name, dataset=name, splits='random')
    return task, count, document if task.documents == 1 else (lambda: (document(), document()))

  yield values(1024, 20_000)
  yield tokens(listops, 'tokens_2048', 20_000, 500, 2000)
  yield tokens(retrieval, 'pairs_4000', 6_000, 1000, 4000)
  yield values(16_384, 6_000)
  yield values(65_536, 3_000)


def write(task, count, draw, data_dir):
  """Prepares a set."""
  source = builders.Source(
    description='made up',
    citation='none',
    files={'train': lambda: ((draw(), i % task.classes) for i in range(count))},
    counts={'train': count},
    classes=task.classes,
    documents=task.documents,
    shape=None if isinstance(task.inputs, tasks.Tokens) else (task.length,),
    origin='random numbers',
    verified=False,
  )
  return builders.prepare_set(task.dataset, data_dir, {'examples': count}, lambda work: source)


def rate(batches, count, batch_size=BATCH_SIZE):
  """Examples a second over `count` examples."""
  start = time.perf_counter()
  for _ in range(count // batch_size):
    next(batches)
  return count // batch_size * batch_size / (time.perf_counter() - start)


def from_the_host(task, data_dir, folder, threads, repeats):
  """Median examples a second of the two passes and of the usual way, over fresh starts that take turns."""
  rates = {'first_pass': [], 'from_memory': [], 'tfds_and_grain': []}
  for seed in range(repeats):
    examples = examples_lib.open_split(task, 'train', data_dir)
    batches = pipeline.train_batches(examples, batch_size=BATCH_SIZE, seed=seed, threads=threads)
    next(batches)  # opens the files and starts the threads
    for name in ('first_pass', 'from_memory'):
      rates[name].append(rate(batches, len(examples)))
    batches = usual_way(folder, seed, threads)
    next(batches)
    rates['tfds_and_grain'].append(rate(batches, len(examples)))
  return {name: round(statistics.median(values)) for name, values in rates.items()}


def usual_way(folder, seed, threads):
  """Batches of the stored examples, without padding or splits, as TFDS and Grain document it."""
  source = builders.tfds.builder_from_directory(folder).as_data_source(split='train')
  order = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * threads)
  return iter(order.to_iter_dataset(options).batch(BATCH_SIZE, batch_fn=list))


def on_a_device(task, data_dir, threads, repeats):
  """Microseconds a batch, in memory on both routes; and examples a second while a set moves to the device."""
  mesh, rows = parallel.make_mesh(devices=jax.devices()[:1]), np.arange(BATCH_SIZE)
  examples = examples_lib.open_split(task, 'train', data_dir)
  start = time.perf_counter()
  placed = jax.block_until_ready(resident.place(examples, mesh))
  placing = len(examples) / (time.perf_counter() - start)
  gather, count = jax.jit(resident.Resident.gather), len(examples) // BATCH_SIZE

  def handed_over(seed):
    batches = pipeline.train_batches(examples, batch_size=BATCH_SIZE, seed=seed, threads=threads)
    for batch in batches:
      yield jax.block_until_ready(parallel.to_devices(batch, mesh, BATCH_SIZE, rows))

  def gathered(seed):
    for step in range(count + 1):
      positions = pipeline.train_indices(len(examples), seed, step, BATCH_SIZE)
      yield jax.block_until_ready(gather(placed, parallel.everywhere(positions, mesh)))

  found = {'placing': round(placing)}
  with jax.set_mesh(mesh):
    for name, route in (('host_microseconds', handed_over), ('device_microseconds', gathered)):
      times = []
      for seed in range(repeats):
        batches = route(seed)
        next(batches)  # compiles
        times.append(1e6 * BATCH_SIZE / rate(batches, count * BATCH_SIZE))
      found[name] = round(statistics.median(times))
  return found


def main():
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
  parser.add_argument('--threads', type=int, default=4, help='that read (default: %(default)s)')
  parser.add_argument('--repeats', type=int, default=3, help='fresh starts (default: %(default)s)')
  parser.add_argument('--quick', action='store_true', help='200 examples a set, one start')
  parser.add_argument('--json', type=pathlib.Path, default=RESULTS, help='default: %(default)s')
  options = parser.parse_args()
  repeats, load = 1 if options.quick else options.repeats, [os.getloadavg()[0]]
  results = []
  with tempfile.TemporaryDirectory() as data_dir:
    for task, count, draw in cases():
      folder = write(task, 200 if options.quick else count, draw, data_dir)
      row = {'set': task.name, 'bytes': task.length * task.documents, 'target': TARGETS.get(task.name)}
      row |= from_the_host(task, data_dir, folder, options.threads, repeats)
      row |= {'ratio': round(row['first_pass'] / row['tfds_and_grain'], 2)}
      row |= {'megabytes_per_second': round(row['first_pass'] * row['bytes'] / 1e6)}
      row |= on_a_device(task, data_dir, options.threads, repeats)
      results.append(row)
      print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
  load.append(os.getloadavg()[0])
  report = {
    'quick': options.quick,
    'unit': 'examples per second, median over fresh starts',
    'batch_size': BATCH_SIZE,
    'threads': options.threads,
    'repeats': repeats,
    'results': results,
    'load_average': {'before': round(load[0], 2), 'after': round(load[1], 2)},
    'hardware': provenance.hardware(),
    'versions': {
      name: importlib.metadata.version(name)
      for name in ('jax', 'grain', 'numpy', 'tensorflow-datasets', 'array_record', 'protobuf')
    },
    'date': datetime.date.today().isoformat(),
  }
  options.json.write_text(json.dumps(report, indent=2) + '\n', encoding='utf-8')
  print(f'load average {load[0]:.1f} before, {load[1]:.1f} after; wrote {options.json}')


if __name__ == '__main__':
  main()
