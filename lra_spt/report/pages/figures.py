"""Charts as inline SVG: their colours are CSS variables of the page, so they follow light, dark and print."""

import contextlib
import io
import re

import matplotlib
from matplotlib.figure import Figure

# Matplotlib needs colours; these stand for the page's own and are replaced in the SVG.
INK, FAINT, GRID = '#010101', '#020202', '#030303'
_STAND_IN = {INK: 'var(--ink)', FAINT: 'var(--faint)', GRID: 'var(--rule)'}


def line_colour(number: int) -> str:
  """The stand-in for the page's colour `line-<number>`."""
  return f'#0404{number:02x}'


@contextlib.contextmanager
def style(name: str):
  """Settings of every chart; `name`, unique in the page, keeps the ids of one apart from those of others."""
  settings = {
    'svg.fonttype': 'none',
    'svg.hashsalt': name,
    'font.size': 9,
    'font.family': 'DejaVu Sans',
    'text.parse_math': False,
    'axes.linewidth': 0.8,
    'lines.scale_dashes': False,
    'path.simplify': True,
  }
  with matplotlib.rc_context(settings):
    yield


def chart(width: float, height: float, rows: int = 1, columns: int = 1, *, faint=FAINT, grid=GRID):
  """(Figure, list of its framed Axes); within `style`.

  Args:
    width, height: inches.
    rows, columns: of panels.
    faint, grid: colours of text and of lines.
  """
  figure = Figure(figsize=(width, height), layout='constrained')
  panels = list(figure.subplots(rows, columns, squeeze=False).flat)
  for axes in panels:
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(grid)
    axes.tick_params(which='both', colors=faint, length=3)
    axes.xaxis.label.set_color(faint)
    axes.yaxis.label.set_color(faint)
  return figure, panels


def svg(figure: Figure) -> str:
  """The figure as an <svg> element in the colours of the page; text of users in it is escaped."""
  out = io.StringIO()
  nothing = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}
  figure.savefig(out, format='svg', transparent=True, metadata=nothing)
  text = out.getvalue()
  text = text[text.index('<svg') :]
  text = re.sub(r'<metadata>.*?</metadata>|<style.*?</style>', '', text, flags=re.DOTALL)
  text = re.sub(r'<g id="[^"]*"', '<g', text)
  text = re.sub(
    r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1
  )
  text = re.sub(r'<!--.*?-->', '', text, flags=re.DOTALL)  # matplotlib repeats every text as a comment
  text = text.replace('xlink:href', 'href')
  for stand_in, variable in _STAND_IN.items():
    text = text.replace(stand_in, variable)
  return re.sub(r'#0404([0-9a-f]{2})', lambda match: f'var(--line-{int(match[1], 16)})', text)
