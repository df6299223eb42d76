"""LRA-mini as charts, tables and pictures: over the share of labels, and validation over operations.

docs/figures.py puts them on pages.
"""

import math

import numpy as np

from docs import origins
from docs.costs import head, listed, paragraph, percent
from docs.mini import NO_CELL, count_of_cells, in_bold, means_of, origin, rows_of, whole_cells
from lra_spt.report.pages import figures
from lra_spt.report.study.sentences import shown_p


def labels(found) -> list[str]:
  """Accuracies over the share of labels, and the gain of each way of pretraining over scratch."""
  models = _by_model(found)
  if not models:
    return [NO_CELL]
  ways = list(dict.fromkeys(arm for arms in models.values() for arm in arms if arm != 'scratch'))
  lines = head(('labels', 'from scratch', *(name for way in ways for name in (way, 'gain')), 'all over part'))
  over = {(one['model'], one['column']): in_bold(one) for one in found['inputs']}
  points = {(one['row'], one['column'].split(', ')[-1]): in_bold(one) for one in found['gains']}
  for model, arms in models.items():
    for column in dict.fromkeys(cell['column'] for cells in arms.values() for cell in cells):
      means = {arm: percent(cell['score']) for arm in arms for cell in arms[arm] if cell['column'] == column}
      line = [column if len(models) == 1 else f'{column}, {model}', means.get('scratch', '')]
      for way in ways:
        line += [means.get(way, ''), points.get((f'{model}, {way}', column), '')]
      line.append(over.get((model, column), ''))
      lines.append(f'| {" | ".join(line)} |')
  told = f'Test accuracy in %; {means_of(found).lower()}. Gains in points with 95 % intervals, in bold where '
  told += 'significant (Holm-adjusted over all gains, and over the last column); with 100 % the part is all. '
  told += f'{count_of_cells(found)} ({origin(found)}).{origins.data_short(found)}'
  answers = [line for one in found['answers'] for line in ('', *paragraph(one))]
  return [*lines, '', *paragraph(told), *answers, *_growths(found['growths'])]


def _growths(growths) -> list[str]:
  if not growths:
    return []
  names = 'gain of', 'labels', 'minus the gain with all labels, points (95 % interval)', 'p', 'p after Holm'
  lines = ['', *head(names)]
  for one in growths:
    tests = ' | '.join(shown_p(one[key]) for key in ('p', 'adjusted'))
    lines.append(f'| {one["row"]} | {one["column"]} | {in_bold(one)} | {tests} |')
  return lines


def _by_model(found) -> dict[str, dict[str, list[dict]]]:
  """{model: {arm: its whole cells, by the share of labels}}."""
  models = {}
  for cell in sorted(whole_cells(found), key=_share):
    model, _, arm = cell['row'].partition(', ')
    models.setdefault(model, {}).setdefault(arm, []).append(cell)
  return models


def _share(cell) -> float:
  """Of the labels, in %, by which the column is called."""
  return float(cell['column'].rstrip('%'))


def draw_labels(found, ink: str, rule: str, colours: dict[str, str]):
  """Test accuracy over the share of labels, a panel per model, a line per arm with 95 % intervals: the
  figure, within `figures.style`.

  colours: {arm: of its line}.
  """
  models = _by_model(found)
  size = (1 + 5.4 * len(models), 3.4)
  figure, panels = figures.chart(*size, columns=len(models), faint=ink, grid=rule)
  for axes, (model, arms) in zip(panels, models.items(), strict=True):
    for number, (arm, cells) in enumerate(sorted(arms.items(), key=lambda item: [*colours].index(item[0]))):
      y, low, high = (100 * np.array([cell[name] for cell in cells]) for name in ('score', 'low', 'high'))
      x = np.array(list(map(_share, cells))) * 1.04 ** (number - 1)  # no interval hides another
      line = {'color': colours[arm], 'marker': 'o', 'ms': 4, 'elinewidth': 1, 'label': f'{model}, {arm}'}
      axes.errorbar(x, y, (y - low, high - y), **line)
    axes.set_xscale('log')
    ticks = sorted({_share(cell) for cells in arms.values() for cell in cells})
    axes.set_xticks(ticks, [f'{tick:.0f} %' for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel('share of the labels')
    axes.set_ylabel('test accuracy, %')
    axes.grid(axis='y', color=rule, alpha=0.3)
    axes.legend(frameon=False, labelcolor=ink)
  return figure


def curves(found, picture: str) -> list[str]:
  """The last validation of the finished cells of a study of curves, and the picture of `draw_curves`."""
  cells = {(cell['row'], cell['column']): cell for cell in whole_cells(found)}
  if not cells:
    return [NO_CELL]
  last = {(one['row'], one['column']): percent(one['score'][-1]) for one in found['curves']}
  columns = list(dict.fromkeys(column for _, column in cells))
  lines = head(('last validation, %', *columns))
  for row in rows_of(found, {row for row, _ in cells}):
    lines.append(f'| {row} | {" | ".join(last.get((row, column), "") for column in columns)} |')
  seeds = listed([str(seed) for seed in dict.fromkeys(one['seed'] for one in found['curves'])])
  told = f'Seed {seeds}. {count_of_cells(found)} ({origin(found)}).'
  told += origins.places(found) + origins.data(found)
  lines += ['', *paragraph(told)]
  if _panels(found):
    lines += ['', f'![Accuracy on validation over the operations of training]({picture})']
  return lines


def _panels(found) -> dict[str, tuple[list[dict], list[str]]]:
  """{column: (curves of the models that are whole there, the other models)}, where some model is."""
  panels = {}
  for column in dict.fromkeys(one['column'] for one in found['curves']):
    cells = [cell for cell in found['cells'] if cell['column'] == column]
    left = list(dict.fromkeys(_model(cell) for cell in cells if cell['state']))
    shown = [one for one in found['curves'] if one['column'] == column and _model(one) not in left]
    if shown:
      panels[column] = shown, left
  return panels


def _model(row: dict) -> str:
  return row['row'].partition(', ')[0]


def draw_curves(found, ink: str, rule: str, colours: dict[str, str]):
  """Validation accuracy over the operations of training, a panel per column with the models of which all arms
  are run there, and the names of the others: the figure, within `figures.style`; None where there is none.

  colours: {model: of its lines}.
  """
  panels = _panels(found)
  if not panels:
    return None
  rows, columns = (1, len(panels)) if len(panels) < 3 else (math.ceil(len(panels) / 2), 2)
  size = (1 + 4.2 * columns, 0.7 + 2.7 * rows)
  figure, places = figures.chart(*size, rows=rows, columns=columns, faint=ink, grid=rule)
  for axes in places[len(panels) :]:
    axes.set_visible(False)
  places = places[: len(panels)]
  for axes, (column, (shown, left)) in zip(places, panels.items(), strict=True):
    for one in shown:
      shape = '--' if one['row'].endswith('masked') else '-'
      score = 100 * np.array(one['score'])
      axes.plot(one['flops'], score, shape, color=colours[_model(one)], label=one['row'])
    title = f'{column} (not run: {", ".join(left)})' if left else column
    axes.set_title(title, fontsize=10, color=ink)
    axes.set_xlim(left=0)
    axes.grid(axis='y', color=rule, alpha=0.3)
  for axes in places[::columns]:
    axes.set_ylabel('accuracy on validation, %')
  for axes in places[-columns:]:
    axes.set_xlabel('FLOPs of training, pretraining included')
  lines = max(places, key=lambda axes: len(axes.lines)).get_legend_handles_labels()
  figure.legend(*lines, loc='outside upper center', ncols=min(4, 2 * columns), frameon=False, labelcolor=ink)
  return figure
