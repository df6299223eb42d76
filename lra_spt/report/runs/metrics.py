"""The entries of result.json about a test and its data, for trained runs and for recorded predictions.

The module needs no jax.
"""

import math

from lra_spt.data import measures
from lra_spt.data.examples import Examples
from lra_spt.data.tasks import Task


def complete(
  task: Task, test: dict, undefined: dict, predictions: dict, examples: Examples
) -> tuple[dict, dict, dict]:
  """Adds to the metrics and predictions of a test what follows from them.

  Args:
    task: as the protocol splits it.
    test: {metric: value}, None for a metric that is not defined.
    undefined: {metric: why} of these.
    predictions: arrays index, label, prediction, [N] each; the latter two [N, L] for labels of positions, and
      [N, K] for several labels or dimensions.
    examples: the test split.

  Returns:
    test: also with `examples`, their number; for labels of positions, `positions`, the number that has one;
      if an example or position has one class, `majority`, the share of the most frequent one; and all scores
      of such labels. An accuracy or R2 in float32 is replaced by that in float64, because the last digits
      decide how it is rounded.
    undefined: also with the scores that are not defined over these labels.
    predictions: also with `group`, int32 [N], if examples belong together.
  """
  counted = measures.by_position(predictions)
  label_N, prediction_N = counted['label'], counted['prediction']
  test = test | {'examples': len(predictions['index'])}
  if task.per_position:
    test['positions'] = len(label_N)
  if label_N.dtype.kind == 'i':
    test['majority'] = measures.constant('accuracy', label_N)
  for name, exact in measures.measured(task.measures, label_N, prediction_N).items():
    if math.isnan(exact):
      test[name], undefined = None, undefined | {name: measures.why_undefined(name, label_N)}
    elif name not in test or _differ_by_rounding(name, test[name], exact):
      test[name] = exact
  group_N = examples.groups(predictions['index'])
  return test, undefined, predictions | ({} if group_N is None else {'group': group_N})


def _differ_by_rounding(name, value, exact) -> bool:
  """True for an accuracy or R2 that float32 explains; else it is an objective's own measure."""
  rounding = {'accuracy': 1e-6, 'r2': 1e-4 * max(1.0, 1 - exact)}.get(name, 0.0)
  return value is not None and abs(value - exact) < rounding


def of_splits(validation: dict, test: dict) -> dict:
  """The entry `metrics` of result.json, see `schema.Metrics`; of each split: {'metrics', 'undefined'}."""
  both = {'validation': validation, 'test': test}
  undefined = {split: part['undefined'] for split, part in both.items() if part.get('undefined')}
  metrics = {split: part.get('metrics', {}) for split, part in both.items()}
  return metrics | ({'undefined': undefined} if undefined else {})


def of_data(task: Task, model: str, examples: Examples) -> dict:
  """The entries of result.json that task and prepared set decide.

  Args:
    task: as the protocol splits it.
    model: its name.
    examples: any split.
  """
  groups = task.groups and {'name': task.groups.name, 'members': task.groups.members}
  if task.per_position:  # positions of one example are right and wrong together
    groups = {'name': task.groups.name if task.groups else 'test examples', 'members': 'positions'}
  optional = {
    'groups': groups,
    'cautions': list(task.cautions),
  }
  return {
    'task': task.name,
    'splits': task.splits,
    'published': {'task': task.name, 'model': model},
    'fingerprints': {'data': examples.fingerprint, 'splits': examples.split_fingerprint},
    'data': {key: examples.metadata.get(key) for key in ('source', 'verified')},
  } | {key: value for key, value in optional.items() if value}
