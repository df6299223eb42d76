"""Which cell from scratch a pretrained one of a study is compared with."""

import re

from lra_spt import config as config_lib


def of(cell, cells) -> list:
  """The finished scratch cells that differ from a finished pretrained one in nothing else: model, its
  settings, share of the training data; a causal one may have the bidirectional form for its base, as in the
  paper. The first is that in the same form, or else in the same column, or else the first; others follow
  where they are both.

  None while one that would come before the first by that is planned and has no run, or none that ended well:
  another column may have been trained for longer.

  Args:
    cell: a `studies.Cell` with runs. cells: all of the study.
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


def _apart(cell, other):
  """In what a scratch cell differs from a pretrained one: form, column."""
  causal = other.arm.causal if other.arm else 'causal=true' in (other.record['config'] or '')
  return causal != cell.arm.causal, other.record['column'] != cell.record['column']


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
  searched = {
    pair.partition('=')[0]
    for part in cell.record['search']
    for tried in part['tried']
    for pair in tried['values'].split(', ')
  }
  settings = config_lib.flattened(model, 'model.')
  for key in ('model.dropout', *searched):
    settings.pop(key, None)
  return *run.group, run.score.key, repr(settings), finetune.get('data_fraction', 1.0)


def regime(cell) -> str:
  """Of a cell's runs, or that its config names; '' of a cell without a config."""
  if cell.arm:
    return cell.runs[0].regime
  if not (config := cell.record['config']):
    return ''
  named = re.search(r'\bregime=(\w+)', config)
  return named[1] if named else 'masked'
