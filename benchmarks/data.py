"""Examples per second that reach training, the cost of Pathfinder images, and sets larger than memory."""

import dataclasses
import functools
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import jax
import numpy as np

from benchmarks import harness
from benchmarks.peers import tfds_and_grain
from data_prep import builders, chunks
from data_prep.pathfinder import generated
from data_prep.pathfinder.images import PARAMETERS, generate
from lra_spt.data import examples as examples_lib
from lra_spt.data import pipeline, prepared, tasks
from lra_spt.distributed import sharding
from lra_spt.training import device_data

BATCH_SIZE = 32
# Examples per second that the host must deliver on 2 cores in its first pass. An H200 can take 3,500 a
# second of Path-X.
TARGETS = {'bytes_1024': 20_000, 'images_16384': 3_500}

RUNNERS = [('local', 1), ('local', 2), *([('beam', 2)] * bool(importlib.util.find_spec('apache_beam')))]

# {resolution: (least, most) measured seconds per image of the official code}. None is known at 256.
OFFICIAL_SECONDS = {32: (0.25, 0.25), 64: (4, 7), 128: (1.8, 1.8)}
FASTER_TARGETS = {32: 50, 64: 100, 128: 50}


def cases():
  """Yields (task, number of examples, function that draws one example) for every set."""
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
  """Prepares a set; returns its folder."""
  shape = None if isinstance(task.inputs, tasks.Tokens) else (task.length,)
  source = harness.random_source(
    {'train': lambda: ((draw(), i % task.classes) for i in range(count))},
    {'train': count},
    classes=task.classes,
    documents=task.documents,
    shape=shape,
  )
  return builders.prepare_set(task.dataset, data_dir, {'examples': count}, lambda work: source)


def rate(batches, count):
  """Examples per second, over `count` examples."""

  def run():
    for _ in range(count // BATCH_SIZE):
      next(batches)

  return count // BATCH_SIZE * BATCH_SIZE / harness.timed(run)['seconds']


def from_the_host(task, data_dir, folder, threads, repeats):
  """Median examples per second of the two passes and of TFDS with Grain; fresh starts take turns."""
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
  """Microseconds per batch from the host and on the device; examples per second while the set moves there."""
  mesh, rows = sharding.make_mesh(devices=jax.devices()[:1]), np.arange(BATCH_SIZE)
  # `place` drops the content of its examples on the host, so each route opens the set for itself.
  examples, on_host = (examples_lib.open_split(task, 'train', data_dir) for _ in range(2))
  placed = []  # where the timed call leaves its result
  placing = harness.timed(lambda: placed.append(jax.block_until_ready(device_data.place(examples, mesh))))
  gather, count = jax.jit(device_data.DeviceData.gather), len(examples) // BATCH_SIZE

  def handed_over(seed):
    batches = pipeline.train_batches(on_host, batch_size=BATCH_SIZE, seed=seed, threads=threads)
    for batch in batches:
      yield jax.block_until_ready(sharding.to_devices(batch, mesh, BATCH_SIZE, rows))

  def gathered(seed):
    for step in range(count + 1):
      positions = pipeline.train_indices(len(examples), seed, step, BATCH_SIZE)
      yield jax.block_until_ready(gather(placed[0], sharding.everywhere(positions, mesh)))

  columns = {'placing': round(len(examples) / placing['seconds'])}
  with jax.set_mesh(mesh):
    rate(handed_over(0), len(on_host))  # reads all of them
    for name, route in (('host_microseconds', handed_over), ('device_microseconds', gathered)):
      times = []
      for seed in range(repeats):
        batches = route(seed)
        next(batches)  # compiles
        times.append(1e6 * BATCH_SIZE / rate(batches, count * BATCH_SIZE))
      columns[name] = round(statistics.median(times))
  return columns


def run_data(arguments):
  """Counts the examples per second that reach training: from the host, in two passes, and on a device.

  Writes sets of synthetic data the size of the real examples with the real builder: 1,024 bytes (Image), up
  to 2,048 tokens (ListOps), pairs of 4,000 tokens (Retrieval), and images of 16,384 and 65,536 pixels, three
  quarters of them black (Pathfinder 128 and 256). Shuffled training batches are read from them twice. The
  first pass reads and decodes ArrayRecord files; the second copies from memory. Sets of more than 2 GiB do
  not stay in memory, so every pass over them is a first one. Grain over TFDS's data source is measured beside
  it.

  Then the same batches are measured on one device: sent by the host, or gathered from a resident set. A CPU
  device shares the host's memory, so this shows the cost of the resident set there, not its use.
  """
  parser = harness.parser(run_data, 'data.json')
  parser.add_argument('--threads', type=int, default=4, help='reading threads (%(default)s)')
  harness.add_quick(parser, rounds=3)
  options = parser.parse_args(arguments)
  rounds = 1 if options.quick else options.rounds
  head = {'quick': options.quick, 'batch_size': BATCH_SIZE, 'threads': options.threads, 'repeats': rounds}
  what = 'examples per second, median over fresh starts'
  report = harness.report('data', what, 'array_record', 'protobuf', **head, rows=[])
  with tempfile.TemporaryDirectory() as data_dir:
    for task, count, draw in cases():
      folder = write(task, 200 if options.quick else count, draw, data_dir)
      row = {'set': task.name, 'bytes': task.length * task.documents, 'target': TARGETS.get(task.name)}
      row |= from_the_host(task, data_dir, folder, options.threads, rounds)
      row |= {'ratio': round(row['first_pass'] / row['tfds_and_grain'], 2)}
      row |= {'megabytes_per_second': round(row['first_pass'] * row['bytes'] / 1e6)}
      row |= on_a_device(task, data_dir, options.threads, rounds)
      report['rows'].append(row)
      print('  '.join(f'{key} {value}' for key, value in row.items()), flush=True)
  harness.write(options.json, report)


def assemble(parts, resolution, folder):
  """Writes the set of these chunks as `prepare_pathfinder` does; returns its folder."""

  def read():
    for drawn in map(chunks.read, parts):
      yield from zip(drawn['images'].reshape(-1, resolution**2), drawn['labels'].tolist(), strict=True)

  counts = {'train': parts[-1].stop}
  source = harness.random_source({'train': read}, counts, classes=2, shape=(resolution**2,))
  return builders.prepare_set('benchmark', folder, {}, lambda work: source)


def clocked(run):
  """Wall-clock seconds of a call, and the processor seconds of all processes."""
  sample = harness.timed(run, children=True)
  return {'wall_clock': sample['seconds'], 'processor': sample['processor_seconds']}


def scale(resolution, images, folder):
  """Times and bytes of one resolution."""
  draw = functools.partial(generated._draw, resolution, 14, 0)
  draw(0, 1)  # compiles, or reads the cache
  report = {}
  for runner, workers in RUNNERS:
    make = functools.partial(chunks.make_chunks, draw, runner=runner, workers=workers)
    folders = [chunks.open_folder(folder / f'{runner}{workers}{what}', {}) for what in ('start', 'images')]
    starting = chunks.divide(folders[0], workers, size=1)
    parts = chunks.divide(folders[1], images, size=-(-images // 8))
    start, whole = (clocked(functools.partial(make, chosen)) for chosen in (starting, parts))
    report[f'{runner}, {workers} processes'] = {
      'start_seconds': {name: round(seconds, 2) for name, seconds in start.items()},
      'milliseconds_per_image': {
        name: round((whole[name] - start[name]) * 1000 / (images - workers), 2) for name in whole
      },
    }
  places = []  # where the timed call leaves its result
  assembling = clocked(lambda: places.append(assemble(parts, resolution, folder)))
  report['assembling, milliseconds_per_image'] = {
    name: round(seconds * 1000 / images, 2) for name, seconds in assembling.items()
  }
  report['bytes_per_image'] = {
    'chunks': round(sum(part.path.stat().st_size for part in parts) / images),
    'set': round(sum(prepared.read_metadata(places[0], '')['files'].values()) / images),
  }
  return report


def run_data_scale(arguments):
  """Measures the cost of Pathfinder images at scale: drawing with each runner, assembling the set, disk.

  Draws images in chunks as `lra-spt prepare` does: in this process, in two local ones, and in two of Apache
  Beam's local runner if Beam is installed (no other runner was tried). The start of the processes, measured
  with one image each, is subtracted. Processor time is that of all processes together; a busy machine
  disturbs it less than wall-clock time.
  """
  parser = harness.parser(run_data_scale, 'data_scale.json')
  parser.add_argument('--images', type=int, default=768, help='images of each resolution (%(default)s)')
  parser.add_argument('--resolutions', type=int, nargs='*', default=(128, 256), help='%(default)s')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  packages = 'numba', 'pillow', 'array_record', 'apache-beam'
  report = harness.report('data_scale', 'Pathfinder images at scale', *packages, images=options.images)
  with tempfile.TemporaryDirectory() as folder:
    report['resolutions'] = {
      resolution: scale(resolution, options.images, pathlib.Path(folder, str(resolution)))
      for resolution in options.resolutions
    }
  print(json.dumps(report, indent=2))
  harness.write(options.json, report)


def fastest(resolution, images, repeats=3):
  """The sample of the fastest of several sets of images, by processor time."""
  generate(resolution, 0, [0])
  sets = (np.arange(repeat * images, (repeat + 1) * images) for repeat in range(repeats))
  samples = [harness.timed(functools.partial(generate, resolution, 1, chosen)) for chosen in sets]
  return min(samples, key=lambda sample: sample['processor_seconds'])


def run_generator(arguments):
  """Times the drawing of a Pathfinder image on one core.

  Times `generate` on one thread after compilation, in processor time, which a busy machine disturbs little.
  The ratios compare with the official code (drewlinsley/pathfinder), whose cost was measured elsewhere: one
  process, Python 3.7, Pillow 7.2, OpenCV 4.4.
  """
  parser = harness.parser(run_generator, 'generator.json')
  parser.add_argument('--images', type=int, default=200, help='images per repetition (%(default)s)')
  images = (options := parser.parse_args(arguments)).images
  harness.cpu_only()
  report = harness.report('generator', 'one Pathfinder image on one core', 'numba', 'pillow', images=images)
  report['official_cost'] = 'measured elsewhere: one process, Python 3.7, Pillow 7.2, OpenCV 4.4'
  report['first_image_seconds'] = round(harness.timed(lambda: generate(32, 0, [0]))['seconds'], 2)
  report['resolutions'] = {}
  for resolution in PARAMETERS:
    sample = fastest(resolution, images)
    processor, wall = (1000 * sample[key] / images for key in ('processor_seconds', 'seconds'))
    row = {'milliseconds_per_image': round(processor, 3), 'wall_clock_milliseconds_per_image': round(wall, 3)}
    if resolution in OFFICIAL_SECONDS:
      official = OFFICIAL_SECONDS[resolution]
      row['official_seconds_per_image'] = official
      row['times_faster'] = [round(seconds * 1000 / processor) for seconds in official]
      row['target_times_faster'] = FASTER_TARGETS[resolution]
    report['resolutions'][resolution] = row
    print(f'{resolution}: {json.dumps(row)}')
  harness.write(options.json, report)


# Prepares a set under a limit of address space and prints the peak of memory; argv: bytes, flags of prepare.
PREPARE = """
import json, pathlib, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from lra_spt.cli import main
status = main.main(['prepare', *sys.argv[2:]])
peak = pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]
used = {'peak_memory_mb': int(peak) * 1024 / 1e6, 'processor_seconds': time.process_time()}
print(json.dumps(used))
sys.exit(status)
"""


def write_values(path: pathlib.Path, gigabytes: float) -> int:
  """Writes inputs.npy, float32 [N, 16384], and labels.npy into a new folder; returns N."""
  path.mkdir(parents=True)
  count, rng = round(gigabytes * 1e9 / 2**16), np.random.default_rng(0)
  with (path / 'inputs.npy').open('wb') as file:
    header = {'descr': '<f4', 'fortran_order': False, 'shape': (count, 2**14)}
    np.lib.format.write_array_header_1_0(file, header)
    for _ in range(count):
      file.write(rng.standard_normal(2**14, np.float32).tobytes())
  np.save(path / 'labels.npy', np.arange(count) % 4)
  return count


def run_large_set(arguments):
  """Measures the peak of memory of `lra-spt prepare npz` on values that are larger than memory.

  The values are normal, float32, in rows of 16,384. The process has a limit of address space (as by `ulimit
  -v`), which counts more than its memory. It needs twice the space of the values on the disk.
  """
  parser = harness.parser(run_large_set, 'large_set.json')
  parser.add_argument('--gigabytes', type=float, default=10.0, help='of values (%(default)s)')
  parser.add_argument('--limit', type=float, default=4.0, help='gigabytes of address space (%(default)s)')
  options = parser.parse_args(arguments)
  sizes = {'gigabytes': options.gigabytes, 'limit_gigabytes': options.limit}
  report = harness.report('large_set', 'the memory that preparing values larger than it takes', **sizes)
  with tempfile.TemporaryDirectory() as folder:
    report['examples'] = write_values(pathlib.Path(folder, 'raw', 'train'), options.gigabytes)
    flags = ['npz', '--name=large', f'--raw_dir={folder}/raw', f'--data_dir={folder}/data']
    words = [sys.executable, '-c', PREPARE, str(int(options.limit * 1e9)), *flags]
    done = subprocess.run(words, cwd=harness.ROOT, stdout=subprocess.PIPE, text=True, check=True)
  report |= {name: round(value, 1) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
  print(json.dumps({key: report[key] for key in ('examples', 'peak_memory_mb', 'processor_seconds')}))
  harness.write(options.json, report)
