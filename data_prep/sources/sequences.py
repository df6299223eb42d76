"""Generated tasks of recall, copying and state tracking; `lra_spt.data.generated` has their names.

Example i of a file is a pure function of (seed, file, i). Rules:

- recall: multi-query associative recall of zoology (Arora et al. 2023, arXiv 2312.04927; HazyResearch's code
  zoology, `data/associative_recall.py`). P distinct keys with a value each, then every key once more at a
  distance that follows its power law (exponent 0.01), with random symbols between. The label of such a
  position is the value. We have 64 keys and 64 values, zoology 4,096 each.
- copying: selective copying of MAD (Poli et al. 2024, arXiv 2403.17844). N of 16 symbols lie in 16 N
  positions of blanks; at N marks behind them the label is the next of these symbols.
- induction: induction heads of Mamba (Gu and Dao 2023, arXiv 2312.00752, section 4.1.2). A mark at a random
  place and at the end; the class is the symbol behind the first one.
- parity, s3, a5: word problems of the groups of two elements, S3 and A5 (Merrill, Petty and Sabharwal 2024,
  arXiv 2404.08819). Inputs are elements g_1, g_2, ..., and the label of position t is g_1 g_2 ... g_t.
"""

import functools
import itertools

import numpy as np

from data_prep import builders
from lra_spt.data import generated, tokenizers
from lra_spt.data.generated import KEYS, SPECIAL, SYMBOLS, VALUES
from lra_spt.data.parts import UNLABELLED

COUNTS = {'train': 20_000, 'validation': 1_000, 'test': 2_000}
OF_LONGER = 1_000  # examples of a longer test split
_FILES = (*COUNTS, 'test_2x', 'test_4x')
_POWER = 0.01


def draw(dataset: str, seed: int, file: str, index: int) -> tuple[np.ndarray, np.ndarray | int]:
  """An example of a set such as 'recall_16': ids uint8 [L], and int32 labels [L] or the class."""
  family, number = generated.parts_of(dataset)
  length = generated.task_of(dataset).for_split(file).length
  rng = np.random.default_rng([seed, _FILES.index(file), index])
  if family == 'recall':
    ids, label = _recall(rng, number, length)
  elif family == 'copying':
    ids, label = _copying(rng, number)
  elif family == 'induction':
    ids, label = _induction(rng, length)
  else:
    ids, label = _products(rng, length, family)
  return (SPECIAL + ids).astype(np.uint8), label


def _recall(rng, pairs, length):
  keys = rng.permutation(KEYS)[:pairs]
  values = KEYS + rng.integers(VALUES, size=pairs)
  ids = rng.integers(KEYS + VALUES, size=length)
  ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2] = keys, values
  places = (length - 2 * pairs) // 2
  weight = np.arange(1.0, places + 1) ** (_POWER - 1)
  asked = 2 * pairs + 2 * rng.choice(places, pairs, replace=False, p=weight / weight.sum())
  ids[asked] = keys
  label = np.full(length, UNLABELLED, np.int32)
  label[asked] = values - KEYS
  return ids, label


def _copying(rng, count):
  blank, mark = SYMBOLS, SYMBOLS + 1
  ids = np.full(17 * count, blank)
  places = np.sort(rng.choice(16 * count, count, replace=False))
  ids[places] = rng.integers(SYMBOLS, size=count)
  ids[16 * count :] = mark
  label = np.full(17 * count, UNLABELLED, np.int32)
  label[16 * count :] = ids[places]
  return ids, label


def _induction(rng, length):
  ids = rng.integers(SYMBOLS, size=length)
  first = rng.integers(length - 2)
  ids[[first, length - 1]] = SYMBOLS
  return ids, int(ids[first + 1])


@functools.cache
def table_of(group: str) -> np.ndarray:
  """The multiplication table of a group, int [elements, elements]; element 0 is the identity.

  Elements of S3 and A5 are the (even) permutations in lexicographic order, and a b is a after b.
  """
  size = {'parity': 2, 's3': 3, 'a5': 5}[group]
  permutations = [p for p in itertools.permutations(range(size)) if group != 'a5' or _is_even(p)]
  number = {p: i for i, p in enumerate(permutations)}
  return np.array([[number[tuple(a[i] for i in b)] for b in permutations] for a in permutations])


def _is_even(permutation):
  return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def _products(rng, length, group):
  table = table_of(group)
  ids = rng.integers(len(table), size=length)
  label = itertools.accumulate(ids.tolist(), lambda product, element: table[product, element])
  return ids, np.fromiter(label, np.int32, length)


def prepare_sequences(data_dir, *, dataset: str, examples: int | None = None, seed: int = 0):
  """Generates a set: `examples` for training (None: 20,000), 1,000 for validation, 2,000 for the test and
  1,000 for each longer test split.

  Returns:
    The folder of the set. Raises what `builders.prepare_set` raises.
  """
  task = generated.task_of(dataset)
  sizes = COUNTS | ({} if examples is None else {'train': examples})
  sizes |= {split: OF_LONGER for split, _ in task.longer}
  names = map(str, range(task.vocabulary - SPECIAL))

  def read(file):
    return (draw(dataset, seed, file, index) for index in range(sizes[file]))

  def load(work):
    del work  # takes seconds, not worth resuming
    return builders.Source(
      description=task.description,
      citation='Generated by lra_spt (data_prep/sources/sequences.py).',
      files={file: functools.partial(read, file) for file in sizes},
      counts=sizes,
      classes=task.classes,
      per_position=task.per_position,
      shape=None,
      origin=f'generated, seed {seed}',
      verified=False,
      extra={'generator': {'seed': seed}, 'vocabulary': [*tokenizers.SPECIAL_TOKENS, *names]},
    )

  return builders.prepare_set(dataset, data_dir, {'from': 'generator', 'seed': seed, 'sizes': sizes}, load)
