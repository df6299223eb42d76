"""MultiRocket of aeon (Tan et al. 2022) on the prepared sets of a study, as recorded runs in its folder.

  pip install aeon      # 1.6, in an environment of its own: it needs older NumPy and Numba than we do
  python -m benchmarks.peers.rocket --workdir=runs/archives --data_dir=data

It reads the series that our models read, with their splits. It trains on training and validation examples,
because it has no checkpoint to choose. Shorter series are filled up with the mean of the training series.
"""

import argparse
import importlib
import pathlib
import tempfile
import time

import numpy as np

from configs.studies import archives
from lra_spt.data.examples import Examples, open_splits
from lra_spt.report.runs import record, run_folder

SOURCE = 'aeon, benchmarks/peers/rocket.py'


def series(examples: Examples) -> tuple[np.ndarray, dict]:
  """Series float64 [N, C, L] minus the training mean, 0 behind their ends, and the batch that they are of."""
  batch = examples.gather(np.arange(len(examples)))
  values_NLC = batch['inputs'].reshape(len(examples), examples.task.length, -1).astype(np.float64)
  values_NLC = values_NLC - examples.metadata['statistics']['train']['mean']
  inside_NL = np.arange(examples.task.length) < batch['lengths'][:, None]
  return np.moveaxis(values_NLC * inside_NL[..., None], 2, 1), batch


def predicted(task: str, seed: int, data_dir) -> dict[str, np.ndarray]:
  """Trains MultiRocket and returns index, label and prediction of the test examples, [N] each."""
  splits = open_splits(task, data_dir)
  parts = [series(splits[name]) for name in ('train', 'validation')]
  values_NCL = np.concatenate([values for values, _ in parts])
  label_N = np.concatenate([batch['label'] for _, batch in parts])
  test_NCL, test = series(splits['test'])
  kind = 'regression' if splits['test'].task.regression else 'classification'
  module = importlib.import_module(f'aeon.{kind}.convolution_based')
  model = getattr(module, 'MultiRocketRegressor' if kind == 'regression' else 'MultiRocketClassifier')
  prediction_N = model(random_state=seed, n_jobs=1).fit(values_NCL, label_N).predict(test_NCL)
  return {'index': test['index'], 'label': test['label'], 'prediction': prediction_N.astype(label_N.dtype)}


def main(arguments=None) -> None:
  parser = argparse.ArgumentParser(prog='python -m benchmarks.peers.rocket', description=__doc__)
  tasks = (*archives.CLASSES, *archives.REGRESSIONS)
  parser.add_argument('--workdir', type=pathlib.Path, required=True, help='folder of the study')
  parser.add_argument('--data_dir', required=True, help='folder of the prepared sets')
  parser.add_argument('--tasks', default=','.join(tasks), help='(default: all of the study)')
  parser.add_argument('--seeds', default=','.join(map(str, archives.SEEDS)), help='(%(default)s)')
  given = parser.parse_args(arguments)
  for task in given.tasks.split(','):
    for seed in map(int, given.seeds.split(',')):
      folder = given.workdir / 'recorded' / task / f'seed{seed}'
      if (folder / run_folder.RESULT).exists():
        continue
      start = time.process_time()
      arrays = predicted(task, seed, given.data_dir)
      seconds = round(time.process_time() - start, 1)
      facts = record.StatedFacts(
        model='MultiRocket', regime='scratch', seed=seed, source=SOURCE, seconds=seconds
      )
      with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / 'predictions.npz'
        np.savez(path, **arrays)
        test = record.record(path, folder, facts, task, given.data_dir)['metrics']['test']
      print(f'{task}, seed {seed}: {test} ({seconds:.0f} s)', flush=True)


if __name__ == '__main__':
  main()
