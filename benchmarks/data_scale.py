"""What Pathfinder images cost at scale: drawing them with each runner, assembling the set, disk.

  python -m benchmarks data_scale [--images 768]

Draws images in chunks as `lra-spt prepare` does: in this process, in two local ones, and in two of Apache
Beam's local runner if Beam is installed (no other runner was tried). The start of the processes, measured
with one image each, is subtracted. Processor time is that of all processes together; a busy machine disturbs
it less than wall-clock time. Results go to benchmarks/results/data_scale.json.
"""

import functools
import importlib.util
import json
import pathlib
import tempfile

from benchmarks import harness
from data_prep import builders, chunks
from data_prep.pathfinder import generated
from lra_spt.data import prepared

BEAM = bool(importlib.util.find_spec('apache_beam'))
RUNS = [('local', 1), ('local', 2), *([('beam', 2)] * BEAM)]


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


def clocked(run):
  """Wall-clock seconds of a call, and the processor seconds of all processes."""
  found = harness.timed(run, children=True)
  return {'wall_clock': found['seconds'], 'processor': found['processor_seconds']}


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


def main(arguments=None):
  parser = harness.parser('data_scale', __doc__, 'data_scale.json')
  parser.add_argument('--images', type=int, default=768, help='images of each resolution (%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  packages = 'numba', 'pillow', 'array_record', 'apache-beam'
  report = harness.report('data_scale', __doc__.splitlines()[0], *packages, images=options.images)
  with tempfile.TemporaryDirectory() as folder:
    report['resolutions'] = {
      resolution: measure(resolution, options.images, pathlib.Path(folder, str(resolution)))
      for resolution in (128, 256)
    }
  print(json.dumps(report, indent=2))
  harness.write(options.json, report)


if __name__ == '__main__':
  main()
