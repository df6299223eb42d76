"""TPU slices by name, `v5e:4x4`, that programs are compiled for without having one, and what their chips do.

Sources: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e (bfloat16 peak, memory and its bandwidth). The
bandwidth of the interconnect is that of all links of a chip in one direction: half of the bidirectional
figure given there for v5e (400 GB/s), v5p (1200) and v6e (800); six links of 50 GB/s for v4 (Jouppi et al.
2023, "TPU v4", Table 4). The memory that programs may use is what the TPU compiler says when one exceeds it.
"""

import dataclasses
import importlib.util
import math
import os

from lra_spt.errors import ConfigError

GIB = 2**30
_FLAT = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')


@dataclasses.dataclass(frozen=True)
class Chip:
  """One chip, which is one device to jax (the two cores of v4 and v5p work as one, 'megacore').

  flops: bfloat16 operations a second. hbm: bytes a program may use. hbm_bandwidth, ici_bandwidth: bytes a
  second. slices: shapes of the slices that we compile for, by size.
  """

  name: str
  flops: float
  hbm: int
  hbm_bandwidth: float
  ici_bandwidth: float
  cores: int
  slices: tuple[str, ...]


CHIPS = {
  chip.name: chip
  for chip in (
    Chip('v4', 275e12, int(30.75 * GIB), 1.2e12, 300e9, 2, _CUBES),
    Chip('v5e', 197e12, int(15.75 * GIB), 819e9, 200e9, 1, _FLAT),
    Chip('v5p', 459e12, int(95.74 * GIB), 2.765e12, 600e9, 2, _CUBES),
    Chip('v6e', 918e12, int(31.25 * GIB), 1.638e12, 400e9, 1, _FLAT),
  )
}


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips of one kind, wired as a mesh or torus of `shape`."""

  chip: Chip
  shape: str

  @property
  def name(self) -> str:
    return f'{self.chip.name}:{self.shape}'

  @property
  def size(self) -> int:
    return math.prod(map(int, self.shape.split('x')))

  def devices(self) -> list:
    """Its devices, which can be compiled for and nothing else.

    Raises:
      ValueError: libtpu is not installed.
    """
    _find_libtpu()
    from jax.experimental import topologies

    host = (1, 1, 1) if self.size == 1 else (2, 2, 1)
    config = 'megacore' if self.chip.name == 'v4' else 'default'  # v5p has no other mode
    topology = topologies.get_topology_desc(
      self.name, platform='tpu', chip_config_name=config, chips_per_host_bounds=host
    )
    return topology.devices


def get_slice(name: str) -> Slice:
  """The slice called, say, 'v5e:4x4'; ValueError with the known names if there is none."""
  kind, _, shape = name.partition(':')
  if kind not in CHIPS:
    raise ConfigError(
      f'--topology is {name!r}, but there are only {", ".join(CHIPS)} (such as v5e:4x4), and cpu:N for N '
      'devices of this machine; choose one of them'
    )
  if shape not in CHIPS[kind].slices:
    raise ConfigError(
      f'--topology is {name!r}, but {kind} has the slices {", ".join(CHIPS[kind].slices)}; choose one of them'
    )
  return Slice(CHIPS[kind], shape)


def _find_libtpu() -> None:
  if importlib.util.find_spec('libtpu') is None:
    raise ConfigError(
      "the TPU compiler is not installed (it exists for Linux on x86-64); get it with pip install -e '.[tpu]'"
    )
  for name, value in (
    ('TPU_SKIP_MDS_QUERY', '1'),  # there is no metadata server to ask which TPU this is
    ('ALLOW_MULTIPLE_LIBTPU_LOAD', '1'),  # another process may compile, or train on a TPU
    ('TPU_WORKER_HOSTNAMES', 'localhost'),  # these two keep libtpu from complaining that it finds no TPU
    ('TPU_ACCELERATOR_TYPE', 'v5litepod-4'),
  ):
    os.environ.setdefault(name, value)
