"""What a set of runs says: arms with their accuracy, paired gains, and the table printed on a terminal."""

import dataclasses
import itertools

import numpy as np

from lra_spt.studies import statistics
from lra_spt.studies.published import published_row
from lra_spt.studies.runs import REGIMES, default_arm


@dataclasses.dataclass(frozen=True)
class Arm:
  """All seeds of one way of training; `accuracy` and `validation` are Intervals or floats in [0, 1]."""
  name: str
  regime: str
  causal: bool
  runs: tuple
  accuracy: statistics.Interval
  validation: float | None
  published: object

  seeds = property(lambda self: tuple(run.seed for run in self.runs))

  def mean(self, value):
    """Mean of value(run) over the seeds; None when one of them does not know it."""
    values = [value(run) for run in self.runs]
    return None if None in values else sum(values) / len(values)


@dataclasses.dataclass(frozen=True)
class Gain:
  """Accuracy of `arm` minus accuracy of `against` on the same test examples, seed by seed.

  `interval` is the one to report; `paired` holds one statistics.Paired per seed; `pooled` is None for a
  single seed; `missing` lists seeds that only one of the two arms has.
  """
  arm: Arm
  against: Arm
  seeds: tuple
  missing: tuple
  paired: tuple
  interval: statistics.Interval
  pooled: statistics.Pooled | None

  @property
  def verdict(self):
    if not self.interval.excludes_zero:
      return 'not told apart from 0'
    return 'better' if self.interval.estimate > 0 else 'worse'


@dataclasses.dataclass(frozen=True)
class Group:
  """One question: all arms of a (task, model, protocol). `majority`: accuracy of always giving one class."""
  task: str
  model: str
  protocol: str
  arms: tuple
  gains: tuple
  majority: float | None
  examples: tuple


def summarise(runs):
  """The Groups of a list of Runs, in order. Raises runs.DamagedFile; ValueError for runs that do not fit."""
  groups = []
  runs = sorted(runs, key=lambda run: (run.group, run.order, run.seed))
  for (task, model, protocol), same in itertools.groupby(runs, key=lambda run: run.group):
    same = list(same)
    arms = tuple(_arm(list(members)) for _, members in itertools.groupby(same, key=lambda r: r.order))
    gains = tuple(g for g in (_gain(arm, against) for arm, against in _comparisons(arms)) if g is not None)
    majorities = [float(np.bincount(_codes(run.predictions[1])).max() / run.predictions[1].size)
                  for run in same if run.predictions is not None]
    majority = float(np.mean(majorities)) if majorities else None
    groups.append(Group(task, model, protocol, arms, gains, majority,
                        tuple(sorted({run.examples for run in same}))))
  return groups


def _codes(label_N):
  return np.unique(label_N, return_inverse=True)[1]


def same_test_set(runs):
  """Whether all runs were tested on the same examples: equal indices, labels and data fingerprints."""
  prints = {str((run.result.get('fingerprints') or {}).get('data')) for run in runs}
  first = runs[0].predictions
  return len(prints) == 1 and all(
    run.predictions is not None and all(map(np.array_equal, run.predictions[:2], first[:2])) for run in runs)


def _arm(runs):
  first = runs[0]
  known = all(run.correct_N is not None for run in runs)
  if len(runs) == 1:
    correct = round(first.accuracy * first.examples)
    accuracy = statistics.wilson(correct, first.examples)
  elif known:
    accuracy = statistics.pooled([run.correct_N for run in runs], same_test_set(runs), (0, 1)).interval
  else:
    # Only the counts are known: as if each seed had its own test examples.
    counts = [(round(run.accuracy * run.examples), run.examples) for run in runs]
    accuracy = statistics.pooled([np.arange(n) < right for right, n in counts], False, (0, 1)).interval
  validation = [run.result['metrics'].get('validation', {}).get('accuracy') for run in runs]
  return Arm(first.arm, first.regime, first.causal, tuple(runs), accuracy,
             None if None in validation else sum(validation) / len(validation),
             published_row(first.task, first.model, first.regime, first.causal)
             if first.arm == default_arm(first.regime, first.causal) else None)


def _comparisons(arms):
  """Each pretrained arm against every scratch arm of its own form, the causal ones then against plain scratch
  too; last, what other scratch arms (more steps) win over plain scratch."""
  scratch = [arm for arm in arms if arm.regime == 'scratch']
  for arm in arms:
    if arm.regime != 'scratch':
      alike = [other for other in scratch if other.causal == arm.causal]
      yield from ((arm, other) for other in alike + [o for o in scratch[:1] if o not in alike])
  yield from ((other, scratch[0]) for other in scratch[1:] if other.causal == scratch[0].causal)


def _gain(arm, against):
  by_seed = [{run.seed: run for run in side.runs if run.correct_N is not None} for side in (arm, against)]
  seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
  missing = tuple(sorted({*arm.seeds, *against.seeds} - {*seeds}))
  if not seeds:
    return None
  paired, differences = [], []
  for seed in seeds:
    run, base = by_seed[0][seed], by_seed[1][seed]
    if not all(map(np.array_equal, run.predictions[:2], base.predictions[:2])):
      raise ValueError(f'{run.path} and {base.path} were tested on different examples, so their gain cannot '
                       'be computed: give runs on other data another seed, or report the folders apart.')
    paired.append(statistics.paired(base.correct_N, run.correct_N))
    differences.append(run.correct_N.astype(float) - base.correct_N)
  pooled = None
  if len(seeds) > 1:
    pooled = statistics.pooled(differences, same_test_set([by_seed[0][seed] for seed in seeds]), (-1, 1))
  return Gain(arm, against, tuple(seeds), missing, tuple(paired),
              paired[0].interval if pooled is None else pooled.interval, pooled)


def answer(group):
  """One sentence per pretrained regime: how much self-pretraining changed the test accuracy; at least one."""
  sentences = []
  for regime in REGIMES[1:]:
    gains = [g for g in group.gains if g.arm.regime == regime and g.against.causal == g.arm.causal]
    gains = gains or [g for g in group.gains if g.arm.regime == regime]
    if not gains:
      continue
    first, rest = gains[0], [g for g in gains[1:] if g.arm is gains[0].arm]
    base, now = (_mean_accuracy(side, first.seeds) for side in (first.against, first.arm))
    seeds = f'{len(first.seeds)} seeds' if len(first.seeds) > 1 else 'one seed'
    what = f'{first.arm.name[0].upper()}{first.arm.name[1:]}'
    moved = 'raised' if first.interval.estimate > 0 else 'lowered'
    moved = moved if first.interval.excludes_zero else 'left'
    change = (f'from {percent(base)} ({first.against.name}) to {percent(now)}' if moved != 'left' else
              f'at {percent(now)} against {percent(base)} ({first.against.name})')
    text = f'{what} {moved} the test accuracy of {group.model} on {group.task} {change}: '
    text += f'{gain_text(first.interval)}, {seeds}'
    text += ', so no difference can be told' if moved == 'left' else ''
    for other in rest:
      text += f'; against {other.against.name} the difference is {gain_text(other.interval)}'
    sentences.append(text + '.')
  if not sentences:
    best = max(group.arms, key=lambda arm: arm.accuracy.estimate)
    sentences.append(f'{group.model} on {group.task}: {best.name} reaches a test accuracy of '
                     f'{percent(best.accuracy.estimate)} ({limits(best.accuracy)}); there is no pair of '
                     'runs with and without self-pretraining to compare yet.')
  return sentences


def _mean_accuracy(arm, seeds):
  return sum(run.accuracy for run in arm.runs if run.seed in seeds) / len(seeds)


def percent(share):
  """0.3125 -> '31.2 %'; None -> a dash. The same for an accuracy that came as float32."""
  return '\u2013' if share is None else f'{100 * round(share, 6):.1f} %'


def limits(interval):
  return f'{100 * interval.low:.1f} to {100 * interval.high:.1f} %'


def points(share):
  """A difference in percentage points with its sign, typographic minus included."""
  return f'{100 * share:+.1f}'.replace('-', '\u2212')


def gain_text(interval):
  return (f'{points(interval.estimate)} points (95 % interval {points(interval.low)} to '
          f'{points(interval.high)})')


def duration(seconds):
  """Seconds in the two largest units that are not zero."""
  if seconds is None:
    return '\u2013'
  if seconds < 60:
    return f'{seconds:.1f} s' if seconds < 10 else f'{seconds:.0f} s'
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h {minutes:02d} min' if hours else f'{minutes} min {rest:02d} s'


def scaled(number, unit=''):
  """1.2e15 -> '1.20 P' + unit; None -> a dash."""
  if number is None:
    return '\u2013'
  for factor, prefix in ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(number) >= factor:
      return f'{number / factor:.3g} {prefix}{unit}'
  return f'{number:.3g} {unit}'.strip()


def text_table(runs):
  """The accuracies and gains of all runs as plain text, the same numbers as in the report."""
  if not runs:
    return 'No finished run was found: a run is finished when its folder holds a result.json.'
  blocks = []
  for group in summarise(runs):
    examples = ' or '.join(f'{n:,}' for n in group.examples)
    head = f'{group.task}, {group.model}, protocol {group.protocol}: accuracy on {examples} test examples'
    if group.majority is not None:
      head += f' (always the most frequent class: {percent(group.majority)})'
    rows = [('training', 'seeds', 'accuracy', '95 % interval', 'total time', 'paper')]
    rows += [(arm.name, str(len(arm.runs)), percent(arm.accuracy.estimate), limits(arm.accuracy),
              duration(arm.mean(lambda run: run.total('seconds'))),
              f'{arm.published.value:.2f} %' if arm.published else '\u2013') for arm in group.arms]
    gains = [('gain', 'seeds', 'points', '95 % interval', 'verdict')]
    gains += [(f'{g.arm.name} over {g.against.name}', str(len(g.seeds)), points(g.interval.estimate),
               f'{points(g.interval.low)} to {points(g.interval.high)}', g.verdict) for g in group.gains]
    block = [head, *_align(rows)]
    if len(gains) > 1:
      block += ['', *_align(gains)]
    blocks.append('\n'.join(block))
  return '\n\n'.join(blocks)


def _align(rows):
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return ['  ' + '  '.join(cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
                           for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
          for row in rows]
