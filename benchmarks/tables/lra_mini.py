"""Makes the tables of LRA-mini that pages show.

A result of a study holds `cells`, `gains`, `means`, `leads` and so on (benchmarks/mini.py). Only cells whose
seeds have all run are shown.
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
  return {}


def whole(result: dict) -> list[dict]:
  """Returns the cells whose seeds have all run."""
  return [cell for cell in result['cells'] if cell['seeds'] and not cell['state']]


def model_and_arm(row: str) -> tuple[str, str]:
  """Splits the row 'S4, scratch, causal form' into 'S4' and 'scratch, causal form'."""
  model, _, arm = row.partition(', ')
  return model, arm


def _unique(values) -> list:
  return list(dict.fromkeys(values))


def _heading(cells) -> str:
  of_r2 = _unique(cell['column'] for cell in cells if cell['metric'] == 'r2')
  return '; '.join(['test accuracy, %', *(f'{column}: R²' for column in of_r2)])


def arrows(result: dict) -> list[str]:
  """Shows scores before and after masked self-pretraining: a model a row, a task a column."""
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


def longer(result: dict, compared: dict) -> list[str]:
  """Shows scores and gains beside those of a study with shorter runs. compared: that study."""
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
