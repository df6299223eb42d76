"""The run `undisturbed` as users of the API load it."""

import pytest

import lra_spt


@pytest.fixture(scope='module')
def config(repository, tiny_data):
  """The config of `undisturbed`; loading it registers its task."""
  overrides = {'runtime.data_dir': str(tiny_data)}
  return lra_spt.load_config(f'{repository}/tests/tiny_config.py:regime=masked', overrides)


@pytest.fixture(scope='module')
def finetuned(config, undisturbed):
  return lra_spt.load_run(undisturbed)
