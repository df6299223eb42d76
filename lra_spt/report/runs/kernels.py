"""kernels.json of a run: the largest values of the kernels of its layers, before and after training."""

import dataclasses
import json
import math
import pathlib

import numpy as np

from lra_spt.errors import DamagedFile, one_line
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder


@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
  """K_max of a run, the largest absolute value of a layer's kernels per lag (paper, section 3.6, Figure 4).

  stage, step: whose best checkpoint was read. initialisation: 'structured' or 'random'. row: lags per image
  row, 0 where the input is no image. lags: how many a figure shows. shown: the layers of a figure, from 1.
  initial, learned: float [layers, L], all layers; NaN where a kernel is not finite, or a layer has none.
  """

  stage: str
  step: int
  initialisation: str
  row: int
  lags: int
  shown: tuple[int, ...]
  initial: np.ndarray
  learned: np.ndarray

  def reach(self, name):
    """Returns for each shown layer of 'initial' or 'learned' how many of its first lags hold 90 % of the sum.

    None where a kernel is not finite.
    """
    curves = [getattr(self, name)[layer - 1] for layer in self.shown]
    return [
      int(np.searchsorted(np.cumsum(curve), 0.9 * curve.sum())) + 1 if np.isfinite(curve).all() else None
      for curve in curves
    ]

  def to_json(self):
    """The content of kernels.json, numbers to six digits."""
    rounded = {
      name: [
        [float(f'{v:.6g}') if math.isfinite(v) else None for v in curve]
        for curve in getattr(self, name).tolist()
      ]
      for name in ('initial', 'learned')
    }
    content = checksums.sealed(pathlib.Path(run_folder.KERNELS), dataclasses.asdict(self) | rounded)
    return json.dumps(content, separators=(',', ':'), allow_nan=False)


def read_kernels(path):
  """Kernels from a kernels.json; raises DamagedFile."""
  kind, advice = 'what `lra-spt kernels` writes', 'run `lra-spt kernels` again or delete the file'
  stored, _ = checksums.read(path, kind, advice)
  try:
    for name in ('initial', 'learned'):
      stored[name] = np.array(stored[name], float)
    kernels = Kernels(**stored | {'shown': tuple(stored['shown'])})
    layers, length = kernels.learned.shape
    if kernels.initial.shape != (layers, length):
      raise ValueError(f'curves of shapes {kernels.initial.shape} and {kernels.learned.shape}')
    if not kernels.shown or not {*kernels.shown} <= {*range(1, layers + 1)}:
      raise ValueError(f'shown is {stored["shown"]!r}, of {layers} layers')
    if kernels.stage not in run_folder.STAGES or not 1 <= kernels.lags <= length or kernels.row < 0:
      raise ValueError(f'stage {kernels.stage!r}, lags {kernels.lags!r}, row {kernels.row!r}')
  except (ValueError, KeyError, TypeError, OverflowError) as error:
    raise DamagedFile(
      f'{path} is not {kind} ({type(error).__name__}: {one_line(error)}); {advice}.'
    ) from error
  return kernels
