"""How time and memory of a training step grow with length, batch, width and members, for every mixer.

  python -m benchmarks slopes [--mixers NAME,...] [--axes length,batch,width,members] [--resume]

One layer, float32, the options of benchmarks.field. Along an axis everything else stays fixed: one sequence
of width 32 from 1,024 to 65,536 positions; 1 to 64 sequences of 1,024; widths 64 to 512 of 2 sequences of
1,024; 1 to 8 runs of 2 such sequences of width 32 as one program (`runtime.members`).

A slope is that of log(measured value) over log(size) by least squares. It is compared with the slope of the
step's operations by formula, which is 2 for full attention at great lengths and 1 for most others: more than
0.1 above it means that something else grows. Memory is what the compiler asks for in addition to parameters
and optimizer. If a size takes more than --longest seconds per step, larger ones are not run; their memory
still counts.
"""

import collections
import functools
import statistics

import jax
import numpy as np

from benchmarks import field, harness, ssm_parts
from lra_spt.config import mixers as mixer_rows
from lra_spt.errors import UserError

Size = collections.namedtuple('Size', (*ssm_parts.Size._fields, 'members'), defaults=(1,))
POWERS = (1, 2, 4, 8, 16, 32, 64)
AXES = {  # sizes along each
  'length': [Size(1, 1024 * n, 32, 1) for n in POWERS],
  'batch': [Size(n, 1024, 32, 1) for n in POWERS],
  'width': [Size(2, 1024, 64 * n, 1) for n in POWERS[:4]],
  'members': [Size(2, 1024, 32, 1, n) for n in POWERS[:4]],
}
ALLOWED = 0.1  # above the slope of the operations
COLUMNS = ('milliseconds', 'temporary_megabytes', 'gigaflops')


def slope(sizes, values) -> float | None:
  """Of log(value) over log(size); None of fewer than three values."""
  pairs = [(size, value) for size, value in zip(sizes, values, strict=True) if value]
  if len(pairs) < 3:
    return None
  found = np.polyfit(*np.log(np.array(pairs, np.float64)).T, 1)[0]
  return round(float(found), 2)


def point(mixer: str, size: Size, run: bool) -> dict[str, float | None]:
  """COLUMNS of a step of one size; no time where it is not to run."""
  step, known, _ = ssm_parts.training_step(
    field.options(mixer), ssm_parts.Size(*size[:-1]), members=size.members
  )
  found = {name: known.get(name) for name in COLUMNS}
  if run:
    seconds = statistics.median(sample['seconds'] for sample in harness.sampled(step, sampling=0.3))
    found['milliseconds'] = round(1e3 * seconds, 2)
  jax.clear_caches()
  return found


def measured(mixer: str, axis: str, sizes: list[Size] | None = None, longest: float = 5.0) -> dict:
  """The columns of a row: COLUMNS by size, and their slopes."""
  sizes = sizes or AXES[axis]
  points, run = [], True
  for size in sizes:
    try:
      points.append(point(mixer, size, run))
    except UserError as error:  # of a length that it does not have
      return harness.not_run(error)
    run = bool(points[-1]['milliseconds']) and points[-1]['milliseconds'] < 1e3 * longest
  numbers = [getattr(size, axis) for size in sizes]
  columns = {name: [found[name] for found in points] for name in COLUMNS}
  return {'sizes': numbers} | columns | {'slopes': {name: slope(numbers, columns[name]) for name in COLUMNS}}


def main(arguments=None):
  parser = harness.parser('slopes', __doc__, 'slopes.json')
  parser.add_argument('--mixers', help='some of them, separated by commas; default: all')
  parser.add_argument('--axes', default=','.join(AXES), help='(%(default)s)')
  parser.add_argument('--longest', type=float, default=5.0, help='seconds of a step (%(default)s)')
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  known = list(mixer_rows.rows())
  mixers = harness.chosen(parser, 'mixer', given.mixers or ','.join(known), known)
  axes = harness.chosen(parser, 'axis', given.axes, AXES)
  harness.cpu_only()
  report = harness.report('slopes', __doc__.splitlines()[0], allowed=ALLOWED, rows=[])
  cases = [{'mixer': mixer, 'axis': axis} for axis in axes for mixer in mixers]
  harness.fill(given, report, cases, functools.partial(measured, longest=given.longest))


if __name__ == '__main__':
  main()
