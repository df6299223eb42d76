"""LRA-mini for architectures beyond the paper's: MEGA, Mamba-2, RG-LRU (Griffin, Hawk) and Gated DeltaNet.

  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/mini_further.py --workdir=runs/mini_further --processes=2

Sizes, steps, stopping rule, learning rates by validation on seeds 0 and 1, and seeds 2, 3 and 4 for the test
are those of `mini_table.py`; the blocks are those of their papers (`configs/mini/recipe.py`: OTHERS). The
bidirectional forms of all but MEGA are ours. One task, the shortest to run. Fixed on 2026-11-28, after the
runs of that table and before any of these models had trained on it; Gated DeltaNet was added on 2026-11-29,
before it had trained on it, but after MEGA had.
"""

from configs.studies import mini_table

MODELS = {'mega': 'MEGA', 'mamba2': 'Mamba-2', 'rglru': 'RG-LRU', 'gated_deltanet': 'Gated DeltaNet'}
TASKS = ('listops',)


def get_study():
  return mini_table.with_protocol(
    'mini_further',
    'LRA-mini for further architectures',
    mini_table.cells(TASKS, MODELS, mini_table.ARMS['main']),
    about='Four architectures that the paper does not have, with the protocol of the table of LRA-mini. '
    'What does masked self-pretraining on the same training inputs gain them?',
  )
