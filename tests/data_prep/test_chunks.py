"""Chunks are complete or absent, made once, and the same for any processes, even if some are killed."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data_prep import chunks
from lra_spt import errors

# The text of a module that the processes import.
MAKER = """
import os, pathlib, signal, time
import numpy as np

def squares(start, stop):
  return {'squares': np.arange(start, stop) ** 2, 'process': np.asarray(os.getpid())}

def slow(folder, start, stop):
  if start == 4:
    pathlib.Path(folder, 'begun').touch()
    time.sleep(600)
  return squares(start, stop)

def refuse(start, stop):
  raise ValueError('row 4 is damaged')

def die(start, stop):
  if start == 4:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
  return squares(start, stop)
"""
SCRIPT = """
import functools, pathlib, sys
from data_prep import chunks
from lra_spt import errors
import maker

if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[1])
  chunks.make_chunks(functools.partial(maker.slow, folder), chunks.divide(folder, 8, size=2), workers=2)
"""


@pytest.fixture
def maker(tmp_path, monkeypatch):
  """The module `maker`, which local processes can import too."""
  (tmp_path / 'modules').mkdir()
  (tmp_path / 'modules' / 'maker.py').write_text(MAKER)
  monkeypatch.syspath_prepend(tmp_path / 'modules')
  monkeypatch.delitem(sys.modules, 'maker', raising=False)
  import maker

  yield maker
  del sys.modules['maker']


@pytest.fixture
def folder(tmp_path):
  return chunks.open_folder(tmp_path / 'work', {'seed': 0})


def squares_of(parts):
  return np.concatenate([chunks.read(part)['squares'] for part in parts]).tolist()


def test_chunks_cover_everything_once(folder):
  parts = chunks.divide(folder, 10, size=4)
  assert [(part.start, part.stop) for part in parts] == [(0, 4), (4, 8), (8, 10)]
  assert parts[1].path == folder / '000000004-000000008.npz'
  assert chunks.divide(folder, 10, start=4, size=4) == parts[1:]


def test_chunks_that_are_there_are_not_made_again(folder):
  made = []

  def make(start, stop):
    made.append(start)
    if start == 8 and len(made) == 3:
      raise KeyboardInterrupt
    return {'squares': np.arange(start, stop) ** 2}

  parts = chunks.divide(folder, 10, size=4)
  with pytest.raises(KeyboardInterrupt):
    chunks.make_chunks(make, parts, workers=1)
  assert sorted(path.name for path in folder.iterdir()) == [part.path.name for part in parts[:2]]
  chunks.make_chunks(make, parts, workers=1)
  chunks.make_chunks(make, parts, workers=1)
  assert made == [0, 4, 8, 8]
  assert squares_of(parts) == [n * n for n in range(10)]


def half(content):
  return content[: len(content) // 2]


def flipped(content):
  return content[:80] + bytes([content[80] ^ 255]) + content[81:]


@pytest.mark.parametrize('damage', [half, flipped, lambda content: b''])
def test_damaged_chunks_are_made_again(folder, maker, damage):
  parts = chunks.divide(folder, 10, size=4)
  chunks.make_chunks(maker.squares, parts, workers=1)
  parts[1].path.write_bytes(damage(parts[1].path.read_bytes()))
  with pytest.raises(ValueError, match=f'{parts[1].path} is missing or damaged; run the same command'):
    chunks.read(parts[1])
  times = [part.path.stat().st_mtime_ns for part in (parts[0], parts[2])]
  chunks.make_chunks(maker.squares, parts, workers=1)
  assert squares_of(parts) == [n * n for n in range(10)]
  assert [part.path.stat().st_mtime_ns for part in (parts[0], parts[2])] == times


def test_a_missing_chunk_is_named(folder):
  with pytest.raises(ValueError, match='000000000-000000004.npz is missing'):
    chunks.read(chunks.divide(folder, 4, size=4)[0])


def test_a_chunk_that_cannot_be_written_leaves_nothing(folder, maker, monkeypatch):
  def full(*arguments, **settings):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(np.lib.format, 'write_array', full)
  with pytest.raises(OSError, match='No space left'):
    chunks.make_chunks(maker.squares, chunks.divide(folder, 4, size=4), workers=1)
  assert not list(folder.iterdir())


def test_chunks_of_other_settings_are_removed(tmp_path, folder, maker):
  parts = chunks.divide(folder, 4, size=4)
  chunks.make_chunks(maker.squares, parts, workers=1)
  assert chunks.open_folder(tmp_path / 'work', {'seed': 0}) == folder
  assert squares_of(parts) == [0, 1, 4, 9]
  stray = tmp_path / 'work' / '.DS_Store'  # not a folder of chunks, so it stays
  stray.touch()
  other = chunks.open_folder(tmp_path / 'work', {'seed': 1})
  assert sorted((tmp_path / 'work').iterdir()) == sorted([other, stray])


def test_processes_share_the_work_and_resume_each_others(folder, maker):
  parts = chunks.divide(folder, 40, size=2)
  chunks.make_chunks(maker.squares, parts[:5], workers=1)
  chunks.make_chunks(maker.squares, parts, workers=2)
  assert squares_of(parts) == [n * n for n in range(40)]
  makers = [int(chunks.read(part)['process']) for part in parts]
  assert makers[:5] == [os.getpid()] * 5
  assert os.getpid() not in makers[5:]


def test_errors_of_a_process_arrive(folder, maker):
  with pytest.raises(ValueError, match='row 4 is damaged'):
    chunks.make_chunks(maker.refuse, chunks.divide(folder, 8, size=2), workers=2)


def test_a_process_that_dies_is_reported(folder, maker):
  parts = chunks.divide(folder, 8, size=2)
  with pytest.raises(errors.UserError, match='One of 2 processes.*died.*run the same command again'):
    chunks.make_chunks(maker.die, parts, workers=2)
  assert squares_of(parts[:2]) == [0, 1, 4, 9]
  chunks.make_chunks(maker.squares, parts, workers=1)
  assert squares_of(parts) == [n * n for n in range(8)]


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_leaves_no_process_and_is_resumed(folder, maker, tmp_path, repository, how):
  (tmp_path / 'modules' / 'script.py').write_text(SCRIPT)
  environment = {**os.environ, 'PYTHONPATH': str(repository)}
  run = subprocess.Popen(
    [sys.executable, tmp_path / 'modules' / 'script.py', folder],
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )
  parts = chunks.divide(folder, 8, size=2)
  others = [part for part in parts if part.start != 4]
  try:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in (folder / 'begun', *(part.path for part in others))):
      assert run.poll() is None, run.communicate()[0]
      assert time.monotonic() < deadline
      time.sleep(0.05)
    # Now one process works and one waits. Ctrl-C reaches all of them.
    (os.kill if how == signal.SIGKILL else os.killpg)(run.pid, how)
    # All processes hold the other end of the pipe, so this returns when the last one has ended.
    message, _ = run.communicate(timeout=30)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(run.pid, signal.SIGKILL)
  assert 'SpawnProcess' not in message
  made = [part.path.stat().st_mtime_ns for part in others]
  assert not parts[2].path.exists()
  chunks.make_chunks(maker.squares, parts, workers=1)
  assert squares_of(parts) == [n * n for n in range(8)]
  assert [part.path.stat().st_mtime_ns for part in others] == made


def test_wrong_runners_are_named(folder, maker, monkeypatch):
  make = functools.partial(chunks.make_chunks, maker.squares, chunks.divide(folder, 4, size=4))
  with pytest.raises(ValueError, match="no runner 'spark'; choose one of local, beam"):
    make(runner='spark')
  with pytest.raises(ValueError, match="--runner=FlinkRunner' have no meaning for runner 'local'"):
    make(beam_options='--runner=FlinkRunner')
  monkeypatch.setitem(sys.modules, 'apache_beam', None)
  with pytest.raises(ValueError, match=r"pip install 'lra_spt\[beam\]', or choose 'local'"):
    make(runner='beam')
  assert not list(folder.iterdir())
