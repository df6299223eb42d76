"""Checkpoints are saved, kept, deleted and restored, and damaged ones are refused."""

import contextlib
import errno
import re
import resource
import shutil
import sys
import time
import types

import jax
import pytest
from orbax.checkpoint import v1 as ocp

from lra_spt import files
from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, FileAccessError
from lra_spt.training.checkpoints import store as checkpoints_lib
from lra_spt.training.checkpoints.store import Checkpoints, verify
from tests.training.checkpoint_states import abstract, equal, make_state

pytestmark = [
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),  # of Orbax
  pytest.mark.usefixtures('collected'),
]


@pytest.mark.parametrize('fsdp', [1, 4])
def test_restores_on_another_mesh(open_checkpoints, tmp_path, fsdp):
  state = make_state(3, sharding.make_mesh(fsdp=8))
  open_checkpoints(tmp_path).save_latest(state)
  other = make_state(0, sharding.make_mesh(fsdp=fsdp))
  loaded = open_checkpoints(tmp_path).load_latest(abstract(other))
  assert equal(loaded, state)
  assert jax.tree.map(lambda x: x.sharding, loaded) == jax.tree.map(lambda x: x.sharding, other)


def test_keeps_two_latest_and_one_best(open_checkpoints, tmp_path):
  mesh = sharding.make_mesh()
  states = {step: make_state(step, mesh) for step in (1, 2, 3)}
  checkpoints = open_checkpoints(tmp_path)
  assert checkpoints.latest_step() is None
  checkpoints.save_best(states[1])
  for step in (1, 2, 3):
    checkpoints.save_latest(states[step])
  checkpoints.save_best(states[2])
  checkpoints.save_best(states[2])  # again, after a restart
  folders = {(path.parent.name, path.name) for path in tmp_path.glob('*/*')}
  assert folders == {('latest', '2'), ('latest', '3'), ('best', '2')}
  assert checkpoints.latest_step() == 3
  best = checkpoints.load_best(abstract(states[1]))
  assert equal(best, {key: states[2][key] for key in ('step', 'params', 'stats')})


@pytest.mark.parametrize('part, split', [(checkpoints_lib.PART, False), (2048, True), (2049, False)])
def test_devices_that_hold_the_same_share_only_large_arrays(
  open_checkpoints, tmp_path, monkeypatch, part, split
):
  monkeypatch.setattr(checkpoints_lib, 'PART', part)
  state = make_state(3, sharding.make_mesh())
  assert state['params']['encoder']['kernel'].nbytes == jax.device_count() * 2048
  open_checkpoints(tmp_path).save_latest(state)
  with contextlib.closing(ocp.training.Checkpointer(tmp_path / 'latest')) as reader:
    params, stats = (reader.metadata(3).metadata[key] for key in ('params', 'stats'))
  written = params['encoder']['kernel'].storage_metadata.write_shape
  assert written == ((8, 64) if split else (64, 64))
  assert stats['mean'].storage_metadata.write_shape == (8,)


def test_the_folder_of_a_killed_save_is_removed(open_checkpoints, saved, tmp_path):
  folder = tmp_path / 'copy'
  shutil.copytree(saved[0], folder)
  (half,) = (folder / 'latest').iterdir()
  shutil.copytree(half, folder / 'latest' / '9.orbax-checkpoint-tmp')
  (folder / 'latest' / '9.orbax-checkpoint-tmp' / 'commit_success.txt').unlink(missing_ok=True)
  checkpoints = open_checkpoints(folder)
  assert checkpoints.latest_step() == 5
  assert equal(checkpoints.load_latest(abstract(saved[1])), saved[1])
  assert [path.name for path in (folder / 'latest').iterdir()] == ['5']


@pytest.fixture
def largest_file():
  """Limits the size of the files that this process writes, as `ulimit -f` does."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_for_writers(folder):
  """Waits until threads of TensorStore have ended the writes of a save that failed."""
  before, actual = None, sorted(folder.rglob('*'))
  while actual != before:
    time.sleep(0.5)
    before, actual = actual, sorted(folder.rglob('*'))


def test_a_save_that_fails_is_a_sentence(open_checkpoints, largest_file, tmp_path, capfd):
  """TensorStore would raise its own errors, and threads of Orbax would print tracebacks."""
  states = {step: make_state(step, sharding.make_mesh()) for step in (5, 6, 7)}
  checkpoints = open_checkpoints(tmp_path)
  checkpoints.save_latest(states[5])
  largest_file(8192)
  with pytest.raises(FileAccessError, match='6 could not be written: the file would be larger') as error:
    checkpoints.save_latest(states[6])
  largest_file(resource.RLIM_INFINITY)
  assert str(error.value).startswith(f'{tmp_path}/latest/6')
  assert str(error.value).endswith('raise the limit (it takes about 1 MB).')
  checkpoints.close()
  assert capfd.readouterr().err == ''
  wait_for_writers(tmp_path / 'latest')
  checkpoints = open_checkpoints(tmp_path)
  assert equal(checkpoints.load_latest(abstract(states[5])), states[5])
  checkpoints.save_latest(states[7])
  assert {path.name for path in (tmp_path / 'latest').iterdir()} == {'5', '7'}


def test_the_one_before_takes_the_place_of_a_damaged_latest(open_checkpoints, tmp_path, capsys):
  states = {step: make_state(step, sharding.make_mesh()) for step in (5, 6, 8)}
  with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
    checkpoints.save_latest(states[5])
    checkpoints.save_latest(states[8])
  for path in (tmp_path / 'latest' / '8').rglob('d/*'):
    path.write_bytes(bytes(x ^ 1 for x in path.read_bytes()))
  checkpoints = open_checkpoints(tmp_path)
  assert equal(checkpoints.load_latest(abstract(states[8])), states[5])
  printed = capsys.readouterr().err
  assert re.fullmatch(r'the checkpoint \S+/latest/8 .*; training resumes from step 5\.\n', printed)
  with pytest.raises(
    CheckpointError, match=r'latest/8 .*; step 5 is intact, and training resumes from there'
  ):
    verify(tmp_path / 'latest')
  checkpoints.save_latest(states[6])  # on the way to 8 again
  assert {path.name for path in (tmp_path / 'latest').iterdir()} == {'5', '6'}
  assert equal(checkpoints.load_latest(abstract(states[8])), states[6])
  for path in (tmp_path / 'latest').rglob('d/*'):
    path.write_bytes(b'')
  with pytest.raises(CheckpointError, match=r'latest/6 cannot be read .*; restore the folder'):
    open_checkpoints(tmp_path).load_latest(abstract(states[8]))


def test_the_one_before_stays_until_the_new_one_is_on_the_disk(open_checkpoints, tmp_path, monkeypatch):
  states = {step: make_state(step, sharding.make_mesh()) for step in (5, 6)}
  checkpoints = open_checkpoints(tmp_path)
  checkpoints.save_latest(states[5])

  def fail(folder):
    assert folder == tmp_path / 'latest' / '6'
    raise OSError(errno.EIO, 'Input/output error')

  monkeypatch.setattr(files, 'sync', fail)
  with pytest.raises(FileAccessError, match='Input/output error'):
    checkpoints.save_latest(states[6])
  assert {path.name for path in (tmp_path / 'latest').iterdir()} == {'5', '6'}


def test_the_best_before_stays_until_latest_records_the_new_one(open_checkpoints, largest_file, tmp_path):
  """A run may end between the saves of `best` and `latest`, and again while it repeats the save of `best`."""
  states = {step: make_state(step, sharding.make_mesh()) for step in (4, 8)}
  best = {step: {key: state[key] for key in checkpoints_lib.BEST_KEYS} for step, state in states.items()}
  checkpoints = open_checkpoints(tmp_path)
  checkpoints.save_best(states[4])
  checkpoints.save_latest(states[4])
  checkpoints.save_best(states[8])
  assert {path.name for path in (tmp_path / 'best').iterdir()} == {'4', '8'}

  checkpoints = open_checkpoints(tmp_path)
  checkpoints.keep_best(4)
  assert equal(checkpoints.load_best(abstract(states[4])), best[4])
  checkpoints.save_best(states[8])
  largest_file(8192)
  with pytest.raises(FileAccessError, match='best/8 could not be written'):
    checkpoints.save_best(states[8])  # Orbax deletes the old step 8 first
  largest_file(resource.RLIM_INFINITY)
  wait_for_writers(tmp_path / 'best')

  checkpoints = open_checkpoints(tmp_path)
  checkpoints.keep_best(4)
  assert equal(checkpoints.load_best(abstract(states[4])), best[4])
  checkpoints.save_best(states[8])
  checkpoints.save_latest(states[8])
  assert [path.name for path in (tmp_path / 'best').iterdir()] == ['8']
  assert equal(checkpoints.load_best(abstract(states[8])), best[8])


def test_a_later_best_takes_the_place_of_one_that_is_gone(open_checkpoints, tmp_path):
  """The latest state, which recorded the best step, may be damaged."""
  checkpoints = open_checkpoints(tmp_path)
  with pytest.raises(CheckpointError, match='best holds no checkpoint of the best validation, although'):
    checkpoints.keep_best(4)
  checkpoints.save_best(make_state(8, sharding.make_mesh()))
  checkpoints.keep_best(4)
  checkpoints.save_latest(make_state(6, sharding.make_mesh()))
  assert [path.name for path in (tmp_path / 'best').iterdir()] == ['8']


def test_late_reports_of_a_failed_save_are_not_printed(monkeypatch):
  """TensorStore reports such a save to an event loop that is closed. Other errors are still printed."""
  shown = []
  monkeypatch.setattr(sys, 'unraisablehook', shown.append)
  checkpoints_lib._quieten_threads.cache_clear()
  checkpoints_lib._quieten_threads()
  late, other = (
    types.SimpleNamespace(exc_value=RuntimeError(text)) for text in ('Event loop is closed', 'something else')
  )
  for unraisable in (late, other):
    sys.unraisablehook(unraisable)
  assert shown == [other]


def test_missing(open_checkpoints, tmp_path):
  state = abstract(make_state(0, sharding.make_mesh()))
  with pytest.raises(CheckpointError, match=rf'{tmp_path}/best holds no complete checkpoint; run the stage'):
    open_checkpoints(tmp_path).load_best(state)
