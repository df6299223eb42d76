"""An S4 layer in PyTorch (Gu, Goel and Re 2022), organised like the authors' public layer without its CUDA
extension: complex64, Cauchy sums by one array over channels, states and nodes, both directions as two
channels of one kernel, channels before positions, FFTs of twice the length, gradients by autograd.

Written from the paper (section 3, appendix C), with the parameters of `s4_plain`. The project does not
require torch.
"""

import math

from benchmarks.peers import torch_transformer


def torch_kernel(params: dict, length: int):
  """float32 [2, D, L]: causal and anti-causal kernel by the paper's algorithm 1; params: torch tensors, see
  `s4_plain.init_plain`."""
  import torch

  dt_D1 = params['log_dt_D'].exp()[:, None]
  w_DN = torch.complex(-params['log_decay_DN'].exp(), params['frequency_DN'])
  p_DN, b_DN, c_SDN = (
    torch.complex(params[f'{name}_real'], params[f'{name}_imag']) for name in ('p_DN', 'b_DN', 'c_SDN')
  )
  # omega = -1, where z is infinite, is moved away from there by about the rounding of complex64.
  k_K = torch.arange(length // 2 + 1, dtype=torch.float64)
  omega_K = torch.exp(-2j * math.pi * k_K / length)
  omega_K[2 * torch.arange(len(k_K)) == length] += 1e-7j
  z_K = (2 * (1 - omega_K) / (1 + omega_K)).to(torch.complex64)
  scale_K = (2 / (1 + omega_K)).to(torch.complex64)

  left_2DN, right_XDN = torch.stack([b_DN, p_DN]), torch.cat([c_SDN, p_DN.conj()[None]])
  v_2XDN = left_2DN[:, None] * right_XDN[None]
  sums_2XDK = _cauchy(v_2XDN, z_K, w_DN * dt_D1) * dt_D1
  cb_SDK, bq_DK = sums_2XDK[0, :-1], sums_2XDK[0, -1]
  cp_SDK, pq_DK = sums_2XDK[1, :-1], sums_2XDK[1, -1]
  return torch.fft.irfft((cb_SDK - cp_SDK * bq_DK / (1 + pq_DK)) * scale_K, n=length)


def _cauchy(v_2XDN, z_K, w_DN):
  """[2, X, D, K]: sums of v / (z - w) over both states of every pair."""
  import torch

  v_2XDN, w_DN = (torch.cat([x, x.conj()], dim=-1) for x in (v_2XDN, w_DN))
  return (v_2XDN[..., None] / (z_K - w_DN[..., None])).sum(dim=-2)


def torch_layer(params: dict, u_BDL):
  """float32 [B, D, L] -> [B, D, L]: both directions, skip, exact GELU, Linear(D, 2D), GLU."""
  import torch
  from torch.nn import functional

  L = u_BDL.shape[-1]
  causal_DL, reverse_DL = torch_kernel(params, L)
  circle_DC = functional.pad(causal_DL, (0, L)) + functional.pad(reverse_DL.flip(-1), (L, 0))
  spectrum_BDK = torch.fft.rfft(u_BDL, n=2 * L) * torch.fft.rfft(circle_DC)
  y_BDL = torch.fft.irfft(spectrum_BDK, n=2 * L)[..., :L] + params['skip_D'][:, None] * u_BDL
  y_BDL = functional.conv1d(functional.gelu(y_BDL), params['glu_DE'].T[..., None], params['glu_bias_E'])
  return functional.glu(y_BDL, dim=-2)


def step(size, initial: list[dict]):
  """(function that makes a training step and returns its loss, facts about it, peak bytes before it).

  Args:
    size: batch, length, width, layers of a pre-norm encoder, trained with AdamW.
    initial: arrays of each layer.
  """

  def block(params, x_BLD, y_BLD):
    return x_BLD + torch_layer(params, y_BLD.transpose(1, 2)).transpose(1, 2)

  return torch_transformer.prenorm(block, initial, size)
