"""The small tasks of `configs/mini`, of which a run takes minutes on a laptop.

As few training examples as make labels scarce, and test sets as large as the data allow.
"""

from data_prep import catalogue
from data_prep.sources import listops

LENGTH = 128
# At most 5 arguments and 126 tokens: a tree fits with its <eos>.
SHAPE = listops.TreeShape(max_depth=10, max_args=5, min_length=15, max_length=127)


def prepare_listops(data_dir, *, examples: int | None = None, seed: int = 0, workers: int | None = None):
  """Generates ListOps trees of 16 to 126 tokens; the rest as `listops.prepare_listops`."""
  return listops.prepare_listops(
    data_dir,
    dataset='listops_mini',
    sizes=catalogue.SETS['listops_mini'].counts_for(examples),
    seed=seed,
    shape=SHAPE,
    length=LENGTH,
    workers=workers,
  )
