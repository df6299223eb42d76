"""The name and format of a test score: a share in per cent, or R² as a number."""

import dataclasses
import math

DASH = '\u2013'


@dataclasses.dataclass(frozen=True)
class Score:
  """key: its name in result.json; name: its name in a sentence; bounds, gain_bounds: the smallest and largest
  value of the score and of a difference of two; constant: the best constant answer, in words; tolerance: the
  largest error of sums in float32; in_percent: it is shown in per cent; counts: it is the share of right
  answers, so each answer counts 0 or 1."""

  key: str
  name: str
  bounds: tuple[float, float]
  gain_bounds: tuple[float, float]
  constant: str
  tolerance: float
  in_percent: bool = True
  counts: bool = False

  @property
  def title(self):
    return self.name[0].upper() + self.name[1:]

  def show(self, value):
    """0.3125 -> '31.2 %' or '0.3125'; None -> a dash. The same for a value that came as float32."""
    if value is None:
      return DASH
    return percent(value) if self.in_percent else minus(format(value, _digits(value)))

  def limits(self, interval):
    if not interval.known:
      return DASH
    if self.in_percent:
      return f'{100 * interval.low:.1f} to {100 * interval.high:.1f} %'
    return f'{self.show(interval.low)} to {self.show(interval.high)}'

  def signed(self, difference):
    """A difference with its sign, of shares in percentage points; a zero is never negative."""
    if self.in_percent:
      return minus(f'{100 * difference:+z.1f}')
    return minus(format(difference, f'+z{_digits(difference)}'))

  def signed_limits(self, interval):
    return f'{self.signed(interval.low)} to {self.signed(interval.high)}' if interval.known else DASH

  def with_limits(self, interval):
    """'+3.1 (+1.0 to +5.2)'."""
    return f'{self.signed(interval.estimate)} ({self.signed_limits(interval)})'

  def gain(self, interval):
    unit = ' points' if self.in_percent else ''
    limits = f'95 % interval {self.signed_limits(interval)}' if interval.known else 'no interval known'
    return f'{self.signed(interval.estimate)}{unit} ({limits})'


SHARE = {'bounds': (0.0, 1.0), 'gain_bounds': (-1.0, 1.0), 'tolerance': 1e-6}
ACCURACY = Score('accuracy', 'accuracy', constant='always the most frequent class', counts=True, **SHARE)
R2 = Score(
  'r2', 'R\u00b2', (-math.inf, 1.0), (-math.inf, math.inf), 'always the mean label', 1e-3, in_percent=False
)
MACRO_F1 = Score('macro_f1', 'macro-F1', constant='the best constant answer', **SHARE)
AUROC = Score('auroc', 'AUROC', constant='any constant answer', **SHARE)
SCORES = {score.key: score for score in (ACCURACY, R2, MACRO_F1, AUROC)}


def _digits(value):
  """The format of an R2. One that is far from 1 has no sense but a size."""
  return '.4f' if abs(value) < 1e6 else '.4g'


def percent(share):
  """0.3125 -> '31.2 %'; the same for a share that came as float32."""
  return f'{100 * round(share, 6):.1f} %'


def minus(text):
  """With minus signs in place of hyphens."""
  return text.replace('-', '\u2212')
