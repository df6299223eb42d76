"""Pathfinder at 16 x 16: following a curve gives the label; marks and brightness do not."""

import zlib

import numpy as np
import pytest
from scipy import ndimage

from data_prep import prepare
from data_prep.pathfinder import mini
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared


@pytest.fixture(scope='module')
def drawn():
  """The first 1,200 images, labels and marks of the test file."""
  return mini.generate(0, 'test', 0, 1200)


def followed(images, labels, marks):
  """Returns the share of images whose label is right about whether touching pixels join the marks."""
  right = []
  for image, label, (one, other) in zip(images, labels, np.rint(marks).astype(int), strict=True):
    parts, _ = ndimage.label(image > 0, np.ones((3, 3)))
    right.append((parts[*one] == parts[*other]) == label)
  return np.mean(right)


def features(images, marks):
  """Returns positions of the marks, brightness of the image and 1 for the bias, float64 [N, features]."""
  apart, middle = marks[:, 0] - marks[:, 1], marks.mean(1) - 7.5
  edge = np.minimum(marks, 15 - marks).min(2)
  columns = [
    np.hypot(*apart.T), (apart**2).sum(1), *np.abs(apart.T), np.hypot(*middle.T), *np.abs(middle.T),
    edge.min(1), edge.max(1), images.sum((1, 2)), (images > 60).sum((1, 2)), (images > 128).sum((1, 2)),
    np.ones(len(images)),
  ]  # fmt: skip
  columns = np.stack(columns, 1).astype(float)
  return columns / (columns.std(0) + columns.mean(0))


def between(images, marks):
  """Returns the lit share of the straight line between the marks, and 1 for the bias, float64 [N, 2]."""
  lit = []
  for image, (one, other) in zip(images, marks, strict=True):
    steps = int(2 * np.hypot(*(other - one))) + 1
    y, x = np.rint(np.linspace(one, other, steps)[3:-3]).astype(int).T
    lit.append((image[y, x] > 60).mean() if len(y) else 1)
  return np.stack([lit, np.ones(len(images))], 1)


def accuracy(known, labels, new, new_labels):
  """Accuracy of a linear classifier on new features."""
  weights = np.linalg.lstsq(known, 2.0 * labels - 1, rcond=None)[0]
  return np.mean((new @ weights > 0) == new_labels)


def test_following_a_curve_gives_the_label(drawn):
  assert followed(*drawn) > 0.95


def test_simple_features_do_not_give_the_label(drawn):
  """A linear classifier of positions and brightness stays near one half."""
  images, labels, marks = drawn
  known = features(images, marks)
  assert accuracy(known[:600], labels[:600], known[600:], labels[600:]) == pytest.approx(0.5, abs=0.06)


@pytest.mark.slow
def test_simple_features_do_not_give_the_labels_of_the_whole_set(capsys):
  """The classifier is fitted to all training images; the test prints the figures of docs/data.md."""
  (images, labels, marks), test = mini.generate(0, 'train', 0, 10_000), mini.generate(0, 'test', 0, 10_000)
  known, new = features(images, marks), features(test[0], test[2])
  each = [accuracy(known[:, [i, -1]], labels, new[:, [i, -1]], test[1]) for i in range(known.shape[1] - 1)]
  pixels, new_pixels = (
    np.c_[part.reshape(len(part), -1) / 255, np.ones(len(part))] for part in (images, test[0])
  )
  together, by_pixels = accuracy(known, labels, new, test[1]), accuracy(pixels, labels, new_pixels, test[1])
  by_line = accuracy(between(images, marks), labels, between(test[0], test[2]), test[1])
  with capsys.disabled():
    print(
      f'\n{len(each)} features, each {min(each):.1%} to {max(each):.1%}, together {together:.1%}; pixels '
      f'{by_pixels:.1%}; the line between the marks {by_line:.1%}; followed {followed(*test):.1%}'
    )
  assert max(*each, together, by_pixels) < 0.53
  assert by_line < 0.8 < 0.97 < followed(*test)


def test_images_hold_bright_marks_and_darker_curves(drawn):
  images, labels, marks = drawn
  assert labels.mean() == pytest.approx(0.5, abs=0.05)
  nearest = np.rint(marks).astype(int)
  rows = np.arange(len(images))[:, None]
  assert images[rows, nearest[..., 0], nearest[..., 1]].min() > mini._BRIGHT
  away = np.hypot(*(np.indices((16, 16))[:, None, None] - marks.transpose(2, 0, 1)[..., None, None])).min(1)
  assert images[away > mini._MARK + 1].max() <= mini._BRIGHT


def test_an_image_is_a_function_of_seed_file_and_number(drawn):
  assert zlib.crc32(drawn[0][:3].tobytes()) == 2608950189
  for again, first in zip(mini.generate(0, 'test', 2, 5), drawn, strict=True):
    np.testing.assert_array_equal(again, first[2:5])
  for other in ((1, 'test'), (0, 'train')):
    assert (mini.generate(*other, 0, 1)[0] != drawn[0][0]).any()


def test_the_set_holds_the_images(tmp_path, drawn, change_entry):
  change_entry('pathfinder_mini', counts={'train': 9, 'validation': 2, 'test': 3})
  folder = prepare.prepare('pathfinder_mini', tmp_path, examples=4)
  assert prepared.read_metadata(folder, '')['counts'] == {'train': 4, 'validation': 2, 'test': 3}
  test = examples_lib.open_split('pathfinder_mini', 'test', tmp_path).gather(np.arange(3))
  np.testing.assert_array_equal(test['inputs'], drawn[0][:3].reshape(3, -1))
  np.testing.assert_array_equal(test['label'], drawn[1][:3])
