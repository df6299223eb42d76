"""Settings of jax in a process do not change the numbers that the package computes."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lra_spt
from lra_spt.distributed import settings
from lra_spt.runs import provenance
from lra_spt.runs.build import build, resolve
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.step import train_steps


@pytest.mark.parametrize('prng', ['threefry2x32', 'rbg', 'unsafe_rbg'])
def test_keys_do_not_depend_on_settings_of_the_process(prng, other_settings):
  for seed in (0, 7, 2**31 - 1):
    wanted = jax.random.key_data(jax.random.key(seed, impl=prng))
    with other_settings():
      np.testing.assert_array_equal(jax.random.key_data(settings.random_key(seed, prng)), wanted)


def _drawn():
  with settings.fixed():
    x = jax.random.normal(jax.random.fold_in(settings.random_key(3), 5), (4, 7))
    return np.asarray(x + jnp.arange(7.0)[None]), jax.config.jax_enable_x64


def test_numbers_do_not_depend_on_settings_of_the_process_also_in_threads(other_settings):
  plain, _ = _drawn()
  drawn = []
  with other_settings():
    drawn.append(_drawn())
    background = Background()
    background.start(0, lambda: drawn.append((plain, jax.config.jax_enable_x64)))
    background.wait()
    thread = threading.Thread(target=lambda: drawn.append(_drawn()))
    thread.start()
    thread.join()
    assert jax.config.jax_enable_x64
  for x, x64 in drawn:
    assert x.dtype == np.float32
    assert not x64
    np.testing.assert_array_equal(x, plain)


def test_a_note_names_the_settings_that_runs_do_not_use(other_settings):
  assert settings.ignored('default') == {}
  with other_settings():
    assert {'jax_enable_x64', 'jax_threefry_partitionable', 'jax_default_matmul_precision'} <= {
      *settings.ignored('default')
    }
    assert 'jax_default_matmul_precision' not in settings.ignored('highest')
  with settings.fixed('highest'):
    assert provenance.hardware()['matmul_precision'] == 'highest'
    with settings.fixed():
      assert provenance.hardware()['matmul_precision'] == 'highest'
    with settings.fixed('default'):
      assert provenance.hardware()['matmul_precision'] == 'default'


@pytest.mark.parametrize('model', ['transformer', 'longconv'])
def test_another_generator_draws_only_what_training_draws(model, repository):
  """Longconv is a case, since its dropout of kernel weights passes a key through `shard_map` as numbers."""
  file = f'{repository}/configs/demo.py:regime=masked,model={model}'
  rates = {'model.dropout': 0.1} | ({'model.mixer.kernel_dropout': 0.2} if model == 'longconv' else {})
  plain, built = (
    build(resolve(lra_spt.load_config(file, rates | {'runtime.prng': prng})), 'pretrain')
    for prng in ('threefry2x32', 'rbg')
  )
  assert str(jax.random.key_impl(built.training_key)) == 'rbg'
  assert built.key == plain.key
  np.testing.assert_array_equal(
    jax.random.key_data(plain.training_key), jax.random.key_data(jax.random.fold_in(plain.key, 1))
  )
  mesh = jax.make_mesh((1, 1, 1), ('data', 'fsdp', 'seq'), axis_types=(jax.sharding.AxisType.Auto,) * 3)
  with jax.set_mesh(mesh):
    program = str(train_steps(built.typical_program).trace(*built.abstract_step(mesh)).jaxpr)
  assert 'random_bits' in program
  assert 'rbg' in program


def test_changes_name_what_both_attempts_know():
  before = {
    'precision': 'float32',
    'prng': 'rbg',
    'versions': {'jax': '0.10.2'},
    'settings': {'jax_scan3': 0},
  }
  before |= {'hardware': {'matmul_precision': 'default'}}
  now = before | {'prng': 'threefry2x32', 'versions': {'jax': '0.12.0', 'flax': '1'}}
  now |= {'settings': {'jax_scan3': 0, 'jax_new': 1, 'XLA_FLAGS': '--x'}}
  assert provenance.changes(before, now) == [
    'prng threefry2x32 instead of rbg',
    'jax 0.12.0 instead of 0.10.2',
    'XLA_FLAGS --x instead of None',
  ]
  assert provenance.changes(before, now, precisions_only=True) == []
  assert provenance.changes({}, now) == []  # a stage of an older version
  assert provenance.changes({'precision': 'bfloat16', 'hardware': {}}, now) == [
    'precision float32 instead of bfloat16'
  ]
