"""The page of `lra-spt inspect`: the tables of a terminal with charts and examples, in one file."""

import base64
import io
import os
import pathlib

import jinja2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lra_spt.data.tasks import Tokens
from lra_spt.inspection import tables as tables_lib
from lra_spt.inspection.contents import is_image

# A picture has one colour for day and night: these are readable on white and on black.
_INK, _CURVES = '#7d8590', ('#3f8fd2', '#4ca66a', '#d98032')
_COLOURS = {'train': '#3f8fd2', 'validation': '#d98032', 'test': '#4ca66a'}
_DPI = 160
# Tokens of an excerpt: of a single document, of each of a pair.
_EXCERPT = {1: 700, 2: 450}
_EXCERPT_WORDS = 160
# Classes whose names fit below a chart, and the share (%) of a bin that leaves none to see of the others.
_MOST_NAMES, _MOSTLY = 12, 25


def write_page(findings, path) -> pathlib.Path:
  """Writes the page; an unfinished one never stands under its name.

  Args:
    findings: from `inspection.inspect_set`.
    path: of the HTML file; its folder exists.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('lra_spt.inspection'),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  task = findings.task
  kind = 'texts' if isinstance(task.inputs, Tokens) else 'images' if is_image(task) else 'curves'
  html = environment.get_template('inspection.html').render(
    title=f'{task.dataset}, as task {task.name} reads it',
    description=task.description,
    remarks=tables_lib.remarks(findings),
    facts=tables_lib.facts(findings),
    regression=task.regression,
    first=findings.first.split,
    kind=kind,
    side=256 if task.length > 128**2 else 160 if task.length > 64**2 else 76,
    shown=[_example(findings, kind, k) for k in range(len(findings.shown['label']))],
    sections=[_section(findings, table) for table in tables_lib.tables(findings)],
  )
  path = pathlib.Path(path)
  draft = path.with_name(f'{path.name}.part')
  draft.write_text(html, encoding='utf-8')
  os.replace(draft, path)
  return path


def _section(findings, table):
  charts, bars = [], []
  if table.title == 'Labels':
    charts = [_label_chart(findings)]
  elif table.title == 'Lengths':
    charts = [_length_chart(findings)]
  elif table.title == 'Values':
    charts = [_value_chart(findings, k) for k in range(findings.task.channels)]
  elif table.title == 'Vocabulary':
    counts = [int(row[1].replace(',', '')) for row in table.rows]
    bars = [(row, round(100 * n / max(counts), 1)) for row, n in zip(table.rows, counts, strict=True)]
  return {'table': table, 'charts': charts, 'bars': bars}


def _example(findings, kind, k):
  """What the template shows of example k of `findings.shown`."""
  task, batch = findings.task, findings.shown
  label = batch['label'][k].item()
  name = f'{label:.4g}' if task.regression else tables_lib.class_name(findings, label)
  example = {'label': label, 'name': name, 'index': f'{batch["index"][k]:,}'}
  inputs = batch['inputs'][k]
  if kind == 'images':
    return example | {'picture': _image(inputs, round(task.length**0.5))}
  if kind == 'curves':
    return example | {'picture': _curves(inputs.reshape(task.length, -1))}
  lengths = np.atleast_1d(batch['lengths'][k])
  characters = tables_lib.of_characters(findings)
  most = _EXCERPT[task.documents] if characters else _EXCERPT_WORDS
  documents = zip(inputs.reshape(task.documents, -1), lengths, strict=True)
  return example | {
    'documents': [tables_lib.excerpt(findings, ids_L[:n], most) for ids_L, n in documents],
    'length': ' and '.join(f'{n:,}' for n in lengths) + ' tokens',
  }


def _data_uri(png: bytes) -> str:
  return f'data:image/png;base64,{base64.b64encode(png).decode()}'


def _image(inputs, side):
  """A square image as it is stored; the page enlarges it."""
  file = io.BytesIO()
  Image.fromarray(inputs.reshape(side, side, *inputs.shape[1:])).save(file, 'PNG')
  return _data_uri(file.getvalue())


def _curves(x_LC):
  """One curve a channel, below each other."""
  figure, axes = _figure(3.6, 0.6 + 0.75 * x_LC.shape[1], x_LC.shape[1])
  for channel, ax in enumerate(axes):
    ax.plot(x_LC[:, channel], color=_CURVES[channel % len(_CURVES)], linewidth=0.7)
    ax.set_xlim(0, len(x_LC))
    ax.locator_params(axis='y', nbins=3)
    ax.locator_params(axis='x', nbins=4)
    ax.tick_params(labelbottom=channel == len(axes) - 1)
  return _png(figure)


def _label_chart(findings):
  figure, (ax,) = _figure(5.2, 2.5)
  task = findings.task
  if task.regression:
    _histograms(ax, {name: c.label for name, c in findings.contents.items()})
    ax.set_xlabel('label', color=_INK)
    return {'picture': _png(figure), 'alt': 'Histogram of the labels of every split.'}
  splits = len(findings.contents)
  for k, (name, contents) in enumerate(findings.contents.items()):
    shares = np.bincount(contents.label, minlength=task.classes) / len(contents)
    x = np.arange(task.classes) + (k - (splits - 1) / 2) * 0.8 / splits
    ax.bar(x, 100 * shares, width=0.8 / splits, color=_COLOURS[name], label=name)
  if task.classes <= _MOST_NAMES:
    names = [tables_lib.class_name(findings, k) for k in range(task.classes)]
    turned = {'rotation': 35, 'ha': 'right'} if sum(map(len, names)) > 60 else {}
    ax.set_xticks(range(task.classes), names, **turned)
  else:
    ax.set_xlabel('label', color=_INK)
  ax.set_ylabel('share (%)', color=_INK)
  _legend(figure, ax)
  return {'picture': _png(figure), 'alt': 'Share of every class in every split; the table holds the numbers.'}


def _length_chart(findings):
  figure, (ax,) = _figure(5.2, 2.5)
  _histograms(ax, {name: c.lengths.ravel() for name, c in findings.contents.items()})
  ax.set_xlabel('tokens', color=_INK)
  return {'picture': _png(figure), 'alt': 'Histogram of the lengths of every split.'}


def _value_chart(findings, channel):
  figure, (ax,) = _figure(5.2, 2.3)
  _histograms(ax, {name: c.values.some[:, channel] for name, c in findings.contents.items()}, bins=64)
  if ax.get_ylim()[1] > _MOSTLY:
    ax.set_yscale('log')
    ax.yaxis.set_major_formatter('{x:g}')
    ax.minorticks_off()
  which = f' of channel {channel}' if findings.task.channels > 1 else ''
  ax.set_xlabel(f'stored value{which}', color=_INK)
  return {'picture': _png(figure), 'alt': f'Histogram of the stored values{which}.'}


def _histograms(ax, values, bins=50):
  """Outlines of the share of every bin, for every split, on the same bins."""
  low, high = min(map(np.min, values.values())), max(map(np.max, values.values()))
  edges = np.linspace(low, high + (high == low), bins + 1)
  for name, some in values.items():
    weights = np.full(len(some), 100 / len(some))
    ax.hist(some, edges, weights=weights, histtype='step', color=_COLOURS[name], label=name, linewidth=1.3)
  ax.set_ylabel('share (%)', color=_INK)
  _legend(ax.figure, ax)


def _figure(width, height, rows=1):
  figure = Figure(figsize=(width, height), dpi=_DPI, layout='constrained')
  FigureCanvasAgg(figure)
  axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
  for ax in axes:
    ax.patch.set_alpha(0)
    ax.tick_params(colors=_INK, labelsize=8, length=3)
    ax.yaxis.label.set_fontsize(9)
    ax.xaxis.label.set_fontsize(9)
    ax.spines[['top', 'right']].set_visible(False)
    ax.spines[['left', 'bottom']].set_color(_INK)
  return figure, axes


def _legend(figure, ax):
  handles, names = ax.get_legend_handles_labels()
  looks = {'ncols': 3, 'frameon': False, 'labelcolor': _INK, 'fontsize': 8, 'handlelength': 1.2}
  figure.legend(handles, names, loc='outside upper right', **looks)


def _png(figure):
  file = io.BytesIO()
  figure.savefig(file, format='png', transparent=True)
  return _data_uri(file.getvalue())
