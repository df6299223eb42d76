"""What a set of runs says: arms with their scores, paired gains, and models beside each other."""

import dataclasses
import itertools

import numpy as np

from lra_spt.errors import DataError
from lra_spt.report.published import published_row
from lra_spt.report.runs.run import BAG, RECORDED, SHUFFLED, default_arm
from lra_spt.report.statistics import intervals as statistics
from lra_spt.report.study.notes import cautions


@dataclasses.dataclass(frozen=True)
class Arm:
  """All seeds of one way of training one model: `score` on the test set, mean `validation` score, and `mae`,
  the mean absolute error of a regression on the test set in units of its labels."""

  name: str
  model: str
  regime: str
  causal: bool
  pretrained: bool
  runs: tuple
  score: statistics.ConfidenceInterval
  validation: float | None
  mae: float | None
  published: object

  seeds = property(lambda self: tuple(run.seed for run in self.runs))
  key = property(lambda self: (self.regime, self.causal, self.name))
  recorded = property(lambda self: any(run.recorded for run in self.runs))

  @property
  def shown(self):
    """Its score as text, marked where it was recorded."""
    return self.runs[0].score.show(self.score.estimate) + f' {RECORDED}' * self.recorded

  def mean(self, value):
    """Mean of value(run) over the seeds; None when one of them does not know it."""
    return _mean([value(run) for run in self.runs])


@dataclasses.dataclass(frozen=True)
class Gain:
  """Score of `arm` minus score of `against` on the same test examples, seed by seed.

  `interval` is the one to report; `per_seed` and `p_values` (McNemar, of accuracies of independent examples,
  else None) hold one entry per seed; `better_on` counts, over all seeds, the examples on which `arm` alone is
  right, and `against` alone (of a regression: closer); `pooled` is None for a single seed; `missing` lists
  seeds of which not both arms kept predictions.
  """

  arm: Arm
  against: Arm
  seeds: tuple
  missing: tuple
  per_seed: tuple
  p_values: tuple
  better_on: tuple
  interval: statistics.ConfidenceInterval
  pooled: statistics.Pooled | None

  @property
  def direction(self):
    """'better' or 'worse', '' where the interval holds 0."""
    if not self.interval.excludes_zero:
      return ''
    return 'better' if self.interval.estimate > 0 else 'worse'

  @property
  def verdict(self):
    """On the two ways of training; with one seed only on the two runs."""
    single = 'this run ' if len(self.seeds) == 1 else ''
    return f'{single}{self.direction}' if self.direction else 'not significant'


@dataclasses.dataclass(frozen=True)
class Group:
  """One question: all arms of a (task, model, protocol, score).

  constant: the score of the best answer that is always the same, the most frequent class or the mean label of
  the test examples; None where the labels are not known. cautions: what to say beside the numbers. apart:
  sentences on arms without a gain, since they were tested on different examples. controls: the groups of the
  same task, protocol and score that are this model's controls.
  """

  task: str
  model: str
  protocol: str
  score: object
  arms: tuple
  gains: tuple
  constant: float | None
  examples: tuple
  cautions: tuple
  apart: tuple = ()
  controls: tuple = ()

  @property
  def controls_text(self):
    """'bag_of_tokens 35.2 % (scratch)'; '' when there are none."""

    def scores(control):
      return ', '.join(f'{self.score.show(arm.score.estimate)} ({arm.name})' for arm in control.arms)

    return '; '.join(f'{control.model} {scores(control)}' for control in self.controls)

  @property
  def constant_text(self):
    """'always the most frequent class: 10.4 %'; '' when not known."""
    return _constant_text(self.score, self.constant)


def summarise(runs):
  """The Groups of a list of Runs, in order. Raises DamagedFile."""
  groups = []
  runs = sorted(runs, key=lambda run: (run.group, run.order, run.seed))
  for (task, model, protocol, _), same in itertools.groupby(runs, key=lambda run: run.group):
    same = list(same)
    score = same[0].score
    arms = tuple(arm_of(list(members)) for _, members in itertools.groupby(same, key=lambda r: r.order))
    gains, apart = _gains(arms)
    constants = [constant for constant in map(constant_score, same) if constant is not None]
    groups.append(
      Group(
        task,
        model,
        protocol,
        score,
        arms,
        gains,
        sum(constants) / len(constants) if constants else None,
        tuple(sorted({run.examples for run in same})),
        (*cautions(same), *_scored_otherwise(same[0], runs)),
        apart,
      )
    )
  return [dataclasses.replace(group, controls=tuple(_controls(group, groups))) for group in groups]


def _scored_otherwise(run, runs):
  """A sentence on those of `runs` that answer the question of `run` but are scored by another metric."""
  others = [other for other in runs if other.group[:-1] == run.group[:-1] and other.group != run.group]
  if not others:
    return []
  return [
    f'These runs are scored by {run.score.name}, but {others[0].path}, of the same task and model, by '
    f'{others[0].score.name}: they are in tables of their own and not compared; give a task whose labels '
    'changed another name.'
  ]


def _controls(group, groups):
  names = {BAG, group.model + SHUFFLED} - {group.model}
  return [
    other
    for other in groups
    if (other.task, other.protocol, other.score) == (group.task, group.protocol, group.score)
    and other.model in names
  ]


def constant_score(run):
  """What the best constant answer scores on the test examples of a run; None when it is not known."""
  if run.score.key == 'r2':
    return 0.0
  if run.predictions is None:
    return run.test.get('majority')
  return statistics.majority(run.predictions[1])


def score_text(run):
  """'test accuracy 75.3 % (always the most frequent class: 27.0 %)'."""
  beside = _constant_text(run.score, constant_score(run))
  return f'test {run.score.name} {run.score.show(run.value)}{f" ({beside})" if beside else ""}'


def _constant_text(score, constant):
  if constant is None:
    return ''
  return f'{score.constant}: {score.show(constant) if score.is_share else f"{constant:g}"}'


def same_test_set(runs):
  """Whether all runs were tested on the same examples: equal indices, labels and data fingerprints."""
  prints = {str((run.result.get('fingerprints') or {}).get('data')) for run in runs}
  return len(prints) == 1 and all(tested_alike(run, runs[0]) for run in runs)


def tested_alike(run, other):
  if run.predictions is None or other.predictions is None:
    return False
  parts = [(*r.predictions[:2], r.group_N) for r in (run, other)]
  return all(itertools.starmap(np.array_equal, zip(*parts, strict=True)))


def arm_of(runs) -> Arm:
  """The Arm of runs that differ in their seeds only."""
  first = runs[0]
  score = first.score
  validation, mae = (
    [run.result['metrics'].get(split, {}).get(key) for run in runs]
    for split, key in (('validation', score.key), ('test', 'mae'))
  )
  key = first.published if first.arm == default_arm(first.regime, first.causal) else None
  return Arm(
    first.arm,
    first.model,
    first.regime,
    first.causal,
    first.pretrained,
    tuple(runs),
    _interval(runs),
    _mean(validation),
    _mean(mae),
    published_row(key['task'], key['model'], first.regime, first.causal) if key else None,
  )


def _mean(values):
  return None if None in values else sum(values) / len(values)


def _interval(runs):
  first, known = runs[0], all(run.units is not None for run in runs)
  share = first.score.key == 'accuracy'
  if len(runs) == 1:
    grouped = first.group_N is not None
    return statistics.score_interval(
      share, first.value, first.examples, first.units, grouped, first.unit_name
    )
  if known:
    return statistics.pooled(
      [run.units for run in runs], same_test_set(runs), first.score.bounds, first.unit_name
    ).interval
  # Only the scores are known: as if each seed had its own test examples.
  units = [
    np.arange(run.examples) < round(run.value * run.examples) if share else np.array([run.value])
    for run in runs
  ]
  return statistics.pooled(units, False, first.score.bounds, first.unit_name).interval


def _comparisons(arms):
  """Each pretrained arm against every scratch arm of its own form, the causal ones then against plain scratch
  too; last, what other scratch arms (more steps) win over plain scratch."""
  scratch = [arm for arm in arms if not arm.pretrained]
  for arm in arms:
    if arm.pretrained:
      alike = [other for other in scratch if other.causal == arm.causal]
      plain = [other for other in scratch[:1] if arm.causal and other not in alike]
      yield from ((arm, other) for other in alike + plain)
  yield from ((other, scratch[0]) for other in scratch[1:] if other.causal == scratch[0].causal)


def _gains(arms):
  """The Gains of the arms of one group, and a sentence on each two that were tested on different examples."""
  gains, apart = [], []
  for arm, against in _comparisons(arms):
    try:
      found = gain(arm, against)
    except DataError as error:  # of these two, the others have theirs
      apart.append(str(error))
    else:
      gains += [] if found is None else [found]
  return tuple(gains), tuple(apart)


def gain(arm, against):
  """None where the two arms share no seed with predictions; DataError where those are of other examples."""
  by_seed = [{run.seed: run for run in side.runs if run.units is not None} for side in (arm, against)]
  seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
  missing = tuple(sorted({*arm.seeds, *against.seeds} - {*seeds}))
  if not seeds:
    return None
  pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in seeds]
  for run, base in pairs:
    if not tested_alike(run, base):
      raise DataError(
        f'{run.path} and {base.path} were tested on different examples, so their gain cannot be computed: '
        'prepare the set once and train both on it, or report the folders apart.'
      )
  first, tests = pairs[0][0], list(itertools.starmap(_test, pairs))
  per_seed, p_values, better, worse = zip(*tests, strict=True)
  pooled = None
  if len(seeds) > 1:
    differences = [run.units.astype(float) - base.units for run, base in pairs]
    pooled = statistics.pooled(
      differences, same_test_set([run for run, _ in pairs]), first.score.gain_bounds, first.unit_name
    )
  return Gain(
    arm,
    against,
    tuple(seeds),
    missing,
    per_seed,
    p_values,
    (sum(better), sum(worse)),
    per_seed[0] if pooled is None else pooled.interval,
    pooled,
  )


def _test(run, base):
  """Of two runs on the same examples: interval of the difference, p, on how many examples each is better."""
  share = run.score.key == 'accuracy'
  if share and run.group_N is None:
    paired = statistics.paired(base.units, run.units)
    return paired.interval, paired.p, paired.only_b, paired.only_a
  error_N, base_error_N = (
    r.predictions[2] != r.predictions[1] if share else np.abs(r.predictions[2] - r.predictions[1])
    for r in (run, base)
  )
  return (
    statistics.mean_interval(run.units - base.units, run.unit_name),
    None,
    int(np.sum(error_N < base_error_N)),
    int(np.sum(error_N > base_error_N)),
  )


def answer(group):
  """Sentences: how much self-pretraining of each kind changed the test score; at least one.

  Of several seeds they speak of the way of training, of one seed of the two runs only.
  """
  sentences, singles, score = [], False, group.score
  for regime in dict.fromkeys(gain.arm.regime for gain in group.gains if gain.arm.pretrained):
    gains = [g for g in group.gains if g.arm.regime == regime and g.against.causal == g.arm.causal]
    gains = gains or [g for g in group.gains if g.arm.regime == regime]
    first, rest = gains[0], [g for g in gains[1:] if g.arm is gains[0].arm]
    shown = [score.show(_mean_value(side, first.seeds)) for side in (first.against, first.arm)]
    single = len(first.seeds) == 1
    text = (_answer_of_a_pair if single else _answer_of_seeds)(group, first, *shown)
    singles |= single
    for other in rest:
      text += f'; against {other.against.name} the difference is {score.gain(other.interval)}'
    sentences.append(text + '.')
  if singles:
    sentences.append(
      'One seed compares two runs, not two ways of training: another seed may reverse the result, and only '
      'several seeds can show what self-pretraining does here.'
    )
  if not sentences:
    best = max(group.arms, key=lambda arm: arm.score.estimate)
    known = f' ({score.limits(best.score)})' if best.score.known else ''
    sentences.append(
      f'{group.model} on {group.task}: {best.name} reaches a test {score.name} of '
      f'{score.show(best.score.estimate)}{known}; no pair of runs with and without '
      'self-pretraining can be compared yet.'
    )
  return sentences


def _answer_of_a_pair(group, gain, base, now):
  score, significant = group.score, gain.interval.excludes_zero
  return (
    f'The run of {group.model} on {group.task} with {gain.arm.name} (seed {gain.seeds[0]}) has a test '
    f'{score.name} of {now}, the one with {gain.against.name} of {base}: {score.gain(gain.interval)}'
    + ('' if significant else ', so these two runs do not differ significantly')
  )


def _answer_of_seeds(group, gain, base, now):
  score = group.score
  what, over = f'{gain.arm.name[0].upper()}{gain.arm.name[1:]}', gain.against.name
  moved = 'raised' if gain.interval.estimate > 0 else 'lowered'
  moved = moved if gain.interval.excludes_zero else 'left'
  change = f'from {base} ({over}) to {now}' if moved != 'left' else f'at {now} against {base} ({over})'
  return (
    f'{what} {moved} the test {score.name} of {group.model} on {group.task} {change}: '
    f'{score.gain(gain.interval)}, {len(gain.seeds)} seeds'
    + (', so the difference is not significant' if moved == 'left' else '')
  )


def _mean_value(arm, seeds):
  return sum(run.value for run in arm.runs if run.seed in seeds) / len(seeds)


def duration(seconds):
  """Seconds in the two largest units that are not zero."""
  if seconds is None:
    return '\u2013'
  if seconds < 60:
    return f'{seconds:.1f} s' if seconds < 10 else f'{seconds:.0f} s'
  if seconds >= 1000 * 3600:
    days = seconds / 86400
    return f'{days:,.0f} days' if days < 1000 else f'{days / 365.25:,.3g} years'
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
