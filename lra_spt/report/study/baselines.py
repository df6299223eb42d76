"""The cells trained from scratch that a pretrained cell is compared with."""

from lra_spt.report.runs.arm_key import planned_arm


def of(cell, cells) -> list:
  """The finished scratch cells that a finished pretrained cell is compared with, the main one first.

  All answer the same question as the cell. The main baseline has the form of the cell if there is one, then
  its column, then its row; a causal cell without a causal baseline is compared with the bidirectional form,
  as in the paper. Further baselines follow if they have both the form and the column of the cell. The list is
  empty while a planned baseline that fits better than all of these has no successful run, because a cell of
  another column may have been trained for longer.

  Args:
    cell: a TableCell with runs. cells: all of the table.
  """
  same = [
    other
    for other in cells
    if other.arm
    and not other.arm.pretrained
    and other.key.question == cell.key.question
    and (cell.key.causal or not other.key.causal)
  ]
  same.sort(key=lambda other: (*_differences(cell, other), other.row != cell.row))
  to_come = [other for other in cells if not other.arm and other.regime == 'scratch']
  if same and any(
    (other.plan.config, other.plan.model) == (cell.plan.config, cell.plan.model)
    and _differences(cell, other) < _differences(cell, same[0])
    for other in to_come
  ):
    return []
  return [*same[:1], *(other for other in same[1:] if not any(_differences(cell, other)))]


def planned(cell, cells) -> list:
  """The scratch cells, run or not, that a study plans for a comparison with a pretrained cell: those with its
  column, model, form and settings. A causal cell that has none is compared with the bidirectional form."""
  return [other for other in cells if other.regime == 'scratch' and _place(other) == _place(cell)]


def _place(cell):
  plan = planned_arm(cell.record, cell.chosen)
  return cell.column, plan.config, plan.model, cell.causal, plan.settings


def _differences(cell, other):
  """(whether the forms differ, whether the columns differ) of a pretrained and a scratch cell."""
  return other.causal != cell.causal, other.column != cell.column
