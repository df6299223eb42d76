"""The findings of a study as sentences to act on, the most important first."""

import collections

from lra_spt.report.statistics import bootstrap as gaps
from lra_spt.report.statistics.scores import minus
from lra_spt.report.study.comparisons import Gap, Growth, Pair, StudyFindings

EACH = 3  # so many gains of a kind get a sentence each, more are counted
HOLM = 'Holm-adjusted p \u2264 0.05'
NONE_YET = (
  'No pair of runs with and without self-pretraining of the same model on the same task can be compared yet.'
)
ONE_SEED = (
  'One seed compares two runs, not two ways of training: another seed may reverse the result, and only '
  'several seeds can show what self-pretraining does here.'
)


def sentences(found: StudyFindings) -> list[str]:
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
  significant = any(pair.significant for pair in pairs)
  counted = f'{_spt(regime).capitalize()} {_counted(pairs)}.'
  return [counted, *([_gain(max(pairs, key=clearest), 'Clearest: ')] if significant else [])]


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
  if not means:
    return []
  said = _listed(parts or ['does not change the test score significantly'])
  if by_way['']:
    said += f'{"; not significant" if parts else ""}: {listed(by_way[""])}'
  limits = f'95 % intervals, for these models and not for others; {HOLM}{_alone(means)}'
  return [f'Averaged over the models of a task, {_spt(regime)} {said} ({limits}).']


def _over_others(regime, pairs):
  """On scratch arms beside the usual one, such as those that have the compute of both stages, by what their
  rows have and that of the usual one has not."""
  rows = {id(pair.pretrained): pair.scratch.record['row'] for pair in pairs if pair.main}
  others = [pair for pair in pairs if not pair.main]
  arms = dict.fromkeys(
    pair.scratch.record['row'].removeprefix(rows.get(id(pair.pretrained), '')).lstrip(' ,') for pair in others
  )
  if not others:
    return []
  return [f'Compared with scratch ({_listed([*arms])}), {_spt(regime)} {_counted(others)}.']


def _counted(pairs):
  better, worse = (sum(p.significant and sign * p.interval.estimate > 0 for p in pairs) for sign in (1, -1))
  single = all(len(pair.seeds) == 1 for pair in pairs)
  what = ('pairs of single runs' if single else 'comparisons') + _with(pairs)
  rest = len(pairs) - better - worse
  moved = [(verb, count) for verb, count in (('raises', better), ('lowers', worse)) if count]
  if not moved:
    said = f'changes the test score significantly in none of {len(pairs)} {what}'
  else:
    (verb, count), *others = moved
    said = f'significantly {verb} the test score in {count} of {len(pairs)} {what}'
    said += ''.join(f' and {verb} it in {count}' for verb, count in others)
    said += f'; {rest} {"is" if rest == 1 else "are"} not significant' if rest else ''
  return f'{said} ({HOLM}{_alone(pairs)})'


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
  """How many that are not significant among all would be if they were the only comparison."""
  count = sum(one.interval.excludes_zero and not one.significant for one in found)
  return f'; {count} more would be significant on {"its" if count == 1 else "their"} own' if count else ''


def _end(one, what):
  """How a sentence on one comparison ends."""
  if one.significant:
    return '.'
  if one.interval.excludes_zero:
    return f'; among all comparisons this is not significant (Holm-adjusted p {shown_p(one.adjusted)}).'
  return f', so {what}.'


def _listed(parts):
  return ', '.join(parts[:-1]) + ' and ' * (len(parts) > 1) + parts[-1]


def _gain(pair: Pair, before=''):
  score = pair.score
  base, now = map(score.show, pair.values())
  if pair.form:
    base += f' ({pair.form})'
  if (column := pair.scratch.record['column']) not in ('scratch', pair.pretrained.record['column']):
    base += f' ({column})'
  sure = score.gain(pair.interval)
  if len(pair.seeds) == 1:
    return (
      f'{before}{pair.name} on {pair.place} has a test {score.name} of {now} in its run with '
      f'{_spt(pair.regime)} and of {base} in that from scratch (seed {pair.seeds[0]}): {sure}'
      + _end(pair, 'these two runs do not differ significantly')
    )
  moved = 'raises' if pair.interval.estimate > 0 else 'lowers'
  change = f'{moved} the test {score.name} of {pair.name} on {pair.place} from {base} to {now}'
  if not pair.interval.excludes_zero:
    change = f'leaves {pair.name} on {pair.place} at {now} against {base} from scratch'
  spt = _spt(pair.regime)
  return f'{before}{spt if before else spt.capitalize()} {change}: {sure}, {len(pair.seeds)} seeds' + _end(
    pair, 'the difference is not significant'
  )


def _growths(growths):
  """On how gains differ from those at the right end of the chart."""
  if not growths:
    return []
  said = [_growth(max(growths, key=clearest))]
  if len(growths) > 1:
    gains = f'{len(growths)} other gains of {_spt(growths[0].regime)}'
    changes = _changed(growths, 'differ')
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
  end = _end(one, f'the change of the {what} is not significant')
  return f'{several}: {one.way} by {change} (95 % interval {low} to {high}){end}'


def _changed(found, verb):
  """'2 are larger, 1 is smaller and 3 do not differ significantly', or 'none differs significantly'."""
  counts = {way: sum(one.significant and one.way == way for one in found) for way in found[0].ways}
  parts = [f'{count} {"is" if count == 1 else "are"} {way}' for way, count in counts.items() if count]
  if not parts:
    return f'none {verb}s significantly'
  rest = len(found) - sum(counts.values())
  parts += [f'{rest} {"does" if rest == 1 else "do"} not {verb} significantly'] if rest else []
  return _listed(parts)


def _leads(gaps):
  if not gaps:
    return []
  said = [_lead(max(gaps, key=clearest))]
  if len(gaps) > 1:
    said.append(
      f'Of {len(gaps)} leads of one model over another, {_changed(gaps, "change")} after '
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
    return f'The {models} models on {where} have no ranking {_from_scratch(ranking)} that {spt} could change.'
  limits, agree = minus(f'{tau.low:.2f} to {tau.high:.2f}'), minus(f'{tau.estimate:.2f}')
  return (
    f'The rankings of the {models} models on {where} {_from_scratch(ranking)} and after '
    f'{_spt(ranking.regime)} agree with a Kendall\u2019s \u03c4 of {agree} (1: the same, \u22121: reversed; '
    f'{limits} in 95 % of resamples; resampling adds noise, which biases these limits towards 0).'
  )


def _successes(found):
  failing = [one for one in found.successes if one.beating < one.total]
  if not failing:
    return []
  failing.sort(key=lambda one: one.rate.estimate)
  parts = [
    f'{one.beating or "none"} of {one.total} for {one.cell.record["row"]} on {one.place}'
    for one in failing[:EACH]
  ]
  more = len(failing) - EACH
  parts += [f'not all in {more} more cell{"s" if more > 1 else ""}'] if more > 0 else []
  return [f'Seeds that beat the constant answer (p below {gaps.CHANCE_P:.6f}): {_listed(parts)}.']


def _smallest(found):
  """Two sentences on the power of the tests with the seeds there are."""
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
    among = f'; as one of {planned} comparisons, gains smaller than {sizes}'
  return [
    f'A test on its own would miss gains {what} smaller than {alone} in more than one study of five{among}. '
    '\u201cNot significant\u201d does not mean that there is no difference.'
  ]


def _points(score):
  return ' points' if score.is_share else ''
