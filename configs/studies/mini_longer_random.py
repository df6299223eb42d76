"""LRA-mini from random values with longer finetuning, on ListOps.

  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/mini_longer_random.py --workdir=runs/longer_random --processes=2

In `mini_random.py` random values lead from scratch and structured ones after self-pretraining, but
finetuning lasts 1,500 steps there, which `mini_longer.py` found too short on this task. Here the same four
models have the limits of that study; learning rates are those that validation chose in the two shorter
studies. Fixed on 2026-11-28, after the runs of those and before any of the random ones here; the structured
ones are runs of `mini_longer.py`.
"""

from configs.studies import mini_longer, mini_random, mini_table
from lra_spt.studies.study import Study

CHOSEN = {'listops': mini_table.CHOSEN['listops'] | mini_random.CHOSEN['listops']}


def get_study():
  return Study(
    'mini_longer_random',
    'LRA-mini from random values with longer finetuning',
    mini_longer.cells(('listops',), mini_random.MODELS, CHOSEN),
    about='S4 and DLR with their hand-made values and with random ones on expressions of at most 126 tokens. '
    f'{mini_longer.LIMITS}',
    seeds=mini_table.SEEDS,
  )
