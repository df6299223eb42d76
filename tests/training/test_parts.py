"""Partial transfer and freezing: chosen parameters are copied or stay; patterns without a match are
refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.report.runs.arm_key import key_of
from lra_spt.runs.build import build, resolve
from lra_spt.training import parameters
from lra_spt.training.checkpoints.transfer import by_name, transfer
from lra_spt.training.state import leaf_names
from lra_spt.training.step import train_steps

FINETUNE = 'image.py:model=transformer,regime=masked'
BATCH_NORM = {'model.norm': 'batch'}
NAMES = ['encoder/blocks/mixer/query/kernel', 'encoder/blocks/mixer/query/bias', 'encoder/embed/kernel']
NAMES += ['encoder/norm/norm/scale', 'encoder/norm/norm/bias', 'head/out/kernel']


@pytest.mark.parametrize(
  'patterns, expected',
  [
    (('*',), NAMES[:5]),
    ((), []),
    (('*/query/*',), NAMES[:2]),
    (('embed/*', '*/bias'), [NAMES[1], NAMES[2], NAMES[4]]),
    (('!*/query/*', '!embed/*'), NAMES[3:5]),
    (('*/query/*', '!*/bias'), NAMES[:1]),
    (('!*',), []),
  ],
)
def test_patterns_choose_parameters_of_the_encoder(patterns, expected):
  assert parameters.chosen(patterns, NAMES) == {*expected}


def test_averages_go_with_all_parameters_of_their_module():
  averages = ['encoder/norm/norm/mean', 'encoder/other/mean']
  scale, both = frozenset(NAMES[3:4]), frozenset(NAMES[3:5])
  assert parameters.of_modules(scale, NAMES, averages) == set()
  assert parameters.of_modules(both, NAMES, averages) == {averages[0]}


@pytest.mark.parametrize('shape', [(1, 1, 1), (2, 4, 1)], ids=str)
def test_frozen_parameters_stay_and_the_others_train(tiny, make_batches, shape):
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: np.prod(shape)])
  freeze = ('*/query/*', '*/mixer_norm/*')
  stage = tiny(FINETUNE, 'finetune', **BATCH_NORM, **{'finetune.freeze': freeze})
  batches = make_batches(stage.built.task, 1, 8, 10)
  with jax.set_mesh(mesh):
    first = stage.state(mesh)
    before = jax.tree.map(np.array, first)
    placed = sharding.to_devices(batches, mesh, 8, np.arange(8), leading=1)
    after, records = train_steps(stage.program)(first, placed, jnp.int32(1), jax.random.key(7))
  after = jax.tree.map(np.asarray, after)
  frozen = parameters.chosen(freeze, leaf_names(before['params']))
  assert len(frozen) == 4
  for name, (old, new) in _pairs(before, after, 'params').items():
    assert np.array_equal(old, new) == (name in frozen), name
  for name, (old, new) in _pairs(before, after, 'stats').items():
    assert np.array_equal(old, new) == ('/mixer_norm/' in name), name
  mean = by_name(after['opt'].mu)
  assert {name for name, value in mean.items() if not value.any()} >= frozen
  # Frozen parameters have no part in the norm of the gradient.
  squares = sum(float((value.astype(np.float64) ** 2).sum()) for value in mean.values())
  assert float(records['gradient_norm'][0]) == pytest.approx(np.sqrt(squares) / 0.1, rel=1e-4)


def _pairs(before, after, tree):
  old, new = by_name(before[tree]), by_name(after[tree])
  return {name: (old[name], new[name]) for name in old}


def test_nothing_frozen_is_the_same_program(tiny, make_batches):
  stage, same = tiny(FINETUNE, 'finetune'), tiny(FINETUNE, 'finetune', **{'finetune.freeze': ()})
  assert stage.program.model is same.program.model


def test_chosen_parameters_and_averages_move(tiny, make_batches):
  patterns = ('*/query/*', '*/mixer_norm/*', 'embed/*')
  pretrain, finetune = (tiny(FINETUNE, name, **BATCH_NORM) for name in ('pretrain', 'finetune'))
  trained, _ = pretrain.train(make_batches(pretrain.built.task, 1, 4, 10))
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    fresh = finetune.state(mesh, seed=5)
    moved = transfer(trained, fresh, drop_flag_input=True, patterns=patterns)
  for tree in ('params', 'stats'):
    theirs = by_name(trained[tree])
    for name, (old, new) in _pairs(fresh, moved, tree).items():
      taken = any(part in name for part in ('/query/', '/mixer_norm/', '/embed/'))
      source = theirs[name][: len(new)] if taken else old
      np.testing.assert_array_equal(new, source, err_msg=name)


def test_what_stays_fresh_need_not_fit_and_what_moves_must(tiny):
  stage = tiny(FINETUNE, 'finetune')
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    fresh = stage.state(mesh)
    source = {tree: jax.tree.map(np.array, fresh[tree]) for tree in ('params', 'stats')}
    del source['params']['encoder']['embed']
    transfer(source, fresh, drop_flag_input=False, patterns=('*/query/*',))
    with pytest.raises(CheckpointError, match='it has no params/encoder/embed/'):
      transfer(source, fresh, drop_flag_input=False, patterns=('embed/*',))


@pytest.mark.parametrize(
  'regime, key, pattern, message',
  [
    (
      'masked',
      'transfer',
      '*/qury/*',
      r"finetune.transfer has the pattern '\*/qury/\*', .* Did you mean query",
    ),
    (
      'scratch',
      'freeze',
      '!embedd/*',
      r"finetune.freeze has the pattern '!embedd/\*', .* Did you mean embed",
    ),
    ('scratch', 'transfer', 'embed/*', 'finetune.transfer is set, but regime scratch has no pretraining'),
  ],
)
def test_patterns_without_a_meaning_are_refused_before_training(regime, key, pattern, message):
  config = loading.load(f'configs/demo.py:regime={regime}', {f'finetune.{key}': pattern})
  with pytest.raises(ConfigError, match=message):
    build(resolve(config), 'finetune')


def test_defaults_stay_out_of_identities_and_other_values_name_the_arm():
  plain = loading.load('configs/demo.py:regime=masked')
  same = loading.load('configs/demo.py:regime=masked', ['finetune.transfer=*', 'finetune.freeze='])
  other = loading.load('configs/demo.py:regime=masked', ['finetune.freeze=*/query/*, */key/*'])
  assert loading.identity(plain) == loading.identity(same)
  assert 'freeze' not in loading.identity(plain)['finetune']
  assert loading.identity(other)['finetune']['freeze'] == ['*/query/*', '*/key/*']
  arm = key_of(loading.identity(other) | {'protocol': 'clean'})
  assert arm.name == 'masked self-pretraining, frozen: */query/* */key/*'
  assert arm != key_of(loading.identity(plain) | {'protocol': 'clean'})
