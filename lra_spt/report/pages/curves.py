"""How runs of a study learned: over steps, as in the paper's Figure 5, or over the operations of training."""

from lra_spt.report.pages import plots

STAGE_WORDS = {'pretrain': 'self-pretraining', 'finetune': 'finetuning'}


def over_steps(table, looks) -> list[dict]:
  """Per column and stage, accuracy on training examples (where it is measured, else on validation).

  Args:
    table: a `studies.ResultTable`.
    looks: {row: Style}.

  Returns:
    Charts, {caption: ..., svg: ..., key: [(row, Style)]} each; none without curves.
  """
  charts = []
  for column in table.columns:
    for stage, words in STAGE_WORDS.items():
      lines = _lines(table, column, looks, lambda run, stage=stage: _of_steps(run, stage))
      _add(charts, f'{column}, {words}', lines, 'steps', 'accuracy', percent=True)
  return charts


def over_operations(table, looks) -> list[dict]:
  """Per column, the validation score of finetuning over the operations of both stages until then; other
  arguments and values as `over_steps`. Runs whose operations are not known have no line."""
  charts = []
  for column in table.columns:
    scores = [run.score for row in table.rows for run in _runs(table, row, column)]
    if scores:
      lines = _lines(table, column, looks, of_operations)
      name = f'{scores[0].name} on validation'
      _add(charts, column, lines, 'FLOPs of training, pretraining included', name, percent=scores[0].is_share)
  return charts


def _lines(table, column, looks, curve) -> list[plots.Line]:
  """Of every row with a curve; curve: of a run, (x [n], y [n]) or None."""
  found = {
    row: tuple(xy for run in _runs(table, row, column) if (xy := curve(run)) is not None)
    for row in table.rows
  }
  return [plots.Line(row, looks[row], curves) for row, curves in found.items() if curves]


def _runs(table, row, column):
  cell = table.cells.get((row, column))
  return cell.runs if cell else ()


def _add(charts, caption, lines, x, y, percent):
  svg = plots.line_chart(lines, x, y, f'curve{len(charts)}', percent=percent)
  if svg:
    charts.append({'caption': caption, 'svg': svg, 'key': [(line.name, line.style) for line in lines]})


def _of_steps(run, stage):
  found = run.curves.get(stage, {})
  return (found.get('training') or found.get('validation') or {}).get('accuracy')


def of_operations(run):
  """(operations float [n], validation score [n]) of a run's finetuning, as `over_operations` draws them; None
  where either is not known."""
  stages = run.result['stages']
  if 'finetune' not in stages or not all(
    stage.get('flops_per_step') and stage.get('steps') for stage in stages.values()
  ):
    return None
  curve = run.curves['finetune'].get('validation', {}).get(run.score.key)
  if curve is None:
    return None
  before = sum(
    stage['steps'] * stage['flops_per_step'] for name, stage in stages.items() if name != 'finetune'
  )
  steps, values = curve
  return before + steps * float(stages['finetune']['flops_per_step']), values
