"""The kernels of a run as a PNG."""

import math

import matplotlib
import numpy as np

from lra_spt.report.pages import colours, figures
from lra_spt.report.pages.charts import envelope
from lra_spt.report.runs.run import STAGE_NAMES

INITIAL_DASH = (0, (5.0, 2.0))  # of the initial kernel beside the learned one
INK, FAINT, GRID = (colours.LIGHT[name] for name in ('ink', 'faint', 'rule'))


def kernel_png(kernels, title, style, path):
  """Writes the shown layers, a panel each: K_max against the lag, as initialised and as learned.

  Args:
    kernels: a `kernels.Kernels`.
    title: plain text.
    style: of the arm.
    path: file to write.
  """
  columns = 2 if len(kernels.shown) == 4 else min(3, len(kernels.shown))
  rows = -(-len(kernels.shown) // columns)
  with figures.style('kernels'):
    size = max(4.2 * columns, 5), 2.9 * rows + 0.7
    figure, panels = figures.chart(*size, rows, columns, faint=FAINT, grid=GRID)
    for layer, axes in zip(kernels.shown, panels, strict=False):
      _draw_kernels(axes, kernels, layer, colours.LIGHT[f'line-{style.colour}'])
      axes.set_title(f'Layer {layer}', loc='left', color=INK, fontsize=9)
    for axes in panels[len(kernels.shown) :]:  # the rest of the last row
      axes.remove()
    figure.suptitle(title, x=0.01, ha='left', color=INK, fontsize=10)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc='outside lower left', ncols=2, frameon=False, labelcolor=INK)
    figure.savefig(path, format='png', dpi=160, facecolor='white')


def _draw_kernels(axes, kernels, layer, learned):
  both = np.stack([kernels.initial, kernels.learned])[:, [n - 1 for n in kernels.shown], : kernels.lags]
  looks = (
    (f'{kernels.initialisation} initialisation', INITIAL_DASH, FAINT),
    (f'after {STAGE_NAMES[kernels.stage]}', 'solid', learned),
  )
  for (name, line, colour), curves in zip(looks, both, strict=True):
    x, y = envelope(np.arange(kernels.lags), curves[kernels.shown.index(layer)])
    axes.plot(x, y, color=colour, linewidth=1.2, linestyle=line, label=name)
  positive = both[np.isfinite(both) & (both > 0)]
  if positive.size:  # all layers share the scale; what lies five decades below the largest value is cut off
    largest = positive.max()
    axes.set_yscale('log')
    axes.set_ylim(max(positive.min(), 1e-5 * largest) / 1.3, 1.3 * largest)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f'{value:g}'))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
  axes.set_xlim(0, kernels.lags)
  axes.set_xlabel('lag')
  axes.set_ylabel('largest |K|')
  axes.tick_params(which='both', colors=FAINT, length=3)
  axes.grid(axis='y', color=GRID, linewidth=0.8)
  _lag_grid(axes, kernels.row, kernels.lags, GRID)


def _lag_grid(axes, row, lags, colour):
  """Vertical lines at multiples of the image rows, thinned by powers of two where they would touch."""
  if not 0 < row < lags:
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
    return
  line = row * 2 ** max(0, math.ceil(math.log2(lags / row / 32)))
  tick = line * 2 ** max(0, math.ceil(math.log2(lags / line / 6)))
  axes.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(tick))
  axes.xaxis.set_minor_locator(matplotlib.ticker.MultipleLocator(line))
  axes.tick_params(axis='x', which='minor', length=0)
  axes.grid(axis='x', which='both', color=colour, linewidth=0.6)
