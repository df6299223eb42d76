"""Who is in which split: the permutations of the paper's code, without its framework.

`torch.utils.data.random_split` with `torch.Generator().manual_seed(seed)` permutes with a forward
Fisher-Yates shuffle whose step i swaps i with i + (u mod (n - i)), where u are successive 32-bit outputs of
MT19937 seeded the classic way. NumPy has the same generator, so the published splits can be rebuilt exactly.
"""

import numpy as np


def random_permutation(n: int, seed: int) -> np.ndarray:
  """What `torch.randperm(n, generator=torch.Generator().manual_seed(seed))` returns on a CPU.

  Args:
    n: how many positions; below 2**32.
    seed: 0 <= seed < 2**32.

  Returns:
    int64 [n].
  """
  if not 0 <= n < 2**32:
    raise ValueError(f'A permutation of {n} positions was asked for; n must lie in [0, 2**32).')
  if not 0 <= seed < 2**32:
    raise ValueError(f'The split seed is {seed}; it must lie in [0, 2**32).')
  generator = np.random.MT19937()
  generator.state = np.random.RandomState(seed).get_state(legacy=False)
  draws = generator.random_raw(max(n - 1, 0)).astype(np.int64)
  steps = np.arange(len(draws), dtype=np.int64)
  partners = (steps + draws % (n - steps)).tolist()
  permutation = list(range(n))
  for i, j in enumerate(partners):
    permutation[i], permutation[j] = permutation[j], permutation[i]
  return np.asarray(permutation, np.int64)


def holdout_split(n: int, *, validation_fraction: float = 0.1, seed: int = 42) -> dict[str, np.ndarray]:
  """Training and validation positions of a training file of n examples (CIFAR-10: 45,000 / 5,000).

  Returns:
    {'train': int64 positions, 'validation': int64 positions}, in the order of the permutation.
  """
  permutation = random_permutation(n, seed)
  train = int(n * (1 - validation_fraction))
  return {'train': permutation[:train], 'validation': permutation[train:]}


def random_split(
  n: int, *, validation_fraction: float = 0.1, test_fraction: float = 0.1, seed: int = 42
) -> dict[str, np.ndarray]:
  """Training, validation and test positions of one file of n examples (Pathfinder: 160,000 / 20,000 /
  20,000).

  Returns:
    {'train', 'validation', 'test'}: int64 positions, in the order of the permutation.
  """
  permutation = random_permutation(n, seed)
  validation, test = int(n * validation_fraction), int(n * test_fraction)
  train = n - validation - test
  return {
    'train': permutation[:train],
    'validation': permutation[train : train + validation],
    'test': permutation[train + validation :],
  }


def split_positions(kind: str, counts: dict[str, int]) -> dict[str, tuple[str, np.ndarray]]:
  """For each split of a task, which stored file it reads and at which positions.

  Args:
    kind: `Task.splits`.
    counts: examples per stored file; 'files' needs train, validation and test, 'holdout' and 'reused' train
      and test, 'random' train.

  Returns:
    {'train' | 'validation' | 'test': (stored file, int64 positions)}.

  Raises:
    ValueError: unknown kind.
    KeyError: a stored file is missing.
  """
  if kind == 'files':
    return {name: (name, np.arange(counts[name])) for name in ('train', 'validation', 'test')}
  if kind == 'holdout':
    held = holdout_split(counts['train'])
    return {
      'train': ('train', held['train']),
      'validation': ('train', held['validation']),
      'test': ('test', np.arange(counts['test'])),
    }
  if kind == 'reused':
    files = {'train': 'train', 'validation': 'test', 'test': 'test'}
    return {name: (file, np.arange(counts[file])) for name, file in files.items()}
  if kind == 'random':
    return {name: ('train', positions) for name, positions in random_split(counts['train']).items()}
  raise ValueError(f'Splits of kind {kind!r} are unknown; use files, holdout, random or reused.')
