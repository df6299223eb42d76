"""Makes the tables of LRA-mini that pages show.

A result of a study holds `cells`, `gains`, `means`, `leads` and so on (benchmarks/mini.py).
"""

from benchmarks.tables.markdown import difference, percent, score, table


def of_study(name: str, result: dict, compared) -> dict[str, list[str]]:
  """Makes the table of a study, if a page shows one.

  Args:
    name: of its result file.
    result: its content.
    compared: returns the result of the study whose cells a study of longer runs repeats.
  """
  if name == 'mini_table':
    return {'main': arrows(result)}
  if name == 'mini_longer':
    return {'main': longer(result, compared())}
  if name == 'archives':
    return {'main': archives(result)}
  return {}


def _unique(values) -> list:
  return list(dict.fromkeys(values))


def _heading(cells) -> str:
  of_r2 = _unique(cell['column'] for cell in cells if cell['metric'] == 'r2')
  return '; '.join(['test accuracy, %', *(f'{column}: R²' for column in of_r2)])


def arrows(result: dict) -> list[str]:
  """Shows scores before and after masked self-pretraining: a model a row, a task a column."""
  masked = [one for one in result['gains'] if one['regime'] == 'masked']
  columns = _unique(one['column'] for one in masked)
  models = _unique(cell['row'].partition(', ')[0] for cell in result['cells'])
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


def longer(result: dict, compared: dict) -> list[str]:
  """Shows scores and gains of a study of one task beside those of a study with shorter runs, `compared`."""
  column = result['gains'][0]['column']
  scores, gains, means = [], [], []
  for study in (compared, result):
    here = [[one for one in study[key] if one['column'] == column] for key in ('cells', 'gains', 'means')]
    scores.append({cell['row']: percent(cell['score']) for cell in here[0] if cell['seeds']})
    gains.append({one['model']: difference(one) for one in here[1] if one['regime'] == 'masked'})
    means += [difference(one) for one in here[2] if one['regime'] == 'masked']
  rows = [
    (
      model,
      *(of[f'{model}, {arm}'] for arm in ('scratch', 'masked') for of in scores),
      *(of[model] for of in gains),
    )
    for model in gains[1]
  ]
  names = 'scratch', 'scratch, longer', 'masked', 'masked, longer', 'gain, points (95 %)', 'gain, longer'
  heading = f'test accuracy on {column}, %'
  return table((heading, *names), [*rows, ('mean', '', '', '', '', *means)])


def quick(result: dict) -> list[str]:
  """Shows quick looks at mixers (benchmarks/compare_runs.py): one task, one seed each."""
  rows = []
  for row in sorted(result['rows'], key=lambda row: row['mixer']):
    scratch, masked = row['arms']['scratch'], row['arms']['masked']
    limits = ([percent(arm[key]) for key in ('score', 'low', 'high')] for arm in (scratch, masked))
    scores = ('{} ({} to {})'.format(*one) for one in limits)
    steps = ' + '.join(f'{count:,}' for count in masked['steps'].values())
    steps = f'{scratch["steps"]["finetune"]:,}; {steps}'
    rows.append((f'`{row["mixer"]}`', *scores, f'{scratch["parameters"]:,.0f}', steps))
  names = 'one seed, ListOps-mini', 'scratch, %', 'masked, %', 'parameters', 'steps: scratch; masked'
  return table(names, rows)


def archives(result: dict) -> list[str]:
  """Shows the mean score of every way of training on every set: a row for each model and way."""
  lines = [*result['cells'], *result.get('recorded', ())]
  columns = _unique(cell['column'] for cell in lines)
  by = {(cell['row'], cell['column']): cell for cell in lines if cell['scores']}

  def shown(row, column):
    cell = by.get((row, column))
    return score(cell['score'], cell['metric']) if cell else ''

  rows = _unique(cell['row'] for cell in lines)
  return table(
    (_heading(lines), *columns), [(row, *(shown(row, column) for column in columns)) for row in rows]
  )
