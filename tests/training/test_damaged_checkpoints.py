"""Damaged checkpoints are refused with a reason, and every flipped bit changes a digest."""

import contextlib
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError
from lra_spt.training.checkpoints.digests import digests
from lra_spt.training.checkpoints.store import Checkpoints, verify
from tests.training.checkpoint_states import abstract, equal, make_state

pytestmark = [
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),  # of Orbax
  pytest.mark.usefixtures('collected'),
]


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
