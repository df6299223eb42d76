"""Controls: a bag of tokens is blind to order, and a shuffled model reads all positions in another order."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError
from lra_spt.models import HeadSpec, InputSpec
from lra_spt.models.controls import shuffle_ranks
from lra_spt.runs import experiment
from lra_spt.runs.build import build, resolve

LENGTH, LENGTHS = 12, (12, 7, 0, 1)
INPUTS = {'tokens': InputSpec(16, vocabulary=9), 'values': InputSpec(16, channels=2)}
HEADS = {
  'tokens': HeadSpec('tokens', 3),
  'mean': HeadSpec('linear', 5),
  'match': HeadSpec('match', 2),
  'last': HeadSpec('linear', 5, 'last'),
}
BAG = {'mixer': {'name': 'none'}, 'position': 'none'}
MIXERS = {
  'attention': {'name': 'attention', 'heads': 2, 'rotary': True},
  's4d': {
    'name': 's4d',
    'state_size': 4,
    'copies': 8,
    'init': 'lin',
    'dt_min': 0.1,
    'dt_max': 0.5,
    'dt_lr': 0.0,
    'a_lr': 0.0,
    'b_lr': 0.0,
    'train_b': True,
  },
}


def draw(kind, rows=4, length=LENGTH, seed=0):
  rng = np.random.default_rng(seed)
  if kind == 'tokens':
    return rng.integers(0, 9, (rows, length)).astype(np.int32)
  return rng.normal(size=(rows, length, 2)).astype(np.float32)


@nnx.jit  # once, so that equal models compile once
def run(model, inputs, lengths_B):
  return model(inputs, lengths_B=lengths_B)


def answers(model, inputs, lengths=None):
  lengths_B = None if lengths is None else jnp.asarray(lengths, jnp.int32)
  return np.asarray(run(model, jnp.asarray(inputs), lengths_B))


def params_of(model):
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.parametrize('kind, head', [('tokens', 'mean'), ('values', 'mean'), ('tokens', 'match')])
def test_a_bag_is_blind_to_order(make_model, kind, head):
  inputs, rng = draw(kind), np.random.default_rng(1)
  permuted, otherwise_padded = inputs.copy(), inputs.copy()
  for row, length in enumerate(LENGTHS):
    permuted[row, :length] = inputs[row, rng.permutation(length)]
    otherwise_padded[row, length:] = draw(kind, seed=2)[row, length:]
  sizes = {'inputs': INPUTS[kind], 'head': HEADS[head]}
  bag, ordered = make_model(**BAG, **sizes), make_model(**sizes)
  for other in (permuted, otherwise_padded):
    np.testing.assert_allclose(answers(bag, other, LENGTHS), answers(bag, inputs, LENGTHS), atol=1e-5)
  assert not np.allclose(answers(ordered, permuted, LENGTHS), answers(ordered, inputs, LENGTHS), atol=1e-3)
  # The number of times that an element occurs matters.
  fewer = inputs.copy()
  fewer[0, 1:6] = fewer[0, 0]
  assert not np.allclose(answers(bag, fewer, LENGTHS), answers(bag, inputs, LENGTHS), atol=1e-3)


@pytest.mark.parametrize('causal', [True, False])
def test_positions_of_a_bag_stay_alone(make_model, causal):
  model = make_model(**BAG, causal=causal, head=HEADS['tokens'])
  assert model.encoder.blocks.mixer.causal == causal
  inputs = draw('values', rows=1)
  other = inputs.copy()
  other[0, 5] += 1
  changed = np.abs(answers(model, other) - answers(model, inputs)).max((0, 2)) > 0
  assert changed.tolist() == [t == 5 for t in range(LENGTH)]


CONFIGS = sorted(
  path.stem
  for path in pathlib.Path(__file__).parents[2].glob('configs/*.py')
  if 'common.choose(' in path.read_text() and 'return common.from_row' in path.read_text()
)  # pythia.py has only one model


@pytest.mark.parametrize('task', CONFIGS)
def test_every_task_offers_the_bag_in_every_regime(task):
  for regime in ('scratch', 'masked', 'causal', 'scratch,causal=true'):
    config = loading.load(f'configs/{task}.py:model=bag_of_tokens,regime={regime}')
    like = loading.load(f'configs/{task}.py:model=transformer,regime={regime}')
    assert (config.model.mixer.to_dict(), config.model.position) == ({'name': 'none'}, 'none')
    assert (config.model.width, config.model.depth) == (like.model.width, like.model.depth)
    assert config.finetune.optimizer.to_dict() == like.finetune.optimizer.to_dict()
    origins = config.origins
    assert {origins.model.width, origins.finetune.pool, origins.finetune.optimizer.lr} == {'ours'}
    for stage in ('pretrain', 'finetune') if 'scratch' not in regime else ('finetune',):
      built = build(resolve(config), stage)
      assert built.model.flops > 0
      assert 'mixer' not in built.model.params['encoder']['blocks']


def in_reading_order(inputs, lengths, back=False):
  """Sorts the valid positions of each row by rank, one row after the other; `back` undoes it."""
  rank_L, moved = shuffle_ranks(16), inputs.copy()
  for row, length in enumerate(lengths):
    order = sorted(range(length), key=lambda position: rank_L[position])
    if back:
      moved[row, order] = inputs[row, :length]
    else:
      moved[row, :length] = inputs[row, order]
  return moved


@pytest.mark.parametrize(
  'mixer, kind, head, causal, lengths',
  [
    ('attention', 'values', 'tokens', False, None),
    ('attention', 'tokens', 'mean', False, (12, 7, 3, 1)),
    ('attention', 'values', 'last', True, None),
    ('attention', 'tokens', 'last', True, (12, 7, 3, 1)),
    ('s4d', 'tokens', 'tokens', False, (12, 7, 3, 1)),
  ],
)
def test_shuffled_is_the_model_on_permuted_input(make_model, mixer, kind, head, causal, lengths):
  sizes = {'mixer': MIXERS[mixer], 'inputs': INPUTS[kind], 'head': HEADS[head], 'causal': causal}
  plain, shuffled = make_model(**sizes), make_model(**sizes, shuffle=True)
  inputs, counts = draw(kind), lengths or (LENGTH,) * 4
  expected = answers(plain, in_reading_order(inputs, counts), lengths)
  if head == 'tokens':
    expected = in_reading_order(expected, counts, back=True)
  actual = answers(shuffled, inputs, lengths)
  for row, length in enumerate(counts):
    valid = slice(length) if head == 'tokens' else slice(None)
    np.testing.assert_allclose(actual[row, valid], expected[row, valid], atol=2e-5)
  assert not np.allclose(answers(plain, inputs, lengths)[0], expected[0], atol=1e-3)


def test_shuffling_leaves_parameters_and_random_draws_alone(make_model):
  plain, shuffled = (params_of(make_model(shuffle=shuffle)) for shuffle in (False, True))
  assert jax.tree.structure(plain) == jax.tree.structure(shuffled)
  assert all(map(np.array_equal, jax.tree.leaves(plain), jax.tree.leaves(shuffled)))


def test_the_order_is_the_same_everywhere():
  """The order must not change: with another one, every checkpoint would be another model."""
  assert shuffle_ranks(12).tolist() == [6, 11, 4, 10, 2, 8, 1, 7, 9, 3, 0, 5]
  rank_L = shuffle_ranks(1024)
  assert sorted(rank_L) == list(range(1024))
  near = np.abs(np.diff(rank_L.astype(int)))  # neighbours are about a third of the length apart
  assert 300 < near.mean() < 380


def test_padding_to_another_length_changes_nothing(make_model):
  model = make_model(inputs=INPUTS['tokens'], head=HEADS['mean'], mixer=MIXERS['attention'], shuffle=True)
  inputs = draw('tokens')
  wide = np.concatenate([inputs, draw('tokens', length=4, seed=3)], axis=1)
  lengths = (12, 7, 3, 1)
  np.testing.assert_allclose(answers(model, wide, lengths), answers(model, inputs, lengths), atol=1e-5)


def test_causal_denoising_is_refused_before_anything_is_trained(repository):
  shuffle = {'model.shuffle': True}
  config = loading.load('configs/image.py:regime=causal', shuffle)
  with pytest.raises(ValueError, match='lets a causal model read the next element .* choose regime=masked'):
    build(resolve(config), 'pretrain')
  config = loading.load('configs/image.py:regime=scratch,causal=true', shuffle)
  assert build(resolve(config), 'finetune').model.parameter_count > 0


def test_shuffling_is_part_of_the_identity_of_a_run():
  plain = loading.load('configs/image.py:model=s4')
  shuffled = loading.load('configs/image.py:model=s4', ['model.shuffle=true'])
  difference = loading.difference(loading.identity(plain), loading.identity(shuffled))
  assert difference == 'model.shuffle: False -> True'
  with shuffled.unlocked():
    del shuffled.model.shuffle  # a config without this key
  counts = [build(resolve(config), 'pretrain').model.parameter_count for config in (plain, shuffled)]
  assert counts[0] == counts[1]
  with pytest.raises(ConfigError, match='takes true or false'):
    loading.load('configs/image.py', ['model.shuffle=fixed'])


@pytest.mark.parametrize('shape', [(4, 2, 1), (2, 1, 4)])
def test_shuffled_on_a_mesh(make_model, shape):
  """Values and gradients equal those of one device; if only rows are split, no activation moves."""
  model = make_model(inputs=INPUTS['tokens'], head=HEADS['tokens'], mixer=MIXERS['attention'], shuffle=True)
  inputs, lengths = draw('tokens', rows=8), np.array([12, 7, 3, 1, 12, 11, 2, 5], np.int32)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  def loss(params, inputs, lengths):
    out = nnx.merge(graphdef, params, rest)(inputs, lengths_B=lengths)
    return jnp.sum(out**2), out

  step = jax.value_and_grad(loss, has_aux=True)
  (_, expected), gradients = jax.jit(step)(params, inputs, lengths)
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[:8])
  with jax.set_mesh(mesh):
    split = jax.device_put((inputs, lengths), NamedSharding(mesh, P(sharding.ROWS)))
    program = jax.jit(step).lower(params, *split).compile()
    (_, actual), found_gradients = program(params, *split)
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  for a, b in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
  if shape[2] == 1:  # XLA splits sorting and gathering by rows itself
    assert not re.search(r'(all-gather|all-to-all|collective-permute)(-start)?\(', program.as_text())


@pytest.mark.slow
@pytest.mark.parametrize(
  'argument, overrides',
  [
    ('model=bag_of_tokens,regime=masked', {}),
    ('model=bag_of_tokens,regime=causal', {}),
    ('model=transformer,regime=masked', {'model.shuffle': True}),
  ],
)
def test_controls_run_from_pretraining_to_result(tiny_data, repository, tmp_path, argument, overrides):
  overrides = overrides | {
    'runtime.data_dir': str(tiny_data),
    'runtime.devices': 1,
    'pretrain.epochs': 1,
    'finetune.epochs': 1,
  }
  config = loading.load(f'{repository}/tests/tiny_config.py:{argument}', overrides)
  result = experiment.run(config, tmp_path, announce=functools.partial(str))
  assert 0 <= result['metrics']['test']['accuracy'] <= 1
  assert json.loads((tmp_path / 'result.json').read_text())['config']['model']['shuffle'] == bool(
    config.model.shuffle
  )
