"""GPT-NeoX models such as Pythia (Black et al. 2022; Biderman et al. 2023) as encoders of ours.

`encoder_params` converts their parameters. The encoder is causal, with parallel_residual=true, LayerNorm and
attention with rotary_dimensions (a quarter of a head). Names, shapes and order are those of
`modeling_gpt_neox.py` of huggingface/transformers. Rotations there pair dimension m with m + half, ours pair
2m with 2m + 1, so rows of queries and keys are permuted.

`token_ids` gives the row of their embedding for each of our tokens, from their tokenizer.
"""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from lra_spt.errors import CheckpointError

# Masks and frequencies in files of earlier releases of transformers are no parameters; the output matrix is
# not used here.
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

END_OF_TEXT, PADDING = 0, 1
FREE = 50277  # the first row of their embedding that has no token
SPECIAL = {'<eos>': END_OF_TEXT, '<unk>': END_OF_TEXT, '<pad>': PADDING, '<mask>': FREE}
# Their tokenizer splits an operator into `[` and its name; the published code uses letters (`listops_an`).
OPERATORS = {'[MAX': 'A', '[SM': 'B', '[MED': 'C', '[MIN': 'D'}
# {character, or byte of several digits in decimal: id of the one token that it is}
_IDS = json.loads((pathlib.Path(__file__).parent / 'neox_tokens.json').read_text(encoding='utf-8'))


def encoder_params(
  tensors: Mapping[str, np.ndarray], *, depth: int, width: int, hidden: int, heads: int, turned: int
) -> dict:
  """Converts published tensors to the parameters of `Encoder`.

  Args:
    tensors: {published name: array} of a file; matrices are (out, in), as in PyTorch.
    depth, width, hidden, heads: sizes of the encoder (layers, D, FF, heads).
    turned: rotary dimensions of a head.

  Returns:
    A nested dict of float32 arrays.

  Raises:
    CheckpointError: a tensor is missing, left over or has another shape; the message names the first one.
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
  """The order of their dimensions in our head: 0, half, 1, half + 1, ..., then those without rotation."""
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
  """Query, key and value kernels. Their rows are grouped by head, then by query, key and value."""
  weight, bias = read[f'{name}.weight'], read[f'{name}.bias']
  weight_H3KD, bias_H3K = weight.reshape(heads, 3, -1, weight.shape[1]), bias.reshape(heads, 3, -1)
  projections = {}
  for i, part in enumerate(('query', 'key', 'value')):
    rows = slice(None) if part == 'value' else order
    kernel_HKD, bias_HK = weight_H3KD[:, i][:, rows], bias_H3K[:, i][:, rows]
    projections[part] = {'kernel': kernel_HKD.reshape(-1, weight.shape[1]).T, 'bias': bias_HK.ravel()}
  return projections


def _linear(read, name):
  return {'kernel': read[f'{name}.weight'].T, 'bias': read[f'{name}.bias']}


def _norm(read, name):
  return {'norm': {'scale': read[f'{name}.weight'], 'bias': read[f'{name}.bias']}}


def _stacked(trees):
  """Stacks trees of arrays along a new leading axis, the form in which blocks are stored."""
  if not isinstance(trees[0], dict):
    return np.stack(trees)
  return {key: _stacked([tree[key] for tree in trees]) for key in trees[0]}


def token_ids(vocabulary: Sequence[str]) -> np.ndarray:
  """Their ids of our tokens, int32 [len(vocabulary)].

  A character that they split into several tokens gets the id of the end of a text, as `<unk>` does.

  Raises:
    ValueError: a token is no character, operator or byte.
  """
  names = [OPERATORS.get(token, token) for token in vocabulary]
  return np.array([SPECIAL[name] if name in SPECIAL else _token_id(name) for name in names], np.int32)


def _token_id(text):
  """The id of a character, or of a byte written in decimal."""
  if text not in _IDS and len(text) != 1:
    raise ValueError(f'the token {text!r:.80} is not a character, operator or byte')
  return _IDS.get(text, END_OF_TEXT)
