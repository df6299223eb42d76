"""LRA-mini with longer finetuning on Image, Pathfinder and Text, after `mini_longer.py` on ListOps.

  for set in image text; do lra-spt prepare ${set}_mini --raw_dir=RAW --data_dir=data; done
  lra-spt prepare pathfinder_mini --data_dir=data
  lra-spt study configs/studies/mini_longer_tasks.py --workdir=runs/longer_tasks --processes=2
  lra-spt study configs/studies/mini_longer_tasks.py:models=all --workdir=runs/longer_tasks --processes=2

On ListOps, losses after self-pretraining were ones of short finetuning. On these tasks too 19 of the table's
54 finetuned runs were best at their last validation, 7 of the rotary Transformer's 9 among them. Limits,
learning rates, seeds and stopping rule are those of `mini_longer.py`. Pulse is not repeated: with its few
test patients no difference of this size would show. Fixed on 2026-11-28, after the runs of that study and
before any of these.

It is a study of its own, since that one was complete when this was asked; each corrects for its own gains.
Argument: models=main or all, as in `mini_table.py`.
"""

from configs.studies import mini_longer, mini_table
from lra_spt.studies.study import Study

TASKS = 'image', 'pathfinder', 'text'


def get_study(arg=''):
  """The study of 'models=...'; default: models=main."""
  return Study(
    'mini_longer_tasks',
    'LRA-mini with longer finetuning: Image, Pathfinder and Text',
    mini_longer.cells(TASKS, mini_longer.models(arg)),
    about=f'Images, drawn curves and reviews. {mini_longer.LIMITS}',
    seeds=mini_table.SEEDS,
  )
