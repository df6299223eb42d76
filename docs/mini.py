"""Tables and the picture of LRA-mini, from what benchmarks.mini wrote; docs/figures.py puts them on pages."""

import numpy as np

from docs.costs import hardware, paragraph, percent
from lra_spt.pages import figures

NO_CELL = 'It is being run; no cell of its table is finished.'


def gains(found) -> list[str]:
  """Every gain of masked self-pretraining that can be counted yet, in a line."""
  shown = [one for one in found['gains'] if one['regime'] == 'masked'] if found else []
  if not shown:
    return [NO_CELL]
  run, cells = len(_whole(found)), len(found['cells'])
  share = (
    f'All {cells} cells are run' if run == cells else f'{run} of {cells} cells are run, the others not yet'
  )
  return [
    '| test accuracy, % | from scratch | after masked SPT | gain, points (95 % interval) |',
    '|---|---|---|---|',
    *map(_gained, shown),
    '',
    *paragraph(
      f'{_means(found)}; in bold what can be told (p after Holm over all gains at most 5 %). '
      f'{share} ({_source(found)}).'
    ),
  ]


def _gained(one) -> str:
  cells = (
    f'{one["column"]}, {one["model"]}',
    percent(one['scratch']),
    percent(one['pretrained']),
    _points(one),
  )
  return f'| {" | ".join(cells)} |'


def _points(one) -> str:
  estimate, low, high = (f'{100 * one[key]:+.1f}' for key in ('estimate', 'low', 'high'))
  said = f'{estimate} ({low} to {high})'.replace('-', '\u2212')
  return f'**{said}**' if one['told'] else said


def whole(found) -> list[str]:
  """The table with an interval per cell, all that it says, and the learning rates that were tried."""
  searched = [
    cell for cell in (found['cells'] if found else ()) if cell['search'] and cell['search'][0]['won']
  ]
  if not searched:
    return _table(found)
  agreed = _agreement(found.get('agreement', ()))
  rates = [tried['values'].split('=')[1] for tried in searched[0]['search'][0]['tried']]
  heads = ' | '.join(f'validation at {rate}' for rate in rates)
  lines = [f'| learning rates | {heads} |', '|---' * (len(rates) + 1) + '|']
  for cell in searched:
    scores = ' | '.join(_tried(tried, cell['search'][0]['won']) for tried in cell['search'][0]['tried'])
    lines.append(f'| {cell["row"]}, {cell["column"]} | {scores} |')
  return [*_table(found), *agreed, '', *lines, '', 'Bold is what was chosen.']


def _agreement(found) -> list[str]:
  if not found:
    return []
  lines = [
    '',
    "| order here, and as printed at full size | models | Kendall's tau | of each seed |",
    '|---|---|---|---|',
  ]
  for one in found:
    of_seeds = ', '.join(f'{tau:.2f}' for tau in one['of_seeds'])
    names = ', '.join(f'`{model}`' for model in one['models'])
    line = f'| {one["column"]}, {one["regime"]} | {names} | {one["tau"]:.2f} | {of_seeds} |'
    lines.append(line.replace('-', '\u2212'))
  return lines


def _tried(tried, won) -> str:
  if tried['score'] is None:
    return 'failed'
  score = f'{percent(tried["score"])} %'
  return f'**{score}**' if tried['values'] == won else score


def _table(found) -> list[str]:
  """The table with an interval per cell, and all that it says."""
  cells = {(cell['row'], cell['column']): cell for cell in _whole(found)}
  if not cells:
    return [NO_CELL]
  columns = list(dict.fromkeys(column for _, column in cells))
  lines = [f'| test accuracy, % | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
  for row in dict.fromkeys(row for row, _ in cells):
    numbers = [cells.get((row, column)) for column in columns]
    lines.append(f'| {row} | {" | ".join(_score(cell) for cell in numbers)} |')
  told = f'{_means(found)} with 95 % t intervals; an empty cell has not been run ({_source(found)}).'
  return [*lines, '', *paragraph(told), *(line for one in found['answers'] for line in ('', *paragraph(one)))]


def _whole(found) -> list[dict]:
  """The cells of which all seeds are there."""
  return [cell for cell in found['cells'] if cell['seeds'] and not cell['state']] if found else []


def _means(found) -> str:
  seeds = sorted({seed for cell in _whole(found) for seed in cell['seeds']})
  return f'Means of seeds {", ".join(map(str, seeds))}'


def _source(found) -> str:
  return f'{hardware(found)}; `{found["command"]}`'


def _score(cell) -> str:
  if cell is None:
    return ''
  return f'{percent(cell["score"])} ({percent(cell["low"])} to {percent(cell["high"])})'


def labels(found) -> list[str]:
  """Accuracies over the share of labels, and the gain of each way of pretraining over scratch."""
  cells = {(cell['row'], cell['column']): cell for cell in _whole(found)}
  if not cells:
    return [NO_CELL]
  rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
  scratch, *pretrained = sorted(rows, key=lambda row: 'scratch' not in row)
  points = {(one['row'], one['column'].split(', ')[-1]): _points(one) for one in found['gains']}
  ways = [row.partition(', ')[2] for row in pretrained]
  heads = ['labels', 'from scratch', *(head for way in ways for head in (way, 'gain'))]
  lines = [f'| {" | ".join(heads)} |', '|---' * len(heads) + '|']
  for column in columns:
    line = [column, _mean(cells.get((scratch, column)))]
    for row in pretrained:
      line += [_mean(cells.get((row, column))), points.get((row, column), '')]
    lines.append(f'| {" | ".join(line)} |')
  told = f'Test accuracy in %; {_means(found).lower()}. Gains in points with 95 % intervals, in bold what '
  told += 'can be told (p after Holm over all gains at most 5 %); of all labels the part is all '
  told += f'({_source(found)}).'
  return [*lines, '', *paragraph(told), *(line for one in found['answers'] for line in ('', *paragraph(one)))]


def _mean(cell) -> str:
  return percent(cell['score']) if cell else ''


def draw_labels(found, path, ink: str, rule: str, colours) -> None:
  """Test accuracy over the share of labels, a line per row with 95 % intervals, as PNG."""
  rows = {}
  for cell in _whole(found):
    rows.setdefault(cell['row'], []).append(cell)
  with figures.style('labels'):
    figure, (axes,) = figures.chart(6.4, 3.4, faint=ink, grid=rule)
    for number, ((row, cells), colour) in enumerate(zip(rows.items(), colours, strict=False)):
      names = 'x', 'score', 'low', 'high'
      x, y, low, high = (np.array([_number(cell, name) for cell in cells]) for name in names)
      x = x * 1.04 ** (number - 1)  # side by side, so that no interval hides another
      axes.errorbar(x, y, (y - low, high - y), color=colour, marker='o', ms=4, elinewidth=1, label=row)
    axes.set_xscale('log')
    ticks = sorted({_number(cell, 'x') for cells in rows.values() for cell in cells})
    axes.set_xticks(ticks, [f'{tick:.0f} %' for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel('share of the labels')
    axes.set_ylabel('test accuracy, %')
    axes.grid(axis='y', color=rule, alpha=0.3)
    axes.legend(frameon=False, labelcolor=ink)
    figure.savefig(path, dpi=150, facecolor='white')


def _number(cell, key) -> float:
  """In %; x: the share of labels that the column is called by."""
  return float(cell['column'].rstrip('%')) if key == 'x' else 100 * cell[key]


def development(found: dict) -> list[str]:
  lines = ['| task | training | steps | examples seen | test |', '|---|---|---|---|---|']
  for run in found['runs']:
    stages = run['stages'].values()
    seen = sum(stage['steps'] * stage['batch_size'] for stage in stages)
    score = f'{percent(run["test"])} %' if run['metric'] == 'accuracy' else f'R2 {run["test"]:.2f}'
    part = '' if run['part'] == 1 else f', {run["part"]:.0%} of the training set'
    steps = ' + '.join(f'{stage["steps"]:,}' for stage in stages)
    lines.append(f'| `{run["task"]}`{part} | {run["regime"]} | {steps} | {seen:,} | {score} |')
  return lines
