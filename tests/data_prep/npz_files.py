"""Arrays that a user may bring, and .npz files of them."""

import numpy as np

BYTES = np.random.default_rng(0).integers(0, 256, (12, 64)).astype(np.uint8)
LABELS = np.arange(12) % 4


def save(raw, file='train', **arrays):
  raw.mkdir(exist_ok=True)
  np.savez(raw / f'{file}.npz', **arrays)
  return raw


def changed(**changes):
  arrays = {'inputs': BYTES, 'labels': LABELS} | changes
  return {name: array for name, array in arrays.items() if array is not None}
