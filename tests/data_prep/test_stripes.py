"""The demo's generator makes images with equal grey levels, balanced labels, and the direction as label."""

import numpy as np

from data_prep.sources import stripes


def test_every_image_holds_the_same_grey_levels():
  levels = np.arange(64) * 255 // 63
  for index in range(20):
    image, _ = stripes.render(0, 'train', index)
    np.testing.assert_array_equal(np.sort(image), levels)


def test_an_image_is_a_function_of_seed_file_and_index():
  again = stripes.render(3, 'test', 5)
  np.testing.assert_array_equal(stripes.render(3, 'test', 5)[0], again[0])
  for other in ((4, 'test', 5), (3, 'train', 5), (3, 'test', 6)):
    assert (stripes.render(*other)[0] != again[0]).any()


def test_the_label_is_the_direction_in_which_neighbours_agree():
  # Neighbours differ least along the stripes. `steps` has the direction of each label.
  steps = {0: (0, 1), 1: (1, 1), 2: (1, 0), 3: (1, -1)}
  hits = []
  for index in range(300):
    image, label = stripes.render(1, 'train', index)
    image = image.reshape(8, 8).astype(float)
    roughness = {}
    for k, (dy, dx) in steps.items():
      a = image[: 8 - dy, max(0, -dx) : 8 - max(0, dx)]
      b = image[dy:, max(0, dx) : 8 - max(0, -dx)]
      roughness[k] = np.mean((a - b) ** 2) / (dy * dy + dx * dx) ** 0.5
    hits.append(min(roughness, key=roughness.get) == label)
  assert np.mean(hits) > 0.8


def test_labels_are_balanced():
  labels = [stripes.render(0, 'train', index)[1] for index in range(400)]
  assert np.bincount(labels, minlength=4).min() > 70
