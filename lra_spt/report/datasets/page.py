"""The page of `lra-spt inspect`: the tables of a terminal with charts and examples, in one file."""

import pathlib

import matplotlib
import numpy as np

from lra_spt.data.tasks import Tokens
from lra_spt.report.datasets import remarks as remarks_lib
from lra_spt.report.datasets import tables as tables_lib
from lra_spt.report.datasets import text as text_lib
from lra_spt.report.datasets.contents import is_image
from lra_spt.report.pages import colours, document, figures

# Lines of the channels of a curve, and of the splits.
_CHANNELS = (colours.BLUE, colours.GREEN, colours.ORANGE)
_SPLITS = {'train': colours.BLUE, 'validation': colours.ORANGE, 'test': colours.GREEN}
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
  task = findings.task
  kind = 'texts' if isinstance(task.inputs, Tokens) else 'images' if is_image(task) else 'curves'
  return document.write_page(
    path,
    'inspection.html',
    title=f'{task.dataset}, as task {task.name} reads it',
    description=task.description,
    remarks=remarks_lib.remarks(findings),
    facts=remarks_lib.facts(findings),
    regression=task.regression,
    first=findings.first.split,
    kind=kind,
    side=256 if task.length > 128**2 else 160 if task.length > 64**2 else 76,
    shown=[_example(findings, kind, k) for k in range(len(findings.shown['label']))],
    sections=[_section(findings, table) for table in tables_lib.tables(findings)],
  )


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
    side = round(task.length**0.5)  # as it is stored; the page enlarges it
    return example | {'picture': document.image_uri(inputs.reshape(side, side, *inputs.shape[1:]))}
  if kind == 'curves':
    return example | {'chart': _curves(inputs.reshape(task.length, -1), f'e{k}')}
  lengths = np.atleast_1d(batch['lengths'][k])
  characters = text_lib.of_characters(findings)
  most = _EXCERPT[task.documents] if characters else _EXCERPT_WORDS
  documents = zip(inputs.reshape(task.documents, -1), lengths, strict=True)
  return example | {
    'documents': [text_lib.excerpt(findings, ids_L[:n], most) for ids_L, n in documents],
    'length': ' and '.join(f'{n:,}' for n in lengths) + ' tokens',
  }


def _curves(x_LC, name):
  """One curve a channel, below each other."""
  channels = x_LC.shape[1]
  with figures.style(name):
    figure, panels = figures.chart(3.6, 0.6 + 0.75 * channels, channels)
    for channel, axes in enumerate(panels):
      colour = figures.line_colour(_CHANNELS[channel % len(_CHANNELS)])
      axes.plot(*figures.envelope(np.arange(len(x_LC)), x_LC[:, channel]), color=colour, linewidth=0.7)
      axes.set_xlim(0, len(x_LC))
      axes.locator_params(axis='y', nbins=3)
      axes.locator_params(axis='x', nbins=4)
      axes.tick_params(labelbottom=channel == channels - 1)
    return figures.svg(figure)


def _label_chart(findings):
  task = findings.task
  if task.regression:
    return _histograms({name: c.label for name, c in findings.contents.items()}, 'label', 'labels')
  with figures.style('labels'):
    figure, (axes,) = figures.chart(4.7, 2.5)
    _shares_of_classes(axes, findings)
    return _chart(
      figure, 'Share of every class in every split; the table holds the numbers.', findings.contents
    )


def _shares_of_classes(axes, findings):
  task = findings.task
  splits = len(findings.contents)
  for k, (name, contents) in enumerate(findings.contents.items()):
    shares = np.bincount(contents.label, minlength=task.classes) / len(contents)
    x = np.arange(task.classes) + (k - (splits - 1) / 2) * 0.8 / splits
    axes.bar(x, 100 * shares, width=0.8 / splits, color=figures.line_colour(_SPLITS[name]))
  if task.classes <= _MOST_NAMES:
    names = [tables_lib.class_name(findings, k) for k in range(task.classes)]
    turned = {'rotation': 35, 'ha': 'right'} if sum(map(len, names)) > 60 else {}
    axes.set_xticks(range(task.classes), names, **turned)
  else:
    axes.set_xlabel('label')
  axes.set_ylabel('share (%)')


def _length_chart(findings):
  return _histograms({name: c.lengths.ravel() for name, c in findings.contents.items()}, 'tokens', 'lengths')


def _value_chart(findings, channel):
  which = f' of channel {channel}' if findings.task.channels > 1 else ''
  some = {name: c.values.some[:, channel] for name, c in findings.contents.items()}
  return _histograms(some, f'stored value{which}', f'stored values{which}', bins=64, high=True)


def _histograms(values, xlabel, what, bins=50, high=False):
  """Outlines of the share of every bin, for every split, on the same bins.

  high: whether shares are drawn on a logarithmic scale where one bin leaves the others nothing to be seen.
  """
  least, most = min(map(np.min, values.values())), max(map(np.max, values.values()))
  edges = np.linspace(least, most + (most == least), bins + 1)
  with figures.style(what.replace(' ', '')):
    figure, (axes,) = figures.chart(4.7, 2.5)
    for name, some in values.items():
      weights = np.full(len(some), 100 / len(some))
      colour = figures.line_colour(_SPLITS[name])
      axes.hist(some, edges, weights=weights, histtype='step', color=colour, linewidth=1.3)
    if high and axes.get_ylim()[1] > _MOSTLY:
      axes.set_yscale('log')
      axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter('{x:g}'))
      axes.minorticks_off()
    axes.set_xlabel(xlabel)
    axes.set_ylabel('share (%)')
    return _chart(figure, f'Histogram of the {what} of every split.', values)


def _chart(figure, alt, splits):
  return {'svg': figures.svg(figure), 'alt': alt, 'key': [(name, _SPLITS[name]) for name in splits]}
