"""TPU slices by name, such as `v5e:4x4`, or two of them as `2xv5e:4x4`. Programs are compiled for them on
machines without a TPU.
"""

import dataclasses
import importlib.util
import math
import os
import re

from lra_spt.distributed.chips import CHIPS, Chip
from lra_spt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips of one kind, wired as a mesh or torus of `shape`; or `count` such slices with a network between
  them."""

  chip: Chip
  shape: str
  count: int = 1

  @property
  def name(self) -> str:
    return f'{self.count}x{self._one}' if self.count > 1 else self._one

  @property
  def _one(self) -> str:
    return f'{self.chip.name}:{self.shape}'

  @property
  def size(self) -> int:
    return self.count * math.prod(map(int, self.shape.split('x')))

  def devices(self) -> list:
    """Its devices. Programs can be compiled for them, but do not run.

    Raises:
      ConfigError: libtpu is not installed.
    """
    _find_libtpu()
    from jax.experimental import topologies

    several = {'num_slices': self.count} if self.count > 1 else {}
    host = (1, 1, 1) if self.size == self.count else (2, 2, 1)
    config = 'megacore' if self.chip.name == 'v4' else 'default'  # v5p has no other mode
    topology = topologies.get_topology_desc(
      self._one, platform='tpu', chip_config_name=config, chips_per_host_bounds=host, **several
    )
    return topology.devices


def get_slice(name: str) -> Slice:
  """Returns the slice of a name such as 'v5e:4x4', or several slices, '2xv5e:4x4'.

  Raises:
    ConfigError: there is none; the message lists the known names.
  """
  count, kind, shape = re.fullmatch(r'(?:(\d+)x)?([^:]*):?(.*)', name, re.DOTALL).groups()
  if kind not in CHIPS:
    raise ConfigError(
      f'--topology is {name!r}, but there are only {", ".join(CHIPS)} (such as v5e:4x4, or 2xv5e:4x4 for '
      'two slices), and cpu:N for N devices of this machine; choose one of them'
    )
  if shape not in CHIPS[kind].slices:
    raise ConfigError(
      f'--topology is {name!r}, but {kind} has the slices {", ".join(CHIPS[kind].slices)}; choose one of them'
    )
  if count is not None and not 2 <= int(count) <= 64:
    raise ConfigError(f'--topology is {name!r}; write 2x to 64x before {kind}:{shape} for several slices')
  return Slice(CHIPS[kind], shape, int(count or 1))


def _find_libtpu() -> None:
  if importlib.util.find_spec('libtpu') is None:
    raise ConfigError(
      "the TPU compiler is not installed (it exists for Linux on x86-64); get it with pip install -e '.[tpu]'"
    )
  for name, value in (
    ('TPU_SKIP_MDS_QUERY', '1'),  # there is no metadata server that knows the type of TPU
    ('ALLOW_MULTIPLE_LIBTPU_LOAD', '1'),  # another process may compile, or train on a TPU
    ('TPU_WORKER_HOSTNAMES', 'localhost'),  # without these two libtpu warns that there is no TPU
    ('TPU_ACCELERATOR_TYPE', 'v5litepod-4'),
  ):
    os.environ.setdefault(name, value)
