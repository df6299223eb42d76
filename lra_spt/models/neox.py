"""Converts parameters of GPT-NeoX models, such as Pythia (Biderman et al. 2023), to those of our encoder.

The encoder is causal, with parallel_residual=true and LayerNorm, and attention with rotary_dimensions (a
quarter of a head). Source of names, shapes and order: `modeling_gpt_neox.py` of huggingface/transformers.
Rotations there pair dimension m with m + half, ours 2m with 2m + 1, so rows of queries and keys are
permuted.
"""

import re
from collections.abc import Mapping

import numpy as np

from lra_spt.errors import CheckpointError

# Of older files: a causal mask and frequencies, which are no parameters; and the output matrix, which goes.
_DROPPED = re.compile(
  r'gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|embed_out\.weight|lm_head\.weight'
)
_NORMS = {'input_layernorm': 'mixer_norm', 'post_attention_layernorm': 'feed_forward_norm'}
_LINEAR = {
  'attention.query_key_value': None,
  'attention.dense': ('mixer', 'out'),
  'mlp.dense_h_to_4h': ('feed_forward', 'up'),
  'mlp.dense_4h_to_h': ('feed_forward', 'down'),
}


def encoder_params(
  tensors: Mapping[str, np.ndarray], *, depth: int, width: int, hidden: int, heads: int, turned: int
) -> dict:
  """The nested dict of float32 parameters of `Encoder` from tensors by their published names.

  Args:
    tensors: of a published file, (out, in) as in PyTorch.
    depth, width, hidden, heads: sizes of the encoder (layers, D, FF, heads).
    turned: rotary dimensions of a head.

  Raises:
    CheckpointError: a tensor is missing, left over or of another shape; it names the first.
  """
  tensors = {name: array for name, array in tensors.items() if not _DROPPED.fullmatch(name)}
  rows = len(tensors.get('gpt_neox.embed_in.weight', ()))
  _check(tensors, _shapes(depth, width, hidden) | {'gpt_neox.embed_in.weight': (rows, width)})
  order = _order(width // heads, turned)
  read = {name: np.asarray(array, np.float32) for name, array in tensors.items()}
  layers = [_layer(read, f'gpt_neox.layers.{i}', heads, order) for i in range(depth)]
  return {
    'embed': {'embedding': read['gpt_neox.embed_in.weight']},
    'blocks': _stacked(layers),
    'norm': _norm(read, 'gpt_neox.final_layer_norm'),
  }


def _shapes(depth, width, hidden):
  shapes = {'gpt_neox.final_layer_norm': (width,)}
  for i in range(depth):
    layer = f'gpt_neox.layers.{i}'
    shapes |= {f'{layer}.{norm}': (width,) for norm in _NORMS}
    shapes |= {
      f'{layer}.attention.query_key_value': (3 * width, width),
      f'{layer}.attention.dense': (width, width),
      f'{layer}.mlp.dense_h_to_4h': (hidden, width),
      f'{layer}.mlp.dense_4h_to_h': (width, hidden),
    }
  pairs = [(f'{name}.weight', shape) for name, shape in shapes.items()]
  return dict(pairs) | {f'{name}.bias': shape[:1] for name, shape in shapes.items()}


def _check(tensors, shapes):
  remedy = 'give the weights of the model that the config describes'
  for name, shape in shapes.items():
    if name not in tensors:
      raise CheckpointError(f'The weights have no tensor {name}; {remedy}.')
    if tuple(tensors[name].shape) != shape:
      raise CheckpointError(f'The tensor {name} is {tuple(tensors[name].shape)}, not {shape}; {remedy}.')
  for name in sorted(tensors.keys() - shapes.keys()):
    raise CheckpointError(f'The weights have a tensor {name}, which the model lacks; {remedy}.')


def _order(size, turned):
  """Of the dimensions of a head: 0, half, 1, half + 1, ..., and the rest as they are."""
  pairs = np.arange(turned).reshape(2, turned // 2).T.ravel()
  return np.concatenate([pairs, np.arange(turned, size)])


def _layer(read, name, heads, order):
  linear = {path: _linear(read, f'{name}.{theirs}') for theirs, path in _LINEAR.items() if path}
  mixer = {'out': linear['mixer', 'out']} | _projections(
    read, f'{name}.attention.query_key_value', heads, order
  )
  return {
    'mixer': mixer,
    'feed_forward': {part: linear['feed_forward', part] for part in ('up', 'down')},
  } | {ours: _norm(read, f'{name}.{theirs}') for theirs, ours in _NORMS.items()}


def _projections(read, name, heads, order):
  """Rows of theirs are grouped by head, then by query, key and value."""
  weight, bias = read[f'{name}.weight'], read[f'{name}.bias']
  weight_H3KD, bias_H3K = weight.reshape(heads, 3, -1, weight.shape[1]), bias.reshape(heads, 3, -1)
  found = {}
  for i, part in enumerate(('query', 'key', 'value')):
    rows = slice(None) if part == 'value' else order
    kernel_HKD, bias_HK = weight_H3KD[:, i][:, rows], bias_H3K[:, i][:, rows]
    found[part] = {'kernel': kernel_HKD.reshape(-1, weight.shape[1]).T, 'bias': bias_HK.ravel()}
  return found


def _linear(read, name):
  return {'kernel': read[f'{name}.weight'].T, 'bias': read[f'{name}.bias']}


def _norm(read, name):
  return {'norm': {'scale': read[f'{name}.weight'], 'bias': read[f'{name}.bias']}}


def _stacked(trees):
  """One tree whose arrays have a leading axis, as blocks are kept."""
  if not isinstance(trees[0], dict):
    return np.stack(trees)
  return {key: _stacked([tree[key] for tree in trees]) for key in trees[0]}
