"""Synthetic run folders in the layout that an experiment writes."""

import json
import math

import numpy as np
import pytest

from benchmarks import studies
from lra_spt.report.study import table

CONFIG = {
  'task': {'name': 'toy'},
  'pretrain': {'steps': 800, 'optimizer': {'lr': 1e-3}},
  'finetune': {'steps': 400, 'optimizer': {'lr': 5e-4}},
}
ORIGINS = {
  'task': {'name': 'ours'},
  'pretrain': {'steps': 'ours', 'optimizer': {'lr': 'paper'}},
  'finetune': {'steps': 'command line', 'optimizer': {'lr': 'code'}},
}


def make_run(
  folder,
  *,
  task='toy',
  model='transformer',
  regime='scratch',
  causal=None,
  protocol='clean',
  seed=0,
  accuracy=0.4,
  examples=500,
  classes=10,
  arm=None,
  pretrain_steps=800,
  finetune_steps=400,
  data=0,
  predictions=True,
  config=None,
  groups=0,
  source=None,
  constant=False,
  facts=None,
):
  """Writes one finished run; a share `accuracy` of its predictions is right, mostly of easy examples.

  classes=0: the task is a regression, and its R2 is `accuracy`. groups: number of recordings of equal size, 0
  where it is unknown; for an accuracy, hard examples belong to the same recordings. source: (origin of the
  data, whether they were verified). constant: all test labels of a regression are 97.3, so that R2 is not
  defined. facts: further entries of result.json.
  """
  folder.mkdir(parents=True)
  causal = regime == 'causal' if causal is None else causal
  label_N = np.random.default_rng(data).integers(0, classes or 10, examples).astype(np.int32)
  difficulty_N = np.random.default_rng(data + 1).random(examples)
  luck_N = np.random.default_rng([seed, len(regime), causal, finetune_steps]).normal(0, 0.15, examples)
  wrong_N = np.argsort(np.argsort(difficulty_N + luck_N)) >= round(accuracy * examples)
  prediction_N = ((label_N + wrong_N) % (classes or 10)).astype(np.int32)
  right, metric = float(np.mean(prediction_N == label_N)), 'accuracy'
  group_N = np.sort(np.arange(examples) % groups) if groups else np.arange(examples)
  test, group = {}, {'group': group_N.astype(np.int32)} if groups else {}
  if groups and classes:
    group = {'group': group['group'][np.argsort(np.argsort(difficulty_N))]}
  if not classes:
    rng = np.random.default_rng([data, 2])
    label_N = (80 + 5 * rng.normal(size=examples)[group_N] + rng.normal(0, 9, examples)).astype(np.float32)
    error_N = rng.normal(size=examples)[group_N] + rng.normal(size=examples) + luck_N * 3
    error_N *= np.sqrt((1 - accuracy) / np.mean(error_N**2)) * label_N.std()
    prediction_N = (label_N + error_N).astype(np.float32)
    right, metric = float(1 - np.sum(error_N**2) / np.sum((label_N - label_N.mean()) ** 2)), 'r2'
    test['mae'] = float(np.abs(error_N).mean())
    label_N = np.full_like(label_N, 97.3) if constant else label_N
  stages = {}
  if regime != 'scratch':
    stages['pretrain'] = _stage(
      folder, 'pretrain', seed, pretrain_steps, 0.7, 'r2' if task == 'image' or not classes else 'accuracy'
    )
  stages['finetune'] = _stage(folder, 'finetune', seed, finetune_steps, right, metric)
  if predictions:
    np.savez(
      folder / 'predictions.npz',
      index=np.arange(examples, dtype=np.int32),
      label=label_N,
      prediction=prediction_N,
      **group,
    )
  about = {
    'task': task,
    'model': model,
    'regime': regime,
    'causal': causal,
    'protocol': protocol,
    'seed': seed,
  }
  machine = {'platform': 'cpu', 'device_kind': 'cpu', 'devices': 1, 'cpu_count': 2, 'host_memory_gib': 24.0}
  result = about | {
    'metric': metric,
    'metrics': {
      'validation': {metric: right + 0.01, 'loss': 1.2},
      'test': {metric: right, 'loss': 1.3, 'examples': examples, **test},
    },
    'parameters': 131_466,
    'stages': stages,
    'hardware': machine,
    'versions': {'jax': '0.10.2', 'flax': '0.12.8'},
    'commit': '0123456789abcdef',
    'date': '2026-11-21',
    'config': {**CONFIG, 'regime': regime, **(config or {})},
    'origins': {**ORIGINS, 'regime': 'command line'},
    'fingerprints': {'data': f'd{data}', 'splits': 's0'},
  }
  if arm:
    result['arm'] = arm
  if source:
    result['data'] = dict(zip(('source', 'verified'), source, strict=True))
  if groups:
    result['groups'] = {'name': 'patients'}
  if constant:
    result['metrics']['test']['r2'] = None
    result['metrics']['undefined'] = {'test': {'r2': WHY}}
  result |= facts or {}
  (folder / 'result.json').write_text(json.dumps(result))
  (folder / 'config.json').write_text(json.dumps(result['config']))
  return folder


def _stage(folder, name, seed, steps, reached, metric):
  stage = folder / f'{name}-{0x0A1B2C3D + seed:08x}'
  stage.mkdir()
  lines = []
  for step in range(20, steps + 1, 20):
    line = {'step': step, 'split': 'train', 'loss': 2 * math.exp(-step / steps), 'learning_rate': 1e-3}
    lines.append(line | {'examples_per_second': 900.0, 'seconds': step * 0.07})
    if step % 40 == 0:
      line = {'step': step, 'split': 'validation', 'loss': 1.5}
      line |= {metric: reached * (1 - math.exp(-4 * step / steps))}
      lines.append(line | ({'mae': 0.3} if metric == 'r2' else {}))
  (stage / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  report = {'steps': steps, 'examples': steps * 64, 'epochs': steps * 64 / 4000, 'seconds': steps * 0.07}
  return report | {'flops_per_step': 3.1e9, 'best_step': steps - 20, 'metrics': {metric: reached}}


WHY = 'R2 is not defined over values that do not vary'
ARMS = {
  'scratch': {'accuracy': 0.31},
  'tied': {'accuracy': 0.33, 'arm': 'scratch, compute-tied', 'finetune_steps': 1200},
  'scratch_causal': {'accuracy': 0.30, 'causal': True},
  'masked': {'accuracy': 0.42, 'regime': 'masked'},
  'causal': {'accuracy': 0.39, 'regime': 'causal'},
}


def make_study(folder, seeds=(0,), arms=tuple(ARMS), **options):
  """One run per arm and seed below `folder`, as the demo leaves them."""
  for name in arms:
    for seed in seeds:
      settings = {**ARMS[name], **options, 'seed': seed}
      settings['accuracy'] += 0.01 * ((7 * seed + len(name)) % 3 - 1)
      make_run(folder / name / f'seed{seed}', **settings)
  return folder


@pytest.fixture
def write_run(tmp_path):
  """write_run(name, **settings) -> folder of one finished run."""
  return lambda name, **settings: make_run(tmp_path / 'runs' / name, **settings)


@pytest.fixture
def write_study(tmp_path):
  """write_study(seeds, arms, **settings) -> folder that holds all of them."""
  return lambda *args, **settings: make_study(tmp_path / 'runs', *args, **settings)


@pytest.fixture
def study(tmp_path):
  """study(seeds) -> a function that reads the table of 5 models on 2 tasks, from scratch and masked."""

  def written(seeds=2, examples=300):
    studies.write_study(tmp_path, seeds, examples, ('image', 'pathx'))
    return lambda: table.read_table(tmp_path)

  def change(row, column='image', **facts):
    for path in (tmp_path / 'runs' / row / column).glob('seed*/result.json'):
      result = json.loads(path.read_text())
      for key, value in facts.items():
        result[key] = {**result.get(key, {}), **value} if isinstance(value, dict) else value
      path.write_text(json.dumps(result))

  written.folder = tmp_path

  def by_pair(table):
    return {(pair.name, pair.place): pair for pair in table.findings.pairs}

  written.by_pair = by_pair
  written.change = change  # alters result.json of all runs of a cell; a dict is merged
  return written
