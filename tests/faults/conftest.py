"""Watched processes, and the small set and the finished run that commands work on."""

import pytest

from tests.faults import chain, interposer, zygote


@pytest.fixture(scope='session')
def processes(tmp_path_factory, compilation_cache):
  """Starts watched processes on one CPU device; skips where nothing can be watched."""
  if reason := interposer.unavailable():
    pytest.skip(reason)
  started = zygote.Processes(tmp_path_factory.mktemp('printed'), compilation_cache | {'XLA_FLAGS': ''})
  yield started
  started.close()


@pytest.fixture(scope='session')
def undisturbed(processes, tmp_path_factory):
  """undisturbed(scene) -> (folder, what it made, its operations), once for each scene."""
  made = {}
  after = {chain.MASKED: chain.STRIPES, chain.SCRATCH: chain.STRIPES, chain.REPORT: chain.SCRATCH}

  def make(scene):
    if scene not in made:
      folder = tmp_path_factory.mktemp(scene.name.replace(' ', '-')) / 'scene'
      given = make(after[scene])[0] if scene in after else None
      made[scene] = (folder, *chain.undisturbed(processes, scene, folder, given))
    return made[scene]

  return make
