"""What Pathfinder images cost at scale: drawing them with each runner, assembling the set, disk.

  python -m benchmarks.data_scale [--images 768]

Draws images in chunks as `lra-spt prepare` does: in this process, in two local ones, and in two of Apache
Beam's local runner where Beam is installed (no other runner was tried). The start of the processes, measured
with one image each, is taken off. Processor time is that of all processes together; a busy machine disturbs
it less than wall-clock time. Results go to benchmarks/results/data_scale.json.
"""

import argparse
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import resource
import tempfile
import time

from benchmarks.generator import processor
from data_prep import builders, chunks
from data_prep.pathfinder import generated
from lra_spt.data import storage

RESULTS = pathlib.Path(__file__).parent / 'results' / 'data_scale.json'
BEAM = bool(importlib.util.find_spec('apache_beam'))
RUNS = [('local', 1), ('local', 2), *([('beam', 2)] * BEAM)]
PACKAGES = ['numpy', 'numba', 'pillow', 'array_record', 'tensorflow-datasets', *(['apache-beam'] * BEAM)]


def timed(function):
  """What `function` returns, its wall-clock seconds, and the processor seconds of all processes."""

  def clocks():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in used)

  before = clocks()
  result = function()
  return result, *(b - a for a, b in zip(before, clocks(), strict=True))


def assemble(parts, resolution, folder):
  """The set of these chunks, written as `prepare_pathfinder` does."""

  def read():
    for drawn in map(chunks.read, parts):
      yield from zip(drawn['images'].reshape(-1, resolution**2), drawn['labels'].tolist(), strict=True)

  source = builders.Source(
    description='Images of a benchmark.',
    citation='',
    files={'train': read},
    counts={'train': parts[-1].stop},
    classes=2,
    shape=(resolution**2,),
    origin='benchmark',
    verified=False,
  )
  return builders.prepare_set('benchmark', folder, {}, lambda work: source)


def measure(resolution, images, folder):
  """Times and bytes of one resolution."""
  draw = functools.partial(generated._draw, resolution, 14, 0)
  draw(0, 1)  # compiles, or reads the cache
  report = {}
  for runner, workers in RUNS:
    make = functools.partial(chunks.make_chunks, draw, runner=runner, workers=workers)
    folders = [chunks.open_folder(folder / f'{runner}{workers}{what}', {}) for what in ('start', 'images')]
    starting = chunks.divide(folders[0], workers, size=1)
    parts = chunks.divide(folders[1], images, size=-(-images // 8))
    (_, *start), (_, *whole) = timed(lambda: make(starting)), timed(lambda: make(parts))  # noqa: B023
    report[f'{runner}, {workers} processes'] = {
      'start_seconds': dict(zip(('wall_clock', 'processor'), (round(s, 2) for s in start), strict=True)),
      'milliseconds_per_image': {
        name: round((b - a) * 1000 / (images - workers), 2)
        for name, a, b in zip(('wall_clock', 'processor'), start, whole, strict=True)
      },
    }
  place, wall, cpu = timed(lambda: assemble(parts, resolution, folder))
  report['assembling, milliseconds_per_image'] = {
    'wall_clock': round(wall * 1000 / images, 2),
    'processor': round(cpu * 1000 / images, 2),
  }
  report['bytes_per_image'] = {
    'chunks': round(sum(part.path.stat().st_size for part in parts) / images),
    'set': round(sum(storage.read_metadata(place, '')['files'].values()) / images),
  }
  return report


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--images', type=int, default=768, help='images of each resolution')
  images = parser.parse_args().images
  with tempfile.TemporaryDirectory() as folder:
    report = {
      'date': datetime.date.today().isoformat(),
      'hardware': {'processor': processor(), 'machine': platform.machine(), 'cpu_count': os.cpu_count()},
      'load_average': round(os.getloadavg()[0], 1),
      'versions': {
        'python': platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
      },
      'images': images,
      'resolutions': {r: measure(r, images, pathlib.Path(folder, str(r))) for r in (128, 256)},
    }
  print(json.dumps(report, indent=2))
  RESULTS.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
  main()
