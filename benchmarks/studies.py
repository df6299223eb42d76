"""Runs, steps and operations of the paper's studies, and the time to make the page of a large study."""

import json
import pathlib
import tempfile
import time

import numpy as np
import tqdm

from benchmarks import harness
from lra_spt import files
from lra_spt.report.pages import report
from lra_spt.report.runs import run_folder
from lra_spt.report.study import table as studies
from lra_spt.studies import budget, estimate, search
from lra_spt.studies import study as study_lib

STUDIES = ('table1', 'table2', 'table3', 'table7', 'table8', 'table9')
STUDIES += ('figure1', 'figure2', 'figure3', 'figure4', 'figure5')
STUDIES += ('pooling', 'larger_s4', 'pathx_training', 'grid')

# Tasks and models of the synthetic study.
TASKS = {'listops': 'ListOps', 'text': 'Text', 'retrieval': 'Retrieval', 'image': 'Image', 'pathx': 'PathX'}
MODELS = {'transformer': 0.0, 's4': 0.8, 's4d': 0.7, 'dlr': 0.6, 's5': 0.9}  # ability from scratch
REGIMES = {'scratch': 0.0, 'masked': 1.2}
STEPS = 2000


def cost(study: str) -> dict[str, int]:
  """Runs, stages, steps and operations (FLOP) of a study in configs/studies."""
  chosen = study_lib.load(str(harness.ROOT / 'configs' / 'studies' / f'{study}.py'))
  with tempfile.TemporaryDirectory() as folder:
    nowhere = [f'runtime.data_dir={pathlib.Path(folder) / "data"}']
    jobs = study_lib.jobs(chosen, overrides=nowhere)
    jobs = search.all_jobs(chosen, jobs, nowhere) + jobs
    steps, _ = budget.plan(jobs)
    stages = estimate.stages_to_train(jobs, steps)
  return {
    'runs': len(jobs),
    'stages': len(stages),
    'steps': sum(stage.steps for stage in stages),
    'operations': sum(stage.steps * stage.flops for stage in stages),
  }


def run_study_costs(arguments):
  """Counts the runs, steps and operations that the studies of the paper take, at most.

  Counts what `lra-spt study configs/studies/NAME.py --dry_run` counts before anything is trained: runs with
  those of a search, stages that have to be trained, their steps with the longest training that the configs
  allow, and operations (FLOP), as the models count them. Sets are as large as published, whatever lies in a
  data folder here. Nothing is trained; a minute in all.
  """
  parser = harness.parser(run_study_costs, 'study_costs.json')
  harness.add_names(parser, '--studies', STUDIES)
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('study_costs', "what the paper's studies take, at most")
  cases = [{'study': name} for name in given.studies]
  shown = tqdm.tqdm(cases, desc='studies', unit=' studies', disable=None)
  harness.fill(given, report, shown, cost)


def write_study(folder: pathlib.Path, seeds: int, examples: int, tasks=tuple(TASKS)) -> dict:
  """Writes run folders and study.json of synthetic runs of models by tasks by regimes; returns the record.

  A test example is answered correctly where the ability of model and run exceeds its difficulty, with noise.
  Self-pretraining brings the models closer together; the Transformer fails on PathX from scratch.
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


def run_study_page(arguments):
  """Times the making of the page of a large study, from synthetic runs."""
  parser = harness.parser(run_study_page)
  parser.add_argument('--runs', type=int, default=500, help='(%(default)s)')
  parser.add_argument('--examples', type=int, default=1000, help='of the test set (%(default)s)')
  given = parser.parse_args(arguments)
  with tempfile.TemporaryDirectory() as folder:
    seeds = max(1, given.runs // (len(TASKS) * len(MODELS) * len(REGIMES)))
    write_study(pathlib.Path(folder), seeds, given.examples)
    start = time.perf_counter()
    table = studies.read_table(folder)
    page = report.write(table)
    seconds, size = time.perf_counter() - start, page.stat().st_size
    print(
      f'{len(table.runs)} runs of {given.examples:,} test examples: {seconds:.2f} s, {size / 2**20:.2f} MiB'
    )
