"""The Markdown tables of studies of LRA-mini, for their result files (see benchmarks/tables).

A result of a study holds `cells`, `gains`, `means`, `leads` and so on (benchmarks/mini.py). Only cells whose
seeds have all run are shown.
"""

from benchmarks.tables.markdown import difference, p_value, percent, score, table

ARMS = {  # ends of the rows of mini_arms: names of its columns
  'scratch, steps of finetuning': 'scratch, short',
  'scratch': 'scratch',
  'masked': 'masked',
  'scratch, causal form': 'scratch, causal form',
  'causal': 'causal',
}


def of_study(name: str, result: dict, compared) -> dict[str, list[str]]:
  """Makes all tables of a study.

  Args:
    name: of its result file.
    result: its content.
    compared: returns the result of the study whose cells a study of longer runs repeats.
  """
  tables = {'scores': scores(result), 'seeds': seeds(result), 'rates': rates(result)}
  if result['gains'] or result['further']:
    tables['gains'] = gains(result)
  if result['leads']:
    tables['leads'] = leads(result)
  if result['agreement']:
    tables['agreement'] = agreement(result)
  if result['curves']:
    tables['curves'] = last_validation(result)
  if name == 'mini_table':
    tables |= {'main': arrows(result), 'leads_of_s4': leads_of_s4(result), 'time': time(result)}
  if name == 'mini_arms':
    tables['main'] = arms(result)
  if name == 'mini_labels':
    tables |= {'main': labels(result), 'growths': growths(result)}
  if name.startswith('mini_longer'):
    tables |= {'main': longer(result, compared()), 'lengths': lengths(result)}
    tables['leads_of_s4'] = leads_of_s4(result)
  return tables


def whole(result: dict) -> list[dict]:
  """The cells whose seeds have all run."""
  return [cell for cell in result['cells'] if cell['seeds'] and not cell['state']]


def model_and_arm(row: str) -> tuple[str, str]:
  """('S4', 'scratch, causal form') of the row 'S4, scratch, causal form'."""
  model, _, arm = row.partition(', ')
  return model, arm


def _unique(values) -> list:
  return list(dict.fromkeys(values))


def _heading(cells) -> str:
  of_r2 = _unique(cell['column'] for cell in cells if cell['metric'] == 'r2')
  return '; '.join(['test accuracy, %', *(f'{column}: R²' for column in of_r2)])


def _by_cell(result: dict, heading: str, shown) -> list[str]:
  """A table with the rows and columns of the study; shown(cell) makes a cell's text."""
  cells = {(cell['row'], cell['column']): cell for cell in whole(result)}
  columns = _unique(column for _, column in cells)
  rows = [
    (row, *(shown(cells[row, column]) if (row, column) in cells else '' for column in columns))
    for row in _unique(row for row, _ in cells)
  ]
  return table((heading, *columns), rows)


def scores(result: dict) -> list[str]:
  def shown(cell):
    middle, low, high = (score(cell[key], cell['metric']) for key in ('score', 'low', 'high'))
    return f'{middle} ({low} to {high})'

  return _by_cell(result, _heading(whole(result)), shown)


def seeds(result: dict) -> list[str]:
  return _by_cell(
    result, 'seed by seed', lambda cell: ', '.join(score(one, cell['metric']) for one in cell['scores'])
  )


def lengths(result: dict) -> list[str]:
  """Steps with labels of every seed, and those after which validation was best."""
  rows = []
  for cell in whole(result):
    steps = [', '.join(f'{step:,}' for step in cell[key]) for key in ('steps', 'best_steps')]
    rows.append((f'{cell["row"]}, {cell["column"]}', *steps))
  return table(('steps with labels, seed by seed', 'trained', 'at the best validation'), rows)


def rates(result: dict) -> list[str]:
  """The learning rates that each cell tried; the one that validation chose is in bold."""
  rows, names = [], ()
  for cell in result['cells']:
    if not (cell['metric'] and cell['search'] and cell['search'][0]['won']):
      continue
    tried, won = cell['search'][0]['tried'], cell['search'][0]['won']
    names = [f'validation at {one["values"].split("=")[1]}' for one in tried]
    texts = ['failed' if one['score'] is None else score(one['score'], cell['metric']) for one in tried]
    marked = [f'**{text}**' if one['values'] == won else text for one, text in zip(tried, texts, strict=True)]
    rows.append((f'{cell["row"]}, {cell["column"]}', *marked))
  return table(('learning rates', *names), rows)


def gains(result: dict) -> list[str]:
  rows = []
  for one in [*result['gains'], *result['further']]:
    name = f'{one["row"]}, {one["column"]}' + (f', over {one["over"]}' if 'over' in one else '')
    tests = p_value(one['p']), p_value(one['adjusted'])
    rows.append((name, difference(one), *tests, f'{one["operations"]:.0%}'))
  names = 'self-pretraining', 'gain, points (95 % interval)', 'p', 'p after Holm', 'operations of scratch'
  return table(names, rows)


def leads(result: dict) -> list[str]:
  rows = []
  for one in result['leads']:
    ends = score(one['before'], one['metric']), score(one['after'], one['metric'])
    # `estimate` is by how much the lead shrinks.
    rows.append((f'{one["leader"]} over {one["other"]}, {one["column"]}', *ends, difference(_turned(one))))
    rows[-1] += (p_value(one['p']), p_value(one['adjusted']))
  names = 'from scratch', 'pretrained', 'change (95 % interval)', 'p', 'p after Holm'
  return table(('lead of', *names), rows)


def _turned(one: dict) -> dict:
  return one | {'estimate': -one['estimate'], 'low': -one['high'], 'high': -one['low']}


def leads_of_s4(result: dict) -> list[str]:
  """How far S4 is ahead of both Transformers, before and after masked self-pretraining."""
  rows = []
  columns = _unique(cell['column'] for cell in result['cells'])
  for other in ('Transformer + Rotary', 'Transformer'):
    of_both = [one for one in result['leads'] if {one['leader'], one['other']} == {'S4', other}]
    for one in sorted(of_both, key=lambda one: columns.index(one['column'])):
      ahead = one['leader'] == 'S4'
      ends = []
      for when in ('before', 'after'):
        limits = [one['limits'][when][key] for key in ('low', 'high')]
        values = [one[when], *limits] if ahead else [-one[when], -limits[1], -limits[0]]
        middle, low, high = (score(value, one['metric']) for value in values)
        ends.append(f'{middle} ({low} to {high})')
      change = difference(_turned(one) if ahead else one)
      place = one['column'] + (' (R²)' if one['metric'] == 'r2' else '')
      rows.append((f'{other}, {place}', *ends, change, p_value(one['adjusted'])))
  names = 'lead of S4 over', 'from scratch', 'masked', 'change (95 % interval)', 'p after Holm'
  return table(names, rows)


def agreement(result: dict) -> list[str]:
  rows = []
  for one in result['agreement']:
    limits = '' if one['low'] is None else f' ({one["low"]:.2f} to {one["high"]:.2f})'
    cells = f'{one["tau"]:.2f}{limits}', ', '.join(f'{tau:.2f}' for tau in one['of_seeds'])
    models = ', '.join(f'`{model}`' for model in one['models'])
    rows.append((f'{one["column"]}, {one["regime"]}', models, *(cell.replace('-', '−') for cell in cells)))
  names = 'ranking here and as published at full size', 'models', "Kendall's tau (95 %)", 'per seed'
  return table(names, rows)


def arrows(result: dict) -> list[str]:
  """Scores before and after masked self-pretraining: a model a row, a task a column."""
  masked = [one for one in result['gains'] if one['regime'] == 'masked']
  columns = _unique(one['column'] for one in masked)
  models = _unique(model_and_arm(cell['row'])[0] for cell in result['cells'])
  by = {(one['model'], one['column']): one for one in masked}
  rows = []
  for model in models:
    cells = []
    for column in columns:
      one = by.get((model, column))
      text = ' → '.join(score(one[key], one['metric']) for key in ('scratch', 'pretrained')) if one else ''
      cells.append(f'**{text}**' if one and one['significant'] else text)
    rows.append((model, *cells))
  means = {one['column']: difference(one) for one in result['means'] if one['regime'] == 'masked'}
  rows.append(('mean gain (95 %)', *(means.get(column, '') for column in columns)))
  return table((_heading(masked), *columns), rows)


def time(result: dict) -> list[str]:
  columns = {cell['task']: cell['column'] for cell in result['cells'] if cell['task']}
  rows = []
  for task, column in columns.items():
    one = result['time'][task]
    minutes = [f'{one[key] / 60:.1f}' for key in ('fastest', 'median', 'slowest')]
    rows.append((column, one['runs'], *minutes, f'{one["seconds"] / 3600:.1f}'))
  return table(('task', 'runs', 'fastest, minutes', 'median', 'slowest', 'total, hours'), rows)


def arms(result: dict) -> list[str]:
  """The score of every arm, for the models and tasks whose arms have all run."""
  cells = {(cell['column'], *model_and_arm(cell['row'])): cell for cell in whole(result)}
  rows = [
    (f'{model}, {column}', *(score(cells[column, model, arm]['score']) for arm in ARMS))
    for column, model in _unique(place[:2] for place in cells)
    if all((column, model, arm) in cells for arm in ARMS)
  ]
  return table(('test accuracy, %', *ARMS.values()), rows)


def longer(result: dict, compared: dict) -> list[str]:
  """Scores and gains beside those of the study with shorter runs; compared: that study."""
  here, there = (
    {(cell['column'], *model_and_arm(cell['row'])): cell['score'] for cell in whole(study)}
    for study in (result, compared)
  )
  before = {(one['column'], one['model']): one for one in compared['gains'] if one['regime'] == 'masked'}
  rows = []
  columns = _unique(one['column'] for one in result['gains'])
  for column in columns:
    of_column = [one for one in result['gains'] if one['column'] == column]
    for one in of_column:
      places = [(column, one['model'], arm) for arm in ('scratch', 'masked')]
      pairs = [percent(some[place]) for place in places for some in (there, here)]
      first = before[column, one['model']]
      rows.append((f'{one["model"]}, {column}', *pairs, difference(first), difference(one)))
    planned = {model_and_arm(cell['row'])[0] for cell in result['cells'] if cell['column'] == column}
    if len(of_column) == len(planned):  # a mean over some would be of those that ran first
      means = [
        next(
          difference(one) for one in study['means'] if (one['column'], one['regime']) == (column, 'masked')
        )
        for study in (compared, result)
      ]
      rows.append((f'mean, {column}', '', '', '', '', *means))
  names = 'scratch', 'scratch, longer', 'masked', 'masked, longer', 'gain, points (95 %)', 'gain, longer'
  return table(('test accuracy, %', *names), rows)


def mean_gain(result: dict, column: str) -> dict:
  return next(one for one in result['means'] if (one['column'], one['regime']) == (column, 'masked'))


def _share(cell: dict) -> float:
  return float(cell['column'].rstrip('%'))


def labels(result: dict) -> list[str]:
  """Accuracy over the share of labels; the gain of each way of pretraining over scratch."""
  cells = {(cell['column'], model_and_arm(cell['row'])[1]): cell for cell in whole(result)}
  ways = 'masked on the part', 'masked on all inputs'
  gained = {(one['column'].split(', ')[-1], model_and_arm(one['row'])[1]): one for one in result['gains']}
  inputs = {one['column']: difference(one) for one in result['inputs']}
  rows = []
  for column in _unique(cell['column'] for cell in sorted(whole(result), key=_share)):
    row = [column, percent(cells[column, 'scratch']['score'])]
    for way in ways:
      there = (column, way) in cells
      row += [percent(cells[column, way]['score']) if there else '']
      row += [difference(gained[column, way]) if (column, way) in gained else '']
    rows.append((*row, inputs.get(column, '')))
  names = [name for way in ways for name in (way, 'gain')]
  return table(('labels', 'from scratch', *names, 'all over part'), rows)


def growths(result: dict) -> list[str]:
  rows = [
    (one['row'], one['column'], difference(one), p_value(one['p']), p_value(one['adjusted']))
    for one in result['growths']
  ]
  names = 'gain of', 'labels', 'minus the gain with all labels, points (95 % interval)', 'p', 'p after Holm'
  return table(names, rows)


def last_validation(result: dict) -> list[str]:
  last = {(one['row'], one['column']): percent(one['score'][-1]) for one in result['curves']}
  columns, rows = _unique(column for _, column in last), _unique(row for row, _ in last)
  return table(
    ('last validation, %', *columns),
    [(row, *(last.get((row, column), '') for column in columns)) for row in rows],
  )


def course(result: dict) -> list[str]:
  """Test accuracy and steps of every seed, from scratch and after self-pretraining."""
  curves = {(one['regime'], one['seed']): one for one in result['curves']}
  rows = []
  for seed in sorted({seed for _, seed in curves}):
    scratch, masked = curves['scratch', seed], curves['masked', seed]
    before, after = masked['pretraining'], masked['step'][-1] - masked['pretraining']
    first = f'{percent(scratch["test"])} %', f'{scratch["step"][-1]:,}'
    rows.append((seed, *first, f'{percent(masked["test"])} %', f'{before:,} + {after:,}'))
  return table(('seed', 'from scratch', 'steps', 'masked', 'steps'), rows)


def minutes(result: dict) -> list[str]:
  taken = {tuple(row['case'].split(':')): row['minutes'] for row in result['rows']}
  models = _unique(model for _, model in taken)
  rows = [
    (f'`{task}`', *(f'{taken[task, model]:.1f}' if (task, model) in taken else '' for model in models))
    for task in _unique(task for task, _ in taken)
  ]
  return table(('minutes of a masked run', *(f'`{model}`' for model in models)), rows)
