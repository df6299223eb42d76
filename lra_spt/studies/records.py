"""The content of study.json, which the report reads. It needs no jax."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from lra_spt.studies.study import Job, Study, folder_of, text_of


def record(study: Study, chosen: Sequence[Job], searched: Mapping[str, list] | None = None) -> dict:
  """Returns the content of study.json, from which a report makes the table of the runs.

  Args:
    study: the study.
    chosen: its runs, from `jobs`.
    searched: {folder of a cell: record of its search}.
  """
  seeds = collections.defaultdict(list)
  overrides = {
    folder_of(cell): {key: text_of(value) for key, value in cell.overrides.items()} for cell in study.cells
  }
  for job in chosen:
    seeds[folder_of(job.cell)].append(job.seed)
    overrides[folder_of(job.cell)] = job.overrides  # with the values of a search and of the command
  return {
    'study': study.name,
    'title': study.title,
    'about': study.about,
    'rows': study.rows,
    'columns': study.columns,
    'averages': study.averages,
    'chart': study.chart and dataclasses.asdict(study.chart),
    'show': study.show,
    'smoke': study.smoke,
    'focus': study.focus,
    'cells': [
      {
        'row': cell.row,
        'column': cell.column,
        'folder': str(folder_of(cell)),
        'seeds': seeds[folder_of(cell)],
        'config': cell.config,
        'overrides': overrides[folder_of(cell)],
        'published': cell.published and dataclasses.asdict(cell.published),
        'note': cell.note,
        'x': cell.x,
        'search': (searched or {}).get(str(folder_of(cell)), []),
      }
      for cell in study.cells
    ],
  }
