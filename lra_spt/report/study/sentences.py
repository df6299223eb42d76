"""At most five sentences on a table: the conclusions, the most important first."""

from lra_spt.report.study.comparisons import StudyFindings

MOST = 5
HOLM = 'Holm-adjusted p \u2264 0.05'
ONE_SEED = (
  'One seed compares two runs, not two ways of training: another seed may reverse the result, whatever p '
  'McNemar\u2019s test gives to the two runs.'
)


def sentences(findings: StudyFindings, cells=()) -> list[str]:
  """The conclusions of a table with these cells."""
  lines = []
  for regime in dict.fromkeys(pair.regime for pair in findings.pairs):
    lines.append(_gains(regime, [pair for pair in findings.pairs if pair.regime == regime and pair.main]))
  lines += _means(findings.means)
  changes = _changes('gain along the chart', findings.growths) or _changes('lead of a model', findings.gaps)
  lines += changes + ([] if findings.pairs else _best(cells, findings.apart))
  lines += [] if changes else _differences(findings.differences)
  lines += _failing(findings.successes)
  if any(len(pair.seeds) == 1 for pair in findings.pairs):
    lines.append(ONE_SEED)
  return (lines + _power(findings))[:MOST]


def headline(findings: StudyFindings) -> str:
  """Returns the finding in one line per regime, such as 'Masked self-pretraining 81.4 %, same compute from
  scratch 58.1 %: +23.3 points, one seed.'; '' without a comparison.

  It compares with arms of the same compute where there are some, else with the first baseline.
  """
  tied = [pair for pair in findings.pairs if 'compute-tied' in pair.scratch.training]
  against = 'same compute from scratch' if tied else 'from scratch'
  lines, pairs = [], tied or [pair for pair in findings.pairs if pair.main]
  for regime in dict.fromkeys(pair.regime for pair in pairs):
    lines.append(_headline(regime, against, [pair for pair in pairs if pair.regime == regime]))
  return ' '.join(lines)


def _headline(regime, against, pairs):
  what = f'{regime.capitalize()} self-pretraining'
  first, fewest = pairs[0], min(len(pair.seeds) for pair in pairs)
  seeds = 'one seed' if fewest == 1 else f'{fewest} seeds'
  if len(pairs) == 1:
    before, after = map(first.score.show, first.values())
    gain = f'{first.score.signed(first.interval.estimate)}{_unit(first.score)}'
    doubt = '' if first.significant else ', not significant'
    return f'{what} {after}, {against} {before}: {gain}, {seeds}{doubt}.'
  others = 'the same compute from scratch' if against.startswith('same') else 'training from scratch'
  better, worse = (sum(pair.direction == way for pair in pairs) for way in ('better', 'worse'))
  gains = sorted(pair.interval.estimate for pair in pairs)
  ends = [first.score.signed(gain) for gain in (gains[0], gains[-1])]
  of = f', gains of {ends[0]} to {ends[1]}{_unit(first.score)}' * (len({p.score for p in pairs}) == 1)
  return (
    f'{what} against {others}: {better} of {len(pairs)} significantly better, {worse} worse{of}, {seeds}.'
  )


def shown_p(p: float) -> str:
  """'0.032', '< 0.001'; with a digit more where that would hide that it is above 0.05."""
  digits = 4 if 0.05 < p < 0.0505 else 3 if p < 0.1 else 2
  return '< 0.001' if p < 0.001 else f'{p:.{digits}f}'


def size(score, value: float) -> str:
  """A difference without its sign where that is plus: '3.1' (points) or '0.0310'."""
  return score.signed(value).lstrip('+')


def clearest(one):
  """Sort key of comparisons, least clear first."""
  return -one.adjusted, abs(one.interval.estimate)


def _effect(one) -> str:
  limits = one.score.signed_limits(one.interval)
  return f'{one.score.signed(one.interval.estimate)}{_unit(one.score)} ({limits})'


def _unit(score):
  return ' points' if score.in_percent else f' of {score.name}'


def _over(pair):
  return f', over the {pair.form}' if pair.form else ''


def _gains(regime, pairs):
  best = max(pairs, key=clearest)
  before, after = map(best.score.show, best.values())
  seeds = f'{len(best.seeds)} seeds' if len(best.seeds) > 1 else f'seed {best.seeds[0]}'
  seeds += f' (McNemar p {shown_p(best.single.p)})' if best.single else ''
  one = f'{best.name} on {best.place}, {before} \u2192 {after}, {_effect(best)}, {seeds}{_over(best)}'
  if len(pairs) == 1:
    return f'{regime.capitalize()} self-pretraining: {one}' + (
      '.' if best.significant else '; not significant.'
    )
  better, worse = (sum(pair.direction == way for pair in pairs) for way in ('better', 'worse'))
  return (
    f'{regime.capitalize()} self-pretraining raises {better} and lowers {worse} of {len(pairs)} scores '
    f'significantly ({HOLM}); the clearest: {one}.'
  )


def _means(means):
  if not means:
    return []
  listed = [
    f'{mean.place} {_effect(mean)}' + (f' by {mean.regime}{_over(mean)}' if mean.regime != 'masked' else '')
    for mean in means[:6]
  ]
  return [f'The mean gain of all models of a task: {"; ".join(listed)}.']


def _changes(what, changes):
  if not changes:
    return []
  first, second = changes[0].ways
  counts = [
    sum(one.significant and one.verdict.startswith(way) for one in changes) for way in (first, second)
  ]
  best = max(changes, key=clearest)
  here, there = (
    (f'{best.here.name} on {best.here.place}', f'than on {best.end.place}')
    if hasattr(best, 'end')
    else (
      f'{best.leader.name} over {best.other.name} on {best.place}',
      f'after {best.regime} self-pretraining',
    )
  )
  way = best.ways[best.interval.estimate < 0]
  limits = sorted(abs(limit) for limit in (best.interval.low, best.interval.high))
  if not best.interval.excludes_zero:
    return [f'No {what} changes significantly, of {len(changes)} ({HOLM}).']
  return [
    f'Changes of a {what}: {counts[0]} {first} and {counts[1]} {second} of {len(changes)} ({HOLM}); the '
    f'clearest: {here}, {way} {there} by {size(best.score, abs(best.interval.estimate))} '
    f'({" to ".join(size(best.score, limit) for limit in limits)}).'
  ]


def _best(cells, apart):
  arms = [cell for cell in cells if cell.arm]
  if not arms:
    return []
  best = max(arms, key=lambda cell: cell.arm.score.estimate)
  limits = f' ({best.score.limits(best.arm.score)})' if best.arm.score.known else ''
  reached = f'{best.row} reaches a test {best.score.name} of {best.text}{limits} on {best.column}'
  if apart:
    return [f'{reached}. {apart[0]}']
  return [f'{reached}; no pair of runs with and without self-pretraining can be compared yet.']


def _differences(differences):
  if not differences:
    return []
  best, count = max(differences, key=clearest), sum(one.significant for one in differences)
  return [
    f'Significant differences between models that were trained alike: {count} of {len(differences)} '
    f'({HOLM}); the clearest: {best.names[0]} against {best.names[1]} on {best.place}, {_effect(best)}.'
  ]


def _failing(successes):
  failing = sorted((one for one in successes if one.beating < one.total), key=lambda one: one.rate.estimate)
  if not failing:
    return []
  listed = [f'{one.beating} of {one.total} for {one.cell.row} on {one.place}' for one in failing[:3]]
  more = f' and fewer than all in {len(failing) - 3} more cells' if len(failing) > 3 else ''
  constant = dict.fromkeys(one.cell.score.constant for one in failing)
  return [f'Seeds that beat the constant answer ({" or ".join(constant)}): {", ".join(listed)}{more}.']


def _power(findings):
  shares = [one for one in findings.smallest if one.score.in_percent] or list(findings.smallest)
  if not shares:
    return []
  worst = max(shares, key=lambda one: one.now)
  return [
    f'Gains below {size(worst.score, worst.now)}{_unit(worst.score)} on {worst.place} would be missed in '
    f'more than one study of five (a test on its own, {worst.seeds} seed{"s" * (worst.seeds > 1)}): '
    '\u201cnot significant\u201d does not mean that there is no difference.'
  ]
