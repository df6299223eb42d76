"""The section of a report on how far models read: charts by distance with a curve per state of training."""

import numpy as np

from lra_spt.report.pages import charts, colours, styles
from lra_spt.report.runs.inside import STATES
from lra_spt.report.statistics.scores import DASH

MOST_LAYERS = 4  # deeper models show every other layer first
MOST_POINTS = 160  # of a curve; neighbouring distances are averaged
LOOKS = {
  'initial': styles.Style(colours.GREY, '5 2'),
  'pretrained': styles.Style(colours.BLUE),
  'finetuned': styles.Style(colours.GREEN),
  'scratch': styles.Style(colours.ORANGE, '8 2 2 2'),
}
UNIFORM = styles.Style(colours.SILVER, '2 2')


def sections(table) -> list[dict]:
  """For every run with an inside.json: its charts, those of each head, and a table of numbers."""
  return [_section(run) for run in table.runs if run.inside is not None]


def _section(run):
  inside = run.inside
  states = list(inside.field)
  attention, kernels = inside.attention, inside.kernels
  layers = len(next(iter(attention.values() or kernels.values()), ()))
  shown = range(0, layers, 1 if layers <= MOST_LAYERS else 2)
  first, further = [('Receptive field', _chart(inside.field, 'share of gradient'))], []

  def weights(curves):
    return _chart(curves, 'mean weight', inside.uniform)

  for layer in range(layers):
    charts_of_layer = []
    if _any(attention, layer):
      mean = {state: _mean(curves[layer]) for state, curves in attention.items()}
      charts_of_layer.append((f'Attention, layer {layer + 1}', weights(mean)))
      for head in range(next(iter(attention.values())).shape[1]):
        one = {state: curves[layer, head] for state, curves in attention.items()}
        if np.isfinite([*one.values()]).any():
          further.append((f'Layer {layer + 1}, head {head + 1}', weights(one)))
    if _any(kernels, layer):
      one = {state: curves[layer] for state, curves in kernels.items()}
      charts_of_layer.append((f'Kernel, layer {layer + 1}', _chart(one, 'largest |K|')))
    (first if layer in shown else further).extend(charts_of_layer)
  key = [(STATES[state], LOOKS[state]) for state in states]
  return {
    'caption': f'{run.task}, {run.model}, {run.arm}, seed {run.seed}',
    'key': key + [('uniform attention', UNIFORM)] * bool(attention),
    'pictures': first,
    'further': further,
    'head': ('state', 'checkpoint', '90 % of the gradient within', *_attended(attention, layers)),
    'rows': [_row(inside, state) for state in states],
    'attention': bool(attention),
    'kernels': bool(kernels),
    'note': inside.left_out,
    'examples': inside.examples,
  }


def _any(parts, layer) -> bool:
  """True if a layer has a curve in any state; layers of a hybrid may have none."""
  return any(np.isfinite(curves[layer]).any() for curves in parts.values())


def _attended(attention, layers):
  return [f'attention of layer {layer + 1}' for layer in range(layers) if _any(attention, layer)]


def _row(inside, state):
  step = inside.steps[state]
  return (
    STATES[state],
    f'step {step:,}' if step else DASH,
    f'{inside.reach(state):,}',
    *(f'{span:,.1f}' for span in inside.mean_spans(state).values()),
  )


def _mean(curves):
  """The mean over heads at the distances that any head sees; NaN at others."""
  known = np.isfinite(curves)
  return np.where(known.any(0), np.where(known, curves, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def _chart(curves, ylabel, uniform=None):
  """An <svg> of {state: curve by distance}, without distances at which all are 0 or unknown."""
  styled = [(state, LOOKS[state], curve) for state, curve in curves.items()]
  styled = ([] if uniform is None else [('uniform', UNIFORM, uniform)]) + styled
  there = np.flatnonzero(np.any([np.nan_to_num(curve) > 0 for _, _, curve in styled], axis=0))
  end = int(there[-1]) + 1 if there.size else 1
  lines = [charts.Line(name, style, (_averaged(curve[:end]),)) for name, style, curve in styled]
  return charts.line_chart(lines, 'distance in positions', ylabel, percent=False, ylog=True)


def _averaged(curve):
  """(x, y) of a curve by distance with at most MOST_POINTS points."""
  parts = np.array_split(np.arange(len(curve)), min(MOST_POINTS, len(curve)))
  points = [(part.mean(), curve[part].mean()) for part in parts if np.isfinite(curve[part]).all()]
  x, y = np.array(points).T if points else (np.zeros(0), np.zeros(0))
  return x, y
