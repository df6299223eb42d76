"""Recurrences and a long convolution of other libraries, with the arguments and results of ours.

Libraries: flash-linear-attention 0.6 (github.com/fla-org/flash-linear-attention, fla/ops), mamba-ssm 2.3
(github.com/state-spaces/mamba, mamba_ssm/ops). None is a requirement of the project, so each function imports
its own. They take tensors on a GPU, but for `fft_conv`.
"""


def gla(q, k, v, g):
  from fla.ops.gla import chunk_gla

  return chunk_gla(q, k, v, g, scale=1.0)[0]


def simple_gla(q, k, v, g):
  from fla.ops.simple_gla import chunk_simple_gla

  return chunk_simple_gla(q, k, v, g, scale=1.0)[0]


def gated_delta_rule(q, k, v, g, beta):
  from fla.ops.gated_delta_rule import chunk_gated_delta_rule

  return chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0)[0]


def hgrn(log_a, x):
  from fla.ops.hgrn import chunk_hgrn

  return chunk_hgrn(x, log_a)[0]


def ssd(c, b, x, dt):
  from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

  return mamba_chunk_scan_combined(x, dt, -dt.new_ones(x.shape[2]), b, c, chunk_size=256)


def selective_scan(x, dt, a, b, c):
  """All arrays but `a` have the positions last."""
  from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

  return selective_scan_fn(x, dt, a, b, c)


def fft_conv(u, kernel):
  """By torch.fft, padded to twice the length."""
  import torch

  length = u.shape[1]
  spectrum = torch.fft.rfft(u, 2 * length, dim=1) * torch.fft.rfft(kernel[0].T, 2 * length, dim=0)
  return torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length]
