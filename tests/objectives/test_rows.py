"""Inputs of the encoder and targets of denoising, compared with rows by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.data import tasks
from lra_spt.objectives import denoising_targets, normalise


def test_normalise_values_by_hand():
  image, scifar, path = (tasks.get_task(name) for name in ('image', 'scifar', 'pathfinder'))
  x_BL = np.array([[0, 51, 255]], np.uint8)
  assert np.allclose(normalise(image, x_BL)[..., 0], (x_BL / 255 - 122.6 / 255) / (61 / 255), atol=1e-6)
  assert np.allclose(normalise(path, x_BL)[0, :, 0], [-1, -0.6, 1], atol=1e-6)
  x_BLC = np.array([[[0, 255, 51]]], np.uint8)
  expected = [-0.4914 / 0.247, (1 - 0.4822) / 0.243, (0.2 - 0.4465) / 0.261]
  assert np.allclose(normalise(scifar, x_BLC)[0, 0], expected, atol=1e-6)
  for y in (normalise(image, x_BL), normalise(path, x_BL), normalise(scifar, x_BLC)):
    assert y.ndim == 3
    assert y.dtype == jnp.float32


def test_sound_is_stored_in_16_bits():
  task = tasks.get_task('speech_commands').with_inputs(std=(0.09,))
  x_BL = np.array([[-32768, 0, 16384, 32767]], np.int16)
  expected = np.array([-1, 0, 0.5, 32767 / 32768]) / 0.09
  np.testing.assert_allclose(normalise(task, x_BL)[0, :, 0], expected, rtol=1e-6)
  assert np.array_equal(denoising_targets(task, x_BL), normalise(task, x_BL))


def test_both_run_inside_jit():
  task = tasks.get_task('pathfinder')
  x_BL = np.arange(6, dtype=np.uint8).reshape(2, 3)
  values, targets = jax.jit(lambda x: (normalise(task, x), denoising_targets(task, x)))(x_BL)
  assert values.shape == (2, 3, 1)
  assert targets.dtype == jnp.int32
  assert np.array_equal(targets, x_BL)


def test_tokens_pass_unchanged():
  task = tasks.get_task('listops')
  ids_BL = np.array([[4, 18, 3, 1]], np.uint8)
  for result in (normalise(task, ids_BL), denoising_targets(task, ids_BL)):
    assert result.dtype == jnp.int32
    assert np.array_equal(result, ids_BL)


def test_bytes_as_tokens_are_their_own_ids():
  x_BL = np.array([[0, 9, 255]], np.uint8)
  for name in ('image', 'pathfinder'):
    task = tasks.get_task(name).with_byte_tokens()
    for result in (normalise(task, x_BL), denoising_targets(task, x_BL)):
      assert result.dtype == jnp.int32
      assert np.array_equal(result, x_BL)


def test_l1_targets_are_the_normalised_values():
  task = tasks.get_task('scifar')
  x_BLC = np.random.default_rng(0).integers(0, 256, (2, 4, 3)).astype(np.uint8)
  assert np.array_equal(denoising_targets(task, x_BLC), normalise(task, x_BLC))
