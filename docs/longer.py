"""Tables of configs/studies/mini_longer.py, beside those cells of mini_table.py, and of mini_minutes.

docs/figures.py puts them on pages.
"""

from docs import mini
from docs.costs import hardware, head, paragraph
from docs.told import Scores

COLUMN = 'ListOps'
ARMS = 'scratch', 'masked'


def table(found: dict, of_table: dict) -> list[str]:
  """A model a line: both arms in the table and here, and the gain in both."""
  here, there = Scores(found), Scores(of_table)
  gains = [
    {one['model']: one for one in some['gains'] if (one['column'], one['regime']) == (COLUMN, 'masked')}
    for some in (of_table, found)
  ]
  names = ('scratch', 'scratch, longer', 'masked', 'masked, longer', 'gain, points (95 % interval)')
  lines = head((f'{COLUMN}, test accuracy, %', *names, 'gain, longer'))
  for model in gains[1]:
    scores = [some.shown(f'{model}, {arm}', COLUMN) for arm in ARMS for some in (there, here)]
    lines.append(f'| {" | ".join([model, *scores, *(mini.in_bold(some[model]) for some in gains)])} |')
  means = [one for one in found['means'] if one['regime'] == 'masked']
  if means and len(means[0]['models']) == len(found['cells']) // len(ARMS):
    (before,) = [one for one in of_table['means'] if (one['column'], one['regime']) == (COLUMN, 'masked')]
    lines.append(f'| mean | | | | | {mini.in_bold(before)} | {mini.in_bold(means[0])} |')
  told = f'{mini.means_of(found)}. {mini.count_of_cells(found)} ({mini.origin(found)}). Significant gains in '
  told += 'bold (Holm-adjusted, in either study over its own gains).'
  return [*lines, '', *paragraph(told), '', *_lengths(found)]


def _lengths(found) -> list[str]:
  """Steps with labels of every run, and after which its validation was best."""
  lines = head(('steps with labels: seed by seed', 'trained', 'best validation'))
  for cell in mini.whole_cells(found):
    steps = [', '.join(f'{step:,}' for step in cell[key]) for key in ('steps', 'best_steps')]
    lines.append(f'| {cell["row"]} | {" | ".join(steps)} |')
  return lines


def minutes(found: dict) -> list[str]:
  """Of benchmarks/mini_minutes.py: a task a line."""
  rows = {tuple(row['case'].split(':')): row for row in found['rows']}
  models = {'transformer_rotary': 'Transformer + Rotary', 's4': 'S4'}
  lines = head(('minutes of a masked run', *models.values()))
  for task in dict.fromkeys(task for task, _ in rows):
    of_task = [f'{rows[task, model]["minutes"]:.1f}' for model in models]
    lines.append(f'| {task} | {" | ".join(of_task)} |')
  slow = [case for case, row in rows.items() if row['minutes'] > 10]
  most = max(row['minutes'] for row in found['rows'])
  aim = 'No run takes more' if not slow else f'{len(slow)} of {len(rows)} take more'
  told = f'Whole runs with nothing else running, computed from {found["steps"]} of their 4,000 steps'
  told += f' ({hardware(found)}; `{found["command"]} --data_dir=data`). {aim} than the 10 minutes that a run '
  told += f'is meant to take{f" (at most {most:.1f})" if slow else ""}.'
  return [*lines, '', *paragraph(told)]
