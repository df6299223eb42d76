"""Learning curves have the right axes, and runs without measurements have no curve."""

import types

import numpy as np
import pytest

from lra_spt.report.pages import curves
from lra_spt.report.statistics.scores import ACCURACY, R2


def run(pretrain=None, *, flops=10, validation=True, score=ACCURACY):
  """A run of 4 steps of finetuning, evaluated at steps 2 and 4, after `pretrain` steps of pretraining."""
  stages = {'pretrain': pretrain, 'finetune': 4} if pretrain else {'finetune': 4}
  steps = np.array([2, 4])
  curve = {score.key: (steps, np.array([0.25, 0.5])), 'loss': (steps, np.array([2.0, 1.0]))}
  return types.SimpleNamespace(
    score=score,
    result={'stages': {name: {'steps': n, 'flops_per_step': flops} for name, n in stages.items()}},
    curves={'pretrain': {}, 'finetune': {'validation': curve} if validation else {}},
  )


def table(**runs):
  cells = {
    (row, 'Text'): types.SimpleNamespace(runs=some, row=row, column='Text', score=some[0].score)
    for row, some in runs.items()
  }
  return types.SimpleNamespace(
    rows=['scratch', 'masked'], columns=['Text', 'Image'], cells=cells, record={'show': ''}
  )


@pytest.fixture
def drawn(monkeypatch):
  """Collects the arguments of the charts that are drawn."""
  calls = []

  def line_chart(lines, xlabel, ylabel, **options):
    calls.append(types.SimpleNamespace(lines=lines, x=xlabel, y=ylabel, **options))
    return 'svg' if lines else None

  monkeypatch.setattr(curves.charts, 'line_chart', line_chart)
  return calls


def test_operations_of_pretraining_come_before_those_of_finetuning(drawn):
  (made,) = curves.over_operations(table(scratch=[run()], masked=[run(3), run(3)]))
  assert [name for name, _ in made['key']] == ['scratch', 'masked']
  (chart,) = drawn
  scratch, masked = chart.lines
  assert (chart.y, chart.percent) == ('accuracy on validation', True)
  np.testing.assert_array_equal(scratch.curves, [([20, 40], [0.25, 0.5])])
  np.testing.assert_array_equal(masked.curves, [([50, 70], [0.25, 0.5])] * 2)


def test_an_older_run_without_its_steps_has_no_line():
  one = run(3)
  assert curves.of_operations(one) is not None
  del one.result['stages']['pretrain']['steps']
  assert curves.of_operations(one) is None


def test_runs_without_a_curve_or_a_count_of_operations_have_no_line(drawn):
  without = [run(validation=False, score=R2), run(flops=None, score=R2)]
  (made,) = curves.over_operations(table(scratch=without, masked=[run(3, score=R2)]))
  assert [name for name, _ in made['key']] == ['masked']
  assert (drawn[0].y, drawn[0].percent) == ('R\u00b2 on validation', False)


def test_steps_are_those_of_a_stage(drawn):
  (made,) = curves.over_steps(table(scratch=[run()], masked=[run(3)]))
  assert made['caption'] == 'Text, finetuning'
  finetuning = next(call for call in drawn if call.lines)
  np.testing.assert_array_equal(finetuning.lines[1].curves, [([2, 4], [0.25, 0.5])])
