"""Where the runs of LRA-mini come from, for the pages: data, machines of its cells, time."""

from docs.costs import device, head, listed, paragraph
from lra_spt.report.study import notes

# What is known of sources that could not be verified: how many images, and how many for training and of the
# test differ from the official ones.
DECODED = {'files cifar-10-batches-bin': ('CIFAR-10', 60_000, 73, 20)}


def data(found: dict) -> str:
  """A sentence on sets that are not verified to be the official ones, '' where there are none."""
  sources = _unverified(found)
  if not sources:
    return ''
  whole = len({cell['task'] for cell in found['cells'] if cell.get('task')}) == 1
  sets = [f'{"" if whole else f"of {listed(columns)} "}({source})' for source, columns in sources.items()]
  told = f' The data {listed(sets)} could not be verified to be the official files'
  for source in sources:
    if source in DECODED:
      name, images, train, test = DECODED[source]
      told += (
        f'; {train} of the training and {test} of the test images of {name} ({images:,} in all) were decoded '
        'from JPEG and differ slightly from the official ones'
      )
  return f'{told}.'


def data_short(found: dict, page: str = '') -> str:
  """The same, with a link to where the table says it; page: of the table, seen from the link's."""
  sources = _unverified(found)
  columns = [column for of in sources.values() for column in of]
  return f' Data of {listed(columns)}: [not verified]({page}#the-table).' if sources else ''


def _unverified(found) -> dict[str, list[str]]:
  """{source: columns} of sets that were imported and not verified."""
  tasks = {cell['column']: cell['task'] for cell in found['cells'] if cell.get('task')}
  sources = {}
  for column, task in tasks.items():
    for one in found.get('data', {}).get(task, ()):
      if notes.unverified(one):
        sources.setdefault(one['source'], []).append(column)
  return sources


def times(found: dict) -> list[str]:
  """What the runs of a study took, a task a line."""
  columns = {cell['task']: cell['column'] for cell in found['cells'] if cell.get('task')}
  lines = head(('task', 'runs', 'fastest, minutes', 'median', 'slowest', 'total, hours'))
  for task, column in columns.items():
    one = found['time'][task]
    minutes = ' | '.join(f'{one[key] / 60:.1f}' for key in ('fastest', 'median', 'slowest'))
    lines.append(f'| {column} | {one["runs"]} | {minutes} | {one["seconds"] / 3600:.1f} |')
  hours = sum(found['time'][task]['seconds'] for task in columns) / 3600
  names = listed([*dict.fromkeys(device(one['hardware']) for one in found['machines'])])
  told = (
    f'{hours:.0f} hours of runs in all, on {names}, including the search for learning rates. A run comprises '
    'all its stages; a pretraining shared by several runs counts once in the total. Two runs trained at a '
    'time, mostly beside other work on these cores, so the slowest say more about that than about their '
    'models.'
  )
  return [*lines, '', *paragraph(told)]


def platforms(found: dict, model: str, column: str) -> set[str]:
  """'cpu', 'gpu', on which the runs of a model in a column were made."""
  return {
    found['machines'][number]['hardware']['platform']
    for cell in found['cells']
    if (_model(cell['row']), cell['column']) == (model, column)
    for number in cell['machines']
  }


def places(found: dict) -> str:
  """A sentence on which cells ran on which device, and how that multiplies; '' where all ran on one."""
  runs, cells = {}, {}
  for one in found.get('machines', ()):
    name = device(one['hardware'])
    runs[name] = runs.get(name, 0) + one['runs']
  if len(runs) < 2:
    return ''
  for cell in found['cells']:
    for number in cell['machines']:
      cells.setdefault(device(found['machines'][number]['hardware']), []).append(cell)
  most = max(runs, key=runs.get)
  parts = [
    f'{_some(cells[name], found)} ran on {name}{_products(found, name)}' for name in cells if name != most
  ]
  return f' {"; ".join(parts)}; the others on {most}{_products(found, most)}.'


def _some(cells, found) -> str:
  """'Transformer + Rotary on Image and all of ListOps'."""
  parts = []
  for column in dict.fromkeys(cell['column'] for cell in cells):
    rows, run = (
      [cell['row'] for cell in some if cell['column'] == column and cell['seeds']]
      for some in (cells, found['cells'])
    )
    models = dict.fromkeys(map(_model, rows))
    whole = [model for model in models if {*rows} >= {row for row in run if _model(row) == model}]
    names = whole + [row for row in dict.fromkeys(rows) if _model(row) not in whole]
    parts.append(f'all of {column}' if {*rows} == {*run} else f'{listed(names)} on {column}')
  text = listed(parts)
  return text[0].upper() + text[1:]


def _products(found, name) -> str:
  """How factors of float32 were multiplied there, where all runs had these."""
  here = [one for one in found['machines'] if device(one['hardware']) == name]
  if {one['precision'] for one in here} != {'float32'}:
    return ''
  rounded = all(
    one['hardware'].get('platform') == 'gpu' and one['hardware'].get('matmul_precision') == 'default'
    for one in here
  )
  return ' with TF32 matrix products, the default there' if rounded else ' with float32 matrix products'


def _model(row: str) -> str:
  return row.partition(', ')[0]
