"""What tasks promise: shapes, normalisation, targets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks


def test_tasks_are_those_of_the_paper():
  expected = {
    'listops': (2048, 0, 19, 10, 'ce'),
    'text': (4096, 0, 135, 2, 'ce'),
    'image': (1024, 1, 0, 10, 'l1'),
    'scifar': (1024, 3, 0, 10, 'l1'),
    'pathfinder': (1024, 1, 0, 2, 'ce'),
    'pathfinder64': (4096, 1, 0, 2, 'ce'),
    'pathx': (16384, 1, 0, 2, 'ce'),
    'pathx256': (65536, 1, 0, 2, 'ce'),
    'speech_commands': (16000, 1, 0, 35, 'l1'),
  }
  sizes = {  # of these only: the demo and tests register tasks of their own
    name: (t.length, t.channels, t.vocabulary, t.classes, t.denoising_loss)
    for name, t in tasks.TASKS.items()
    if name in expected
  }
  assert sizes == expected


def test_normalise_values_by_hand():
  image, scifar, path = (tasks.get_task(name) for name in ('image', 'scifar', 'pathfinder'))
  x_BL = np.array([[0, 51, 255]], np.uint8)
  assert np.allclose(image.normalise(x_BL)[..., 0], (x_BL / 255 - 122.6 / 255) / (61 / 255), atol=1e-6)
  assert np.allclose(path.normalise(x_BL)[0, :, 0], [-1, -0.6, 1], atol=1e-6)
  x_BLC = np.array([[[0, 255, 51]]], np.uint8)
  expected = [-0.4914 / 0.247, (1 - 0.4822) / 0.243, (0.2 - 0.4465) / 0.261]
  assert np.allclose(scifar.normalise(x_BLC)[0, 0], expected, atol=1e-6)
  for y in (image.normalise(x_BL), path.normalise(x_BL), scifar.normalise(x_BLC)):
    assert y.ndim == 3
    assert y.dtype == jnp.float32


def test_sound_is_stored_in_16_bits(tmp_path):
  task = tasks.get_task('speech_commands')
  x_BL = np.array([[-32768, 0, 16384, 32767]], np.int16)
  expected = np.array([-1, 0, 0.5, 32767 / 32768]) / 0.09
  np.testing.assert_allclose(task.normalise(x_BL)[0, :, 0], expected, rtol=1e-6)
  assert np.array_equal(task.targets(x_BL), task.normalise(x_BL))
  with pytest.raises(FileNotFoundError, match='make it with `lra-spt prepare speech_commands --data_dir'):
    examples_lib.open_split(task, 'train', tmp_path)


def test_a_set_that_is_not_there_names_the_whole_command(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'make it with `lra-spt prepare bidmc --data_dir {tmp_path}`'):
    examples_lib.open_split('bidmc_hr', 'train', tmp_path)


def test_normalise_and_targets_run_inside_jit():
  task = tasks.get_task('pathfinder')
  x_BL = np.arange(6, dtype=np.uint8).reshape(2, 3)
  values, targets = jax.jit(lambda x: (task.normalise(x), task.targets(x)))(x_BL)
  assert values.shape == (2, 3, 1)
  assert targets.dtype == jnp.int32
  assert np.array_equal(targets, x_BL)


def test_tokens_pass_unchanged():
  task = tasks.get_task('listops')
  ids_BL = np.array([[4, 18, 3, 1]], np.uint8)
  for result in (task.normalise(ids_BL), task.targets(ids_BL)):
    assert result.dtype == jnp.int32
    assert np.array_equal(result, ids_BL)


def test_l1_targets_are_the_normalised_values():
  task = tasks.get_task('scifar')
  x_BLC = np.random.default_rng(0).integers(0, 256, (2, 4, 3)).astype(np.uint8)
  assert np.array_equal(task.targets(x_BLC), task.normalise(x_BLC))


def test_unknown_task_names_the_known_ones():
  with pytest.raises(ValueError, match="no task 'imagenet'; choose one of .*image, listops"):
    tasks.get_task('imagenet')


def test_register_makes_a_task_known_and_refuses_another_of_that_name(monkeypatch, token_task):
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  tasks.register_task(token_task)
  assert tasks.get_task(token_task.name) is token_task
  tasks.register_task(dataclasses.replace(token_task))
  with pytest.raises(ValueError, match="different task is already called 'tiny_tokens'"):
    tasks.register_task(dataclasses.replace(token_task, length=13))


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'modality': 'sound'}, 'modality'),
    ({'splits': 'thirds'}, "splits 'thirds' is not one of files, holdout, random, reused"),
    ({'published_splits': 'thirds'}, "splits 'thirds'"),
    ({'denoising_loss': 'l2'}, 'denoising_loss'),
    ({'denoising_loss': 'l1'}, 'needs a vocabulary'),
    ({'vocabulary': 0}, 'needs a vocabulary'),
  ],
)
def test_contradictory_tasks_are_refused(token_task, changes, reason):
  with pytest.raises(ValueError, match=reason):
    dataclasses.replace(token_task, **changes)


def test_ce_over_bytes_needs_one_channel():
  with pytest.raises(ValueError, match='one channel only'):
    dataclasses.replace(tasks.get_task('scifar'), denoising_loss='ce', denoising_classes=256)
