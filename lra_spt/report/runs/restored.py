"""Partly hidden images as a pretrained model restores them: restored.npz of a run, and pictures."""

import dataclasses
import math

import numpy as np

from lra_spt import files
from lra_spt.errors import DamagedFile, one_line

NAME = 'restored.npz'


@dataclasses.dataclass(frozen=True, eq=False)
class RestoredInputs:
  """Square images, and the same images as a model restored them. The first axis of all arrays is the example.

  index: int32 [N], which test examples. original, restored: uint8 [N, L] or [N, L, 3]; what was not hidden is
  the same in both. hidden: bool [N, L]. step: of the pretraining checkpoint.
  """

  index: np.ndarray
  original: np.ndarray
  hidden: np.ndarray
  restored: np.ndarray
  step: int

  @property
  def share(self):
    """The share of all positions that were hidden."""
    return float(self.hidden.mean())

  @property
  def error(self):
    """Mean absolute difference of restored and original values where hidden; None where nothing was."""
    return self._error(self.restored)

  @property
  def constant_error(self):
    """The `error` of the best constant value, the median of the hidden values."""
    if not self.hidden.any():
      return None
    return self._error(np.broadcast_to(np.median(self.original[self.hidden], axis=0), self.original.shape))

  def _error(self, values):
    difference = values.astype(float) - self.original
    return float(np.abs(difference[self.hidden]).mean()) if self.hidden.any() else None


ARRAYS = tuple(field.name for field in dataclasses.fields(RestoredInputs))


def write_restored(folder, restored):
  """Writes restored.npz into the folder of a run."""
  with files.replacing(files.place(folder) / NAME, 'wb') as file:
    np.savez_compressed(file, **dataclasses.asdict(restored))


def read_restored(folder):
  """The RestoredInputs of a run; None where it has none. Raises DamagedFile."""
  path = files.place(folder) / NAME
  if not path.exists():
    return None
  try:
    with path.open('rb') as file, np.load(file, allow_pickle=False) as stored:
      inputs = RestoredInputs(**{name: stored[name] for name in ARRAYS})
    n, length = inputs.hidden.shape
    sound = (
      n >= 1
      and math.isqrt(length) ** 2 == length
      and inputs.hidden.dtype == bool
      and inputs.index.shape == (n,)
      and inputs.index.dtype.kind == inputs.step.dtype.kind == 'i'
      and inputs.original.dtype == inputs.restored.dtype == np.uint8
      and inputs.original.shape == inputs.restored.shape
      and inputs.original.shape in ((n, length), (n, length, 3))
    )
    if not sound:
      held = (f'{name} {getattr(inputs, name).dtype}' for name in ARRAYS)
      raise ValueError(f'it holds {", ".join(held)} of other shapes or types')
    return dataclasses.replace(inputs, step=int(inputs.step))
  except Exception as error:  # zipfile, zlib and numpy each raise their own kinds
    raise DamagedFile(
      f'{path} is not what the demo writes ({one_line(error)}); delete the file to do without its pictures.'
    ) from error
