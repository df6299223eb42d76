"""Which part of a pretrained encoder carries the gain on Image-mini? Parts of three models.

  lra-spt prepare image_mini --raw_dir=RAW --data_dir=data
  lra-spt study configs/studies/lab_image.py --workdir=runs/lab_image --processes=2
  python -m benchmarks mini --study=lab_image --workdir=runs/lab_image   # the result as data

The part of the rotary Transformer is queries and keys, that of S4 and DLR the kernel of the convolution,
whose prior the paper claims to learn from data (section 3.3). Budgets and learning rates are those of
`questions.py`; the seeds are others. Arms of a seed that pretrain share one pretraining.
"""

from configs.studies import mini
from configs.studies.lab import ATTENTION
from lra_spt.studies.study import Cell, Study

SEEDS = (31, 32, 33)
KERNEL = ('*/kernel/*',)
PARTS = {  # model: its part, as patterns of `finetune.transfer`
  'transformer_rotary': ('queries and keys', ATTENTION),
  's4': ('kernel', KERNEL),
  'dlr': ('kernel', KERNEL),
}


def get_study():
  return Study(
    'lab_image',
    'Which part of a pretrained encoder carries the gain on Image-mini?',
    [cell for model in PARTS for cell in _arms(model)],
    about='An arm starts finetuning from a part of the pretrained encoder. Training from scratch is '
    'compute-tied. The images are 12 x 12, with 2,000 labels.',
    seeds=SEEDS,
    show='operations',
  )


def _arms(model) -> list[Cell]:
  name, (part, patterns) = mini.MODELS[model], PARTS[model]
  scratch, masked = mini.longer(('image',), {model: name})
  transfers = {
    f'{part} only': ','.join(patterns),
    f'all but {part}': ','.join(f'!{pattern}' for pattern in patterns),
  }
  return [
    Cell(f'{name}, scratch, compute-tied', scratch.column, scratch.config, scratch.overrides),
    Cell(f'{name}, all', masked.column, masked.config, masked.overrides),
    *(
      Cell(f'{name}, {row}', masked.column, masked.config, masked.overrides | {'finetune.transfer': transfer})
      for row, transfer in transfers.items()
    ),
  ]
