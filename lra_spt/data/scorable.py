"""Labels for which a score is not defined. This module decides it, for training and for reports.

R2 compares errors with the variation of the labels, so it needs two labels that differ. Where it is not
defined, result.json holds null with the reason, and validation chooses checkpoints by the loss. Only NumPy is
imported here, because reports import it.
"""

import numpy as np

ROUNDING = float(np.finfo(np.float32).eps)  # labels are float32
CHUNK = 64  # examples read at a time, until two labels differ
MEANING = {
  'validation': 'checkpoints are chosen by the loss',
  'test': 'a run has no test score (null in result.json)',
}


def vary(least, largest):
  """True where two numbers, or arrays, differ by more than rounding to float32 explains."""
  return largest - least > ROUNDING * (abs(least) + abs(largest))


def why_no_r2(count: float, least, largest) -> str:
  """The reason why R2 is not defined over `count` values from `least` to `largest`; '' if it is defined. The
  two limits are numbers or, for several dimensions, [K]."""
  if count < 2:
    return 'R2 is not defined over one example'
  return '' if np.all(vary(least, largest)) else 'R2 is not defined over values that do not vary'


def why_no_r2_of(values) -> str:
  """The reason why R2 is not defined over these values, real numbers [N] or [N, K] with N >= 1; '' if it is
  defined."""
  values = np.asarray(values, np.float64)
  return why_no_r2(len(values), values.min(0), values.max(0))


def remarks(data: dict) -> list[str]:
  """Sentences on scores that the splits of a task cannot have, or that say little.

  Args:
    data: {split: `Examples`} of a task. For a regression, labels are read until two of them differ.
  """
  sentences = []
  for split in MEANING:
    examples = data[split]
    why = _why_no_r2_of(examples) if examples.task.regression else ''
    where = f'the {split} split of task {examples.task.name}'
    sentences += remark(split, where, len(examples), why)
  return sentences


def remark(split: str, where: str, count: int, why: str) -> list[str]:
  """A sentence on the score over so many examples, if it says little or is not defined.

  Args:
    split: 'validation' or 'test'.
    where: names the examples.
    why: the reason why R2 is not defined over them; '' if it is, or if labels are classes.
  """
  meaning = f'{why}, so {MEANING[split]}' if why else 'its accuracy is 0 or 100 %'
  if count == 1:
    return [f'There is one example in {where}: {meaning}; prepare more examples.']
  return [f'The labels of {where} do not vary: {meaning}; prepare other examples.'] if why else []


def _why_no_r2_of(examples) -> str:
  least, largest = np.inf, -np.inf
  for start in range(0, len(examples), CHUNK):
    label_N = examples.gather(np.arange(start, min(start + CHUNK, len(examples))))['label']
    least, largest = np.minimum(least, label_N.min(0)), np.maximum(largest, label_N.max(0))
    if not (why := why_no_r2(len(examples), least, largest)):
      break
  return why
