"""Every importer opens files so that pipes and devices, too large files and endless rows are refused."""

import io
import os
import socket

import numpy as np
import pytest

from data_prep import raw_files
from lra_spt import errors


@pytest.mark.parametrize('most', [None, 10])
def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path, most, monkeypatch):
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'link').symlink_to('pipe')
  with socket.socket(socket.AF_UNIX) as server:
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    server.bind('socket')
    for path, kind in (
      (tmp_path / 'pipe', 'a pipe'),
      (tmp_path / 'link', 'a pipe'),
      (tmp_path / 'socket', 'a socket'),
      ('/dev/zero', 'a device'),
    ):
      with pytest.raises(errors.DataError, match=f'^{path} is {kind} instead of a plain file; put the file'):
        with raw_files.opened(path, most):
          pass


def test_a_file_that_becomes_a_pipe_is_refused(tmp_path, monkeypatch):
  path, stat = tmp_path / 'x', os.stat
  path.write_bytes(b'1')
  before = stat(path)
  path.unlink()
  os.mkfifo(path)
  monkeypatch.setattr(os, 'stat', lambda file, **options: before if file == path else stat(file, **options))
  with pytest.raises(errors.DataError, match='is a pipe instead of a plain file'):
    raw_files.read(path, 10)


def test_what_cannot_be_opened_is_named(tmp_path):
  with pytest.raises(errors.FileAccessError, match=f'^{tmp_path} could not be read: it is a folder'):
    raw_files.read(tmp_path, 10)
  with pytest.raises(errors.FileAccessError, match='none could not be read: it does not exist'):
    raw_files.read(tmp_path / 'none', 10)
  (tmp_path / 'a\nb\x1b[2J').write_bytes(b'')
  with pytest.raises(
    errors.DataError, match=rf"^{tmp_path} holds a file called 'a b \[2J', which is not a valid"
  ):
    raw_files.read(tmp_path / 'a\nb\x1b[2J', 10)


def test_sizes_are_limited_before_anything_is_read(tmp_path):
  with (tmp_path / 'x').open('wb') as file:
    file.truncate(2**40)  # takes no space on the disk
  with pytest.raises(errors.DataError, match='x has 1,099,511,627,776 bytes, but such a file has at most 10'):
    raw_files.read(tmp_path / 'x', 10)
  (tmp_path / 'y').write_bytes(b'0123456789')
  assert raw_files.read(tmp_path / 'y', 10) == b'0123456789'


def test_rows_are_limited():
  assert list(raw_files.rows(io.BytesIO(b'1\n\n234\n5'), 'x', 4)) == [b'1\n', b'\n', b'234\n', b'5']
  with pytest.raises(errors.DataError, match='^x, row 3, has more than 3 bytes; get the file again'):
    list(raw_files.rows(io.BytesIO(b'1\n\n234\n5'), 'x', 3))


def test_arrays_are_measured_by_their_headers():
  for array in (np.zeros((3, 4), np.int16), np.array(['ab']), np.zeros((0, 5)), np.array(3)):
    np.save(file := io.BytesIO(), array)
    file.seek(0)
    assert raw_files.array_size(file) == array.nbytes
    assert len(file.read()) == array.nbytes
  np.save(file := io.BytesIO(), np.array([None]))
  file.seek(0)
  with pytest.raises(ValueError, match='Object arrays'):
    raw_files.array_size(file)


def test_messages_stay_short_and_on_one_line():
  assert raw_files.shown('a\tb\n\x1b[2J') == 'a b  [2J'
  assert raw_files.shown('x' * 3_000_000) == 'x' * 200 + '...'
