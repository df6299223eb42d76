"""How many examples a second reach training: from the host, in a first pass and later ones, or on a device.

  python -m benchmarks data

Writes sets of synthetic data the size of the real examples with the real builder: 1,024 bytes (Image), up to
2,048 tokens (ListOps), pairs of 4,000 tokens (Retrieval), and images of 16,384 and 65,536 pixels, three
quarters of them black (Pathfinder 128 and 256). Shuffled training batches are read from them twice. The first
pass reads and decodes ArrayRecord files; the second copies from memory. Sets of more than 2 GiB are not kept
in memory, so every pass over them is a first one. The usual way is measured beside it: Grain over TFDS's data
source.

Then the same batches are measured on one device: sent by the host, or gathered from a resident set. On a CPU,
whose devices have the host's memory, this shows what the resident set costs, not what it is for.

Results, with the load average of the machine, go to benchmarks/results/data.json.
"""

import dataclasses
import statistics
import tempfile

import jax
import numpy as np

from benchmarks import harness
from benchmarks.peers import tfds_and_grain
from data_prep import builders
from lra_spt.data import examples as examples_lib
from lra_spt.data import pipeline, tasks
from lra_spt.distributed import sharding
from lra_spt.training import device_data

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

  def run():
    for _ in range(count // batch_size):
      next(batches)

  return count // batch_size * batch_size / harness.timed(run)['seconds']


def from_the_host(task, data_dir, folder, threads, repeats):
  """Median examples a second of the two passes and of the usual way, over fresh starts that take turns."""
  rates = {'first_pass': [], 'from_memory': [], 'tfds_and_grain': []}
  for seed in range(repeats):
    examples = examples_lib.open_split(task, 'train', data_dir)
    batches = pipeline.train_batches(examples, batch_size=BATCH_SIZE, seed=seed, threads=threads)
    next(batches)  # opens the files and starts the threads
    for name in ('first_pass', 'from_memory'):
      rates[name].append(rate(batches, len(examples)))
    batches = tfds_and_grain.batches(folder, seed, threads, BATCH_SIZE)
    next(batches)
    rates['tfds_and_grain'].append(rate(batches, len(examples)))
  return {name: round(statistics.median(values)) for name, values in rates.items()}


def on_a_device(task, data_dir, threads, repeats):
  """Microseconds a batch, from memory where it holds the set; and examples a second while a set moves to the
  device."""
  mesh, rows = sharding.make_mesh(devices=jax.devices()[:1]), np.arange(BATCH_SIZE)
  # `place` has the examples that it placed forgotten: the other route has its own.
  examples, kept = (examples_lib.open_split(task, 'train', data_dir) for _ in range(2))
  placed = []  # where the timed call leaves its result
  placing = harness.timed(lambda: placed.append(jax.block_until_ready(device_data.place(examples, mesh))))
  gather, count = jax.jit(device_data.Resident.gather), len(examples) // BATCH_SIZE

  def handed_over(seed):
    batches = pipeline.train_batches(kept, batch_size=BATCH_SIZE, seed=seed, threads=threads)
    for batch in batches:
      yield jax.block_until_ready(sharding.to_devices(batch, mesh, BATCH_SIZE, rows))

  def gathered(seed):
    for step in range(count + 1):
      positions = pipeline.train_indices(len(examples), seed, step, BATCH_SIZE)
      yield jax.block_until_ready(gather(placed[0], sharding.everywhere(positions, mesh)))

  found = {'placing': round(len(examples) / placing['seconds'])}
  with jax.set_mesh(mesh):
    rate(handed_over(0), len(kept))  # reads all of them
    for name, route in (('host_microseconds', handed_over), ('device_microseconds', gathered)):
      times = []
      for seed in range(repeats):
        batches = route(seed)
        next(batches)  # compiles
        times.append(1e6 * BATCH_SIZE / rate(batches, count * BATCH_SIZE))
      found[name] = round(statistics.median(times))
  return found


def main(arguments=None):
  parser = harness.parser('data', __doc__, 'data.json')
  parser.add_argument('--threads', type=int, default=4, help='that read (%(default)s)')
  parser.add_argument('--repeats', type=int, default=3, help='fresh starts (%(default)s)')
  parser.add_argument('--quick', action='store_true', help='200 examples a set, one start')
  options = parser.parse_args(arguments)
  repeats = 1 if options.quick else options.repeats
  head = {'quick': options.quick, 'batch_size': BATCH_SIZE, 'threads': options.threads, 'repeats': repeats}
  what = 'examples per second, median over fresh starts'
  report = harness.report('data', what, 'array_record', 'protobuf', **head, rows=[])
  with tempfile.TemporaryDirectory() as data_dir:
    for task, count, draw in cases():
      folder = write(task, 200 if options.quick else count, draw, data_dir)
      row = {'set': task.name, 'bytes': task.length * task.documents, 'target': TARGETS.get(task.name)}
      row |= from_the_host(task, data_dir, folder, options.threads, repeats)
      row |= {'ratio': round(row['first_pass'] / row['tfds_and_grain'], 2)}
      row |= {'megabytes_per_second': round(row['first_pass'] * row['bytes'] / 1e6)}
      row |= on_a_device(task, data_dir, options.threads, repeats)
      report['rows'].append(row)
      print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
  harness.write(options.json, report)
  print(f'load average {report["load_average_before"]} before, {report["load_average_after"]} after')
  print(f'written to {options.json}')


if __name__ == '__main__':
  main()
