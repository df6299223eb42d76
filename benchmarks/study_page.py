"""How long the page of a large study takes, and how large it is: synthetic runs, no training.

python -m benchmarks study_page [--runs=500] [--examples=1000] [--folder=FOLDER]
"""

import json
import pathlib
import tempfile
import time

import numpy as np

from benchmarks import harness
from lra_spt import files
from lra_spt.report.pages import study as study_page
from lra_spt.report.runs import run_folder
from lra_spt.report.study import table as studies

TASKS = {'listops': 'ListOps', 'text': 'Text', 'retrieval': 'Retrieval', 'image': 'Image', 'pathx': 'PathX'}
MODELS = {'transformer': 0.0, 's4': 0.8, 's4d': 0.7, 'dlr': 0.6, 's5': 0.9}  # ability from scratch
REGIMES = {'scratch': 0.0, 'masked': 1.2}
STEPS = 2000


def write_study(folder: pathlib.Path, seeds: int, examples: int, tasks=tuple(TASKS)) -> dict:
  """Run folders and study.json of models by tasks by regimes; returns the record.

  Whether a test example is answered rightly follows a threshold: what it asks, against what the model can,
  the seed and the run. Self-pretraining brings the models closer together; the Transformer fails on PathX
  from scratch.
  """
  cells = []
  for number, task in enumerate(tasks):
    classes = 2 if task in ('text', 'retrieval', 'pathx') else 10
    rng = np.random.default_rng(number)
    label_N, asked_N = rng.integers(0, classes, examples), rng.normal(size=examples)
    for model, ability in MODELS.items():
      for regime, gain in REGIMES.items():
        row = f'{model.upper() if model != "transformer" else "Transformer"}' + (
          ' + Masked SPT' if regime == 'masked' else ''
        )
        place = pathlib.PurePosixPath('runs', f'{model}_{regime}', task)
        able = ability * (1 - gain / 2) + gain
        fails = task == 'pathx' and regime == 'scratch' and model == 'transformer'
        for seed in range(seeds):
          level_N = able + 0.1 * rng.normal() + 0.6 * rng.normal(size=examples)
          right_N = rng.random(examples) < 0.5 if fails else level_N > asked_N
          _write_run(folder / place / f'seed{seed}', task, model, regime, seed, label_N, right_N, classes)
        cells.append(
          {
            'row': row,
            'column': TASKS[task],
            'folder': str(place),
            'seeds': list(range(seeds)),
            'config': f'configs/{task}.py:model={model},regime={regime}',
            'overrides': {},
            'search': [],
            'published': None,
            'note': '',
            'x': None,
          }
        )
  record = {
    'study': 'synthetic',
    'title': 'Synthetic runs',
    'about': 'Made by a generator, to see how the page of a large study reads.',
    'rows': list(dict.fromkeys(cell['row'] for cell in cells)),
    'columns': [TASKS[task] for task in tasks],
    'averages': False,
    'chart': None,
    'show': 'curves',
    'cells': cells,
  }
  files.write_json(folder / run_folder.STUDY, record)
  return record


def _write_run(folder, task, model, regime, seed, label_N, right_N, classes):
  folder.mkdir(parents=True)
  prediction_N = (label_N + ~right_N) % classes
  accuracy = float(np.mean(right_N))
  np.savez(
    folder / 'predictions.npz',
    index=np.arange(len(label_N), dtype=np.int32),
    label=label_N.astype(np.int32),
    prediction=prediction_N.astype(np.int32),
  )
  stages = {}
  for stage in ('pretrain', 'finetune') if regime != 'scratch' else ('finetune',):
    stages[stage] = {'steps': STEPS, 'examples': 64 * STEPS, 'seconds': 100.0, 'flops_per_step': 3e9}
    stages[stage]['folder'] = f'{stage}-{0x0A1B2C3D + seed:08x}'
    (folder / stages[stage]['folder']).mkdir()
    lines = [
      {
        'step': step,
        'split': 'validation',
        'loss': 1.0,
        'accuracy': accuracy * (1 - np.exp(-4 * step / STEPS)),
      }
      for step in range(40, STEPS + 1, 40)
    ]
    (folder / stages[stage]['folder'] / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in lines)
    )
  result = {
    'task': task,
    'model': model,
    'regime': regime,
    'causal': False,
    'protocol': 'clean',
    'seed': seed,
    'metric': 'accuracy',
    'metrics': {
      'validation': {'accuracy': accuracy, 'loss': 1.0},
      'test': {'accuracy': accuracy, 'loss': 1.0, 'examples': len(label_N)},
    },
    'parameters': 131_466,
    'stages': stages,
    'hardware': {'platform': 'cpu', 'device_kind': 'cpu', 'devices': 1},
    'versions': {},
    'commit': '0123456789abcdef',
    'date': '2026-11-21',
    'config': {'model': {'name': model}, 'finetune': {}, 'regime': regime},
    'origins': {},
    'fingerprints': {'data': task, 'splits': 's0'},
  }
  (folder / 'result.json').write_text(json.dumps(result))


def main(arguments=None):
  parser = harness.parser('study_page', __doc__)
  parser.add_argument('--runs', type=int, default=500)
  parser.add_argument('--examples', type=int, default=1000)
  parser.add_argument('--folder', help='where to leave the study; default: a temporary folder')
  arguments = parser.parse_args(arguments)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(arguments.folder or temporary)
    seeds = max(1, arguments.runs // (len(TASKS) * len(MODELS) * len(REGIMES)))
    write_study(folder, seeds, arguments.examples)
    times = [time.perf_counter()]
    cpu = time.process_time()
    table = studies.read_table(folder)
    times.append(time.perf_counter())
    table.findings  # noqa: B018  worked out once
    times.append(time.perf_counter())
    page = study_page.write(table)
    times.append(time.perf_counter())
    read, findings, write = (f'{b - a:.2f} s' for a, b in zip(times, times[1:], strict=False))
    print(
      f'{len(table.runs)} runs of {arguments.examples:,} test examples: read {read}, findings {findings}, '
      f'page {write}; together {times[-1] - times[0]:.2f} s ({time.process_time() - cpu:.2f} s of processor)'
      f', {page.stat().st_size / 2**20:.2f} MiB'
    )


if __name__ == '__main__':
  main()
