"""Properties of accelerators: the table used by `lra-spt compile` and for the utilisation of a run.

Sources: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e (bfloat16 peak, memory and its bandwidth). The
bandwidth of the interconnect is that of all links of a chip in one direction: half of the bidirectional
figure given there for v5e (400 GB/s), v5p (1200) and v6e (800); six links of 50 GB/s for v4 (Jouppi et al.
2023, "TPU v4", Table 4). The memory available to programs is the limit that the TPU compiler reports when a
program exceeds it. GPUs: their data sheets, bfloat16 on tensor cores without sparsity (float16 for V100 and
T4).
"""

import dataclasses

GIB = 2**30
_FLAT = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')


@dataclasses.dataclass(frozen=True)
class Chip:
  """One TPU chip, which is one device to jax (the two cores of v4 and v5p work as one, 'megacore').

  Attributes:
    flops: bfloat16 operations per second.
    hbm: bytes of memory that a program may use.
    hbm_bandwidth, ici_bandwidth: bytes per second of the memory and of the interconnect.
    slices: shapes of the slices to compile for, by size.
    kind: `jax.Device.device_kind`.
  """

  name: str
  flops: float
  hbm: int
  hbm_bandwidth: float
  ici_bandwidth: float
  slices: tuple[str, ...]
  kind: str = ''


CHIPS = {
  chip.name: chip
  for chip in (
    Chip('v4', 275e12, int(30.75 * GIB), 1.2e12, 300e9, _CUBES, 'TPU v4'),
    Chip('v5e', 197e12, int(15.75 * GIB), 819e9, 200e9, _FLAT, 'TPU v5 lite'),
    Chip('v5p', 459e12, int(95.74 * GIB), 2.765e12, 600e9, _CUBES, 'TPU v5'),
    Chip('v6e', 918e12, int(31.25 * GIB), 1.638e12, 400e9, _FLAT, 'TPU v6 lite'),
  )
}
GPUS = {  # part of `jax.Device.device_kind`: operations per second; the first match counts
  'H100 PCIe': 756e12,
  'H100': 989e12,
  'H200': 989e12,
  'A100': 312e12,
  'L4': 121e12,
  'V100': 125e12,
  'T4': 65e12,
}


def peak_flops(device_kind: str) -> float | None:
  """Peak operations per second of bfloat16 matrix products; None for an unknown device, such as a CPU.

  Args:
    device_kind: `jax.Device.device_kind`.
  """
  tpus = {chip.kind: chip.flops for chip in CHIPS.values()}
  if device_kind in tpus:
    return tpus[device_kind]
  words = f' {device_kind.replace("-", " ")} '
  return next((peak for name, peak in GPUS.items() if f' {name} ' in words), None)
