"""Small trainings: the demo and a user's mixer over fresh seeds, and real data at CPU size."""

import itertools
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks import harness
from data_prep.sources import stripes
from lra_spt import files
from lra_spt.config import loading
from lra_spt.report.runs import restored, run_folder
from lra_spt.report.statistics import intervals
from lra_spt.report.study.any_folder import read_any
from lra_spt.runs import experiment
from lra_spt.studies import demo

SEEDS = (101, 102, 103, 104, 105)  # seeds 0 and 1 are left out, because the task was chosen on them
ORIGIN = ('date', 'commit', 'hardware', 'versions')

# Sizes of `small_runs`.
SCRATCH_STEPS, PRETRAIN_STEPS, FINETUNE_STEPS = 2000, 500, 1000  # batches of 16, 32 and 16 examples
SMALL = {
  'model.width': 64,
  'model.depth': 4,
  'finetune.batch_size': 16,
  'pretrain.batch_size': 32,
  'finetune.schedule.name': 'constant',  # published: a cosine over 200,000 steps
  'finetune.schedule.warmup_steps': 200,
  'pretrain.schedule.warmup_steps': 100,
  'finetune.evaluate_every': 500,
  'pretrain.evaluate_every': 500,
  'runtime.devices': 1,
  'runtime.evaluation_batch_size': 50,
  'runtime.tensorboard': False,
}
OF_MODEL = {'s4': {}, 'dlr': {'model.mixer.state_size': 256}}
LISTOPS_OF_MODEL = {'s4': {'model.mixer.copies': 0}, 'dlr': OF_MODEL['dlr']}  # 0: one system per channel
LISTOPS = {
  'model.width': 32,
  'model.depth': 4,
  'finetune.batch_size': 10,
  'finetune.max_steps': 2000,
  'finetune.evaluate_every': 500,
  'runtime.devices': 1,
  'runtime.tensorboard': False,
}
# {task: (argument of the config, (steps from scratch, of pretraining, of finetuning))} of S4. A step has 16
# reviews or pairs. Except for sizes and warmups, values are those of the configs.
TASKS = {'text': (',length=2048', (1500, 500, 1000)), 'retrieval': ('', (600, 200, 400))}
SMALL_TASKS = SMALL | {'model.depth': 2, 'model.mixer.copies': 64, 'pretrain.batch_size': 16}
# The bag of tokens is a control. The learning rate of its row is that of a large Transformer's finetuning.
BAG = SMALL | {'model.depth': 2, 'model.feed_forward': 128, 'finetune.optimizer.lr': 1e-3}


def limits(interval) -> dict:
  """An interval as JSON, in its unit."""
  return {key: getattr(interval, key) for key in ('estimate', 'low', 'high', 'method')}


def gains_of(workdir) -> dict:
  """{'masked self-pretraining over scratch': its interval} of the runs below a folder."""
  pairs = read_any(workdir).findings.pairs
  return {f'{pair.pretrained.arm.name} over {pair.scratch.arm.name}': limits(pair.interval) for pair in pairs}


def shown(run: restored.RestoredInputs, count: int = 3) -> dict:
  """The first images of a masked run as pages show them: originals, hidden pixels, reconstructions."""
  side = math.isqrt(run.hidden.shape[1])
  images = {
    key: getattr(run, key)[:count].reshape(-1, side, side).tolist()
    for key in ('original', 'hidden', 'restored')
  }
  return {'index': run.index[:count].tolist()} | images


def run_demo_seeds(arguments):
  """Trains the frozen demo on five fresh seeds, and pools the gains of self-pretraining.

  Each seed generates its data. Writes demo_seeds.json and, beside it, demo_restored.json: three images of the
  first seed as its pretrained model restores them. Takes about 15 minutes on 2 idle CPU cores; the same
  command continues after an interruption. Returns 0 if the interval of the pooled gain of masked
  self-pretraining over scratch excludes 0, else 1.
  """
  parser = harness.parser(run_demo_seeds, 'demo_seeds.json')
  parser.add_argument('--workdir', default='demo_seeds_run', help='folder of the runs (%(default)s)')
  options = parser.parse_args(arguments)
  demo.run_all(options.workdir, SEEDS, smoke=False)
  first, report = over_seeds(options.workdir, 'python -m benchmarks demo_seeds')
  # The origin of the runs, which may be older than this report.
  harness.write(options.json, report | {key: first[key] for key in ORIGIN})
  folder = pathlib.Path(options.workdir) / f'seed{SEEDS[0]}' / 'masked'
  run = run_folder.read_result(folder)
  images = {'command': 'lra-spt demo', 'seed': run['seed']} | shown(restored.read_restored(folder))
  harness.write(options.json.with_name('demo_restored.json'), images | {key: run[key] for key in ORIGIN})
  return 0 if report['gains']['masked self-pretraining over scratch']['low'] > 0 else 1


def run_demo_minutes(arguments):
  """Times `lra-spt demo` from the start of the program to its report, in an empty folder."""
  options = harness.parser(run_demo_minutes, 'demo_minutes.json').parse_args(arguments)
  harness.cpu_only()
  report = harness.report('demo_minutes', 'minutes of lra-spt demo')
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, '-m', 'lra_spt', 'demo', f'--workdir={folder}']
    spent = harness.timed(lambda: subprocess.run(command, check=True))
  harness.write(options.json, report | {'minutes': round(spent['seconds'] / 60, 1)})


def run_own_mixer(arguments):
  """Trains the README's mixer on the task of the demo, with the seeds and the data of `demo_seeds`.

  From scratch, compute-tied, and after masked self-pretraining. The mixer is the first Python block of the
  README. Takes about 10 minutes on 2 idle CPU cores; the same command continues after an interruption.
  """
  parser = harness.parser(run_own_mixer, 'own_mixer.json')
  parser.add_argument(
    '--workdir', default='own_mixer_run', type=pathlib.Path, help='of the runs (%(default)s)'
  )
  options = parser.parse_args(arguments)
  harness.cpu_only()
  path = options.workdir / 'my_mixer.py'
  path.parent.mkdir(parents=True, exist_ok=True)
  readme = (harness.ROOT / 'README.md').read_text(encoding='utf-8')
  files.write_text(path, re.search('```python\n(.*?)```', readme, re.DOTALL)[1])
  loading.register(str(path))
  experiment.keep_compiled(options.workdir)
  for seed in SEEDS:
    data_dir = options.workdir / 'data' / f'seed{seed}'
    if not (data_dir / 'stripes').exists():
      stripes.prepare_stripes(data_dir, seed=seed)
    for arm in ('scratch,tied=true', 'masked'):
      spec = f'configs/demo.py:model=moving_average,regime={arm},seed={seed}'
      config = loading.load(spec, {'runtime.data_dir': str(data_dir)})
      experiment.run(config, options.workdir / f'seed{seed}' / arm.partition(',')[0])
  first, report = over_seeds(options.workdir, 'python -m benchmarks own_mixer')
  harness.write(options.json, report | {key: first[key] for key in ORIGIN})


def over_seeds(workdir, command: str) -> tuple[dict, dict]:
  """The result of one run below a folder, and the scores and gains of all of its ways of training over SEEDS.

  Each seed has its own test images, on which all ways are compared.
  """
  cells = {cell.training: cell for cell in read_any(workdir).cells.values()}
  units = {name: {run.seed: run.units * 1.0 for run in cell.runs} for name, cell in cells.items()}
  gains = {
    f'{name} over {base}': limits(
      intervals.pooled([units[name][seed] - units[base][seed] for seed in SEEDS], False, (-1, 1))
    )
    for base, name in itertools.combinations(cells, 2)
  }
  first = json.loads(next(pathlib.Path(workdir).glob('seed*/*/result.json')).read_text())
  return first, {
    'command': command,
    'seeds': SEEDS,
    'test_examples_per_seed': first['metrics']['test']['examples'],
    'accuracy': {name: limits(cell.arm.score) for name, cell in cells.items()},
    'accuracy_per_seed': {name: {run.seed: run.value for run in cell.runs} for name, cell in cells.items()},
    'gains': gains,
  }


def arms():
  """{name: (config spec, overrides)}."""
  runs = {}
  for model, size in OF_MODEL.items():
    spec = f'configs/image.py:model={model},regime='
    budget = {'pretrain.max_steps': PRETRAIN_STEPS, 'finetune.max_steps': FINETUNE_STEPS}
    runs[f'{model}/scratch'] = spec + 'scratch', SMALL | size | {'finetune.max_steps': SCRATCH_STEPS}
    runs[f'{model}/masked'] = spec + 'masked', SMALL | size | budget
  for model, size in LISTOPS_OF_MODEL.items():
    runs[f'listops/{model}'] = f'configs/listops.py:model={model},regime=scratch', LISTOPS | size
  for task, (argument, (alone, before, after)) in TASKS.items():
    spec = f'configs/{task}.py:model=s4{argument},regime='
    every = {'finetune.evaluate_every': after // 2, 'pretrain.evaluate_every': before}
    runs[f'{task}/scratch'] = spec + 'scratch', SMALL_TASKS | every | {'finetune.max_steps': alone}
    budget = {'pretrain.max_steps': before, 'finetune.max_steps': after}
    runs[f'{task}/masked'] = spec + 'masked', SMALL_TASKS | every | budget
    bag = f'configs/{task}.py:model=bag_of_tokens{argument},regime=scratch'
    runs[f'{task}/bag_of_tokens'] = bag, BAG | every | {'finetune.max_steps': alone}
  return runs


def run_small_runs(arguments):
  """Trains S4 and DLR on real and generated data at CPU size, from scratch and after masked pretraining.

    lra-spt prepare cifar10 --data_dir=data --raw_dir=DOWNLOADS
    lra-spt prepare listops --data_dir=data
    lra-spt prepare text_2048 --data_dir=data --raw_dir=DOWNLOADS
    lra-spt prepare retrieval --data_dir=data --raw_dir=DOWNLOADS
    python -m benchmarks small_runs --data_dir=data --workdir=runs/small

  Image at its full 1,024 tokens with the values of the configs (paper, Table 5; published code), except for
  the sizes below; both arms of a model see the same number of examples in total. ListOps: 2,000 steps with
  the published learning rates, decay and norms, to see that training is stable. Text (2,048 characters) and
  Retrieval (2 x 4,000): S4 with both arms, and the bag of tokens. Adds to benchmarks/results/small_runs.json;
  the same command continues after an interruption.
  """
  parser = harness.parser(run_small_runs, 'small_runs.json')
  parser.add_argument('--data_dir', default='data', help='folder of prepared data (%(default)s)')
  parser.add_argument('--workdir', type=pathlib.Path, default='runs/small', help='of the runs (%(default)s)')
  harness.add_names(parser, '--only', (*OF_MODEL, 'listops', *TASKS))
  options = parser.parse_args(arguments)
  for name, (spec, overrides) in arms().items():
    if name.split('/')[0] in options.only:
      config = loading.load(spec, overrides | {'runtime.data_dir': options.data_dir})
      experiment.run(config, options.workdir / name)
  before = json.loads(options.json.read_text(encoding='utf-8')) if options.json.exists() else {}
  harness.write(options.json, summary(options.workdir, before))


def summary(workdir, before):
  """Results of every finished arm, with its validation curves, and gains.

  Arms that are not in `workdir` stay as they were `before`.
  """
  content = {'arms': {}, 'gains': {}} | before | {'command': 'python -m benchmarks small_runs'}
  for name in arms():
    path = workdir / name / 'result.json'
    if path.exists():
      result = json.loads(path.read_text(encoding='utf-8'))
      result['runtime']['data_dir'] = 'data'  # a result holds no path of this machine
      content['arms'][name] = result | {'validation_curves': curves(path.parent)}
  for model in (*OF_MODEL, *TASKS):
    if (workdir / model).exists() and (gains := gains_of(workdir / model)):
      content['gains'][model] = gains
  return content


def curves(folder):
  """{stage: [validation records]} from the metrics files of one run."""
  records_of = {}
  for path in sorted(folder.glob('*/metrics.jsonl')):
    records = map(json.loads, path.read_text(encoding='utf-8').splitlines())
    stage = path.parent.name.split('-')[0]
    records_of[stage] = [record for record in records if record['split'] == 'validation']
  return records_of
