"""inside.json of a run: how far its model reads, by distance, in every state of training."""

import dataclasses
import json
import math
import pathlib

import numpy as np

from lra_spt import files
from lra_spt.config.values import is_number, is_whole
from lra_spt.errors import DamagedFile, one_line
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder

STATES = {  # in the order of curves
  'initial': 'at the start',
  'pretrained': 'after self-pretraining',
  'finetuned': 'after finetuning',
  'scratch': 'trained from scratch',
}
ARRAYS = {'field': 1, 'attention': 3, 'spans': 2, 'kernels': 2}  # by state: their number of axes


@dataclasses.dataclass(frozen=True, eq=False)
class Inside:
  """How far a model reads, from `look_inside`; the last axis of curves is the distance |t - s|, from 0 on.

  Dictionaries hold the states that exist, of 'initial', 'pretrained', 'finetuned' and 'scratch'. Letters: L
  positions, H heads.

  Attributes:
    examples: the number of validation examples.
    steps: of the checkpoints; the initial state has 0.
    field: {state: float64 [L]}, the receptive field: the absolute gradient of the encoder's output in the
      middle of an example with respect to all input positions at a distance, as a share of its sum over all
      distances; the mean over examples.
    attention: {state: float64 [layers, H, L]}, the mean attention weight of the pairs (query, key) at each
      distance that the pattern shows; NaN where it shows none, and for layers and heads that a hybrid does
      not have. {} for mixers without such weights.
    uniform: float64 [L], the same if each query attended equally to all keys that it sees; None without
      weights.
    spans: {state: float64 [layers, H]}, the mean distance between a query and the keys that it attends to,
      in positions; NaN as in `attention`.
    uniform_span: the mean distance of uniform weights; None without weights.
    kernels: {state: float64 [layers, L]}, the largest absolute kernel value at each lag; NaN where a kernel
      is not finite or, in a hybrid, a layer has none. {} for mixers without kernels.
    left_out: a sentence on what is missing, or ''.
  """

  examples: int
  steps: dict[str, int]
  field: dict[str, np.ndarray]
  attention: dict[str, np.ndarray]
  uniform: np.ndarray | None
  spans: dict[str, np.ndarray]
  uniform_span: float | None
  kernels: dict[str, np.ndarray]
  left_out: str = ''

  def reach(self, state: str) -> int:
    """The smallest distance within which 90 % of the gradient lies."""
    return int(np.searchsorted(np.cumsum(self.field[state]), 0.9 * self.field[state].sum()))

  def mean_spans(self, state: str) -> dict[int, float]:
    """{layer, from 1: mean of `spans` over its heads}, of the layers with attention weights."""
    layers = enumerate(self.spans.get(state, ()), 1)
    return {layer: spans[np.isfinite(spans)].mean() for layer, spans in layers if np.isfinite(spans).any()}

  def to_json(self) -> str:
    """The content of inside.json, numbers to five digits."""
    content = {name: _plain(value) for name, value in dataclasses.asdict(self).items()}
    content = checksums.sealed(pathlib.Path(run_folder.INSIDE), content)
    return json.dumps(content, separators=(',', ':'), allow_nan=False)


def _plain(value):
  if isinstance(value, dict):
    return {key: _plain(part) for key, part in value.items()}
  if isinstance(value, list):
    return [_plain(part) for part in value]
  if isinstance(value, np.ndarray):
    return _plain(value.tolist())
  return (float(f'{value:.5g}') if math.isfinite(value) else None) if isinstance(value, float) else value


def read_inside(path) -> Inside:
  """Reads an inside.json. Raises DamagedFile."""
  kind, advice = 'what `lra-spt inside` writes', 'run `lra-spt inside` again or delete the file'
  stored, _ = checksums.read(files.place(path), kind, advice)
  try:
    for name in ARRAYS:
      stored[name] = {state: np.array(value, float) for state, value in stored[name].items()}
    if stored['uniform'] is not None:
      stored['uniform'] = np.array(stored['uniform'], float)
    inside = Inside(**stored)
    if wrong := _problem(inside):
      raise ValueError(wrong)
  except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
    raise DamagedFile(
      f'{path} is not {kind} ({type(error).__name__}: {one_line(error)}); {advice}.'
    ) from error
  return inside


def _problem(inside):
  """Says which parts do not fit together; '' if all do."""
  states, steps = list(inside.field), inside.steps
  if not states or not set(states) <= set(STATES) or not all(is_whole(steps.get(name)) for name in states):
    return f'states {states}, steps {steps!r:.80}'
  for name, axes in ARRAYS.items():
    shapes = [array.shape for array in getattr(inside, name).values()]
    if shapes and (list(getattr(inside, name)) != states or len(set(shapes)) > 1 or len(shapes[0]) != axes):
      return f'{name} of shapes {shapes}'
  length = inside.field[states[0]].shape
  weights, spans = ([array.shape for array in part.values()] for part in (inside.attention, inside.spans))
  ends = [curve.shape[-1:] for curve in (*inside.attention.values(), *inside.kernels.values())]
  ends += [inside.uniform.shape] if weights else []
  if set(ends) - {length} or not all(np.isfinite(curve).all() for curve in inside.field.values()):
    return f'curves of lengths {ends} beside {length}, or not finite'
  if [shape[:2] for shape in weights] != spans or (weights and not is_number(inside.uniform_span)):
    return f'weights of shapes {weights} with mean distances of shapes {spans}'
  if not is_whole(inside.examples) or not isinstance(inside.left_out, str):
    return f'examples {inside.examples!r:.80}, left_out {inside.left_out!r:.80}'
  return ''
