"""Models beside each other: per task and protocol, a table of models by arms and paired differences."""

import dataclasses
import itertools

from lra_spt.report.study import arms as tables


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All models of a (task, protocol).

  models: their names, the rows. arms: (regime, causal, name), the columns. cells: {(model, arm): Arm}.
  gains: of models that were trained alike and tested on the same examples, seed by seed; `Gain.arm.model` is
  compared with `Gain.against.model`. apart: (model, model, arm name) that share a seed but not their test
  examples.
  """

  task: str
  protocol: str
  score: object
  models: tuple
  arms: tuple
  cells: dict
  gains: tuple
  apart: tuple


def comparisons(groups):
  """A Comparison of every task and protocol that at least two models were run on.

  Args:
    groups: of `tables.summarise`, in their order.
  """
  found = []
  for (task, protocol), same in itertools.groupby(sorted(groups, key=_question), key=_question):
    same = list(same)
    # Scores of two kinds have no difference.
    for score in dict.fromkeys(group.score for group in same):
      alike = [group for group in same if group.score is score]
      if len(alike) > 1:
        found.append(_comparison(task, protocol, score, alike))
  return found


def _question(group):
  return group.task, group.protocol


def _comparison(task, protocol, score, groups):
  orders = {arm.key: arm.runs[0].order for group in groups for arm in group.arms}
  cells = {(group.model, arm.key): arm for group in groups for arm in group.arms}
  models, arms = tuple(group.model for group in groups), tuple(sorted(orders, key=orders.get))
  gains, apart = [], []
  for key, (against, model) in itertools.product(arms, itertools.combinations(models, 2)):
    pair = cells.get((model, key)), cells.get((against, key))
    if None in pair:
      continue
    if _tested_apart(*pair):
      apart.append((model, against, key[2]))
    elif (gain := tables.gain(*pair)) is not None:
      gains.append(gain)
  return Comparison(task, protocol, score, models, arms, cells, tuple(gains), tuple(apart))


def _tested_apart(arm, against):
  """Whether some seed of both has predictions of other examples."""
  other = {run.seed: run for run in against.runs if run.units is not None}
  return any(
    not tables.tested_alike(run, other[run.seed])
    for run in arm.runs
    if run.units is not None and run.seed in other
  )
