"""Table 2: larger Transformers and S4, scratch and masked self-pretraining; SPADE, MEGA; Pythia.

  lra-spt study configs/studies/table2.py --workdir=runs/table2 --dry_run
  lra-spt study configs/studies/table2.py --workdir=runs/table2
  lra-spt study configs/studies/table2.py:weights=model.safetensors --workdir=runs/table2

The third command adds Pythia 70M as pretrained on text, on five tasks (configs/pythia.py says which file).

43 runs with 56 stages, at most 23.6 million steps and 201 EFLOP: 23 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-25). Not run so far.

With --config.protocol=paper, attention reads padding, Text's test set picks checkpoints, pretraining on Text
and Retrieval has no output layer, and Pythia on ListOps trains on after its cosine schedule; docs/studies.md
lists all changes.
"""

import pathlib

from configs.studies import of_paper
from lra_spt.config import loading as config_lib
from lra_spt.errors import ConfigError
from lra_spt.studies.study import Study


def get_study(arg=''):
  """The study of 'weights=FILE'; default: without pretrained Pythia."""
  weights = config_lib.arguments(arg, weights='').weights
  if weights and not pathlib.Path(weights).is_file():
    raise ConfigError(f'There is no file {weights}: give weights= the model.safetensors of Pythia 70M.')
  return Study(
    'table2',
    'Table 2: Long Range Arena, Transformers and S4',
    of_paper.cells(of_paper.rows(2), weights),
    about='With self-pretraining, do Transformers with rotary positions match S4? Averages leave out '
    'PathX-256, as the paper does.',
    averages=True,
  )
