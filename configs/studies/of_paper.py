"""Cells of the paper's tables: the published number, and the config of our run."""

from collections.abc import Iterable

from configs import authors, pythia
from lra_spt.report import published
from lra_spt.studies.study import Cell, Published

CONFIGS = {  # of every task, to which the rest of the argument is added
  'listops': 'configs/listops.py:',
  'text': 'configs/text.py:',
  'retrieval': 'configs/retrieval.py:',
  'image': 'configs/image.py:',
  'pathfinder': 'configs/pathfinder.py:',
  'pathx': 'configs/pathx.py:',
  'pathx256': 'configs/pathx.py:resolution=256,',
  'scifar': 'configs/scifar.py:',
  'speech_commands': 'configs/speech_commands.py:',
  'bidmc_hr': 'configs/bidmc.py:target=hr,',
  'bidmc_rr': 'configs/bidmc.py:target=rr,',
  'bidmc_spo2': 'configs/bidmc.py:target=spo2,',
}
OF_THE_PAPER = ('transformer', 'transformer_rotary', 's4', 's4_random', 'dlr', 'dlr_random')
# Quoted there from other papers; here in sizes and training of the task's Transformer, with the mixer's row,
# unless `authors` has theirs.
QUOTED = ('local', 'longformer', 'linformer', 'reformer', 'bigbird', 'linear_transformer', 'performer')
QUOTED += ('mega', 'spade')
OURS = OF_THE_PAPER + QUOTED
OTHER_VALUES = 'values of our Transformer of the task, not those of the number quoted beside it'
UNKNOWN = 'no number in the paper'
WITHOUT_WEIGHTS = 'pretrained on other data; runs when the study is given weights='


def config(task: str, model: str, regime: str, causal: bool = False) -> str:
  """The --config value of a run of the paper."""
  if model == 'pythia_70m':
    return f'configs/pythia.py:task={task},regime={regime}'
  form = ',causal=true' if causal and regime == 'scratch' else ''
  return f'{CONFIGS[task]}model={model},regime={regime}{form}'


def as_published(row: published.PublishedRow) -> Published:
  """A printed cell as a number to compare with."""
  share = None if row.value is None else row.value / 100
  printed = (
    '\u00d7' if row.value is None else f'{row.value:.3f}' if row.metric == 'r2' else f'{row.value:.2f}'
  )
  return Published(row.value if row.metric == 'r2' else share, printed, row.source)


def rows(table: int) -> list[published.PublishedRow]:
  """The printed cells of a table, in printed order."""
  return [row for row in published.ROWS if row.table == table]


def cells(printed: Iterable[published.PublishedRow], weights: str = '') -> list[Cell]:
  """One cell per printed cell; models that we do not have have no config.

  Args:
    printed: the cells.
    weights: file of Pythia, for the rows that were pretrained on other data; '': these have no config.
  """
  table = []
  for row in printed:
    column = published.TASK_NAMES[row.task]
    if row.task == 'speech_commands' and row.causal:
      column += ', causal'
    infeasible = row.task == 'pathx256' and row.value is None
    known = row.model in OURS or (row.model == 'pythia_70m' and row.task in pythia.ROWS)
    external = row.regime == 'external'
    there = known and not infeasible and (not external or weights != '')
    note = '' if there else WITHOUT_WEIGHTS if known and external else UNKNOWN
    note = 'not feasible, as in the paper' if infeasible and row.model in OURS else note
    quoted = row.model in QUOTED and row.task not in authors.ROWS.get(row.model, ())
    note = OTHER_VALUES if there and quoted else note
    table.append(
      Cell(
        row.approach,
        column,
        config(row.task, row.model, 'scratch' if external else row.regime, row.causal) if there else '',
        {'model.weights': weights} if there and external else {},
        published=as_published(row),
        note=note,
      )
    )
  return table
