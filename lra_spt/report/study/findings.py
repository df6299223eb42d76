"""Conclusions from the cells of a table: gains and how they change, leads, differences, rankings, power."""

import collections
import dataclasses
import hashlib
import itertools
import math
import zlib

import numpy as np

from lra_spt.report.published import TASK_NAMES
from lra_spt.report.runs.arm_key import model_name
from lra_spt.report.statistics import bootstrap
from lra_spt.report.statistics import intervals as statistics
from lra_spt.report.study import baselines
from lra_spt.report.study.arms import constant_score
from lra_spt.report.study.comparisons import (
  Difference,
  Gap,
  Growth,
  MeanGain,
  Pair,
  Ranking,
  Smallest,
  StudyFindings,
  Success,
  mean_score,
)

MORE_SEEDS = (3, 5, 10)  # for which the smallest detectable difference is shown
FEWEST_MODELS = 3  # of a ranking
OTHER_EXAMPLES = 'they were tested on different examples.'


def findings(cells) -> StudyFindings:
  """Returns all conclusions that the finished runs of a table's cells allow."""
  cells = tuple(cells)
  finished = [cell for cell in cells if cell.arm]
  tested = {cell: _tested(cell) for cell in finished}
  places = _places(finished)
  made, apart = [], [_all_diverged(cell) for cell in cells if cell.diverged and not cell.arm]
  for cell in finished:
    for number, base in enumerate(baselines.of(cell, cells) if cell.arm.pretrained else ()):
      pair, why = _pair(cell, base, tested, places[cell])
      apart += [why] if pair is None else []
      made += [] if pair is None else [dataclasses.replace(pair, main=not number)]
  mismatched = any(why.endswith(OTHER_EXAMPLES) for why in apart)
  several = [pair for pair in made if len(pair.seeds) > 1]
  if several and (left := len(made) - len(several)):
    made = several
    one = 'pair of cells shares one seed' if left == 1 else 'pairs of cells share one seed'
    apart.append(f'{left} {one}, others several: those with one seed are not compared.')
  pairs = _with_names(made)
  main = [pair for pair in pairs if pair.main]
  unrun = _unrun(cells, pairs)
  pairs, means, growths, leads, differences = _estimated(
    unrun,
    pairs,
    _in_order(main, [mean for alike in _alike(main) for mean in _means(alike, tested)]),
    _growths(main, tested),
    [gap for alike in _alike(main) for gap in _gaps(alike, tested)],
    list(_differences(finished, tested, places)),
  )
  main = [pair for pair in pairs if pair.main]
  return StudyFindings(
    pairs,
    means,
    growths,
    leads,
    differences,
    tuple(_rankings(main, tested)),
    tuple(_smallest(main, len(pairs) + unrun['pairs'])),
    tuple(_successes(finished, places)),
    tuple(apart),
    mismatched,
    unrun,
  )


def _all_diverged(cell):
  seeds = 'seed' if len(cell.diverged) == 1 else 'seeds'
  return f'{_called(cell)} is not compared: its {seeds} diverged to non-finite numbers.'


def _unrun(cells, pairs) -> dict[str, int]:
  """The numbers of gains, means, growths and leads that a study is still to have.

  They belong to cells of its plan that have no run, or that are not compared because a seed diverged. p
  counts them from the start, so a significant result stays significant when they come. A cell is to have a
  gain over each scratch cell that is planned beside it. A folder of runs that are no study plans nothing.
  """
  # A cell without a score is run, and never compared.
  planned = [cell for cell in cells if cell.plan.config and (cell.arm or not cell.unscored)]
  paired = {pair.pretrained for pair in pairs}
  waiting = {cell.column for cell in planned if not cell.arm and cell.regime == 'scratch'}
  diverged = {cell.column for cell in planned if cell.diverged}
  unrun = [
    cell
    for cell in planned
    if cell.regime != 'scratch' and cell not in paired and (not cell.arm or cell.column in waiting | diverged)
  ]
  last = max((cell.record['x'] for cell in planned if cell.record.get('x') is not None), default=None)
  growths = [cell for cell in unrun if cell.record.get('x') is not None and cell.record['x'] < last]
  have, more = (collections.Counter((cell.column, cell.regime) for cell in some) for some in (paired, unrun))
  sizes = [(have[place], have[place] + more[place]) for place in more]
  gains = sum(max(1, len(baselines.planned(cell, planned))) for cell in unrun)
  gains += sum(not base.arm for cell in paired for base in baselines.planned(cell, planned))
  return {
    'pairs': gains,
    'means': sum(before < 2 <= after for before, after in sizes),
    'growths': len(growths),
    'gaps': sum(math.comb(after, 2) - math.comb(before, 2) for before, after in sizes),
  }


def _estimated(unrun, pairs, *of_pairs):
  """Returns the comparisons with Estimates in place of their Parts. All comparisons on a test set share the
  resampled examples. p is adjusted within each kind, which includes its `unrun` comparisons."""
  by_set = {}
  for one in itertools.chain(pairs, *of_pairs):
    by_set.setdefault(one.test_set, []).append(one)
  estimates = {}
  for test_set, same in by_set.items():
    made = bootstrap.estimates(
      [one.estimate for one in same],
      [one.bounds for one in same],
      what=same[0].unit_name,
      stream=zlib.crc32(test_set.encode()),
    )
    estimates |= zip(map(id, same), made, strict=True)

  def finished(kind, more, referring=lambda one: {}):
    adjusted = bootstrap.holm([estimates[id(one)].p for one in kind], more)
    return tuple(
      dataclasses.replace(one, estimate=estimates[id(one)], adjusted=p, **referring(one))
      for one, p in zip(kind, adjusted, strict=True)
    )

  counts = [*unrun.values(), 0]  # no differences are planned
  new = finished(pairs, counts[0])
  by_old = dict(zip(map(id, pairs), new, strict=True))

  def to_new(one):
    return {'pairs': tuple(by_old[id(pair)] for pair in one.pairs)} if hasattr(one, 'pairs') else {}

  return new, *(finished(kind, more, to_new) for kind, more in zip(of_pairs, counts[1:], strict=True))


def _places(cells) -> dict:
  """{cell: the name of its place}: its column, or its task where the column names its regime."""
  tasks, columns = collections.defaultdict(set), collections.defaultdict(set)
  for cell in cells:
    tasks[cell.runs[0].task].add(cell.column)
    columns[cell.column].add(cell.runs[0].task)
  names = {}
  for cell in cells:
    task = cell.runs[0].task
    name = TASK_NAMES.get(task, task)
    if cell.column == cell.regime:
      names[cell] = name
    else:
      alone = len(tasks[task]) == len(columns[cell.column]) == 1 or name in cell.column
      names[cell] = cell.column if alone else f'{name}, {cell.column}'
  return names


def _with_names(pairs):
  """Pairs under the names of their models, or of their rows where one model has several in a place."""

  def key(pair):
    return pair.regime, pair.name, pair.place, id(pair.scratch) * (not pair.main)

  count = collections.Counter(map(key, pairs))
  return [
    dataclasses.replace(pair, name=pair.pretrained.row) if count[key(pair)] > 1 else pair for pair in pairs
  ]


def _tested(cell):
  """{seed: (test set, units)} of the runs with predictions of at least two units."""
  units_of = {}
  for run in cell.runs:
    if run.units is not None and len(run.units) > 1:
      digest = hashlib.blake2b(digest_size=8)
      for part in (*run.predictions[:2], run.group_N):
        digest.update(b'' if part is None else part.tobytes())
      digest.update(str((run.result.get('fingerprints') or {}).get('data')).encode())
      units_of[run.seed] = digest.hexdigest(), np.asarray(run.units, np.float64)
  return units_of


def _pair(cell, base, tested, place):
  """(Pair with Parts for an estimate, None), or (None, why the two are not compared)."""
  here, there = tested[cell], tested[base]
  seeds = tuple(sorted(here.keys() & there.keys()))
  what = f'{_called(cell)} and {_called(base)} are not compared'
  if diverged := [side for side in (cell, base) if side.diverged]:
    seed = diverged[0].diverged[0]
    return None, (
      f'{what}: seed {seed} of {_called(diverged[0])} diverged to non-finite numbers, and a mean over '
      'the others would only include seeds that trained well.'
    )
  if not seeds:
    common = {run.seed for run in cell.runs} & {run.seed for run in base.runs}
    why = [run.why_no_units for run in (*cell.runs, *base.runs) if run.seed in common and run.why_no_units]
    return None, f'{what}: {why[0] if why else "they share no seed"}.'
  sets = {side[seed][0] for side in (here, there) for seed in seeds}
  if len(sets) > 1:
    return None, f'{what}: {OTHER_EXAMPLES}'
  units = [[side[seed][1] for seed in seeds] for side in (here, there)]
  single = None
  if len(seeds) == 1 and cell.score.counts and cell.runs[0].group_N is None:
    single = statistics.paired(units[1][0] > 0, units[0][0] > 0)
  name = model_name(cell.arm.model)
  return Pair(
    name, place, base, cell, seeds, sets.pop(), bootstrap.parts(units, (1, -1)), single=single
  ), None


def _called(cell):
  return f'{cell.row} ({cell.column})'


def _alike(pairs):
  """Lists of pairs that differ in the model only."""

  def key(pair):
    forms = pair.scratch.causal, pair.pretrained.causal
    return pair.place, pair.protocol, pair.score.key, pair.regime, pair.test_set, forms

  for _, same in itertools.groupby(sorted(pairs, key=key), key=key):
    same = list(same)
    # Two ways of pretraining one model do not tell models apart, so the first one stands for the model.
    yield list({id(pair.scratch): pair for pair in reversed(same)}.values())[::-1]


def _in_order(pairs, means):
  """Means in the order in which their places and regimes come in the table."""
  order = list(dict.fromkeys((pair.place, pair.regime) for pair in pairs))
  return sorted(means, key=lambda mean: order.index((mean.place, mean.regime)))


def _means(pairs, tested):
  """Yields the MeanGain, with Parts for its estimate, of two or more Pairs that all share a seed."""
  seeds = tuple(sorted(set.intersection(*({*pair.seeds} for pair in pairs))))
  if len(pairs) > 1 and seeds:
    sides = [cell for pair in pairs for cell in (pair.scratch, pair.pretrained)]
    cells = [np.stack([tested[cell][seed][1] for seed in seeds]) / len(pairs) for cell in sides]
    before, after = (sum(mean_score(cell, seeds) for cell in sides[n::2]) / len(pairs) for n in (0, 1))
    yield MeanGain(tuple(pairs), seeds, before, after, bootstrap.parts(cells, (-1, 1) * len(pairs)))


def _growths(pairs, tested):
  """Returns a Growth, with Parts for its estimate, of every Pair on a chart and the Pair of its model at the
  right end. That Pair has the same row, or is the only one there: all data may have a row of their own."""
  growths, alike = [], {}
  for pair in pairs:
    if pair.pretrained.record.get('x') is not None:
      key = pair.scratch.row, pair.protocol, pair.regime, pair.score.key, pair.test_set
      alike.setdefault(key, []).append(pair)
  for same in alike.values():
    last = max(pair.pretrained.record['x'] for pair in same)
    ends = [pair for pair in same if pair.pretrained.record['x'] == last]
    for here in (pair for pair in same if pair.pretrained.record['x'] < last):
      of_row = [end for end in ends if end.pretrained.row == here.pretrained.row]
      end, *others = of_row or ends
      seeds = tuple(sorted({*here.seeds} & {*end.seeds}))
      if seeds and not others:
        growths.append(_growth(here, end, seeds, tested))
  return growths


def _growth(here, end, seeds, tested):
  gain, end_gain = (mean_score(p.pretrained, seeds) - mean_score(p.scratch, seeds) for p in (here, end))
  signs = collections.Counter()
  for pair, sign in ((here, 1), (end, -1)):
    signs[pair.pretrained] += sign
    signs[pair.scratch] -= sign  # a cell of both gains cancels, and so does the chance of its seeds
  signs = {cell: sign for cell, sign in signs.items() if sign}
  parts = bootstrap.parts(
    [[tested[cell][seed][1] for seed in seeds] for cell in signs], tuple(signs.values())
  )
  return Growth((here, end), seeds, gain, end_gain, parts)


def _gaps(pairs, tested):
  """Yields a Gap, with Parts for its estimate, of every two Pairs that share a seed."""
  units = [(tested[pair.scratch], tested[pair.pretrained]) for pair in pairs]
  for (first, ours), (second, theirs) in itertools.combinations(zip(pairs, units, strict=True), 2):
    seeds = tuple(sorted({*first.seeds} & {*second.seeds}))
    if seeds:
      ends = [
        mean_score(a, seeds) - mean_score(b, seeds)
        for a, b in ((first.scratch, second.scratch), (first.pretrained, second.pretrained))
      ]
      sign = 1 if sum(ends) >= 0 else -1
      cells = [[cell[seed][1] for seed in seeds] for cell in (*ours, *theirs)]
      parts = bootstrap.parts(cells, (sign, -sign, -sign, sign))
      yield Gap((first, second)[::sign], seeds, sign * ends[0], sign * ends[1], parts)


def _differences(cells, tested, places):
  """Yields a Difference, with Parts for its estimate, of every two models that were trained alike and share a
  seed and its test examples. A model with several arms of one name is compared at equal budgets."""
  groups = {}
  for cell in cells:
    key = cell.key
    alike = cell.column, key.question.task, key.question.protocol, key.question.metric
    alike += key.question.data_fraction, key.regime, key.causal, cell.training
    groups.setdefault(alike, []).append(cell)
  for same in groups.values():
    twice = len({cell.arm.model for cell in same}) < len(same)
    for first, second in itertools.combinations(same, 2):
      if first.arm.model == second.arm.model or (twice and first.key.budget != second.key.budget):
        continue
      here, there = tested[first], tested[second]
      seeds = tuple(seed for seed in sorted(here.keys() & there.keys()) if here[seed][0] == there[seed][0])
      if seeds and len({here[seed][0] for seed in seeds}) == 1:
        parts = bootstrap.parts([[side[seed][1] for seed in seeds] for side in (here, there)], (1, -1))
        names = model_name(first.arm.model), model_name(second.arm.model)
        yield Difference((first, second), names, places[first], seeds, here[seeds[0]][0], parts)


def _rankings(pairs, tested):
  kinds = {}
  for alike in _alike(pairs):
    if len(alike) >= FEWEST_MODELS:
      kinds.setdefault((alike[0].regime, alike[0].form), []).append(alike)
  made, tasks = [], []
  for (regime, form), places in kinds.items():
    cells = [cell for alike in places for pair in alike for cell in (pair.scratch, pair.pretrained)]
    sizes, seeds = [len(alike) for alike in places], [len(cell.arm.runs) for cell in cells]
    where = tuple(alike[0].place for alike in places)
    made.append((regime, form, where, (min(sizes), max(sizes)), (min(seeds), max(seeds))))
    tasks.append([[_parts_of(alike, side, tested) for side in ('scratch', 'pretrained')] for alike in places])
  for about, interval in zip(made, bootstrap.rank_stabilities(tasks), strict=True):
    yield Ranking(*about, interval)


def _parts_of(alike, side, tested):
  return [_of_cell(tested[getattr(pair, side)], alike[0].test_set) for pair in alike]


def _of_cell(tested, test_set):
  return bootstrap.parts([[units for digest, units in tested.values() if digest == test_set]])


def _smallest(pairs, planned):
  """Yields a Smallest for every place and number of seeds, in the order of the pairs.

  Variances are the mean over the gains of a place. planned: the number of gains that the study is to have.
  """
  groups = {}
  for pair in pairs:
    groups.setdefault((pair.place, pair.score.key, pair.test_set, len(pair.seeds)), []).append(pair)
  for (place, _, _, seeds), same in groups.items():
    parts = [pair.estimate.parts for pair in same]
    if not any(p.seeds + p.shared for p in parts):
      continue
    most = same[0].score.gain_bounds[1]  # no larger gain exists
    of_more = {more: bootstrap.smallest_difference(parts, more) for more in MORE_SEEDS if more > seeds > 1}
    yield Smallest(
      place,
      same[0].score,
      len(parts[0].example_N),
      same[0].pretrained.runs[0].unit_name,
      seeds,
      min(most, bootstrap.smallest_difference(parts)),
      min(most, bootstrap.smallest_difference(parts, comparisons=planned)),
      {more: min(most, smallest) for more, smallest in of_more.items()},
    )


def _independent(run) -> int:
  """Returns how many independent test examples would give an accuracy as exactly."""
  if run.group_N is None:
    return run.examples
  return 1 if run.units is None else round(statistics.effective_examples(run.units, run.examples))


def _successes(finished, places):
  """Yields a Success for every cell of PathX, and for other cells if one of their runs does no better than
  the constant answer, or met numbers that are not finite."""
  for cell in finished:
    chances = [constant_score(run) for run in cell.arm.runs]
    if cell.score.counts and None not in chances:
      beating = sum(
        bootstrap.beats_chance(round(run.value * (size := _independent(run))), size, chance)
        for run, chance in zip(cell.arm.runs, chances, strict=True)
      )
      total = len(cell.arm.runs) + len(cell.diverged)
      if beating < total or cell.runs[0].task.startswith('pathx'):
        rate = statistics.wilson(beating, total)
        yield Success(cell, places[cell], sum(chances) / len(chances), beating, total, rate)
