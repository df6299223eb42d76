"""The findings of a study as sentences to act on, the most important first."""

import collections

from lra_spt.report import gaps
from lra_spt.report.comparisons import Findings, Gap, Growth, Pair
from lra_spt.report.scores import minus

EACH = 3  # so many gains of a kind get a sentence each, more are counted
HOLM = 'p adjusted after Holm, 5 %'
NONE_YET = (
  'There is no pair of runs with and without self-pretraining on the same model and task to compare yet.'
)
ONE_SEED = (
  'One seed compares two runs, not two ways of training: another seed may turn it round, and only several '
  'seeds can tell what self-pretraining does here.'
)


def sentences(found: Findings) -> list[str]:
  """At least one."""
  if not found.pairs:
    return [NONE_YET, *_successes(found)]
  said = []
  for regime, pairs in _by(found.pairs, lambda pair: pair.regime):
    said += _gains(regime, [pair for pair in pairs if pair.main])
    said += _means(regime, [mean for mean in found.means if mean.regime == regime])
    said += _growths([growth for growth in found.growths if growth.regime == regime])
    said += _over_others(regime, pairs)
    said += _leads([gap for gap in found.gaps if gap.leader.regime == regime])
    said += [_ranking(ranking) for ranking in found.rankings if ranking.regime == regime]
  said += _successes(found)
  if any(len(pair.seeds) == 1 for pair in found.pairs):
    said.append(ONE_SEED)
  return said + _smallest(found)


def _by(items, key):
  kinds = dict.fromkeys(map(key, items))
  return [(kind, [item for item in items if key(item) == kind]) for kind in kinds]


def _spt(regime):
  return f'{regime} self-pretraining'


def _from_scratch(one) -> str:
  """What the runs of a Gap or Ranking before self-pretraining are called: 'from scratch in the causal
  form'."""
  return f'from scratch in the {one.form}' if one.form else 'from scratch'


def shown_p(p: float) -> str:
  """'0.032', '< 0.001'; with a digit more where that would hide that it is above 0.05."""
  digits = 4 if 0.05 < p < 0.0505 else 3 if p < 0.1 else 2
  return '< 0.001' if p < 0.001 else f'{p:.{digits}f}'


def size(score, value: float) -> str:
  """A difference without its sign where that is plus: '3.1' (points) or '0.0310'."""
  return score.signed(value).lstrip('+')


def _gains(regime, pairs):
  if len(pairs) <= EACH:
    return [_gain(pair) for pair in pairs]
  told = any(pair.told for pair in pairs)
  counted = f'{_spt(regime).capitalize()} {_counted(pairs)}.'
  return [counted, *([_gain(max(pairs, key=clearest), 'Clearest: ')] if told else [])]


def _means(regime, means):
  """One sentence on the mean gain of the models, place by place."""

  def listed(chosen):
    return _listed(
      [
        f'{mean.score.signed(mean.interval.estimate)}{_points(mean.score)} on '
        f'{mean.place} ({len(mean.pairs)} models, {f"over the {mean.form}, " if mean.form else ""}'
        f'{mean.score.signed_limits(mean.interval)})'
        for mean in chosen
      ]
    )

  by_way = {way: [mean for mean in means if mean.direction == way] for way in ('better', 'worse', '')}
  parts = [
    f'{verb} the test score by {listed(by_way[way])}'
    for way, verb in (('better', 'raises'), ('worse', 'lowers'))
    if by_way[way]
  ]
  if by_way['']:
    parts.append(f'cannot be told to change {"it" if parts else "the test score"}: {listed(by_way[""])}')
  if not parts:
    return []
  limits = f'95 % intervals, for these models and not for others; {HOLM}{_alone(means)}'
  return [f'Averaged over the models of a task, {_spt(regime)} {_listed(parts)} ({limits}).']


def _over_others(regime, pairs):
  """On scratch arms beside the usual one, such as those that have the compute of both stages, by what their
  rows have and that of the usual one has not."""
  rows = {id(pair.pretrained): pair.scratch.record['row'] for pair in pairs if pair.main}
  others = [pair for pair in pairs if not pair.main]
  arms = dict.fromkeys(
    pair.scratch.record['row'].removeprefix(rows.get(id(pair.pretrained), '')).lstrip(' ,') for pair in others
  )
  return [f'Over {_listed([*arms])}, {_spt(regime)} {_counted(others)}.'] if others else []


def _counted(pairs):
  better, worse = (sum(p.told and sign * p.interval.estimate > 0 for p in pairs) for sign in (1, -1))
  single = all(len(pair.seeds) == 1 for pair in pairs)
  what = ('pairs of single runs' if single else 'comparisons') + _with(pairs)
  rest = len(pairs) - better - worse
  parts = [f'raises the test score in {better} of {len(pairs)} {what}'] if better else []
  parts += [f'lowers it in {worse}' if better else f'lowers the test score in {worse}'] if worse else []
  parts += [f'cannot be told to change it in {rest}'] if rest and parts else []
  parts = parts or [f'cannot be told to change the test score in any of {len(pairs)} {what}']
  return f'{_listed(parts)} ({HOLM}{_alone(pairs)})'


def _with(pairs):
  """With which forms the pairs compare: ' with the causal form', ' (2 with the causal form, ...)'."""
  counts = collections.Counter(pair.form for pair in pairs)
  if len(counts) == 1:
    return f' with the {pairs[0].form}' if pairs[0].form else ''
  return f' ({", ".join(f"{count} with the {form}" for form, count in counts.items())})'


def clearest(one):
  """Sort key of Pairs or Gaps, least clear first."""
  return -one.adjusted, abs(one.interval.estimate)


def _alone(found):
  """How many that cannot be told among all could be told if they were the only comparison."""
  count = sum(one.interval.excludes_zero and not one.told for one in found)
  return f'; {count} more would be told on {"its" if count == 1 else "their"} own' if count else ''


def _end(one, what):
  """How a sentence on one comparison ends."""
  if one.told:
    return '.'
  if one.interval.excludes_zero:
    return f'; among all comparisons this may be chance (p after Holm {shown_p(one.adjusted)}).'
  return f', so {what}.'


def _listed(parts):
  return ', '.join(parts[:-1]) + ' and ' * (len(parts) > 1) + parts[-1]


def _gain(pair: Pair, before=''):
  score = pair.score
  base, now = map(score.show, pair.values())
  if pair.form:
    base += f' ({pair.form})'
  if (column := pair.scratch.record['column']) != pair.pretrained.record['column']:
    base += f' ({column})'
  sure = score.gain(pair.interval)
  if len(pair.seeds) == 1:
    return (
      f'{before}{pair.name} on {pair.place} has a test {score.name} of {now} in its run with '
      f'{_spt(pair.regime)} and of {base} in that from scratch (seed {pair.seeds[0]}): {sure}'
      + _end(pair, 'these two runs cannot be told apart')
    )
  moved = 'raises' if pair.interval.estimate > 0 else 'lowers'
  change = f'{moved} the test {score.name} of {pair.name} on {pair.place} from {base} to {now}'
  if not pair.interval.excludes_zero:
    change = f'leaves {pair.name} on {pair.place} at {now} against {base} from scratch'
  spt = _spt(pair.regime)
  return f'{before}{spt if before else spt.capitalize()} {change}: {sure}, {len(pair.seeds)} seeds' + _end(
    pair, 'no difference can be told'
  )


def _growths(growths):
  """On how gains differ from those at the right end of the chart."""
  if not growths:
    return []
  said = [_growth(max(growths, key=clearest))]
  if len(growths) > 1:
    gains = f'{len(growths)} other gains of {_spt(growths[0].regime)}'
    changes = _changed(growths) or 'none can be told to differ'
    said.append(f'Against the right end of the chart, of {gains} {changes} ({HOLM}{_alone(growths)}).')
  return said


def _growth(growth: Growth):
  score = growth.score
  return (
    f'The gain of {growth.here.name} is {score.signed(growth.gain)}{_unit(score)} on {growth.here.place} and '
    f'{score.signed(growth.end_gain)} on {growth.end.place}{_change(growth, "gain")}'
  )


def _unit(score):
  return ' points' if score.is_share else f' of {score.name}'


def _change(one, what):
  """How a sentence on a Gap or Growth ends: its size with an interval, both as of its absolute value."""
  several = '' if len(one.seeds) > 1 else f' (single runs, seed {one.seeds[0]})'
  limits = one.interval.low, one.interval.high
  if one.interval.estimate < 0:
    limits = -limits[1], -limits[0]
  change, low, high = (size(one.score, value) for value in (abs(one.interval.estimate), *limits))
  end = _end(one, f'no change of the {what} can be told')
  return f'{several}: {one.way} by {change} (95 % interval {low} to {high}){end}'


def _changed(found):
  """'2 are larger, 1 is smaller and of 3 it cannot be told'; '' where it can be told of none."""
  counts = {way: sum(one.told and one.way == way for one in found) for way in found[0].ways}
  parts = [f'{count} {"is" if count == 1 else "are"} {way}' for way, count in counts.items() if count]
  rest = len(found) - sum(counts.values())
  return _listed([*parts, *([f'of {rest} it cannot be told'] if rest else [])]) if parts else ''


def _leads(gaps):
  if not gaps:
    return []
  said = [_lead(max(gaps, key=clearest))]
  if len(gaps) > 1:
    changes = _changed(gaps) or 'none can be told to change'
    said.append(
      f'Of {len(gaps)} leads of one model over another, {changes} after '
      f'{_spt(gaps[0].leader.regime)} ({HOLM}{_alone(gaps)}).'
    )
  return said


def _lead(gap: Gap):
  before, after = (size(gap.score, value) for value in (gap.before, gap.after))
  return (
    f'The lead of {gap.leader.name} over {gap.other.name} on {gap.place} is {before}{_unit(gap.score)} '
    f'{_from_scratch(gap)} and {after} after {_spt(gap.regime)}{_change(gap, "lead")}'
  )


def _ranking(ranking):
  low, high = ranking.models
  models = str(low) if low == high else f'{low} to {high}'
  where = ranking.places[0] if len(ranking.places) == 1 else f'{len(ranking.places)} tasks'
  tau = ranking.tau
  if not tau.known:
    spt = _spt(ranking.regime)
    return f'The {models} models on {where} have no order {_from_scratch(ranking)} that {spt} could change.'
  limits, agree = minus(f'{tau.low:.2f} to {tau.high:.2f}'), minus(f'{tau.estimate:.2f}')
  return (
    f'The order of the {models} models on {where} {_from_scratch(ranking)} and after {_spt(ranking.regime)}: '
    f'Kendall\u2019s \u03c4 = {agree} (1 is the same order, \u22121 the opposite; {limits} in 95 % of '
    'resamples, whose noise alone draws it towards 0).'
  )


def _successes(found):
  failing = [one for one in found.successes if one.beating < one.total]
  if not failing:
    return []
  failing.sort(key=lambda one: one.rate.estimate)
  parts = [
    f'{one.cell.record["row"]} on {one.place} in {one.beating or "none"} of {one.total}'
    f'{" seeds" if number == 0 else ""}'
    for number, one in enumerate(failing[:EACH])
  ]
  parts += [f'{len(failing) - EACH} more cells not in all'] if len(failing) > EACH else []
  return [f'Better than the constant answer (p below {gaps.CHANCE_P:.6f}) is {_listed(parts)}.']


def _smallest(found):
  """One sentence on what the seeds there are can tell."""
  shares = [one for one in found.smallest if one.score.is_share] or list(found.smallest)
  if not shares:
    return []
  ends = [min(shares, key=lambda one: one.now), max(shares, key=lambda one: one.now)]
  ends = ends if ends[0] is not ends[1] else ends[:1]
  alone = ' to '.join(
    f'{size(one.score, one.now)}{_points(one.score)} on {one.place} '
    f'({one.seeds} seed{"s" if one.seeds > 1 else ""})'
    for one in ends
  )
  what = 'of two runs' if all(one.seeds == 1 for one in ends) else 'of self-pretraining'
  planned, among = len(found.pairs) + found.unrun['pairs'], ''
  if planned > 1:
    sizes = ' to '.join(size(one.score, one.among) for one in ends) + _points(ends[-1].score)
    among = f' by a test on its own, and smaller than {sizes} among all {planned}'
  return [
    f'Gains {what} smaller than {alone} would be missed in more than one study of five{among}: '
    '\u201ccannot be told\u201d does not mean that there is no difference.'
  ]


def _points(score):
  return ' points' if score.is_share else ''
