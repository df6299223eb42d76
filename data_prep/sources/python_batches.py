"""The Python version of CIFAR-10: pickles, read by `data_prep.pickles`."""

import io

import numpy as np

from data_prep import pickles


def read(content: bytes) -> tuple[np.ndarray, list[int]]:
  """The values of a batch under b'data', an array of bytes, and under b'labels'.

  Raises:
    ValueError: the file holds no batch; its text names the reason.
  """
  allowed = {'dtypes': ('u1', 'uint8'), 'kind': 'bytes', 'files': 'CIFAR-10'}
  batch = pickles.load(io.BytesIO(content), len(content), **allowed)
  try:
    batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
    data, labels = batch[b'data'], batch[b'labels']
  except Exception as error:  # of an object that is no such dict
    raise ValueError(' '.join(str(error).split())[:200] or type(error).__name__) from None
  if not isinstance(data, pickles.Array) or data.array is None:
    raise ValueError("its b'data' is not an array of bytes")
  if type(labels) is not list or any(type(label) is not int for label in labels):
    raise ValueError("its b'labels' are not a list of whole numbers")
  return data.array, labels
