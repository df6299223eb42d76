"""GPT-NeoX models such as Pythia (Black et al. 2022; Biderman et al. 2023) as encoders of ours.

`encoder_params` converts their parameters. The encoder is causal, with parallel_residual=true, LayerNorm and
attention with rotary_dimensions (a quarter of a head). Names, shapes and order are those of
`modeling_gpt_neox.py` of huggingface/transformers. Rotations there pair dimension m with m + half, ours pair
2m with 2m + 1, so rows of queries and keys are permuted.

`token_ids` gives the row of their embedding for each of our tokens, from their tokenizer.
"""

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
# Ids of the characters U+0080 to U+00FF; -1 for a character that they split into several tokens.
_UPPER = """
  9589 12410 8381 10778 13854 16643 18455 18994 14681 24372 26261 20587 13348 22015 28372 21824 23794 19819
  17719 27399 15802 17237 25371 12555 20006 20236 20054 33307 16605 20475 34210 24625 575 15774 23696 14775
  12385 11190 26218 7803 20335 17737 19964 12391 23215 6319 8942 15500 3272 3069 15818 19281 11679 9003 7307
  6256 11466 17583 11703 6234 11199 8313 12136 12402 -1 -1 7974 5022 37515 18221 -1 -1 -1 17483 -1 -1 -1 -1
  13026 24029 5186 8568 -1 -1 -1 -1 45403 6027 13377 15097 47440 30041 -1 -1 -1 10278 5991 1757 6457 3312
  1392 2768 5507 3314 3539 860 5437 10093 12931 1950 18513 12589 25500 6621 17090 1954 9837 10100 2381 -1
  7256 14096 6187 24690 3090 10561 -1 -1
"""
_UPPER = [int(number) for number in _UPPER.split()]
# Ids of bytes of several digits in decimal, 10 to 255; each is one token.
_NUMBERS = """
  740 883 805 1012 1047 1010 1036 1166 1093 746 938 1797 1423 1508 1348 1099 1731 1630 1619 1717 1229 2405
  1237 1610 1706 1671 1812 1787 1839 1867 1449 3156 2945 3079 2031 1857 2950 2504 2385 2537 1235 3712 3583
  3357 3439 2417 3208 3011 3680 3046 1549 3832 3763 3571 1540 2082 2526 2251 2358 2090 1967 3677 3547 3655
  3566 1976 3121 2357 3141 2787 1438 3593 3507 3245 2759 2227 2691 2597 2055 2511 2270 4739 4529 4590 3953
  2222 4196 4148 4185 1525 2313 6903 11335 12172 11238 10655 12971 12224 12347 12852 7749 10768 11124 14322
  13391 12730 13210 12231 14711 12115 8193 15144 14351 10683 13397 9312 13381 11946 8196 13482 11246 17015
  14783 14380 15468 13743 15220 15497 15148 15270 12434 18962 17364 16150 14231 11838 16607 14555 16989
  16717 8970 18795 17472 16271 17161 15054 16198 15882 18663 17220 9913 20664 19603 18121 18467 15429 17962
  18146 13851 17809 15046 19816 20333 21151 18804 14840 17184 15907 20070 17864 11395 20895 20700 21092
  19105 17786 20270 17306 17599 18359 16129 22179 14403 19631 19332 17726 19196 18493 16903 3031 1518 1252
  18161 17490 15781 16763 18040 18202 17391 14009 16899 17605 17223 21197 21866 21351 17271 19443 22981
  24558 14256 20735 18895 20360 17537 14832 21345 20785 20694 17107 17569 18390 19136 22187 20210 19568
  21358 20991 21378 20487 14028 24552 22232 23525 21149 19490 23260 18392 20520 21361 9519 21451 20438 22067
  15161 10637
"""
_NUMBERS = {str(byte): int(number) for byte, number in enumerate(_NUMBERS.split(), 10)}
_OTHERS = {'\u2013': 1253, '\u2019': 457, '\u2026': 2866}


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
  if text in _NUMBERS:
    return _NUMBERS[text]
  if len(text) != 1:
    raise ValueError(f'the token {text!r:.80} is not a character, operator or byte')
  code = ord(text)
  if 33 <= code < 127:
    return code - 31
  number = code + 177 if code <= 32 else 210 if code == 127 else _OTHERS.get(text, -1)
  if 128 <= code < 256:
    number = _UPPER[code - 128]
  return number if number >= 0 else END_OF_TEXT
