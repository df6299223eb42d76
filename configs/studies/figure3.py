"""Figure 3: S4 on parts of the training data of Image and Text, from scratch and self-pretrained.

  lra-spt study configs/studies/figure3.py --workdir=runs/figure3 --dry_run
  lra-spt study configs/studies/figure3.py --workdir=runs/figure3

48 runs with 58 stages, at most 4.7 million steps and 3.68 EFLOP: 0.43 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.

On Text from scratch, validation chooses between the learning rates 1e-3 and 5e-4 for every part (C.1.4), with
seed 100.

In the paper, pretraining sees the same part of the data as finetuning. The rows "on all" are ours:
pretraining sees all training inputs, finetuning the labels of the part. Smaller parts are subsets of larger
ones. The paper does not print the figure's numbers; it says that relative gains reach 30 %. The page
draws scores (the figure's left half) and relative gains (its right half).

Its "until convergence" (section 3.4) means here: the model is validated as often as once per epoch of all
examples, and training ends after twenty evaluations without improvement, or after as many steps as the task's
config takes with all examples.

With --config.protocol=paper, parts of Text are of all 25,000 reviews, its test set picks checkpoints and
chooses the learning rate, and its pretraining has no output layer; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.report import published
from lra_spt.studies.study import Cell, Chart, Search, Study

FRACTIONS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
# Appendix C.1.4.
PRETRAIN = {
  'image': {'batch_size': 50, 'optimizer.lr': 1e-2, 'max_steps': 10_000},
  'text': {'batch_size': 8, 'optimizer.lr': 5e-4, 'max_steps': 40_000},
}
LIMITS = {  # 200 epochs of 45,000 images, 32 of 22,500 reviews
  'image': {'max_steps': 180_000, 'evaluate_every': 900},
  'text': {'max_steps': 45_000, 'evaluate_every': 1400},
}
FINETUNE = {
  'image': {'batch_size': 50, 'optimizer.lr': 2e-3},
  'text': {'batch_size': 16, 'optimizer.lr': 5e-4},
}
# Text from scratch has the better of both learning rates on validation.
RATES = Search([[{'finetune.optimizer.lr': lr} for lr in (1e-3, 5e-4)]], seeds=(100,))


def get_study():
  return Study(
    'figure3',
    'Figure 3: S4 on parts of the training data',
    [
      _cell(task, arm, part)
      for task in PRETRAIN
      for arm in ('scratch', 'SPT', 'SPT on all')
      for part in FRACTIONS
    ],
    about='Is self-pretraining worth more where labels are few?',
    chart=Chart('share of the training examples', 'test accuracy', log=True),
  )


def _cell(task, arm, part):
  scratch = arm == 'scratch'
  # No epochs: on a small part those of the config would end pretraining, and finetuning within its warmup.
  finetune = FINETUNE[task] | LIMITS[task]
  finetune |= {'patience': 20, 'epochs': 0.0, 'data_fraction': part}
  overrides = {f'finetune.{key}': value for key, value in finetune.items()}
  if not scratch:
    pretrain = PRETRAIN[task] | {'epochs': 0.0, 'data_fraction': part if arm == 'SPT' else 1.0}
    overrides |= {f'pretrain.{key}': value for key, value in pretrain.items()}
  return Cell(
    f'{published.TASK_NAMES[task]}, {arm}',
    f'{part:.1%}',
    of_paper.config(task, 's4', 'scratch' if scratch else 'masked'),
    overrides,
    x=part,
    search=RATES if scratch and task == 'text' else None,
  )
