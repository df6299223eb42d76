"""Checkpoints are saved, kept, deleted and restored, and damaged ones are refused."""

import contextlib
import errno
import gc
import pathlib
import re
import resource
import shutil
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from lra_spt import files
from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, FileAccessError
from lra_spt.training.checkpoints import store as checkpoints_lib
from lra_spt.training.checkpoints.digests import digests
from lra_spt.training.checkpoints.store import Checkpoints, verify

pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # of Orbax


@pytest.fixture(autouse=True)
def collected():
  """Collects the coroutines of a failed restore in the same test, so that no later test reports them."""
  yield
  gc.collect()


def make_state(step, mesh):
  """A small state of every kind of leaf, laid out on the mesh."""
  rng = np.random.default_rng(step)
  state = {
    'step': np.int32(step),
    'params': {
      'encoder': {'kernel': rng.normal(size=(64, 64)).astype(np.float32)},
      'head': {'bias': np.ones(3, np.float32)},
    },
    'stats': {'mean': rng.normal(size=8).astype(np.float32)},
    'opt': {'count': np.int32(7)},
    'control': {'best': np.float32(-np.inf)},
  }
  return jax.device_put(state, sharding.state_shardings(state, mesh))


def abstract(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def equal(a, b):
  return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b))


@pytest.fixture
def open_checkpoints():
  opened = []

  def make(directory):
    opened.append(Checkpoints(directory))
    return opened[-1]

  yield make
  for checkpoints in opened:
    checkpoints.close()


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """(a folder with a saved state, the state); tests that change the folder copy it first."""
  folder, state = tmp_path_factory.mktemp('saved'), make_state(5, sharding.make_mesh())
  checkpoints = Checkpoints(folder)
  checkpoints.save_latest(state)
  checkpoints.close()
  return folder, state


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
  kept = {(path.parent.name, path.name) for path in tmp_path.glob('*/*')}
  assert kept == {('latest', '2'), ('latest', '3'), ('best', '2')}
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
  before, found = None, sorted(folder.rglob('*'))
  while found != before:
    time.sleep(0.5)
    before, found = found, sorted(folder.rglob('*'))


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


def truncate(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite(path):
  path.write_bytes(b'\xff' * path.stat().st_size)


@pytest.mark.parametrize('damage', [truncate, overwrite])
@pytest.mark.parametrize('pattern', ['state/d/*', 'state/manifest.ocdbt', 'state/_METADATA', '*'])
def test_damage_is_one_sentence(open_checkpoints, saved, tmp_path, damage, pattern):
  """Whatever file is damaged, the state comes back whole or not at all, and nothing is changed on disk."""
  folder = tmp_path / 'stage' / 'checkpoints'
  shutil.copytree(saved[0], folder)
  damaged = [path for path in (folder / 'latest' / '5').rglob('*') if path.is_file() and path.match(pattern)]
  assert damaged
  for path in damaged:
    damage(path)
  before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
  with pytest.raises(CheckpointError, match='cannot be read') as error:
    open_checkpoints(folder).load_latest(abstract(saved[1]))
  assert str(folder / 'latest' / '5') in str(error.value)
  assert f'delete {tmp_path / "stage"} to train that stage again' in str(error.value)
  assert '\n' not in str(error.value)
  assert {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()} == before


def test_a_flipped_bit_is_refused_or_harmless(saved, tmp_path):
  """Without digests, Orbax loads most of these files without an error."""
  folder, rng, refused = tmp_path / 'stage' / 'checkpoints', np.random.default_rng(0), 0
  shutil.copytree(saved[0], folder)
  files = [path for path in (folder / 'latest' / '5').rglob('*') if path.is_file()]
  checkpoints = Checkpoints(folder)
  for k in range(60):
    path = files[k % len(files)]
    whole = path.read_bytes()
    content = bytearray(whole)
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)
    try:
      loaded = checkpoints.load_latest(abstract(saved[1]))
    except CheckpointError:
      refused += 1
    else:
      assert equal(loaded, saved[1]), path
    path.write_bytes(whole)
  assert refused > 10
  checkpoints.close()


@pytest.mark.parametrize(
  'name, damage, words',
  [
    ('_METADATA', truncate, r'state/_METADATA is damaged: '),
    ('_METADATA', pathlib.Path.unlink, r'state/_METADATA is missing'),
    ('d/*', truncate, r'ValueError: .*(OUT_OF_RANGE|byte range .* is not valid)'),
    ('ocdbt.process_0/d/*', truncate, r'ValueError: .*(byte range .* is not valid|expected)'),
  ],
)
def test_the_reason_and_the_file_are_named(saved, tmp_path, name, damage, words):
  folder = tmp_path / 'stage' / 'checkpoints'
  shutil.copytree(saved[0], folder)
  for path in (folder / 'latest' / '5' / 'state').glob(name):
    damage(path)
  for read in (
    lambda: verify(folder / 'latest'),
    lambda: contextlib.closing(Checkpoints(folder)).__enter__().load_latest(abstract(saved[1])),
  ):
    with pytest.raises(CheckpointError, match=rf'latest/5 cannot be read \({words}.*\); rest') as error:
      read()
    assert len(str(error.value)) < 900
    assert error.value.__cause__ is not None


@pytest.mark.parametrize(
  'kernel, head, words',
  [
    (
      np.zeros((3, 64, 64), np.float32),
      True,
      r'params/\S+ is float32 \[.*\] there and float32 \[3, .*\] in t',
    ),
    (
      jnp.zeros((64, 64), jnp.bfloat16),
      True,
      r'params/\S+ is float32 \[.*\] there and bfloat16 \[.*\] in the',
    ),
    ({'more': np.zeros(3, np.float32)}, True, r'it has no params/\S+/more'),
    (None, False, r'.*params/head'),
  ],
)
def test_the_first_difference_to_the_model_is_named(open_checkpoints, saved, kernel, head, words):
  params = saved[1]['params'] if kernel is None else saved[1]['params'] | {'encoder': {'kernel': kernel}}
  params = params if head else {'encoder': params['encoder']}
  params = jax.device_put(params, sharding.state_shardings(params, sharding.make_mesh()))
  with pytest.raises(CheckpointError, match=rf'latest/5 does not fit this model \({words}.*\); restore'):
    open_checkpoints(saved[0]).load_latest(abstract(saved[1] | {'params': params}))


def test_a_checkpoint_is_verified_without_its_model(saved, tmp_path):
  assert verify(saved[0] / 'latest') == 5
  assert verify(tmp_path / 'latest') is None
  folder = tmp_path / 'stage'
  shutil.copytree(saved[0], folder)
  (path,) = (folder / 'latest' / '5' / 'state' / 'ocdbt.process_0' / 'd').iterdir()
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1  # in the largest array
  path.write_bytes(content)
  with pytest.raises(CheckpointError, match='params/encoder/kernel|cannot be read'):
    verify(folder / 'latest')


def test_every_flipped_bit_changes_the_digest():
  rng = np.random.default_rng(0)
  arrays = {
    'float': rng.normal(size=(3, 5)).astype(np.float32),
    'half': np.asarray(jnp.asarray(rng.normal(size=7), jnp.bfloat16)),
    'bytes': rng.integers(0, 256, (2, 4)).astype(np.uint8),
    'truth': np.array([True, False]),
    'complex': (rng.normal(size=3) + 1j * rng.normal(size=3)).astype(np.complex64),
    'number': np.int32(5),
  }
  for name, array in arrays.items():
    copies = [array]
    for byte in range(array.nbytes):
      for bit in range(1 if array.dtype == bool else 8):
        content = bytearray(array.tobytes())
        content[byte] ^= 1 << bit
        copies.append(np.frombuffer(bytes(content), array.dtype).reshape(array.shape))
    first, *others = np.asarray(digests(copies)).tolist()
    assert first not in others, name
  assert digests([arrays['float']]) != digests([arrays['float'][::-1]])


def test_digests_are_those_of_any_sharding():
  state = make_state(3, sharding.make_mesh(devices=jax.devices()[:1]))
  np.testing.assert_array_equal(digests(state), digests(make_state(3, sharding.make_mesh(data=2, fsdp=4))))
  np.testing.assert_array_equal(digests(state), digests(jax.tree.map(np.asarray, state)))
