"""LRA-mini with fewer labels: what self-pretraining is worth on 3 to 100 % of the reviews of `text_mini`.

  lra-spt prepare text_mini --raw_dir=RAW --data_dir=data
  lra-spt study configs/studies/mini_labels.py --workdir=runs/mini_labels --processes=2

The question is that of the paper's Figure 3. Every arm has the sizes, budgets and stopping rule of
`mini_table.py`, and the learning rate that validation chose there with all labels, so nothing is searched
here. "On the part": pretraining sees the inputs of the same reviews as finetuning. "On all inputs": it sees
those of all 5,000. Smaller parts are subsets of larger ones. The validation set has all its labels in every
arm. Fixed on 2026-11-24, before the study ran.

Argument: models=main (S4, as in the paper) or all (also the rotary Transformer).
"""

from configs.mini import recipe
from configs.studies.mini_table import BOTH, CHOSEN, MODELS
from lra_spt.config import loading as config
from lra_spt.studies.study import Cell, Chart, Study

PARTS = (0.03, 0.1, 0.3, 1.0)


def get_study(arg=''):
  """The study of 'models=...'; default: models=main."""
  choice = config.arguments(arg, models=('main', 'all'))
  models = ['s4'] + ['transformer_rotary'] * (choice.models == 'all')
  return Study(
    'mini_labels',
    'LRA-mini with fewer labels',
    [cell for model in models for cell in _cells(model)],
    about='Is self-pretraining worth more where labels are few? Reviews of 255 characters; from scratch a '
    f'model may take as many steps as pretraining ({recipe.PRETRAIN_STEPS:,}) and finetuning '
    f'({recipe.FINETUNE_STEPS:,}) together.',
    seeds=(2, 3, 4),
    chart=Chart('share of the training examples', 'test accuracy', log=True),
  )


def _cells(model):
  name = MODELS['main'][model]
  scratch, finetune = ({'finetune.optimizer.lr': rate} for rate in CHOSEN['text'][model])
  for part in PARTS:
    labels = {'finetune.data_fraction': part}
    arms = {
      'scratch': ('scratch', BOTH | scratch | labels),
      'masked on the part': ('masked', finetune | labels | {'pretrain.data_fraction': part}),
      'masked on all inputs': ('masked', finetune | labels),
    }
    if part == 1:  # the part is all
      del arms['masked on the part']
    for arm, (regime, overrides) in arms.items():
      source = f'configs/mini/text.py:model={model},regime={regime}'
      yield Cell(f'{name}, {arm}', f'{part:.0%}', source, overrides, x=part)
