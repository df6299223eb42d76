"""Which cell trained from scratch a pretrained cell of a study is compared with."""

import re

from lra_spt.config import loading


def of(cell, cells) -> list:
  """The finished scratch cells that differ from a finished pretrained one in nothing else: model, its
  settings, share of the training data; a causal one may have the bidirectional form for its base, as in the
  paper. The first is that in the same form, or else in the same column, or else the first; others follow
  where they are both.

  None while one that would come before the first by that is planned and has no run, or none that ended well:
  another column may have been trained for longer.

  Args:
    cell: a `studies.TableCell` with runs. cells: all of the study.
  """
  same = [
    other
    for other in cells
    if other.arm
    and not other.arm.pretrained
    and _question(other) == _question(cell)
    and (cell.arm.causal or not other.arm.causal)
  ]
  same.sort(key=lambda other: (*_apart(cell, other), other.record['row'] != cell.record['row']))
  to_come = [other for other in cells if not other.arm and regime(other) == 'scratch']
  if same and any(
    _named(other) == _named(cell) and _apart(cell, other) < _apart(cell, same[0]) for other in to_come
  ):
    return []
  return [*same[:1], *(other for other in same[1:] if not any(_apart(cell, other)))]


def planned(cell, cells) -> list:
  """The scratch cells, run or not, that a study plans beside a pretrained one, run or not: those of its
  column, model, form and settings. A causal one that has none is compared with the bidirectional form."""
  return [other for other in cells if regime(other) == 'scratch' and _plan(other) == _plan(cell)]


def _plan(cell):
  searched = _searched(cell)
  settings = {
    key: value
    for key, value in cell.record['overrides'].items()
    if (key.startswith('model.') and key not in searched) or key == 'finetune.data_fraction'
  }
  return cell.record['column'], *_named(cell), _causal(cell), repr(sorted(settings.items()))


def _apart(cell, other):
  """In what a scratch cell differs from a pretrained one: form, column."""
  return _causal(other) != cell.arm.causal, other.record['column'] != cell.record['column']


def _causal(cell) -> bool:
  """Whether the mixer of a cell is in its causal form, by its runs or its config."""
  if cell.arm:
    return cell.arm.causal
  return regime(cell) == 'causal' or 'causal=true' in (cell.record['config'] or '')


def _named(cell):
  """The config file and the model of a cell that may have no run."""
  path, _, argument = (cell.record['config'] or '').partition(':')
  model = re.search(r'\bmodel=(\w+)', argument)
  return path, model and model[1]


def _question(cell):
  run = cell.runs[0]
  config = run.result.get('config') or {}
  model, finetune = (
    config.get(key) if isinstance(config.get(key), dict) else {} for key in ('model', 'finetune')
  )
  settings = loading.flattened(model, 'model.')
  for key in _searched(cell):
    settings.pop(key, None)
  return *run.group, repr(settings), finetune.get('data_fraction', 1.0)


def _searched(cell) -> set[str]:
  """Keys in which cells that are compared may differ: each is chosen for itself."""
  tried = [tried['values'] for part in cell.record['search'] for tried in part['tried']]
  return {'model.dropout', *(pair.partition('=')[0] for values in tried for pair in values.split(', '))}


def regime(cell) -> str:
  """Of a cell's runs, or that its config names; '' of a cell without a config."""
  if cell.arm:
    return cell.runs[0].regime
  if not (config := cell.record['config']):
    return ''
  named = re.search(r'\bregime=(\w+)', config)
  return named[1] if named else 'masked'
