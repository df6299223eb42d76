"""The splits on which LinOSS (Rusch, Rus, ICLR 2025) and Log-NCDE (Walker et al., ICML 2024) report.

Their code (tk-rusch/linoss at 83e6318: data_dir/process_uea.py, data_dir/datasets.py, train.py) joins both
files of a UEA set, sorts the series by their values, drops repeated ones, and deals them 70/15/15 by a
permutation of jax's random numbers, anew for each of the seeds 2345, 3456, 4567, 5678 and 6789. The
permutation here is that of jax before 0.5 (`jax_threefry_partitionable=False`), the version of that time;
later ones draw another.
"""

import math

import numpy as np

SEEDS = (2345, 3456, 4567, 5678, 6789)


def split(values_NLC: np.ndarray, seed: int) -> dict[str, np.ndarray]:
  """Positions in the joined files for one seed.

  Args:
    values_NLC: float32 [N, L, C], the training examples, then the test examples.
    seed: of their run.

  Returns:
    {'train', 'validation', 'test'}: int64 positions.
  """
  _, unique = np.unique(values_NLC, axis=0, return_index=True)
  count = len(unique)
  order = unique[permutation(_split_key(_split_key(np.asarray([0, seed], np.uint32), 4)[0], 2)[0], count)]
  first, second = int(count * 0.7), int(count * 0.85)
  return {'train': order[:first], 'validation': order[first:second], 'test': order[second:]}


def permutation(key: np.ndarray, count: int) -> np.ndarray:
  """`jax.random.permutation(key, count)`, int64 [count]; key: uint32 [2]."""
  order = np.arange(count)
  for _ in range(math.ceil(3 * math.log(max(1, count)) / math.log(2**32 - 1))):
    key, subkey = _split_key(key, 2)
    order = order[np.argsort(_bits(subkey, count), kind='stable')]
  return order


def _split_key(key, number):
  """`jax.random.split`, uint32 [number, 2]."""
  return _bits(key, 2 * number).reshape(number, 2)


def _bits(key, count):
  """`count` random uint32: the counters 0, 1, ... in two halves, hashed by Threefry-2x32 with 20 rounds
  (Salmon et al., 2011)."""
  counters = np.arange(count + count % 2, dtype=np.uint32)
  counters[count:] = 0
  left, right = np.split(counters, 2)
  keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
  left, right = left + keys[0], right + keys[1]
  for block in range(5):
    for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
      left = left + right
      right = ((right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))) ^ left
    left = left + keys[(block + 1) % 3]
    right = right + keys[(block + 2) % 3] + np.uint32(block + 1)
  return np.concatenate([left, right])[:count]
