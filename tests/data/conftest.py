"""Small prepared sets, written by the real builder."""

import numpy as np
import pytest

from data_prep import builders
from lra_spt.data import tasks


@pytest.fixture(scope='session')
def make_set(tmp_path_factory):
  """Writes a set of random bytes or tokens; returns (data_dir, {file: (list of inputs, labels)})."""

  def make(dataset, counts, shape, classes=10, longest=12, vocabulary=None, data_dir=None):
    rng = np.random.default_rng(0)
    data_dir = data_dir or tmp_path_factory.mktemp(dataset)
    content = {}
    for file, count in counts.items():
      shapes = [shape or (int(rng.integers(1, longest + 1)),) for _ in range(count)]
      high = 256 if vocabulary is None else len(vocabulary)
      inputs = [rng.integers(0, high, s).astype(np.uint8) for s in shapes]
      content[file] = inputs, rng.integers(0, classes, count).tolist()
    source = builders.Source(
      description='random',
      citation='none',
      files={file: (lambda file=file: zip(*content[file], strict=True)) for file in counts},
      counts=counts,
      classes=classes,
      shape=shape,
      origin='random numbers',
      verified=False,
      extra={} if vocabulary is None else {'vocabulary': list(vocabulary)},
    )
    builders.prepare_set(dataset, data_dir, {'counts': counts}, lambda work: source)
    return data_dir, content

  return make


@pytest.fixture(scope='session')
def gray_task():
  return tasks.Task(
    name='tiny_gray',
    dataset='tiny_rgb',
    inputs=tasks.Values(6, mean=(0.5,), std=(0.25,), grayscale=True),
    labels=tasks.Classes(10),
    splits='holdout',
  )


@pytest.fixture(scope='session')
def byte_task():
  return tasks.Task(
    name='tiny_bytes',
    dataset='tiny_bytes',
    inputs=tasks.Bytes(16),
    labels=tasks.Classes(2),
    splits='random',
    prepare_command='lra-spt demo',
  )


@pytest.fixture(scope='session')
def token_task():
  return tasks.Task(
    name='tiny_tokens',
    dataset='tiny_tokens',
    inputs=tasks.Tokens(12, vocabulary=8),
    labels=tasks.Classes(10),
  )


@pytest.fixture(scope='session')
def rgb_set(make_set):
  return make_set('tiny_rgb', {'train': 50, 'test': 7}, (6, 3))


@pytest.fixture(scope='session')
def byte_set(make_set):
  return make_set('tiny_bytes', {'train': 53}, (16,), classes=2)


@pytest.fixture(scope='session')
def token_set(make_set):
  return make_set('tiny_tokens', {'train': 20, 'validation': 5, 'test': 6}, None, vocabulary='abcdefgh')
