"""LRA-mini in all arms: how much of the gain is pretraining's compute, and what does the causal form change?

  for set in image text; do lra-spt prepare ${set}_mini --raw_dir=RAW --data_dir=data; done
  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/mini_arms.py --workdir=runs/mini_arms --processes=2
  lra-spt study configs/studies/mini_arms.py:models=all --workdir=runs/mini_arms --processes=2

The arms are those of `mini_table.py:arms=all`, and the protocol is that of `mini_table.py` in everything.
Training from scratch takes up to as many steps as both stages together, as there; here there is also an arm
with the steps of finetuning alone, the baseline of published tables. Causal models are trained from scratch
and after next-token pretraining.

The design was fixed on 2026-11-26, before any of the additional arms ran. The other models (argument
`models`, as in `mini_table.py`) and Image joined on 2026-11-28, before any of their additional arms ran but
after those of the main models on ListOps had run.
"""

from configs.studies import mini_table
from lra_spt.config import loading as config

TASKS = ('listops', 'image', 'text')


def get_study(arg=''):
  """The study of 'models=...'; default: models=main."""
  models = mini_table.MODELS['main'] | mini_table.models_of(config.arguments(arg, models='main').models)
  return mini_table.with_protocol(
    'mini_arms',
    'LRA-mini in all arms',
    mini_table.cells(TASKS, models, mini_table.ARMS['main'] | mini_table.ARMS['all']),
    about='Masked and causal self-pretraining against training from scratch, for the steps of finetuning and '
    'for those of both stages. How much of a gain would longer training have given as well, and does the '
    'causal form gain as much?',
  )
