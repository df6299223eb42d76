"""Models that are known to fail at a task fail, and those that are known to succeed do, with the training of
`configs/studies/recall.py`."""

import pytest

from data_prep import prepare
from lra_spt.config import loading
from lra_spt.runs import experiment
from lra_spt.studies import study


@pytest.mark.slow
@pytest.mark.parametrize(
  ('model', 'column', 'least', 'most'),
  [
    ('Transformer + Rotary', '8 pairs', 0.9, 1.0),  # attention compares keys
    ('S4', '8 pairs', 0.0, 0.3),  # its kernels do not depend on the keys
    ('sLSTM', 'Parity', 0.9, 1.0),  # its state can change sign
    ('Mamba-2', 'Parity', 0.0, 0.7),  # its states only decay
  ],
)
def test_a_model_that_is_known_to(model, column, least, most, tmp_path, monkeypatch):
  monkeypatch.setenv('LRA_SPT_DATA_DIR', str(tmp_path / 'data'))
  cells = {(cell.row, cell.column): cell for cell in study.load('configs/studies/recall.py').cells}
  cell = cells[model, column]
  config = loading.load(cell.config, cell.overrides | {'runtime.data_dir': str(tmp_path / 'data')})
  prepare.prepare(config.task, tmp_path / 'data')
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  metrics = result['metrics']
  test = metrics.get('by_length', {}).get('test_4x', metrics['test'])  # parity: four times the length
  assert least <= test['accuracy'] <= most
