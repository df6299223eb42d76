"""The split of each example: the permutations of the paper's code, without its framework.

`torch.utils.data.random_split` with `torch.Generator().manual_seed(seed)` permutes with a forward
Fisher-Yates shuffle whose step i swaps i with i + (u mod (n - i)), where u are successive 32-bit outputs of
MT19937 seeded the classic way. NumPy has the same generator, so the published splits can be rebuilt exactly.
"""

import math
import typing
from collections.abc import Sequence
from typing import Literal

import numpy as np

from lra_spt.errors import ConfigError, DataError

Splits = Literal['files', 'holdout', 'random', 'reused', 'grouped', 'shuffled', 'stratified']
"""files: the set holds the three splits. holdout: validation is a tenth of the training file. random:
80/10/10 of one file. stratified: 80/10/10 of every class of one file, or 80/20 if the set has a test file.
reused: the test file is the validation set too.
grouped: 70/15/15 of the groups of one file. shuffled: 70/15/15 of its examples."""
SPLITS = ('train', 'validation', 'test')
LEAST_GROUPS = 7  # with fewer groups, 15 % of them are less than one
_SEED = 42  # of the published code


def random_permutation(n: int, seed: int) -> np.ndarray:
  """The result of `torch.randperm(n, generator=torch.Generator().manual_seed(seed))` on a CPU.

  Args:
    n: number of positions, below 2**32.
    seed: 0 <= seed < 2**32.

  Returns:
    int64 [n].
  """
  generator = np.random.MT19937()
  generator.state = np.random.RandomState(seed).get_state(legacy=False)
  draws = generator.random_raw(max(n - 1, 0)).astype(np.int64)
  steps = np.arange(len(draws), dtype=np.int64)
  partners = (steps + draws % (n - steps)).tolist()
  permutation = list(range(n))
  for i, j in enumerate(partners):
    permutation[i], permutation[j] = permutation[j], permutation[i]
  return np.asarray(permutation, np.int64)


def holdout_split(n: int) -> dict[str, np.ndarray]:
  """Training and validation positions of a training file of n examples (CIFAR-10: 45,000 / 5,000).

  Returns:
    {'train': int64 positions, 'validation': int64 positions}, in the order of the permutation.
  """
  permutation = random_permutation(n, _SEED)
  train = int(n * (1 - 0.1))
  return {'train': permutation[:train], 'validation': permutation[train:]}


def random_split(n: int) -> dict[str, np.ndarray]:
  """80/10/10 of one file of n examples (Pathfinder: 160,000 / 20,000 / 20,000).

  Returns:
    {'train', 'validation', 'test'}: int64 positions, in the order of the permutation.
  """
  return _three_parts(random_permutation(n, _SEED), int(n * 0.1))


def stratified_split(labels: Sequence[int]) -> dict[str, np.ndarray]:
  """Splits the examples of every class 80/10/10, rounded. Every split has an example of each class that has
  three examples or more.

  Args:
    labels: the class of every example of one file.

  Returns:
    {'train', 'validation', 'test'}: int64 positions, in ascending order.
  """
  parts = []
  for of_class in _permuted_classes(labels):
    parts.append(_three_parts(of_class, max(round(0.1 * len(of_class)), int(len(of_class) >= 3))))
  return {split: np.sort(np.concatenate([part[split] for part in parts])) for split in SPLITS}


def stratified_holdout(labels: Sequence[int]) -> dict[str, np.ndarray]:
  """Splits the examples of every class 80/20, rounded. Validation has an example of each class that has three
  examples or more.

  Args:
    labels: the class of every example of the training file.

  Returns:
    {'train', 'validation'}: int64 positions, in ascending order.
  """
  train, validation = [], []
  for of_class in _permuted_classes(labels):
    rest = max(round(0.2 * len(of_class)), int(len(of_class) >= 3))
    train.append(of_class[: len(of_class) - rest])
    validation.append(of_class[len(of_class) - rest :])
  return {'train': np.sort(np.concatenate(train)), 'validation': np.sort(np.concatenate(validation))}


def _permuted_classes(labels):
  """Yields the positions of the examples of each class, permuted."""
  classes_N = np.asarray(labels)
  for of_class in (np.flatnonzero(classes_N == label) for label in np.unique(classes_N)):
    yield of_class[random_permutation(len(of_class), _SEED)]


def _three_parts(permutation, rest: int) -> dict[str, np.ndarray]:
  """Cuts a permutation: the last `rest` are the test set, as many before them validation, the others
  training."""
  train = len(permutation) - 2 * rest
  bounds = {'train': (0, train), 'validation': (train, train + rest), 'test': (train + rest, None)}
  return {name: permutation[start:end] for name, (start, end) in bounds.items()}


def grouped_split(groups: Sequence[int]) -> dict[str, np.ndarray]:
  """70/15/15 of the groups, so that examples that belong together (windows of one patient) stay together.

  Args:
    groups: sizes of the groups, which are consecutive examples.

  Returns:
    {'train', 'validation', 'test'}: int64 positions; groups in the order of the permutation.
  """
  begins = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)

  def positions(chosen):
    runs = [np.arange(begins[group], begins[group + 1]) for group in chosen]
    return np.concatenate(runs) if runs else np.zeros(0, np.int64)

  parts = _three_parts(random_permutation(len(groups), _SEED), int(0.15 * len(groups)))
  return {name: positions(chosen) for name, chosen in parts.items()}


def shuffled_split(n: int) -> dict[str, np.ndarray]:
  """70/15/15 of n examples, the published split of BIDMC (prepare/bidmc/process_data.py:13-31).

  It is `train_test_split(test_size=0.3, random_state=0)` of scikit-learn, whose 30 % are halved with
  `random_state=1`.

  Returns:
    {'train', 'validation', 'test'}: int64 positions.
  """

  def halves(count, fraction, seed):
    permutation, second = np.random.RandomState(seed).permutation(count), math.ceil(fraction * count)
    return permutation[second:], permutation[:second]

  train, rest = halves(n, 0.3, 0)
  validation, test = halves(len(rest), 0.5, 1)
  return {'train': train, 'validation': rest[validation], 'test': rest[test]}


def split_positions(kind: Splits, metadata: dict) -> dict[str, tuple[str, np.ndarray]]:
  """The stored file of each split of a task, and the positions that it reads there.

  Training examples without a label are in no validation or test split. Those with a label are split as if
  there were no others; the others then follow in the training split. Groups are split with all their
  examples.

  Args:
    kind: one of `Splits`.
    metadata: of the set, see `prepared.read_metadata`. 'holdout' and 'reused' need the counts of train and
      test; 'random', 'shuffled' and 'grouped' that of train; 'grouped' also its groups, 'stratified' its
      train_labels.

  Returns:
    {'train' | 'validation' | 'test': (stored file, int64 positions)}.

  Raises:
    ConfigError: the kind is unknown.
    DataError: the set has no groups, or no labels of its training file.
    KeyError: a stored file is missing.
  """
  if not (labelled := metadata.get('labelled')):
    return _cut(kind, metadata)
  known_N = np.asarray(labelled, np.int64)
  if kind == 'grouped':
    splits = _cut(kind, metadata)
    held = {name: (file, at[np.isin(at, known_N)]) for name, (file, at) in splits.items()}
    return held | {'train': splits['train']}
  counts, classes = metadata['counts'], metadata.get('train_labels') or []
  of_labelled = {
    'counts': counts | {'train': len(known_N)},
    'train_labels': [classes[n] for n in labelled] if classes else [],
  }
  splits = {
    name: (file, known_N[at] if file == 'train' else at)
    for name, (file, at) in _cut(kind, metadata | of_labelled).items()
  }
  others_N = np.setdiff1d(np.arange(counts['train']), known_N)
  return splits | {'train': ('train', np.concatenate([splits['train'][1], others_N]))}


def _cut(kind, metadata):
  """`split_positions` of a training file whose examples all have labels."""
  counts = metadata['counts']
  if kind == 'files':
    return {name: (name, np.arange(counts.get(name, 0))) for name in ('train', 'validation', 'test')}
  if kind == 'holdout':
    parts = holdout_split(counts['train'])
    return {
      'train': ('train', parts['train']),
      'validation': ('train', parts['validation']),
      'test': ('test', np.arange(counts['test'])),
    }
  if kind == 'reused':
    files = {'train': 'train', 'validation': 'test', 'test': 'test'}
    return {name: (file, np.arange(counts[file])) for name, file in files.items()}
  if kind == 'random':
    parts = random_split(counts['train'])
  elif kind == 'stratified':
    if not metadata.get('train_labels'):
      raise DataError(
        f'The data set from {metadata["source"]} does not note the classes of its training file, which '
        "splits='stratified' needs; remove its folder and prepare it again, from one train.npz with classes, "
        "or set splits='random'."
      )
    if counts.get('test'):
      parts = stratified_holdout(metadata['train_labels'])
      held_out = {name: ('train', positions) for name, positions in parts.items()}
      return held_out | {'test': ('test', np.arange(counts['test']))}
    parts = stratified_split(metadata['train_labels'])
  elif kind == 'shuffled':
    parts = shuffled_split(counts['train'])
  elif kind == 'grouped':
    parts = _by_groups(metadata)
  else:
    raise ConfigError(
      f'Splits of kind {kind!r} are unknown; use one of {", ".join(typing.get_args(Splits))}.'
    )
  return {name: ('train', positions) for name, positions in parts.items()}


def _by_groups(metadata):
  groups = (metadata.get('groups') or {}).get('train')
  if not groups:
    if metadata.get('request', {}).get('from') == 'npz':
      raise DataError(
        f'The data set from {metadata["source"]} has no groups, so several splits could have examples of one '
        'group; save the group number of each example as `groups` in train.npz, and prepare the set again.'
      )
    raise DataError(
      f'The data set from {metadata["source"]} does not name the patients of its examples, so several splits '
      'could have examples of one patient; import it from files that name them (`lra-spt prepare bidmc '
      '--dry_run` lists them), or use the published random split (protocol=paper).'
    )
  return grouped_split(groups)
