"""The small sets: tasks of the Long Range Arena at 128 to 256 positions, for runs of minutes on a laptop.

As few training examples as make labels scarce, and test sets as large as the data allow. Sets of official
files train on the first of the official training examples and validate on the last.
"""

import numpy as np

from data_prep import builders, catalogue, finding
from data_prep.sources import bidmc, cifar10, listops, text
from lra_spt.data.examples import luminance
from lra_spt.errors import DataError

LISTOPS_LENGTH = 128
# At most 5 arguments and 126 tokens: a tree fits with its <eos>.
LISTOPS_SHAPE = listops.TreeShape(max_depth=10, max_args=5, min_length=15, max_length=127)
# Positions of a review with its <eos>.
TEXT_LENGTH = 256
# Pixels per side of the official images, and of ours.
OFFICIAL_SIDE, IMAGE_SIDE = 32, 12
# Samples of a window, 8.192 s, and of which a position has the mean: 256 positions at 31.25 Hz.
PULSE_WINDOW, PULSE_AVERAGED = 1024, 4


def prepare_listops(data_dir, *, examples: int | None = None, seed: int = 0, workers: int | None = None):
  """Generates ListOps trees of 16 to 126 tokens; the rest as `listops.prepare_listops`."""
  return listops.prepare_listops(
    data_dir,
    dataset='listops_mini',
    sizes=catalogue.SETS['listops_mini'].counts_for(examples),
    seed=seed,
    shape=LISTOPS_SHAPE,
    length=LISTOPS_LENGTH,
    workers=workers,
  )


def _ends(count: int, train: int, validation: int, what: str) -> dict[str, slice]:
  """The first `train` and the last `validation` of `count` examples, which are called `what`."""
  if count < train + validation:
    raise DataError(
      f'There are {count:,} {what}, but the small set takes {train:,} to train and {validation:,} others to '
      'validate; get the whole set.'
    )
  return {'train': slice(train), 'validation': slice(count - validation, count)}


def shrink(images: np.ndarray) -> np.ndarray:
  """Official images in gray at 12 x 12, row by row: uint8 [n, 1024, 3] -> uint8 [n, 144].

  A pixel is the mean luminance of its area, rounded half up; official pixels that it has parts of count by
  these parts.
  """
  gray_NHW = luminance(images).reshape(-1, OFFICIAL_SIDE, OFFICIAL_SIDE)
  # In thirds of an official pixel, an official one is 3 wide and one of ours 8.
  shares = np.repeat(np.eye(OFFICIAL_SIDE), 3, axis=0).reshape(IMAGE_SIDE, 8, OFFICIAL_SIDE).sum(1)
  sums = shares @ gray_NHW @ shares.T  # whole numbers
  return ((sums + 32) // 64).astype(np.uint8).reshape(-1, IMAGE_SIDE**2)


def prepare_image(
  data_dir, *, raw_dir=None, accept_unverified: bool = False, accept_incomplete: bool = False
):
  """Imports CIFAR-10 in gray at 12 x 12; arguments and errors as of `cifar10.prepare_cifar10`."""
  sizes = dict(catalogue.SETS['image_mini'].counts)

  def load(work):
    del work
    found = cifar10.read(raw_dir, accept_unverified, accept_incomplete)
    images, labels = found.files['train']
    what = f'training images in {found.path}'
    parts = _ends(len(labels), sizes['train'], sizes['validation'], what)
    files = {file: (shrink(images[part]), labels[part]) for file, part in parts.items()}
    images, labels = found.files['test']
    description = 'CIFAR-10 in gray, 12 x 12 pixels row by row: ten classes.'
    return cifar10.source(found, description, {**files, 'test': (shrink(images), labels)})

  return builders.prepare_set('image_mini', data_dir, {'from': 'files', 'sizes': sizes}, load)


def prepare_text(data_dir, *, raw_dir=None, accept_unverified: bool = False, accept_incomplete: bool = False):
  """Imports the first 255 characters of IMDb reviews; arguments and errors as of `text.prepare_text`.

  By the numbers of the reviews, the first of each class train and the last of each class validate, in equal
  halves. Reviews of a film have numbers next to each other, so films of the validation file are not in the
  training file (none of the official ones is, by the addresses that come with them), as none of the test file
  are; on the other hand 5,000 reviews are of 709 films only.
  """
  sizes = dict(catalogue.SETS['text_mini'].counts)
  request = {'from': 'files', 'sizes': sizes, 'length': TEXT_LENGTH, 'minimum': text.MINIMUM}

  def load(work):
    del work
    found = text.read(raw_dir, accept_unverified, accept_incomplete, TEXT_LENGTH)
    texts = {}
    for label in text.CLASSES:
      training = found.texts['train', label]
      what = f'training reviews of class {label} in {found.path}'
      parts = _ends(len(training), sizes['train'] // 2, sizes['validation'] // 2, what)
      texts |= {(file, label): training[part] for file, part in parts.items()}
      texts['test', label] = found.texts['test', label]
    return text.source(found, texts, text.MINIMUM)

  return builders.prepare_set('text_mini', data_dir, request, load)


def prepare_pulse(
  data_dir, *, raw_dir=None, accept_unverified: bool = False, accept_incomplete: bool = False
):
  """Imports BIDMC's heart rates with 8.192 s of PPG and ECG at 31.25 Hz, from PhysioNet's recordings alone.

  Windows begin every 3 s, as in `bidmc_hr`; a label is the mean of the 9 readings within. Arguments and
  errors as of `bidmc.prepare_bidmc`, but for the .ts files, whose windows do not tell their patients.
  """
  accept = {'accept_unverified': accept_unverified, 'accept_incomplete': accept_incomplete}
  cut = {'window': PULSE_WINDOW, 'stride': bidmc.STRIDE, 'averaged': PULSE_AVERAGED}
  official = {'HR': catalogue.SETS['pulse_mini'].counts['train']}

  def load(work):
    del work
    path, _ = finding.require('pulse_mini', raw_dir)
    recordings, verified = bidmc.read_recordings(path, **accept)
    return bidmc.source(path, recordings, verified, 'HR', **cut, official=official, accept=accept)

  return builders.prepare_set('pulse_mini', data_dir, {'from': 'PhysioNet', **cut}, load)
