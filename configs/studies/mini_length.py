"""The models and steps of LRA-mini at the full length of Image and ListOps: learning curves over operations.

  lra-spt prepare image_mini --raw_dir=RAW --data_dir=data
  lra-spt prepare cifar10 --raw_dir=RAW --data_dir=data
  for set in listops_mini listops; do lra-spt prepare $set --data_dir=data; done
  lra-spt study configs/studies/mini_length.py --workdir=runs/mini_length --processes=2 --only=column=Image
  lra-spt study configs/studies/mini_length.py --workdir=runs/mini_length --processes=2

A step from 144 and 128 positions towards the paper. Sizes, steps and stopping are those of `mini_table.py`,
as are the learning rates that validation chose there, but the sequences have the length of LRA and the
training sets are complete. This makes 2.8 epochs of Image in all, and 1.3 of ListOps, where the paper has up
to 200.

There is one seed, because the study is about curves: how validation rises with the operations that training
takes. Its test scores and their differences say nothing. Fixed on 2026-11-25, before it ran.
"""

from configs.studies import mini_table
from lra_spt.studies.study import Cell, Study

COLUMNS = {
  ('image', ''): 'Image, 12 x 12',
  ('listops', ''): 'ListOps, 128',
  ('image', ',full=true'): 'Image',
  ('listops', ',full=true'): 'ListOps',
}


def get_study():
  return Study(
    'mini_length',
    'LRA-mini at the length of LRA',
    [cell for place in COLUMNS for model in mini_table.MODELS['main'] for cell in _cells(*place, model)],
    about='Do learning curves on short sequences look like those at full length, for models of the same size '
    'and as many steps? The training sets are 22 and 10 times as large there. One seed, for curves: test '
    'scores and their differences say nothing.',
    seeds=(2,),
    show='operations',
  )


def _cells(task, full, model):
  name = mini_table.MODELS['main'][model]
  for (arm, (argument, overrides)), rate in zip(
    mini_table.ARMS['main'].items(), mini_table.CHOSEN[task][model], strict=True
  ):
    yield Cell(
      f'{name}, {arm}',
      COLUMNS[task, full],
      f'configs/mini/{task}.py:model={model},{argument}{full}',
      overrides | {'finetune.optimizer.lr': rate},
    )
