"""State-space models on real and generated data at CPU size: scratch against masked self-pretraining, and a
stability run.

  lra-spt prepare cifar10 --data_dir=data --raw_dir=DOWNLOADS
  lra-spt prepare listops --data_dir=data
  lra-spt prepare text_2048 --data_dir=data --raw_dir=DOWNLOADS
  lra-spt prepare retrieval --data_dir=data --raw_dir=DOWNLOADS
  python -m benchmarks small_runs --data_dir=data --workdir=runs/small [--only=s4,dlr,listops,text,retrieval]

Image at its full 1,024 tokens with the values of the configs (paper, Table 5; published code), except for the
sizes below; both arms of a model see the same number of examples in total. ListOps: 2,000 steps with the
published learning rates, decay and norms. Text (2,048 characters) and Retrieval (2 x 4,000): S4 with both
arms, and the bag of tokens. Adds to benchmarks/results/small_runs.json; the same command continues after an
interruption.
"""

import json
import pathlib

from benchmarks import harness
from lra_spt.config import loading
from lra_spt.report.runs.run import collect
from lra_spt.report.study import arms as tables
from lra_spt.runs import experiment

SCRATCH_STEPS, PRETRAIN_STEPS, FINETUNE_STEPS = 2000, 500, 1000  # of 16, 32 and 16 examples
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
# S4 with values of its configs but for sizes and warmups. {task: (argument, (scratch, pretraining, finetuning
# steps))}, all of 16 reviews or pairs.
TASKS = {'text': (',length=2048', (1500, 500, 1000)), 'retrieval': ('', (600, 200, 400))}
SMALL_TASKS = SMALL | {'model.depth': 2, 'model.mixer.copies': 64, 'pretrain.batch_size': 16}
# The control: its row has the learning rate of a large Transformer's finetuning.
BAG = SMALL | {'model.depth': 2, 'model.feed_forward': 128, 'finetune.optimizer.lr': 1e-3}


def arms():
  """name: (config spec, overrides)."""
  found = {}
  for model, own in OF_MODEL.items():
    spec = f'configs/image.py:model={model},regime='
    budget = {'pretrain.max_steps': PRETRAIN_STEPS, 'finetune.max_steps': FINETUNE_STEPS}
    found[f'{model}/scratch'] = spec + 'scratch', SMALL | own | {'finetune.max_steps': SCRATCH_STEPS}
    found[f'{model}/masked'] = spec + 'masked', SMALL | own | budget
  for model, own in LISTOPS_OF_MODEL.items():
    found[f'listops/{model}'] = f'configs/listops.py:model={model},regime=scratch', LISTOPS | own
  for task, (argument, (alone, before, after)) in TASKS.items():
    spec = f'configs/{task}.py:model=s4{argument},regime='
    every = {'finetune.evaluate_every': after // 2, 'pretrain.evaluate_every': before}
    found[f'{task}/scratch'] = spec + 'scratch', SMALL_TASKS | every | {'finetune.max_steps': alone}
    budget = {'pretrain.max_steps': before, 'finetune.max_steps': after}
    found[f'{task}/masked'] = spec + 'masked', SMALL_TASKS | every | budget
    bag = f'configs/{task}.py:model=bag_of_tokens{argument},regime=scratch'
    found[f'{task}/bag_of_tokens'] = bag, BAG | every | {'finetune.max_steps': alone}
  return found


def main(arguments=None):
  """Runs the chosen arms and writes what is finished."""
  parser = harness.parser('small_runs', __doc__, 'small_runs.json')
  parser.add_argument('--data_dir', default='data', help='folder of prepared data (%(default)s)')
  parser.add_argument('--workdir', default='runs/small', help='folder of the runs (%(default)s)')
  everything = *OF_MODEL, 'listops', *TASKS
  parser.add_argument('--only', default=','.join(everything), help='which of them (%(default)s)')
  options = parser.parse_args(arguments)
  workdir, only = pathlib.Path(options.workdir), harness.chosen(parser, 'run', options.only, everything)
  for name, (spec, overrides) in arms().items():
    if name.split('/')[0] in only:
      config = loading.load(spec, overrides | {'runtime.data_dir': options.data_dir})
      experiment.run(config, workdir / name)
  before = json.loads(options.json.read_text(encoding='utf-8')) if options.json.exists() else {}
  harness.write(options.json, summary(workdir, before))


def summary(workdir, before):
  """What result.json of every finished arm says, with its validation curves and the gains; arms that are not
  in `workdir` stay as they were `before`."""
  found = {'arms': {}, 'gains': {}} | before | {'command': 'python -m benchmarks small_runs'}
  for name in arms():
    path = workdir / name / 'result.json'
    if path.exists():
      result = json.loads(path.read_text(encoding='utf-8'))
      result['runtime']['data_dir'] = 'data'  # where it lay on this machine is nobody's business
      found['arms'][name] = result | {'validation_curves': curves(path.parent)}
  for model in (*OF_MODEL, *TASKS):
    runs = collect(workdir / model) if (workdir / model).exists() else []
    for group in tables.summarise(runs) if len(runs) > 1 else ():
      found['gains'][model] = {
        f'{gain.arm.name} over {gain.against.name}': {
          'estimate': gain.interval.estimate,
          'low': gain.interval.low,
          'high': gain.interval.high,
          'method': gain.interval.method,
        }
        for gain in group.gains
      }
  return found


def curves(folder):
  """{stage: [validation records]} from the metrics files of one run."""
  found = {}
  for path in sorted(folder.glob('*/metrics.jsonl')):
    records = map(json.loads, path.read_text(encoding='utf-8').splitlines())
    stage = path.parent.name.split('-')[0]
    found[stage] = [record for record in records if record['split'] == 'validation']
  return found


if __name__ == '__main__':
  main()
