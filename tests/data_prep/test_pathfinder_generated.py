"""Generated Pathfinder sets hold the generator's images, resume, leave no files, and take little memory."""

import weakref

import numpy as np
import pytest

from data_prep import chunks
from data_prep.pathfinder import generated
from data_prep.pathfinder import images as images_lib
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks

EXAMPLES = 40


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
  monkeypatch.setattr(generated, '_CHUNK_BYTES', 1)
  monkeypatch.setattr(generated, '_CHUNK_IMAGES', 16)


def test_set_holds_the_generators_images(tmp_path):
  folder = generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, seed=7, workers=1)
  images, labels = images_lib.generate(32, 7, np.arange(EXAMPLES))
  for split, size in (('train', 32), ('validation', 4), ('test', 4)):
    examples = examples_lib.open_split('pathfinder', split, tmp_path)
    batch = examples.gather(np.arange(size))
    assert np.array_equal(batch['inputs'], images.reshape(EXAMPLES, -1)[examples.indices])
    assert np.array_equal(batch['label'], labels[examples.indices])
  assert [path.name for path in folder.parent.iterdir() if not path.name.startswith('.')] == [
    prepared.VERSION
  ]


def test_finished_chunks_are_reused_after_an_interruption(tmp_path, monkeypatch):
  made = []

  def fails_in_the_last_chunk(resolution, seed, indices, **settings):
    made.append(int(indices[0]))
    if indices[0] == 32 and len(made) == 3:
      raise KeyboardInterrupt
    return images_lib_generate(resolution, seed, indices, **settings)

  images_lib_generate = images_lib.generate
  monkeypatch.setattr(images_lib, 'generate', fails_in_the_last_chunk)
  with pytest.raises(KeyboardInterrupt):
    generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, workers=1)
  assert not prepared.dataset_folder(tmp_path, 'pathfinder32').exists()
  next(tmp_path.rglob('*-000000016.npz')).write_bytes(b'half')  # a damaged chunk is made again
  folder = generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, workers=1)
  assert made == [0, 16, 32, 0, 32]
  whole = generated.prepare_pathfinder(tmp_path / 'other', examples=EXAMPLES, workers=2)
  fingerprints = [prepared.read_metadata(path, '')['fingerprint'] for path in (folder, whole)]
  assert fingerprints[0] == fingerprints[1]


def test_a_set_is_assembled_shard_by_shard(tmp_path, monkeypatch):
  """Memory holds only the chunks of the shard that is being written, and of the next one."""
  held, most = weakref.WeakSet(), []

  class Images(np.ndarray):
    """Arrays with a hash, so that a set of weak references can hold them."""

    __hash__ = object.__hash__

  def read(chunk):
    arrays = chunks_read(chunk)
    images = arrays['images'].view(Images)
    held.add(images)
    most.append(len(held))
    return {**arrays, 'images': images}

  chunks_read = chunks.read
  monkeypatch.setattr(chunks, 'read', read)
  monkeypatch.setattr(generated, '_CHUNK_IMAGES', 4)
  monkeypatch.setattr(generated.builders, 'SHARD_BYTES', 8 * 32 * 32)  # two chunks
  generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, workers=1)
  assert len(most) == 10
  assert max(most) <= 4


def test_chunks_of_another_seed_are_not_mixed_in(tmp_path, monkeypatch):
  def interrupt(*arguments, **settings):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(generated.builders, 'SequenceBuilder', interrupt)
    with pytest.raises(KeyboardInterrupt):
      generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, seed=1, workers=1)
  assert len(list(tmp_path.rglob('*.npz'))) == 3
  generated.prepare_pathfinder(tmp_path, examples=EXAMPLES, seed=2, workers=1)
  images, _ = images_lib.generate(32, 2, np.arange(EXAMPLES))
  examples = examples_lib.open_split('pathfinder', 'test', tmp_path)
  assert np.array_equal(examples.gather([0])['inputs'][0], images[examples.indices[0]].reshape(-1))
  assert not list(tmp_path.rglob('*.npz'))


def test_a_variant_has_its_own_name(tmp_path):
  generated.prepare_pathfinder(tmp_path, dataset='demo_paths', contour_length=6, examples=10)
  task = tasks.get_task('pathfinder')
  with pytest.raises(FileNotFoundError, match='lra-spt prepare pathfinder32'):
    examples_lib.open_split(task, 'train', tmp_path)
  assert prepared.dataset_folder(tmp_path, 'demo_paths').is_dir()


def test_wrong_arguments_are_named(tmp_path):
  with pytest.raises(ValueError, match='no Pathfinder of 48 pixels'):
    generated.prepare_pathfinder(tmp_path, resolution=48)
  with pytest.raises(ValueError, match='at least 10'):
    generated.prepare_pathfinder(tmp_path, examples=9)
