"""Which models recall, and which follow a state? Accuracy against the number of pairs, and against length.

  for set in recall_4 recall_8 recall_16 parity_32; do lra-spt prepare $set --data_dir=data; done
  lra-spt study configs/studies/recall.py --workdir=runs/recall --processes=2
  python -m benchmarks mini --study=recall --workdir=runs/recall     # the results as data

About ten minutes on two idle cores. Causal forms of LRA-mini's models, from scratch, for a few hundred steps
and with one seed: the picture shows what a model learns soon, not what it can learn at all. Parity is trained
on 32 positions and tested on 32, 64 and 128. Steps and learning rate were chosen on seed 0. After the first
results of seed 2, 800 steps were begun so that recurrences learn more, and given up for lack of time.
"""

from lra_spt.studies.study import Cell, Study

PAIRS = (4, 8, 16)
RECALL = {  # model: name in a table
  'transformer_rotary': 'Transformer + Rotary',
  'gated_deltanet': 'Gated DeltaNet',
  'mamba2': 'Mamba-2',
  's4': 'S4',
}
PARITY = {'transformer_rotary': 'Transformer + Rotary', 'mamba2': 'Mamba-2', 's4': 'S4', 'slstm': 'sLSTM'}
LENGTH = 32  # of parity
TRAINING = {
  'finetune.max_steps': 600,
  'finetune.optimizer.lr': 3e-3,
  'finetune.evaluate_every': 200,
  'finetune.patience': 0,
}
SEED = 2


def get_study():
  cells = [
    Cell(name, f'{pairs} pairs', _config(f'recall_{pairs}', model), TRAINING)
    for pairs in PAIRS
    for model, name in RECALL.items()
  ]
  cells += [
    Cell(name, 'Parity', _config(f'parity_{LENGTH}', model), TRAINING) for model, name in PARITY.items()
  ]
  return Study(
    'recall',
    'Recall and state tracking',
    cells,
    about='How many pairs of a key and a value does a model recall (MQAR), and does it follow a state beyond '
    'the length of training? Small models, few steps, one seed.',
    seeds=(SEED,),
  )


def _config(task, model):
  return f'configs/mini/own.py:task={task},model={model},regime=scratch,causal=true'
