"""Encoders as safetensors files: `lra-spt export` writes the encoder of a stage, and runs can start from a
file (model.weights). Files of GPT-NeoX models, such as Pythia, are read under their published names.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lra_spt import files
from lra_spt.config.schema import EVERYTHING
from lra_spt.errors import CheckpointError, ConfigError, DamagedFile, MissingFile, touching
from lra_spt.models import ModelSpec, registry
from lra_spt.models.neox import encoder_params, token_ids
from lra_spt.training.checkpoints.transfer import transfer
from lra_spt.training.state import not_finite

TREES = ('params', 'stats')
# Keys of a model, beside its mixer, that change the function of an encoder with the same parameters.
_COMPUTES = (
  'activation',
  'gated_feed_forward',
  'position',
  'norm',
  'prenorm',
  'parallel_residual',
  'shuffle',
  'byte_tokens',
)
# Endings of the options of mixers that change only how they start and learn.
_LEARNING = ('lr', '_group', 'dropout', 'init', '_min', '_max', 'max_phase', 'dt_global')
_NEOX = {
  'norm': 'layer',
  'prenorm': True,
  'parallel_residual': True,
  'activation': 'gelu',
  'gated_feed_forward': False,
  'position': 'none',
  'mixer.name': 'attention',
  'mixer.rotary': True,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
  """An encoder from a file.

  params, stats: {'encoder': nested dict of float32 arrays}; stats holds the averages of BatchNorm, if any.
  flag: the last row of an embedding of values reads the flag of hidden positions.
  patterns: the parameters that a run takes over, see `parameters.chosen`.
  """

  path: pathlib.Path
  params: dict
  stats: dict
  flag: bool = False
  patterns: tuple[str, ...] = EVERYTHING

  def __post_init__(self):
    if (name := not_finite({'params': self.params, 'stats': self.stats})) is not None:
      raise CheckpointError(
        f'{self.path} has a number that is not finite in {name}, so no model can start from it; give other '
        'weights as model.weights.'
      )

  def start(self, fresh: dict) -> dict:
    """Returns the state `fresh` (or only its params and stats, which may be abstract) with this encoder.

    If the embedding of values has one row more than that of `fresh`, the row of the flag is left out.

    Raises:
      CheckpointError: a parameter is missing, left over, or of another shape; names the first one.
    """
    ours, wanted = (tree['encoder']['embed'].get('kernel') for tree in (self.params, fresh['params']))
    values = ours is not None and wanted is not None
    drop = values and self.flag and len(ours) == wanted.shape[0] + 1
    if values and len(ours) + 1 == wanted.shape[0]:
      raise CheckpointError(
        f'model.weights={self.path} has no row for the flag of hidden positions, which masked pretraining '
        'reads; export that encoder with --stage=pretrain, or finetune this one (regime=scratch)'
      )
    given = {'params': self.params, 'stats': self.stats}
    name = f'model.weights={self.path}'
    return transfer(given, fresh, drop_flag_input=drop, patterns=self.patterns, name=name)


def read(path, spec: ModelSpec, vocabulary: Sequence[str] = ()) -> Weights:
  """Reads the encoder in a file.

  Args:
    path: a file of `write`, or of a GPT-NeoX model that `spec` describes.
    spec: the model that starts from the file.
    vocabulary: the tokens of the task, whose embeddings are picked from those of a GPT-NeoX model.

  Raises:
    MissingFile, DamagedFile: there is none, or it is no safetensors file.
    CheckpointError: a number is not finite; a tensor of a GPT-NeoX model is missing, left over or of another
      shape; or the model computes something else with these parameters than the one that learned them.
  """
  path = pathlib.Path(os.path.expanduser(path))
  if not path.is_file():
    raise MissingFile(f'model.weights is {path}, but there is no such file; name a safetensors file.')
  try:
    with touching(path, 'read'):
      tensors = safetensors.numpy.load_file(path)
      with safetensors.safe_open(path, 'numpy') as file:
        about = file.metadata() or {}
  except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
    raise DamagedFile(f'{path} is not a complete safetensors file ({error}); get it again.') from error
  if any(name.startswith('gpt_neox.') for name in tensors):
    _check(path, _NEOX, spec)
    (mixer,) = spec.period
    sizes = {'depth': spec.depth, 'width': spec.width, 'hidden': spec.feed_forward}
    turned = mixer.get('rotary_dimensions', 0) or spec.width // mixer.get('heads', 1)
    encoder = encoder_params(tensors, **sizes, heads=mixer.get('heads', 1), turned=turned)
    encoder['embed'] = {'embedding': _rows(path, encoder['embed']['embedding'], vocabulary)}
    return Weights(path, {'encoder': encoder}, {})
  trees: dict[str, dict] = {tree: {} for tree in TREES}
  for name, array in tensors.items():
    node, parts = trees, name.split('.')
    if parts[0] not in TREES or parts[1:2] != ['encoder'] or len(parts) < 3:
      raise CheckpointError(
        f'{path} holds a tensor {name}, which belongs neither to an encoder that lra-spt exported nor '
        'to GPT-NeoX; give another file as model.weights.'
      )
    for part in parts[:-1]:
      node = node.setdefault(part, {})
    node[parts[-1]] = array.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array
  if 'embed' not in trees['params'].get('encoder', {}):
    raise CheckpointError(f'{path} holds no embedding of an encoder; give another file as model.weights.')
  _check(path, _of_header(about), spec)
  return Weights(path, trees['params'], trees['stats'], flag=about.get('flag') == 'true')


def _of_header(about: dict[str, str]) -> dict:
  """The keys and options in the header of a file of `write` that change the function of an encoder."""
  try:
    model = json.loads(about['model'])
    period = [model['mixers'][str(place)] for place in range(len(model.get('mixers', ())))]
    options = _options(period or [model['mixer']])
  except (ValueError, KeyError, TypeError, AttributeError):
    return {}
  defaults = {field.name: field.default for field in dataclasses.fields(ModelSpec) if field.name in _COMPUTES}
  return {key: model.get(key, value) for key, value in defaults.items()} | options


def _options(period: Sequence[dict]) -> dict:
  """The names of mixers and their options that change their function, with the defaults of a class if that is
  registered."""
  options = {'mixer.name': '-'.join(mixer['name'] for mixer in period)}
  for place, mixer in enumerate(period):
    where = f'mixers.{place}' if len(period) > 1 else 'mixer'
    with contextlib.suppress(ConfigError):
      mixer = registry.defaults_of(mixer['name']) | mixer
    options |= {f'{where}.{key}': value for key, value in mixer.items() if not key.endswith(_LEARNING)}
  return options


def _check(path, theirs: dict, spec: ModelSpec) -> None:
  ours = {key: getattr(spec, key) for key in _COMPUTES} | _options(spec.period)
  if others := [key for key in theirs if key in ours and ours[key] != theirs[key]]:
    values = ', '.join(f'model.{key}={theirs[key]} instead of {ours[key]}' for key in others)
    raise CheckpointError(
      f'model.weights={path} was trained with {values}, so its parameters mean something else here; set the '
      'same, or give other weights.'
    )


def _rows(path, embedding, vocabulary):
  if not vocabulary:
    raise CheckpointError(
      f'{path} holds embeddings of text tokens, but the task has none; choose another task, or read '
      'its bytes as tokens (model.byte_tokens).'
    )
  try:
    ids = token_ids(vocabulary)
  except ValueError as error:
    raise CheckpointError(
      f'{path} holds embeddings of text tokens, but of the set {error}; choose a set of characters, or '
      'weights that lra-spt exported.'
    ) from None
  if ids.max() >= len(embedding):
    raise CheckpointError(
      f'{path} holds embeddings of {len(embedding):,} tokens, but id {ids.max():,} is asked for; give the '
      'weights of a model with the vocabulary of GPT-NeoX.'
    )
  return embedding[ids]


def write(path, params: dict, stats: dict, about: dict) -> None:
  """Writes an encoder, whole or not at all.

  Args:
    path: the file.
    params, stats: the trees of a model, with the key 'encoder'.
    about: plain values for the header of the file.
  """
  tensors = {}
  for tree, values in zip(TREES, (params, stats), strict=True):
    _flatten(values.get('encoder', {}), f'{tree}.encoder', tensors)
  header = {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
  with files.replacing(path, 'wb') as file:
    file.write(safetensors.numpy.save(tensors, metadata=header))


def _flatten(node, name, tensors):
  if isinstance(node, dict):
    for key, below in node.items():
      _flatten(below, f'{name}.{key}', tensors)
  else:
    tensors[name] = np.asarray(node, order='C')
    if np.iscomplexobj(tensors[name]):
      raise ConfigError(
        f'{name} is complex, which safetensors files do not support; save its real and imaginary parts apart.'
      )
