"""A study of runs that take seconds, see tests/tiny_config.py; one of them fails.

The config must be registered first: `lra-spt study tests/tiny_study.py --register=tests/tiny_config.py`.
"""

import pathlib

from lra_spt.studies.study import Cell, Published, Search, Study

CONFIG = str(pathlib.Path(__file__).with_name('tiny_config.py')) + ':regime='


def get_study(arg=''):
  """arg: 'good' leaves out the run that fails; 'search' has one cell and searches its learning rate."""
  cells = [
    Cell('scratch', 'Trees', CONFIG + 'scratch', published=Published(0.25, '25.00', 'nowhere')),
    Cell('masked', 'Trees', CONFIG + 'masked'),
    Cell('masked, slower', 'Trees', CONFIG + 'masked', {'finetune.optimizer.lr': 1e-3}),
    Cell('not ours', 'Trees', published=Published(None, '\u00d7', 'nowhere'), note='not implemented'),
  ]
  if arg != 'good':
    cells.append(Cell('broken', 'Trees', CONFIG + 'scratch', {'finetune.optimizer.lr': 1e30}))
  if arg == 'search':
    rates = tuple({'finetune.optimizer.lr': lr} for lr in (1e-3, 1e-2))
    return Study('tiny', 'Trees in seconds', cells[:1], seeds=(1,), search=Search((rates,), seeds=(0,)))
  return Study('tiny', 'Trees in seconds', cells)
