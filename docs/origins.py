"""Where the runs of LRA-mini come from, for the pages: data, machines of its cells, time."""

from docs.costs import listed

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
        f'; of the {images:,} images of {name} {train} for training and {test} of the test were decoded from '
        'JPEG, so that they differ a little from the official ones'
      )
  return f'{told}.'


def data_short(found: dict) -> str:
  """The same for the README."""
  sources = _unverified(found)
  columns = [column for of in sources.values() for column in of]
  told = f' The data of {listed(columns)} could not be verified to be official' if sources else ''
  for source in sources:
    if source in DECODED:
      name, images, train, test = DECODED[source]
      told += f' ({train + test} of {images:,} images of {name} are decoded from JPEG)'
  return f'{told}.' if told else ''


def _unverified(found) -> dict[str, list[str]]:
  """{source: columns} of sets that were imported and not verified."""
  tasks = {cell['column']: cell['task'] for cell in found['cells'] if cell.get('task')}
  sources = {}
  for column, task in tasks.items():
    for one in found.get('data', {}).get(task, ()):
      if one['verified'] is False and not str(one['source']).startswith('generated'):
        sources.setdefault(one['source'], []).append(column)
  return sources
