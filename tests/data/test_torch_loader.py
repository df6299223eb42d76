"""PyTorch's loader reads labels of every kind, and `lra-spt record` takes predictions of every kind."""

import importlib.util
import runpy

import numpy as np
import pytest

from data_prep.sources import npz
from lra_spt.cli import main as cli
from lra_spt.data import tasks
from lra_spt.data.examples import open_splits
from lra_spt.report.runs.run import read_run

COUNT, LENGTH = 60, 8
RNG = np.random.default_rng(0)
LABELS = {  # kind: labels of an .npz file, labels of the task, its metric
  'classes': (np.arange(COUNT) % 3, tasks.Classes(3), ''),
  'two classes': (np.arange(COUNT) % 2, tasks.Classes(2), 'auroc'),
  'positions': (RNG.integers(-1, 3, (COUNT, LENGTH)), tasks.PerPosition(3), ''),
  'several labels': (RNG.random((COUNT, 4)) < 0.5, tasks.MultiLabel(4), 'auroc'),
  'numbers': (RNG.normal(size=(COUNT, 2)), tasks.Real(measured=True, dimensions=2), ''),
}


@pytest.mark.skipif(importlib.util.find_spec('torch') is None, reason='PyTorch is not installed')
@pytest.mark.parametrize('kind', LABELS)
def test_loader_and_record(kind, tmp_path, monkeypatch, repository):
  import torch

  of_file, labels, metric = LABELS[kind]
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  inputs = tasks.Values(LENGTH, dtype='float32', measured=True)
  tasks.register_task(tasks.Task('mine', 'mine', inputs, labels, 'random', metric=metric))
  (tmp_path / 'raw').mkdir()
  values = RNG.normal(size=(COUNT, LENGTH)).astype(np.float32)
  np.savez(tmp_path / 'raw' / 'train.npz', inputs=values, labels=of_file)
  npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')
  test = open_splits('mine', tmp_path / 'data')['test']
  split = runpy.run_path(str(repository / 'examples' / 'torch_dataloader.py'), run_name='example')['Split']
  loader = torch.utils.data.DataLoader(split(test), 4, collate_fn=lambda batch: batch)
  batches = [{name: part.numpy() for name, part in batch.items()} for batch in loader]
  read = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
  np.testing.assert_array_equal(read['inputs'], values[read['index']])
  np.testing.assert_array_equal(read['label'], of_file[read['index']].astype(read['label'].dtype))

  prediction = read['label'].astype(np.float32 if metric else read['label'].dtype)
  path, out = tmp_path / 'predictions.npz', tmp_path / 'run'
  np.savez(path, index=read['index'], label=read['label'], prediction=prediction)
  words = ['record', f'--predictions={path}', f'--out={out}', '--task=mine', f'--data_dir={tmp_path}/data']
  assert cli.main([*words, '--model=torch', '--regime=scratch', '--seed=0']) == 0
  run = read_run(out)
  assert run.value == run.counted == 1
  assert run.test.keys() >= {run.score.key, *labels.measures}
  assert run.units is not None
