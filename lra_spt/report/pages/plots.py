"""Charts of a report as inline SVG, and the kernels of a run as PNG."""

import dataclasses
import math

import matplotlib
import numpy as np

from lra_spt.report.pages import colours, figures
from lra_spt.report.pages.styles import Style
from lra_spt.report.runs.run import STAGE_NAMES

# A line of a single seed; of several: each seed, and their mean. Widths in points; the key draws the same.
WIDTHS = {'single': 1.7, 'seed': 0.8, 'mean': 1.9, 'kernel': 1.2}
SEED_OPACITY = 0.3
DOT = 4  # diameter of a curve of one point
# The curve of the initial kernel beside that of the learned one, which has the style of its arm.
INITIAL_DASH = '5 2'
_PAGE_COLOURS = {'ink': figures.INK, 'faint': figures.FAINT, 'grid': figures.GRID}
_PRINTED_COLOURS = {
  'ink': colours.LIGHT['ink'],
  'faint': colours.LIGHT['faint'],
  'grid': colours.LIGHT['rule'],
}


@dataclasses.dataclass(frozen=True)
class Line:
  """One arm: its curves (x [n], y [n]), one per seed, and its style."""

  name: str
  style: Style
  curves: tuple

  several = property(lambda self: len(self.curves) > 1)

  @property
  def dot(self):
    """Whether it is drawn as a point: no curve has more than one."""
    return max(len(x) for x, _ in self.curves) == 1


def line_chart(lines, xlabel, ylabel, name, percent=True, log=False):
  """An <svg> string of one chart: thin lines are seeds, the thick one their mean where all seeds have values.

  Names of arms are not drawn (the page's key holds them), so no text of users enters the SVG.
  name: unique in the page, keeps the ids of its charts apart. percent: y values are fractions, shown as per
  cent. log: of the x axis. Returns None when no line has a point.
  """
  lines = [line for line in lines if any(len(x) for x, _ in line.curves)]
  if not lines:
    return None
  with figures.style(name):
    figure, (axes,) = figures.chart(4.7, 2.9)
    scale = 100 if percent else 1
    for line in lines:
      colour = figures.line_colour(line.style.colour)
      for x, y in line.curves:
        x, y = _thinned(np.asarray(x, float), np.asarray(y, float) * scale)
        if line.several:
          _plot(axes, x, y, colour, WIDTHS['seed'], alpha=SEED_OPACITY)
        else:
          _plot(axes, x, y, colour, WIDTHS['single'], line.style.dash)
      if line.several:
        x, y = _thinned(*_mean_curve(line.curves))
        _plot(axes, x, y * scale, colour, WIDTHS['mean'], line.style.dash)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel + (' (%)' if percent else ''))
    if log:
      axes.set_xscale('log')
      axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    else:
      axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
      axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_short_number))
    axes.grid(axis='y', color=figures.GRID, linewidth=0.8)
    return figures.svg(figure)


def scatter(points, xlabel, ylabel, name, percent=True):
  """An <svg> string of points (x, y, Style) over a logarithmic x axis; a line joins those that nothing of
  less x reaches. Other arguments as `line_chart`; None when there are no points."""
  if not points:
    return None
  scale = 100 if percent else 1
  with figures.style(name):
    figure, (axes,) = figures.chart(4.7, 2.9)
    front, best = [], -math.inf
    for x, y, _ in sorted(points, key=lambda point: (point[0], -point[1])):
      if y > best:
        front.append((x, y * scale))
        best = y
    axes.plot(*zip(*front, strict=True), color=figures.GRID, linewidth=1.2, drawstyle='steps-post')
    for x, y, style in points:
      axes.plot([x], [y * scale], 'o', color=figures.line_colour(style.colour), markersize=DOT + 1)
    axes.set_xscale('log')
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_short_number))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel + (' (%)' if percent else ''))
    axes.grid(axis='y', color=figures.GRID, linewidth=0.8)
    return figures.svg(figure)


def _plot(axes, x, y, colour, width, dash='', **settings):
  if not dash or len(x) == 1:
    linestyle = 'solid'
  else:
    linestyle = (0, tuple(float(n) for n in dash.split()))
  axes.plot(
    x,
    y,
    color=colour,
    linewidth=width,
    linestyle=linestyle,
    marker='o' if len(x) == 1 else None,
    markersize=DOT,
    **settings,
  )


def kernel_charts(kernels, name, style):
  """An <svg> string per shown layer: K_max against the lag, as initialised and as learned.

  Args:
    kernels: a `runs.Kernels`.
    name: unique in the page.
    style: of the arm, in which what it learned is drawn; the page's key names the two curves.
  """
  charts = []
  for layer in kernels.shown:
    with figures.style(f'{name}l{layer}'):
      figure, (axes,) = figures.chart(4.7, 2.9)
      learned = figures.line_colour(style.colour)
      _draw_kernels(axes, kernels, layer, _PAGE_COLOURS | {'learned': learned})
      charts.append(figures.svg(figure))
  return charts


def kernel_png(kernels, title, style, path):
  """Writes the shown layers, a panel each, as a PNG; `title` is plain text, `style` that of the arm."""
  columns = 2 if len(kernels.shown) == 4 else min(3, len(kernels.shown))
  rows = -(-len(kernels.shown) // columns)
  printed = _PRINTED_COLOURS | {'learned': colours.LIGHT[f'line-{style.colour}']}
  ink, looks = printed['ink'], {'faint': printed['faint'], 'grid': printed['grid']}
  with figures.style('kernels'):
    size = max(4.2 * columns, 5), 2.9 * rows + 0.7
    figure, panels = figures.chart(*size, rows, columns, **looks)
    for layer, axes in zip(kernels.shown, panels, strict=False):
      _draw_kernels(axes, kernels, layer, printed)
      axes.set_title(f'Layer {layer}', loc='left', color=ink, fontsize=9)
    for axes in panels[len(kernels.shown) :]:  # the rest of the last row
      axes.remove()
    figure.suptitle(title, x=0.01, ha='left', color=ink, fontsize=10)
    figure.legend(
      *figure.axes[0].get_legend_handles_labels(),
      loc='outside lower left',
      ncols=2,
      frameon=False,
      labelcolor=ink,
    )
    figure.savefig(path, format='png', dpi=160, facecolor='white')


def kernel_labels(kernels):
  """Names of the two curves: {'initial': ..., 'learned': ...}."""
  return {
    'initial': f'{kernels.initialisation} initialisation',
    'learned': f'after {STAGE_NAMES[kernels.stage]}',
  }


def _draw_kernels(axes, kernels, layer, tints):
  both = np.stack([kernels.initial, kernels.learned])[:, [n - 1 for n in kernels.shown], : kernels.lags]
  names = kernel_labels(kernels)
  for name, curves in zip(('initial', 'learned'), both, strict=True):
    x, y = figures.envelope(np.arange(kernels.lags), curves[kernels.shown.index(layer)])
    dash, colour = (INITIAL_DASH, tints['faint']) if name == 'initial' else ('', tints['learned'])
    _plot(axes, x, y, colour, WIDTHS['kernel'], dash, label=names[name])
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
  axes.tick_params(which='both', colors=tints['faint'], length=3)
  axes.grid(axis='y', color=tints['grid'], linewidth=0.8)
  _lag_grid(axes, kernels.row, kernels.lags, tints['grid'])


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


def _thinned(x, y):
  if len(x) <= figures.MOST_POINTS:
    return x, y
  keep = np.unique(np.linspace(0, len(x) - 1, figures.MOST_POINTS).astype(int))
  return x[keep], y[keep]


def _mean_curve(curves):
  """Mean of y over the curves on the first one's x, where all curves reach (linear between their points)."""
  curves = [(np.asarray(x, float), np.asarray(y, float)) for x, y in curves if len(x)]
  low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
  grid = curves[0][0]
  grid = grid[(grid >= low) & (grid <= high)]
  return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def _short_number(value, _):
  for factor, suffix in ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= factor:
      return f'{value / factor:g} {suffix}'
  return f'{value:g}'
