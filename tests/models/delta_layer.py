"""The layer around the delta rule in float64, and the parameters of fla-org/flash-linear-attention in our
layout."""

import numpy as np
from flax import nnx


def silu(x):
  return x / (1 + np.exp(-x))


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def softplus(x):
  return np.log1p(np.exp(x))


def parameters(mixer):
  """{path joined by dots: float64 array}."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  return {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}


def reference(mixer, x_LD, sizes, heads, factors, rule, output):
  """[L, D], position by position.

  sizes: channels of all keys, of all values, and of each gate.
  rule(p, direction, gates, k_JHN, v_JHP) -> a, of a shape that fits [H, N], beta [J, H], erase vectors [J, H,
    N] and values [J, H, P] of one position; gates are what the input map makes for each.
  output(p, y_LE, gates) -> [L, E].
  """
  p = parameters(mixer)
  (keys, values, *others), H = sizes, heads
  cuts = np.cumsum([keys + factors * (keys + values), *others])[:-1]
  u_LM, *gates = np.split(np.float64(x_LD) @ p['input.kernel'], cuts, axis=1)
  y_LHP = np.zeros((len(x_LD), H, values // H))
  for direction, conv_JM in enumerate(p['conv']):
    order = np.arange(len(x_LD))[:: -1 if direction else 1]
    states = np.zeros((H, keys // H, values // H))
    for i, t in enumerate(order):
      taps = [
        conv_JM[len(conv_JM) - 1 - lag] * u_LM[order[i - lag]] for lag in range(min(i + 1, len(conv_JM)))
      ]
      q, k, v = np.split(silu(sum(taps)), (keys, keys + factors * keys))
      q, k, v = q.reshape(H, -1), k.reshape(factors, H, -1), v.reshape(factors, H, -1)
      q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
      a, beta, erase, v = rule(p, direction, [gate[t] for gate in gates], k, v)
      states = states * np.broadcast_to(a, q.shape)[..., None]
      for j in range(factors):
        for head in range(H):
          b, key = beta[j, head], k[j, head]
          states[head] = (np.eye(len(key)) - b * np.outer(key, erase[j, head])) @ states[head]
          states[head] += b * np.outer(key, v[j, head])
      y_LHP[t] += np.einsum('hn,hnp->hp', q, states) / np.sqrt(keys // H)
  y_LHP = y_LHP / np.sqrt((y_LHP**2).mean(-1, keepdims=True) + 1e-5) * p['norm']
  return output(p, y_LHP.reshape(len(x_LD), values), gates) @ p['out.kernel']


def ours(gates, others=()):
  """A function that converts published arrays {name: array} to ours {path: array}.

  gates: published names of the maps to the gates, in our order.
  others: {our path: (published name, function of its array)}.
  """

  def convert(published):
    maps = [published[f'{name}.weight'].T for name in ('q_proj', 'k_proj', 'v_proj', *gates)]
    filters = [published[f'{name}_conv1d.weight'][:, 0].T for name in 'qkv']
    named = {
      'input/kernel': np.concatenate(maps, 1),
      'conv': np.concatenate(filters, 1)[None],
      'norm': published['o_norm.weight'],
      'out/kernel': published['o_proj.weight'].T,
    }
    return named | {path: read(published[name]) for path, (name, read) in dict(others).items()}

  return convert


def assert_published(errors):
  """Outputs agree to 2e-6 of the largest, gradients to 1e-5."""
  for what, error in errors.items():
    assert error <= (2e-6 if what == 'y' else 1e-5), (what, error)
