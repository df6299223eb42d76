"""The figures of a study, above its table: lines along an axis, bars, or training over epochs."""

import dataclasses

import numpy as np

from lra_spt.report.pages import charts, styles
from lra_spt.report.runs.run import STAGE_NAMES
from lra_spt.report.statistics.scores import SCORES
from lra_spt.report.study import baselines
from lra_spt.report.study import table as tables

TRAINED = ('accuracy', 'r2', 'macro_f1', 'auroc')  # what is drawn of a stage: the first that it measures
SCRATCH_DASH = '6 2'


def figures(table) -> list[dict]:
  """{'caption', 'svg', 'key': [(name, Style)], 'wide'} of every figure that a study asks for."""
  made = []
  if table.record.get('chart'):
    made += [_along_the_axis(table), _relative_gains(table)]
  if table.record['show'] == 'bars':
    made.append(_bars(table))
  if table.record['show'] == 'curves':
    made += [_training(table, column) for column in table.columns]
  made += [_over_length(table, column) for column in table.columns]
  return [one for one in made if one]


def _figure(caption, svg, key, wide=False):
  return {'caption': caption, 'svg': svg, 'key': key, 'wide': wide} if svg else None


def _line_figure(caption, lines, *labels, **options):
  key = [(line.name, line.style) for line in lines]
  return _figure(caption, charts.line_chart(lines, *labels, **options), key)


def _along_the_axis(table):
  """Draws a line per row, ours solid and published dashed."""
  lines = []
  for number, row in enumerate(table.rows):
    for kind, value, dash in (('', tables.ours, ''), (', published', tables.published, '4 3')):
      points = [(cell.record['x'], value(cell)) for cell in _placed(table, row) if value(cell) is not None]
      if points:
        style = dataclasses.replace(styles.of_row(number), dash=dash)
        lines.append(charts.Line(row + kind, style, (tuple(zip(*points, strict=True)),)))
  shares = all(cell.score.in_percent for cell in table.cells.values())
  chart = table.record['chart']
  labels, caption = (chart['x'], chart['y']), chart['y'][:1].upper() + chart['y'][1:]
  return _line_figure(caption, lines, *labels, percent=shares, xlog=chart['log'])


def _over_length(table, column):
  """Draws the score of each row against the length of test examples, for a task that has longer ones."""
  lines, score = [], SCORES['accuracy']
  for number, row in enumerate(table.rows):
    cell, points = table.cells.get((row, column)), {}
    for run in cell.runs if cell else ():
      for test in (run.result['metrics'].get('by_length') or {}).values():
        if (value := test.get(run.score.key)) is not None:
          points.setdefault(test['length'], []).append(value)
    points = {length: sum(values) / len(values) for length, values in points.items()}
    if points:
      style, score = dataclasses.replace(styles.of_row(number), dash=''), cell.score
      lines.append(charts.Line(row, style, (tuple(zip(*sorted(points.items()), strict=True)),)))
  caption = f'{column}, on longer test examples, mean over seeds'
  options = {'percent': score.in_percent, 'xlog': True}
  return _line_figure(caption, lines, 'positions', f'test {score.name}', **options) if lines else None


def _relative_gains(table):
  """Draws the gain of each self-pretrained row as a share of its accuracy from scratch, if that is not 0."""
  lines = []
  for number, row in enumerate(table.rows):
    points = []
    for cell in _placed(table, row):
      base = _baseline(table, cell)
      before, after = tables.ours(base) if base else None, tables.ours(cell)
      if before and after is not None:
        points.append((cell.record['x'], after / before - 1))
    if points:
      style = dataclasses.replace(styles.of_row(number), dash='')
      lines.append(charts.Line(row, style, (tuple(zip(*points, strict=True)),)))
  chart = table.record['chart']
  labels = chart['x'], 'relative gain'
  caption = 'Gain of self-pretraining as a share of the accuracy from scratch'
  return _line_figure(caption, lines, *labels, xlog=chart['log'], includes=(0.0,))


def _placed(table, row):
  cells = [cell for cell in table.cells.values() if cell.row == row and cell.record.get('x') is not None]
  return sorted(cells, key=lambda cell: cell.record['x'])


def _baseline(table, cell):
  """The cell from scratch that a cell's accuracy gains over; None without one, or where a seed diverged."""
  if not (cell.arm and cell.arm.pretrained and cell.score.counts):
    return None
  base = next(iter(baselines.of(cell, table.cells.values())), None)
  return None if base is None or base.diverged or cell.diverged else base


def _bars(table):
  """Draws a group of bars per column, one bar per row, and a group for the mean; a model has one colour."""
  looks = _looks(table)
  groups = []
  for column in table.columns:
    cells = {row: table.cells.get((row, column)) for row in table.rows}
    if all(cell.score.counts for cell in cells.values() if cell):
      groups.append((column, [_bar(row, column, cell, looks[row]) for row, cell in cells.items()]))
  if table.conventions:
    means = {row: {name: both for name, *both in table.averages(row)} for row in table.rows}
    name = tables.PAPERS if tables.PAPERS in table.conventions else table.conventions[0]
    bars = []
    for row in table.rows:
      ours, theirs = means[row][name]
      label = f'{row}, {name}: ' + _label(ours, theirs)
      bars.append(charts.Bar(label, looks[row], ours, published=theirs))
    groups.append((name.partition(',')[0], bars))
  svg = charts.bar_chart(groups, 'test accuracy')
  marks = 'bars: ours, with 95 % intervals; marks: published'
  return _figure(f'Test accuracy ({marks})', svg, list(looks.items()), wide=True)


def _bar(row, column, cell, style):
  ours, theirs = (tables.ours(cell), tables.published(cell)) if cell else (None, None)
  score = cell.arm.score if ours is not None else None
  limits = (score.low, score.high) if score and score.known else None
  return charts.Bar(f'{row}, {column}: {_label(ours, theirs)}', style, ours, limits, theirs)


def _label(ours, theirs):
  shown = [] if ours is None else [f'{100 * ours:.1f} %']
  return ', '.join(shown + ([] if theirs is None else [f'published {100 * theirs:.2f} %']))


def _looks(table):
  """{row: Style}: a colour per model, dashed where it was trained from scratch."""
  colours, looks = {}, {}
  for row in table.rows:
    cells = [cell for cell in table.cells.values() if cell.row == row]
    plan = next((cell.plan for cell in cells if cell.plan.config), None)
    style = styles.of_row(colours.setdefault(plan.model if plan else row, len(colours)))
    looks[row] = dataclasses.replace(
      style, dash=SCRATCH_DASH * (plan is not None and plan.regime == 'scratch')
    )
  return looks


def _training(table, column):
  """Draws the scores of each row on training examples over epochs; values below 0 are drawn at 0."""
  lines, drawn = [], set()
  for row in table.rows:
    cell = table.cells.get((row, column))
    for stage, words in STAGE_NAMES.items() if cell else ():
      metric, curves = _of_epochs(cell.runs, stage)
      if curves:
        drawn.add(metric)
        style = dataclasses.replace(styles.of_row(len(lines)), dash=SCRATCH_DASH * (cell.regime == 'scratch'))
        name = f'{row}: {words}' if cell.regime != 'scratch' else row
        best = np.mean([values.max() for _, values in curves])
        lines.append(charts.Line(f'{name}, {_best(metric, best)}', style, curves))
  names = ' and '.join(SCORES[metric].name for metric in TRAINED if metric in drawn)
  caption = f'{column}: {names} on training examples'
  return _line_figure(caption, lines, 'epochs of the stage', names.replace(' and ', ', '))


def _best(metric, value):
  """'up to 81.2 %', with the name of a score that is no accuracy."""
  score = SCORES[metric]
  return f'{"" if score.counts else f"{score.name} "}up to {score.show(value)}'


def _of_epochs(runs, stage):
  """(metric, curves (epochs float [n], values float [n]) of the runs that have it) on training examples."""
  for metric in TRAINED:
    curves = []
    for run in runs:
      steps, epochs = run.stage(stage, 'steps'), run.stage(stage, 'epochs')
      curve = run.curves.get(stage, {}).get('training', {}).get(metric)
      if curve is not None and steps and epochs:
        curves.append((curve[0] * (epochs / steps), np.maximum(curve[1], 0.0)))
    if curves:
      return metric, tuple(curves)
  return '', ()
