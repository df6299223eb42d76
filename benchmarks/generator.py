"""How long one core takes for a Pathfinder image.

  python -m benchmarks generator [--images 200]

Times `generate` on one thread after compilation, in processor time, which a busy machine disturbs little. The
ratios compare with the official code (drewlinsley/pathfinder), whose cost was measured elsewhere: one
process, Python 3.7, Pillow 7.2, OpenCV 4.4. Results go to benchmarks/results/generator.json.
"""

import functools

import numpy as np

from benchmarks import harness
from data_prep.pathfinder.images import PARAMETERS, generate

# Seconds per image of the official code: the least and the most that were seen; none is known at 256.
OFFICIAL_SECONDS = {32: (0.25, 0.25), 64: (4, 7), 128: (1.8, 1.8)}
TARGETS = {32: 50, 64: 100, 128: 50}


def measure(resolution, images, repeats=3):
  """The sample of the fastest of several sets of images, by processor time."""
  generate(resolution, 0, [0])
  sets = (np.arange(repeat * images, (repeat + 1) * images) for repeat in range(repeats))
  samples = [harness.timed(functools.partial(generate, resolution, 1, chosen)) for chosen in sets]
  return min(samples, key=lambda sample: sample['processor_seconds'])


def main(arguments=None):
  parser = harness.parser('generator', __doc__, 'generator.json')
  parser.add_argument('--images', type=int, default=200, help='images per repetition (%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  packages, images = ('numba', 'pillow'), options.images
  report = harness.report('generator', __doc__.splitlines()[0], *packages, images=images, resolutions={})
  report['official_cost'] = 'measured elsewhere: one process, Python 3.7, Pillow 7.2, OpenCV 4.4'
  report['first_image_seconds'] = round(harness.timed(lambda: generate(32, 0, [0]))['seconds'], 2)
  print(f'first image (compiles, or reads the cache): {report["first_image_seconds"]:.1f} s')
  for resolution in PARAMETERS:
    sample = measure(resolution, images)
    processor, wall = (1000 * sample[key] / images for key in ('processor_seconds', 'seconds'))
    row = {'milliseconds_per_image': round(processor, 3), 'wall_clock_milliseconds_per_image': round(wall, 3)}
    if resolution in OFFICIAL_SECONDS:
      official = OFFICIAL_SECONDS[resolution]
      row['official_seconds_per_image'] = official
      row['times_faster'] = [round(seconds * 1000 / processor) for seconds in official]
      row['target_times_faster'] = TARGETS[resolution]
    report['resolutions'][resolution] = row
    compared = ' to '.join(map(str, sorted(set(row.get('times_faster', []))))) or 'unknown'
    print(f'{resolution:4d}: {processor:7.2f} ms per image and core; times the official speed: {compared}')
  harness.write(options.json, report)


if __name__ == '__main__':
  main()
