"""How long one core takes for a Pathfinder image.

  python benchmarks/generator.py [--images 200]

Times `generate` on one thread after compilation, in processor time, so that a busy machine disturbs little.
The ratios compare with the official code (drewlinsley/pathfinder), whose cost was measured elsewhere: one
process, Python 3.7, Pillow 7.2, OpenCV 4.4. Results go to benchmarks/results/generator.json.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import time

import numba
import numpy as np
import PIL

from data_prep.pathfinder.generator import PARAMETERS, generate

RESULTS = pathlib.Path(__file__).parent / 'results' / 'generator.json'
# Seconds per image of the official code: the least and the most that were seen; none is known at 256.
OFFICIAL_SECONDS = {32: (0.25, 0.25), 64: (4, 7), 128: (1.8, 1.8)}
TARGETS = {32: 50, 64: 100, 128: 50}


def processor():
  """The processor's name where Linux tells it."""
  path = pathlib.Path('/proc/cpuinfo')
  lines = path.read_text().splitlines() if path.exists() else []
  names = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
  return names[0] if names else platform.processor()


def measure(resolution, images, repeats=3):
  """Milliseconds per image and core, processor and wall-clock time: the fastest of several sets of images."""
  generate(resolution, 0, [0])
  times = []
  for repeat in range(repeats):
    wall, cpu = time.perf_counter(), time.process_time()
    generate(resolution, 1, np.arange(repeat * images, (repeat + 1) * images))
    times.append((time.process_time() - cpu, time.perf_counter() - wall))
  return [seconds * 1000 / images for seconds in min(times)]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--images', type=int, default=200, help='images per repetition')
  images = parser.parse_args().images
  start = time.perf_counter()
  generate(32, 0, [0])
  first = time.perf_counter() - start
  print(f'first image (compiles, or reads the cache): {first:.1f} s')
  rows = {}
  for resolution in PARAMETERS:
    cpu, wall = measure(resolution, images)
    row = {'milliseconds_per_image': round(cpu, 3), 'wall_clock_milliseconds_per_image': round(wall, 3)}
    if resolution in OFFICIAL_SECONDS:
      row['official_seconds_per_image'] = OFFICIAL_SECONDS[resolution]
      row['times_faster'] = [round(seconds * 1000 / cpu) for seconds in OFFICIAL_SECONDS[resolution]]
      row['target_times_faster'] = TARGETS[resolution]
    rows[resolution] = row
    compared = ' to '.join(map(str, sorted(set(row.get('times_faster', []))))) or 'unknown'
    print(f'{resolution:4d}: {cpu:7.2f} ms per image and core; times the official speed: {compared}')
  report = {
    'date': datetime.date.today().isoformat(),
    'hardware': {'processor': processor(), 'machine': platform.machine(), 'cpu_count': os.cpu_count()},
    'versions': {
      'python': platform.python_version(),
      'numba': numba.__version__,
      'numpy': np.__version__,
      'pillow': PIL.__version__,
    },
    'images': images,
    'official_cost': 'measured elsewhere: one process, Python 3.7, Pillow 7.2, OpenCV 4.4',
    'first_image_seconds': round(first, 2),
    'resolutions': rows,
  }
  RESULTS.parent.mkdir(exist_ok=True)
  RESULTS.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
  main()
