"""Learning curves on the page of a study: what is on their axes, and which runs have none."""

import types

import numpy as np
import pytest

from lra_spt.report.pages import curves as study_curves
from lra_spt.report.pages import styles
from lra_spt.report.statistics.scores import ACCURACY, R2

LOOKS = {row: styles.of_regime('masked') for row in ('scratch', 'masked')}


def run(pretrain=None, *, flops=10, validation=True, score=ACCURACY):
  """A run of 4 steps of finetuning, evaluated at steps 2 and 4, after so many steps of pretraining."""
  stages = {'pretrain': pretrain, 'finetune': 4} if pretrain else {'finetune': 4}
  steps = np.array([2, 4])
  curve = {score.key: (steps, np.array([0.25, 0.5])), 'loss': (steps, np.array([2.0, 1.0]))}
  return types.SimpleNamespace(
    score=score,
    result={'stages': {name: {'steps': n, 'flops_per_step': flops} for name, n in stages.items()}},
    curves={'pretrain': {}, 'finetune': {'validation': curve} if validation else {}},
  )


def table(**runs):
  cells = {(row, 'Text'): types.SimpleNamespace(runs=found) for row, found in runs.items()}
  return types.SimpleNamespace(rows=list(LOOKS), columns=['Text', 'Image'], cells=cells)


@pytest.fixture
def drawn(monkeypatch):
  """Arguments of the charts that are drawn."""
  calls = []

  def line_chart(lines, xlabel, ylabel, name, percent):
    calls.append(types.SimpleNamespace(lines=lines, x=xlabel, y=ylabel, percent=percent))
    return 'svg' if lines else None

  monkeypatch.setattr(study_curves.plots, 'line_chart', line_chart)
  return calls


def test_operations_of_pretraining_come_before_those_of_finetuning(drawn):
  charts = study_curves.over_operations(table(scratch=[run()], masked=[run(3), run(3)]), LOOKS)
  assert charts == [{'caption': 'Text', 'svg': 'svg', 'key': [*LOOKS.items()]}]
  (chart,) = drawn
  scratch, masked = chart.lines
  assert (chart.y, chart.percent) == ('accuracy on validation', True)
  np.testing.assert_array_equal(scratch.curves, [([20, 40], [0.25, 0.5])])
  np.testing.assert_array_equal(masked.curves, [([50, 70], [0.25, 0.5])] * 2)


def test_an_older_run_that_does_not_say_its_steps_has_no_line():
  one = run(3)
  assert study_curves.of_operations(one) is not None
  del one.result['stages']['pretrain']['steps']
  assert study_curves.of_operations(one) is None


def test_runs_without_a_curve_or_a_count_of_operations_have_no_line(drawn):
  without = [run(validation=False, score=R2), run(flops=None, score=R2)]
  given = table(scratch=without, masked=[run(3, score=R2)])
  charts = study_curves.over_operations(given, LOOKS)
  assert [[name for name, _ in chart['key']] for chart in charts] == [['masked']]
  assert drawn[0].y == 'R\u00b2 on validation'
  assert not drawn[0].percent
  assert study_curves.over_operations(table(), LOOKS) == []


def test_steps_are_those_of_a_stage(drawn):
  charts = study_curves.over_steps(table(scratch=[run()], masked=[run(3)]), LOOKS)
  assert [chart['caption'] for chart in charts] == ['Text, finetuning']
  finetuning = next(call for call in drawn if call.lines)
  np.testing.assert_array_equal(finetuning.lines[1].curves, [([2, 4], [0.25, 0.5])])
