"""The page of `lra-spt inspect`: the tables of the terminal with charts and examples, in one file."""

import pathlib

import matplotlib
import numpy as np

from lra_spt.data import tokenizers
from lra_spt.data.tasks import Tokens
from lra_spt.report.datasets import tables
from lra_spt.report.datasets.contents import is_image
from lra_spt.report.pages import colours, document, figures
from lra_spt.report.pages.charts import envelope

# Colours of the channels of a curve, and of the splits.
_CHANNELS = (colours.BLUE, colours.GREEN, colours.ORANGE)
_SPLITS = {'train': colours.BLUE, 'validation': colours.ORANGE, 'test': colours.GREEN}
# Tokens of an excerpt: characters of a single document and of each of a pair, and words of any.
_EXCERPT = {1: 700, 2: 450}
_EXCERPT_WORDS = 160
# A chart names at most so many classes. A bin with more than this share (%) makes the scale logarithmic.
_MOST_NAMES, _HIGH_SHARE = 12, 25


def write_page(inspection, path) -> pathlib.Path:
  """Writes the page, whole or not at all, and returns its path.

  Args:
    inspection: from `inspect.inspect_set`.
    path: the HTML file; its folder exists.
  """
  task = inspection.task
  kind = 'texts' if isinstance(task.inputs, Tokens) else 'images' if is_image(task) else 'curves'
  return document.write_page(
    path,
    'inspection.html',
    title=f'{task.dataset}, as task {task.name} reads it',
    description=task.description,
    remarks=tables.remarks(inspection),
    facts=tables.facts(inspection),
    regression=task.regression,
    first=inspection.first.split,
    kind=kind,
    side=256 if task.length > 128**2 else 160 if task.length > 64**2 else 76,
    shown=[_example(inspection, kind, k) for k in range(len(inspection.shown['label']))],
    sections=[_section(inspection, table) for table in tables.tables(inspection)],
  )


def _section(inspection, table):
  charts, bars = _CHARTS.get(table.title, lambda inspection: [])(inspection), []
  if table.title == 'Vocabulary':
    counts = [int(row[1].replace(',', '')) for row in table.rows]
    bars = [(row, round(100 * n / max(counts), 1)) for row, n in zip(table.rows, counts, strict=True)]
  return {'table': table, 'charts': charts, 'bars': bars}


def _example(inspection, kind, k):
  """The values of the template for example k of `inspection.shown`."""
  task, batch = inspection.task, inspection.shown
  label = batch['label'][k]
  if task.regression:
    name = ', '.join(f'{value:.4g}' for value in np.atleast_1d(label).tolist())
  else:
    classes = np.flatnonzero(label) if task.multi_label else np.unique(label)
    name = ', '.join(tables.class_name(inspection, i) for i in classes[classes >= 0].tolist()) or 'none'
  label = 0 if np.ndim(label) else label.item()
  example = {'label': label, 'name': name, 'index': f'{batch["index"][k]:,}'}
  inputs = batch['inputs'][k]
  if kind == 'images':
    side = round(task.length**0.5)  # the stored size; the page enlarges it
    return example | {'picture': document.image_uri(inputs.reshape(side, side, *inputs.shape[1:]))}
  if kind == 'curves':
    return example | {'chart': _curves(inputs.reshape(task.length, -1)[: batch['lengths'][k]], f'e{k}')}
  lengths = np.atleast_1d(batch['lengths'][k])
  vocabulary = inspection.metadata['vocabulary']
  characters = all(len(token) == 1 for token in vocabulary if token not in tokenizers.SPECIAL_TOKENS)
  joint, most = ('', _EXCERPT[task.documents]) if characters else (' ', _EXCERPT_WORDS)
  documents = zip(inputs.reshape(task.documents, -1), lengths, strict=True)
  return example | {
    'documents': [_excerpt(ids_L[:n], vocabulary, joint, most) for ids_L, n in documents],
    'length': ' and '.join(f'{n:,}' for n in lengths) + ' tokens',
  }


def _excerpt(ids_L, vocabulary, joint, most):
  """The text of a document as pieces (text, True for a special token).

  At most `most` tokens are shown, two thirds of them from the beginning; '…' stands for the others. `joint`
  stands between tokens.
  """
  first = most * 2 // 3
  parts = [ids_L] if len(ids_L) <= most else [ids_L[:first], ids_L[len(ids_L) - (most - first) :]]
  pieces = []
  for k, part in enumerate(parts):
    if k:
      pieces.append((' … ', True))
    for i in part.tolist():
      name = vocabulary[i] if i < len(vocabulary) else f'<{i}>'
      special = name in tokenizers.SPECIAL_TOKENS
      if not special and pieces and not pieces[-1][1]:
        pieces[-1] = (pieces[-1][0] + joint + name, False)
      else:
        pieces.append((name, special))
  return pieces


def _curves(x_LC, name):
  """The curves of all channels, one below the other."""
  channels = x_LC.shape[1]
  with figures.style(name):
    figure, panels = figures.chart(3.6, 0.6 + 0.75 * channels, channels)
    for channel, axes in enumerate(panels):
      colour = figures.line_colour(_CHANNELS[channel % len(_CHANNELS)])
      axes.plot(*envelope(np.arange(len(x_LC)), x_LC[:, channel]), color=colour, linewidth=0.7)
      axes.set_xlim(0, len(x_LC))
      axes.locator_params(axis='y', nbins=3)
      axes.locator_params(axis='x', nbins=4)
      axes.tick_params(labelbottom=channel == channels - 1)
    return figures.svg(figure)


def _label_charts(inspection):
  if inspection.task.regression:
    charts = []
    for k in range(inspection.task.labels.dimensions):
      which = f' of dimension {k}' if inspection.task.labels.dimensions > 1 else ''
      values = {name: c.real_label[:, k] for name, c in inspection.contents.items()}
      charts.append(_histograms(values, f'label{which}', f'labels{which}'))
    return charts
  with figures.style('labels'):
    figure, (axes,) = figures.chart(4.7, 2.5)
    _shares_of_classes(axes, inspection)
    alt = 'Share of every class in every split; the table holds the numbers.'
    return [_chart(figure, alt, inspection.contents)]


def _shares_of_classes(axes, inspection):
  task = inspection.task
  splits = len(inspection.contents)
  for k, (name, contents) in enumerate(inspection.contents.items()):
    counts = contents.class_counts(task.classes)
    shares = counts / (len(contents) if task.multi_label else counts.sum())
    x = np.arange(task.classes) + (k - (splits - 1) / 2) * 0.8 / splits
    axes.bar(x, 100 * shares, width=0.8 / splits, color=figures.line_colour(_SPLITS[name]))
  if task.classes <= _MOST_NAMES:
    names = [tables.class_name(inspection, k) for k in range(task.classes)]
    turned = {'rotation': 35, 'ha': 'right'} if sum(map(len, names)) > 60 else {}
    axes.set_xticks(range(task.classes), names, **turned)
  else:
    axes.set_xlabel('label')
  axes.set_ylabel('share (%)')


def _length_charts(inspection):
  lengths = {name: contents.lengths.ravel() for name, contents in inspection.contents.items()}
  return [_histograms(lengths, 'tokens', 'lengths')]


def _value_charts(inspection):
  charts = []
  for channel in range(inspection.task.channels):
    which = f' of channel {channel}' if inspection.task.channels > 1 else ''
    values = {name: contents.values.some[:, channel] for name, contents in inspection.contents.items()}
    charts.append(_histograms(values, f'stored value{which}', f'stored values{which}', bins=64, high=True))
  return charts


_CHARTS = {'Labels': _label_charts, 'Lengths': _length_charts, 'Values': _value_charts}


def _histograms(values, xlabel, name, bins=50, high=False):
  """Outlines of the share of every bin, for every split, on the same bins.

  Args:
    values: {split: array [n]}.
    name: plural of what is drawn.
    high: use a logarithmic scale where one bin would hide the others.
  """
  # The distance of two float32 may be too large for one.
  least, most = (float(end(list(map(end, values.values())))) for end in (np.min, np.max))
  edges = np.linspace(least, most + (most == least) * max(1.0, 1e-6 * abs(most)), bins + 1)
  with figures.style(name.replace(' ', '')):
    figure, (axes,) = figures.chart(4.7, 2.5)
    for split, some in values.items():
      weights = np.full(len(some), 100 / len(some))
      colour = figures.line_colour(_SPLITS[split])
      axes.hist(some, edges, weights=weights, histtype='step', color=colour, linewidth=1.3)
    if high and axes.get_ylim()[1] > _HIGH_SHARE:
      axes.set_yscale('log')
      axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter('{x:g}'))
      axes.minorticks_off()
    axes.set_xlabel(xlabel)
    axes.set_ylabel('share (%)')
    return _chart(figure, f'Histogram of the {name} of every split.', values)


def _chart(figure, alt, splits):
  return {'svg': figures.svg(figure), 'alt': alt, 'key': [(name, _SPLITS[name]) for name in splits]}
