"""Small tasks and their prepared sets."""

import pytest

from lra_spt.data import tasks


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
    name='tiny_tokens', dataset='tiny_tokens', inputs=tasks.Tokens(12, vocabulary=8), labels=tasks.Classes(10)
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
