"""Pathfinder at 16 x 16: whoever follows the curves knows the label, and nothing simple tells it."""

import zlib

import numpy as np
import pytest
from scipy import ndimage

from data_prep import prepare
from data_prep.pathfinder import mini
from lra_spt.data import examples as examples_lib
from lra_spt.data import storage


@pytest.fixture(scope='module')
def drawn():
  """Images, labels and marks of the test file: each the first 1,200."""
  return mini.generate(0, 'test', 0, 1200)


def test_a_mark_is_followed_to_the_other_where_the_label_says_so(drawn):
  right = []
  for image, label, marks in zip(*drawn, strict=True):
    parts, _ = ndimage.label(image > 0, np.ones((3, 3)))
    one, other = (parts[y, x] for y, x in np.rint(marks).astype(int))
    right.append((one == other) == label)
  assert np.mean(right) > 0.95


def test_nothing_simple_tells_the_label(drawn):
  """A linear classifier of where the marks lie and how bright all is stays near one half."""
  images, labels, marks = drawn
  apart, middle = marks[:, 0] - marks[:, 1], marks.mean(1) - 7.5
  edge = np.minimum(marks, 15 - marks).min(2)
  features = [
    np.hypot(*apart.T), (apart**2).sum(1), *np.abs(apart.T), np.hypot(*middle.T), *np.abs(middle.T),
    edge.min(1), edge.max(1), images.sum((1, 2)), (images > 60).sum((1, 2)), (images > 128).sum((1, 2)),
    np.ones(len(images)),
  ]  # fmt: skip
  features = np.stack(features, 1).astype(float)
  features /= features.std(0) + features.mean(0)
  weights = np.linalg.lstsq(features[:600], 2.0 * labels[:600] - 1, rcond=None)[0]
  assert np.mean((features[600:] @ weights > 0) == labels[600:]) == pytest.approx(0.5, abs=0.06)


def test_images_hold_bright_marks_and_darker_curves(drawn):
  images, labels, marks = drawn
  assert labels.mean() == pytest.approx(0.5, abs=0.05)
  nearest = np.rint(marks).astype(int)
  rows = np.arange(len(images))[:, None]
  assert images[rows, nearest[..., 0], nearest[..., 1]].min() > mini._BRIGHT
  away = np.hypot(*(np.indices((16, 16))[:, None, None] - marks.transpose(2, 0, 1)[..., None, None])).min(1)
  assert images[away > mini._MARK + 1].max() <= mini._BRIGHT


def test_an_image_is_a_function_of_seed_file_and_number(drawn):
  assert zlib.crc32(drawn[0][:3].tobytes()) == 2566803338
  for again, first in zip(mini.generate(0, 'test', 2, 5), drawn, strict=True):
    np.testing.assert_array_equal(again, first[2:5])
  for other in ((1, 'test'), (0, 'train')):
    assert (mini.generate(*other, 0, 1)[0] != drawn[0][0]).any()


def test_the_set_holds_the_images(tmp_path, drawn, change_entry):
  change_entry('pathfinder_mini', counts={'train': 9, 'validation': 2, 'test': 3})
  folder = prepare.prepare('pathfinder_mini', tmp_path, examples=4)
  assert storage.read_metadata(folder, '')['counts'] == {'train': 4, 'validation': 2, 'test': 3}
  test = examples_lib.open_split('pathfinder_mini', 'test', tmp_path).gather(np.arange(3))
  np.testing.assert_array_equal(test['inputs'], drawn[0][:3].reshape(3, -1))
  np.testing.assert_array_equal(test['label'], drawn[1][:3])
