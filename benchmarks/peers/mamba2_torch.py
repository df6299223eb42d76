"""A Mamba-2 layer in PyTorch (Dao and Gu 2024, arXiv 2405.21060), organised like the authors' public code
without its Triton kernels: the recurrence in chunks by matrix products (section 6, listing 1), the
convolution by conv1d, gradients by autograd.

Written from the paper, with the parameters of our mixer with one group. The published layer has one
direction; with two, the second runs on the flipped sequence, as in our definition. The project does not
require torch.
"""

CHUNK = 64


def block(params: dict, x_BLD, y_BLD):
  """float32 [B, L, D]: x and the layer of y; params: {name: tensor}, those of `Mamba2` by path."""
  import torch
  from torch.nn import functional

  E, mixed, H = len(params['norm']), params['conv'].shape[-1], params['skip'].shape[-1]
  gate_BLE, mixed_BLM, dt_BLH = (y_BLD @ params['input_kernel']).split((E, mixed, H), dim=-1)
  total_BLE = torch.zeros_like(gate_BLE)
  for direction in range(len(params['conv'])):
    one = {name: params[name][direction] for name in ('conv', 'conv_bias', 'dt_bias', 'decay', 'skip')}
    if direction:
      total_BLE = total_BLE + _recurrence(one, mixed_BLM.flip(1), dt_BLH.flip(1), E).flip(1)
    else:
      total_BLE = total_BLE + _recurrence(one, mixed_BLM, dt_BLH, E)
  gated_BLE = functional.rms_norm(total_BLE * functional.silu(gate_BLE), (E,), params['norm'], 1e-5)
  return x_BLD + gated_BLE @ params['out_kernel']


def _recurrence(params, mixed_BLM, dt_BLH, inner):
  from torch.nn import functional

  B, L, M = mixed_BLM.shape
  taps = len(params['conv'])
  padded_BML = functional.pad(mixed_BLM.transpose(1, 2), (taps - 1, 0))
  conv_BML = functional.conv1d(padded_BML, params['conv'].T[:, None], params['conv_bias'], groups=M)
  states = (M - inner) // 2
  x_BLE, b_BLN, c_BLN = functional.silu(conv_BML.transpose(1, 2)).split((inner, states, states), dim=-1)
  dt_BLH = functional.softplus(dt_BLH + params['dt_bias'])
  x_BLHP = x_BLE.view(B, L, dt_BLH.shape[-1], -1)
  y_BLHP = ssd(x_BLHP * dt_BLH[..., None], -dt_BLH * params['decay'].exp(), b_BLN, c_BLN)
  return (y_BLHP + params['skip'][:, None] * x_BLHP).reshape(B, L, inner)


def ssd(u_BLHP, a_BLH, b_BLN, c_BLN, chunk: int = CHUNK):
  """float32 [B, L, H, P]: y_t = sum over s <= t of c_t . b_s exp(a_{s+1} + ... + a_t) u_s of every head.
  Chunks that are shorter than the sequence divide its length."""
  import torch
  from torch.nn import functional

  B, L, H, P = u_BLHP.shape
  T = min(chunk, L)
  u_BHCTP = u_BLHP.view(B, -1, T, H, P).permute(0, 3, 1, 2, 4)
  a_BHCT = a_BLH.view(B, -1, T, H).permute(0, 3, 1, 2)
  b_BCTN, c_BCTN = (v.view(B, 1, -1, T, v.shape[-1]) for v in (b_BLN, c_BLN))
  sums_BHCT = a_BHCT.cumsum(-1)
  weights_BHCTS = (c_BCTN @ b_BCTN.transpose(-1, -2)) * _decays(sums_BHCT)
  y_BHCTP = weights_BHCTS @ u_BHCTP

  ends_BHC = sums_BHCT[..., -1]
  left_BHCTP = u_BHCTP * (ends_BHC[..., None] - sums_BHCT).exp()[..., None]
  states_BHCNP = b_BCTN.transpose(-1, -2) @ left_BHCTP
  # What a chunk starts from: the states that those before it added, each decayed by the chunks between.
  between_BHCC = _decays(functional.pad(ends_BHC, (1, 0)).cumsum(-1))[..., :-1, 1:]
  states_BHCNP = torch.einsum('bhcz,bhznp->bhcnp', between_BHCC, states_BHCNP)
  y_BHCTP = y_BHCTP + (c_BCTN @ states_BHCNP) * sums_BHCT.exp()[..., None]
  return y_BHCTP.permute(0, 2, 3, 1, 4).reshape(B, L, H, P)


def _decays(sums):
  """exp(sums_t - sums_s) where s <= t, else 0."""
  import torch

  differences = sums[..., :, None] - sums[..., None, :]
  hidden = torch.ones(differences.shape[-2:], dtype=torch.bool).triu(1)
  return differences.masked_fill(hidden, -torch.inf).exp()
