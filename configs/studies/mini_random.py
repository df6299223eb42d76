"""LRA-mini from random values: does self-pretraining replace the structured initialisation of S4 and DLR?

  lra-spt prepare text_mini --raw_dir=RAW --data_dir=data
  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/mini_random.py --workdir=runs/mini_random --processes=2

The question is that of the paper's Figure 2 and Table 7. The protocol is that of `mini_table.py` in
everything: sizes, budgets, learning rates by validation on seeds 0 and 1, and seeds 2, 3 and 4 for the test.
"Random": every parameter is drawn from a normal distribution with standard deviation 0.1 (C.1.3 of the
paper). Fixed on 2026-11-24, before it ran.
"""

from configs.studies import mini_table

MODELS = {'s4': 'S4', 's4_random': 'S4 random', 'dlr': 'DLR', 'dlr_random': 'DLR random'}
TASKS = ('text', 'listops')
CHOSEN = {  # by the search, as mini_table.CHOSEN
  'listops': {'s4_random': (4e-3, 4e-3), 'dlr_random': (4e-3, 4e-3)},
}


def get_study():
  return mini_table.with_protocol(
    'mini_random',
    'LRA-mini from random values',
    mini_table.cells(TASKS, MODELS, mini_table.ARMS['main']),
    about='S4 and DLR with their hand-made values and with random ones, from scratch with the compute of '
    'both stages and after masked self-pretraining on the same inputs. Do the values matter less after it?',
  )
