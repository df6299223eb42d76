r"""Does self-pretraining pay on Image at the paper's size and with its values, in a fraction of its epochs?

  lra-spt prepare cifar10 --raw_dir=RAW --data_dir=data
  lra-spt study configs/studies/image_epochs.py --workdir=runs/image_epochs \
    --config.runtime.precision=bfloat16 --config.runtime.steps_per_dispatch=32

Sizes, learning rates, batch sizes and warmup are those of the paper's Table 4 (S4: Table 5). The paper
pretrains for up to 50 epochs of Image and finetunes for up to 200. Here both stages last `epochs`, and
training from scratch as long as both together. Validation chooses only the step that is tested. So models
trained from scratch have the paper's learning rate too, even if another one would be better for so few
epochs.

Arguments: epochs=8 (of each stage), models=transformer_rotary (names of models of Image, joined by +) and
seeds=1 (from 0 on). The first two runs, of 2026-11-27, were made by `lra-spt train` with the same values
before this file was written; the time available determined the number of epochs.

With --config.protocol=paper, weight decay acts on every parameter, and the lowest error instead of the best
R² picks the checkpoint of pretraining; docs/studies.md lists all changes.
"""

from lra_spt.config import loading as config
from lra_spt.studies.study import Cell, Study

NAMES = {'transformer_rotary': 'Transformer + Rotary', 'transformer': 'Transformer', 's4': 'S4', 'dlr': 'DLR'}


def get_study(arg=''):
  """The study of 'epochs=...,models=...,seeds=...'."""
  choice = config.arguments(arg, epochs=8.0, models='transformer_rotary', seeds=1)
  return Study(
    'image_epochs',
    'Image at the size of the paper, for a part of its epochs',
    [cell for model in choice.models.split('+') for cell in _cells(model, choice.epochs)],
    about=f'{choice.epochs:g} epochs of masked self-pretraining and {choice.epochs:g} of finetuning, against '
    f'{2 * choice.epochs:g} from scratch; models and values are those of the paper.',
    seeds=tuple(range(choice.seeds)),
    show='operations',
  )


def _cells(model, epochs):
  budgets = {
    'scratch': {'finetune.epochs': 2 * epochs},
    'masked': {'pretrain.epochs': epochs, 'finetune.epochs': epochs},
  }
  for regime, overrides in budgets.items():
    spec = f'configs/image.py:model={model},regime={regime}'
    yield Cell(f'{NAMES.get(model, model)}, {regime}', 'Image', spec, overrides)
