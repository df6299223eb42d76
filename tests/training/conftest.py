"""Stages of the tiny config on one device, in this process."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache as cache

from lra_spt import config as config_lib
from lra_spt import experiment, parallel
from lra_spt.data import pipeline
from lra_spt.training.loop import Stage


@pytest.fixture(scope='module')
def _compiled_once(compilation_cache):
  """Programs that several stages have in common are compiled once."""
  names = [name.lower() for name in compilation_cache]
  before = {name: getattr(jax.config, name) for name in names}
  for name, value in compilation_cache.items():
    jax.config.update(name.lower(), value if name.endswith('DIR') else int(value))
  cache.reset_cache()
  yield
  for name, value in before.items():
    jax.config.update(name, value)
  cache.reset_cache()


@pytest.fixture
def make_stage(_compiled_once, tiny_data, repository):
  """Makes a Stage in a folder from the tiny config with overrides; runs on one device."""
  mesh = parallel.make_mesh(devices=jax.devices()[:1])

  def make(directory, name='finetune', objective=None, regime='masked', **overrides):
    overrides = {key.replace('__', '.'): value for key, value in overrides.items()}
    config = config_lib.load(f'{repository}/tests/tiny_config.py:regime={regime}', overrides)
    built = experiment.build(config, name)
    train, validation = (pipeline.open_split(built.task, split, tiny_data) for split in ('train', 'validation'))
    return Stage(
      name, built.model, objective or built.objective, built.spec, built.runtime, train=train,
      validation=validation, mesh=mesh, seed=0, stage_number=1, directory=directory)

  with jax.set_mesh(mesh):
    yield make
