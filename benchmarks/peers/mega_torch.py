"""A MEGA layer in PyTorch (Ma et al. 2022, arXiv 2209.10655), organised like the authors' public layer: the
kernel of the moving average by a Vandermonde matrix, FFTs of twice the length, all scores stored, gradients
by autograd.

Written from the paper (sections 3.1 to 3.3), with the parameters of our mixer, for softmax over all positions
with a number per distance. The project does not require torch.
"""


def block(params: dict, x_BLD, y_BLD, *, truncation: int):
  """float32 [B, L, D]: x + u (h - x), h and u of y; params: {name: tensor}, those of `Mega` by path."""
  import torch
  from torch.nn import functional

  D, Z, V = x_BLD.shape[-1], params['scale'].shape[-1], params['value_kernel'].shape[-1]
  m_BLD = moving_average(params, y_BLD, truncation)
  base_BLF = m_BLD @ params['base_kernel'] + params['base_bias']
  u_BLD, z_BLZ, r_BLV, c_BLD = base_BLF.split((D, Z, V, D), dim=-1)
  z_BLZ, r_BLV = functional.silu(z_BLZ), functional.silu(r_BLV)
  q_BLZ, k_BLZ = (z_BLZ * params['scale'][i] + params['shift'][i] for i in range(2))
  v_BLV = functional.silu(y_BLD @ params['value_kernel'] + params['value_bias'])
  L = x_BLD.shape[1]
  bias_LL = params['bias'].unfold(0, L, 1).flip(0)  # by the distance from query to key
  scores_BLL = q_BLZ @ k_BLZ.transpose(1, 2) / Z**0.5 + bias_LL
  if len(params['moving_average_kernel_rate']) == 1:
    scores_BLL = scores_BLL.masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
  read_BLV = (scores_BLL.softmax(-1) @ v_BLV) * r_BLV
  h_BLD = functional.silu(c_BLD + read_BLV @ params['hidden_kernel'] + params['hidden_bias'])
  return x_BLD + u_BLD.sigmoid() * (h_BLD - x_BLD)


def moving_average(params, y_BLD, truncation):
  """silu(kappa * y + omega y), both directions holding lag 0."""
  import torch
  from torch.nn import functional

  rate, damping, expansion, projection = (
    params[f'moving_average_kernel_{name}'] for name in ('rate', 'damping', 'expansion', 'projection')
  )
  L = y_BLD.shape[1]
  lags = min(truncation or L, L)
  p_SDN = rate.sigmoid()
  exponents_SDN = torch.log1p(-p_SDN * damping.sigmoid())
  powers_SDNK = (exponents_SDN[..., None] * torch.arange(lags)).exp()
  c_SDN = p_SDN * expansion * projection * rate.shape[-1] ** -0.5
  kernel_SDK = torch.einsum('sdn,sdnk->sdk', c_SDN, powers_SDNK)
  circle_DC = functional.pad(kernel_SDK[0], (0, 2 * L - lags))
  if len(kernel_SDK) == 2:  # lag l of the future at place 2 L - l
    circle_DC = circle_DC + functional.pad(kernel_SDK[1].flip(-1), (2 * L - lags, 0)).roll(1, -1)
  y_BDL = y_BLD.transpose(1, 2)
  spectrum_BDK = torch.fft.rfft(y_BDL, n=2 * L) * torch.fft.rfft(circle_DC)
  mean_BDL = torch.fft.irfft(spectrum_BDK, n=2 * L)[..., :L]
  return functional.silu(mean_BDL.transpose(1, 2) + params['moving_average_skip'] * y_BLD)
