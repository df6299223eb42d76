"""Three questions about self-pretraining on LRA-mini, each with enough fresh seeds to decide it.

  for set in image text; do lra-spt prepare ${set}_mini --raw_dir=RAW --data_dir=data; done
  lra-spt prepare pathfinder_mini --data_dir=data
  lra-spt study configs/studies/questions.py --workdir=runs/questions --processes=2
  lra-spt study configs/studies/questions.py --workdir=runs/questions --only=column=Pathfinder
  python -m benchmarks mini --study=questions --workdir=runs/questions   # the answers as data

1. Pathfinder: does self-pretraining close the gap between a rotary Transformer and S4? Runs take all their
   steps, because a run at chance would be stopped by patience before it can leave it.
2. Text and Image: does self-pretraining help on real data, and which models?
3. Image, DLR with random initialisation: can self-pretraining replace a designed initialisation?

Finetuning takes at most 6,000 steps after 2,500 of pretraining, and training from scratch at most 8,500. The
best validation chooses the checkpoint that is tested. Learning rates are those that `mini.py` chose; those of
random DLR were chosen among the same two by mean validation over seeds 0 and 1.

docs/results.md has the plan and the analysis, which were fixed before any of these seeds ran.
"""

from configs.studies import mini
from lra_spt.studies.study import Cell, Study

SEEDS = (21, 22, 23, 24, 25)
PATHFINDER_SEEDS = {'transformer_rotary': tuple(range(21, 31)), 's4': (21, 22, 23, 24)}  # S4 varies little
REAL = ('text', 'image')
REAL_MODELS = ('transformer_rotary', 's4', 'dlr')
RANDOM = {'dlr_random': 'DLR random'}
RANDOM_RATES = {'image': {'dlr_random': (1e-3, 1e-3)}}
WHOLE = {'finetune.patience': 0}  # no early stopping


def get_study():
  """The cells of all three questions; `--only=column=...` runs a part."""
  names = {model: mini.MODELS[model] for model in REAL_MODELS}
  return Study(
    'questions',
    'Three questions about self-pretraining',
    [
      *_pathfinder(),
      *mini.longer(REAL, names),
      *mini.longer(('image',), RANDOM, RANDOM_RATES),
    ],
    about='Does masked self-pretraining close the gap between a Transformer and S4, does it help on real '
    'data, and can it replace a designed initialisation? Small tasks, models of about 70,000 parameters; '
    'training from scratch may take as many steps as pretraining and finetuning together.',
    seeds=SEEDS,
    show='operations',
  )


def _pathfinder() -> list[Cell]:
  """Scratch and masked runs of full length."""
  return [
    Cell(cell.row, cell.column, cell.config, cell.overrides | WHOLE, seeds=seeds)
    for model, seeds in PATHFINDER_SEEDS.items()
    for cell in mini.longer(('pathfinder',), {model: mini.MODELS[model]})
  ]
