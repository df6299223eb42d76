"""Which part of a pretrained encoder carries the gain? A laboratory of minutes on the demo's task.

  lra-spt prepare stripes --data_dir=data
  lra-spt study configs/studies/lab.py --workdir=runs/lab --processes=2
  lra-spt study configs/studies/lab.py:steps=2000 --workdir=runs/lab_longer --processes=2

Expect about 36 % from scratch and 80 % with everything transferred. An arm transfers or freezes parameters by
their names (`finetune.transfer`, `finetune.freeze`). Arms of a seed that pretrain share one pretraining.

Argument: steps=400 (of finetuning; from scratch compute-tied 500 more).
"""

from lra_spt.config import loading
from lra_spt.studies.study import Cell, Study

SEEDS = (101, 102, 103, 104, 105)
PRETRAIN_STEPS = 500  # those of the demo
ATTENTION = '*/query/*', '*/key/*'


def get_study(arg=''):
  """The study of 'steps=...'; default: steps=400."""
  choice = loading.arguments(arg, steps=400)
  queries, others = ','.join(ATTENTION), ','.join(f'!{pattern}' for pattern in ATTENTION)
  arms = {  # row: argument of the config, overrides
    'scratch': ('regime=scratch', {}),
    'scratch, compute-tied': ('regime=scratch', {'finetune.max_steps': choice.steps + PRETRAIN_STEPS}),
    'scratch, queries and keys frozen': ('regime=scratch', {'finetune.freeze': queries}),
    'all': ('regime=masked', {}),
    'queries and keys only': ('regime=masked', {'finetune.transfer': queries}),
    'all but queries and keys': ('regime=masked', {'finetune.transfer': others}),
    'embedding only': ('regime=masked', {'finetune.transfer': 'embed/*'}),
    'all, queries and keys frozen': ('regime=masked', {'finetune.freeze': queries}),
    'all but queries and keys, which stay as drawn': (
      'regime=masked',
      {'finetune.transfer': others, 'finetune.freeze': queries},
    ),
  }
  return Study(
    'lab',
    'Which part of a pretrained encoder carries the gain?',
    [
      Cell(row, 'Stripes', f'configs/demo.py:{argument}', {'finetune.max_steps': choice.steps} | overrides)
      for row, (argument, overrides) in arms.items()
    ],
    about='The Transformer of the demo. An arm starts finetuning from a part of the pretrained encoder, or '
    'does not train a part of it.',
    seeds=SEEDS,
    show='operations',
  )
