"""Learning curves, over the steps of each stage and over the operations of both."""

from lra_spt.report.pages import charts, styles
from lra_spt.report.runs.run import STAGE_NAMES
from lra_spt.report.statistics.scores import SCORES


def of_table(table) -> list[dict]:
  """Per column: denoising and finetuning over steps, and finetuning over the operations of both stages."""
  return [*over_steps(table), *over_operations(table)]


def over_steps(table) -> list[dict]:
  """Per column and stage, the score on validation, or on training examples where Figure 5 is asked for.

  Returns:
    Charts, {'caption', 'svg', 'key': [(row, Style)]} each; none without curves.
  """
  drawn, on_training = [], table.record['show'] == 'curves'
  for column in table.columns:
    for stage, words in STAGE_NAMES.items():
      for metric in (*SCORES, 'mae'):
        lines = _lines(table, column, lambda run, s=stage, m=metric: _of_steps(run, s, m, on_training))
        share = metric in SCORES and SCORES[metric].in_percent
        chart = _chart(f'{column}, {words}', lines, 'steps', metric, percent=share)
        drawn += [chart] if chart else []
        if chart and stage == 'finetune':
          break
  return drawn


def over_operations(table) -> list[dict]:
  """Per column, the validation score of finetuning over the operations of both stages until then. Runs whose
  operations are not known have no line."""
  drawn = []
  for column in table.columns:
    scores = [cell.score for cell in table.cells.values() if cell.column == column and cell.runs]
    if scores:
      lines = _lines(table, column, of_operations)
      xlabel, ylabel = 'FLOPs of training, pretraining included', f'{scores[0].name} on validation'
      caption = f'{column}, over everything trained'
      chart = _chart(caption, lines, xlabel, ylabel, percent=scores[0].in_percent)
      drawn += [chart] if chart else []
  return drawn


def _lines(table, column, curve) -> list[charts.Line]:
  """Lines of the rows with a curve, a function of a run that gives (x [n], y [n]) or None."""
  lines = []
  for number, row in enumerate(table.rows):
    cell = table.cells.get((row, column))
    curves = tuple(xy for run in (cell.runs if cell else ()) if (xy := curve(run)) is not None)
    if curves:
      lines.append(charts.Line(row, styles.of_row(number), curves))
  return lines


def _chart(caption, lines, xlabel, ylabel, **options):
  svg = charts.line_chart(lines, xlabel, ylabel, **options)
  key = [(line.name, line.style) for line in lines]
  return {'caption': caption, 'svg': svg, 'key': key, 'wide': False} if svg else None


def _of_steps(run, stage, metric, on_training):
  curves = run.curves.get(stage, {})
  of_training = curves.get('training', {}) if on_training else {}
  return of_training.get(metric) or curves.get('validation', {}).get(metric)


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
