"""The figures above the table of a study: bars, lines with relative gains, training over epochs."""

import json
import re

import numpy as np
import pytest

from lra_spt.report.pages import report, study_figures
from lra_spt.report.study import record as study_record
from lra_spt.report.study.table import read_table
from lra_spt.studies import records, study
from lra_spt.studies.study import Cell, Chart, Published, Study
from tests.report.conftest import make_run

CONFIG = 'configs/{}.py:model=s4,regime={}'


@pytest.fixture
def table_of(tmp_path):
  """table_of(cells, accuracies, **settings) -> ResultTable of a study whose cells have these accuracies."""

  def written(cells, accuracies, **settings):
    one = Study('one', 'One', cells, **settings)
    jobs = study.jobs(one)
    study_record.claim(tmp_path, records.record(one, jobs))
    for job, accuracy in zip(jobs, accuracies, strict=True):
      if accuracy is not None:
        config = {'model': {'name': 's4'}, 'finetune': {'data_fraction': job.config.finetune.data_fraction}}
        known = {'task': job.config.task, 'model': 's4', 'regime': job.config.regime, 'config': config}
        make_run(tmp_path / job.folder, accuracy=accuracy, examples=400, **known)
    return read_table(tmp_path)

  return written


@pytest.fixture
def drawn(monkeypatch):
  """Collects the lines of every line chart."""
  calls, line_chart = [], study_figures.charts.line_chart

  def recorded(lines, *labels, **options):
    calls.append(lines)
    return line_chart(lines, *labels, **options)

  monkeypatch.setattr(study_figures.charts, 'line_chart', recorded)
  return calls


def of_both(task, column, **more):
  return [
    Cell(row, column, CONFIG.format(task, regime), **more)
    for row, regime in (('S4', 'scratch'), ('S4 + SPT', 'masked'))
  ]


def test_gains_are_drawn_as_shares_of_the_score_from_scratch(table_of, drawn):
  cells = [
    cell
    for part in (0.1, 0.5, 1.0)
    for cell in of_both('image', f'{part:.0%}', overrides={'finetune.data_fraction': part}, x=part)
  ]
  table = table_of(cells, (0.2, 0.3, 0.4, 0.5, 0.5, None), chart=Chart('share <all>', 'accuracy', log=True))
  absolute, relative = study_figures.figures(table)
  assert (absolute['caption'], [name for name, _ in relative['key']]) == ('Accuracy', ['S4 + SPT'])
  ((curve,),) = (line.curves for line in drawn[1])
  assert np.allclose(curve, [(0.1, 0.5), (0.5, 0.25)])  # the last cell has not run
  page = report.write(table).read_text(encoding='utf-8')
  assert 'share of the accuracy from scratch' in page
  assert 'share &lt;all&gt;' in page


def test_bars_show_columns_and_their_mean_beside_published_numbers(table_of):
  cells = [
    *of_both('image', 'Image', published=Published(0.8, '80.00', 'nowhere')),
    *of_both('text', 'Text', published=Published(None, '\u00d7', 'nowhere')),
  ]
  table = table_of(cells, (0.5, 0.75, 0.25, None), show='bars', averages=True)
  assert table.conventions == ['mean of 2']
  assert table.averages('S4') == [('mean of 2', pytest.approx(0.375), None)]
  assert table.averages('S4 + SPT') == [('mean of 2', None, None)]
  (figure,) = study_figures.figures(table)
  assert figure['svg'].count('<rect') == 4  # three cells and one mean
  assert figure['svg'].count('stroke-width="2"') == 2  # published numbers
  assert 'S4, mean of 2: 37.5 %' in figure['svg']
  (_, scratch), (_, pretrained) = figure['key']
  assert scratch.colour == pretrained.colour
  assert (scratch.dash != '', pretrained.dash) == (True, '')
  heights = [float(height) for height in re.findall(r'height="([\d.]+)" fill=', figure['svg'])]
  assert heights[1] == pytest.approx(1.5 * heights[0], rel=0.02)


def test_training_is_drawn_over_epochs_in_the_metric_of_each_stage(table_of, drawn):
  table = table_of(of_both('image', 'Image'), (0.5, 0.75), show='curves')
  assert not study_figures.figures(table)  # training examples were not measured
  for run in table.runs:
    for stage in run.result['stages']:
      path = run.stage_folder(stage) / 'metrics.jsonl'
      lines = [json.loads(line) for line in path.read_text().splitlines()]
      lines += [line | {'split': 'training'} for line in lines if line['split'] == 'validation']
      path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  table = read_table(table.workdir)
  (figure,) = study_figures.figures(table)
  assert [name for name, _ in figure['key']] == [
    'S4, up to 49.1 %',
    'S4 + SPT: self-pretraining, R\u00b2 up to 0.6872',
    'S4 + SPT: finetuning, up to 73.6 %',
  ]
  scratch, denoising, _ = drawn[-1]
  assert (scratch.style.dash != '', denoising.style.dash) == (True, '')
  epochs, _ = denoising.curves[0]
  assert epochs[-1] == pytest.approx(800 * 64 / 4000)
  assert figure['caption'] == 'Image: accuracy and R\u00b2 on training examples'
