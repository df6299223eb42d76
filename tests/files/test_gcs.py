"""Paths, leases and prepared sets in a bucket, on a stand-in for Google Cloud Storage (tests/fake_gcs.py)."""

import itertools
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lra_spt
from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared
from lra_spt.errors import ConfigError, DataError, FileAccessError, MissingFile
from lra_spt.files import gcs as buckets
from lra_spt.files import leases

TINY = pathlib.Path(__file__).parents[1] / 'tiny_config.py'


def test_paths(gcs, bucket):
  for name in ('a/b/one.json', 'a/b/two.txt', 'a/c-1/one.json', 'ab/one.json'):
    gcs.put(bucket, name, name.encode())
  folder = files.place(f'gs://{bucket}/a')
  assert str(folder / 'b' / 'one.json') == f'gs://{bucket}/a/b/one.json'
  assert (folder.exists(), folder.is_dir(), folder.is_file()) == (True, True, False)
  one = folder / 'b' / 'one.json'
  assert (one.exists(), one.is_dir(), one.is_file(), one.stat().st_size) == (True, False, True, 12)
  assert not (folder / 'b' / 'one').exists()
  assert sorted(path.name for path in folder.iterdir()) == ['b', 'c-1']
  assert [path.parent.name for path in sorted(folder.rglob('one.json'))] == ['b', 'c-1']
  assert list(folder.rglob('c-*')) == [folder / 'c-1']
  assert list(folder.glob('*/one.json')) == [folder / 'b' / 'one.json', folder / 'c-1' / 'one.json']
  assert list(files.place(f'gs://{bucket}').glob('*')) == [folder, files.place(f'gs://{bucket}/ab')]
  assert one.read_text() == one.open().read() == 'a/b/one.json'
  (folder / 'b').rmtree()
  assert gcs.names(bucket) == ['a/c-1/one.json', 'ab/one.json']
  with pytest.raises(FileNotFoundError, match='one.json'):
    one.read_bytes()


@pytest.mark.parametrize('path', ['s3://bucket/x', 'gs:///x', 'gs://B/x', 'file:///x'])
def test_other_addresses(path):
  with pytest.raises(ConfigError, match='gs://BUCKET/FOLDER'):
    files.place(path)


@pytest.mark.parametrize(
  'command',
  [
    ['study', 'configs/studies/mini.py', '--workdir=gs://bucket/runs'],
    ['demo', '--workdir=gs://bucket/runs'],
    ['kernels', '--workdir=gs://bucket/runs'],
    ['prepare', 'listops', '--data_dir=gs://bucket/data'],
  ],
  ids=lambda command: command[0],
)
def test_commands_that_work_in_folders_only(command, capsys):
  assert cli.main(command) == 2
  assert 'is gs://bucket/' in (printed := capsys.readouterr().err)
  assert 'this command works in folders only' in printed


def test_objects_are_written_whole_or_not_at_all(gcs, bucket):
  path = files.place(f'gs://{bucket}/a.npz')
  with files.replacing(path, 'wb') as file:
    np.savez(file, x=np.arange(3))
  before = gcs.objects[bucket, 'a.npz'].data
  with pytest.raises(ZeroDivisionError), files.replacing(path, 'wb') as file:
    file.write(b'half' * (1 // 0))
  assert gcs.objects[bucket, 'a.npz'].data == before
  np.testing.assert_array_equal(np.load(path.open('rb'))['x'], np.arange(3))
  files.write_json(f'gs://{bucket}/a.json', {'x': 1})
  assert files.read_json(f'gs://{bucket}/a.json', 'it', 'go') == {'x': 1}


def test_what_is_added_is_written_anew(gcs, bucket):
  for line in (b'one\n', b'two\n'):
    file = files.Appended(f'gs://{bucket}/lines')
    file.add(line)
    file.close()
  assert gcs.objects[bucket, 'lines'].data == b'one\ntwo\n'


@pytest.mark.parametrize('fault', [503, 429, ('done', 503), ('late', 0.2)], ids=str)
def test_a_bucket_that_answers_in_the_end(gcs, bucket, fault):
  """It refuses 7 times, more often than TensorStore retries, or it writes once without an answer."""
  path, left = files.place(f'gs://{bucket}/a/b'), [7]

  def wrong(method, name):
    left[0] -= 1
    return fault if left[0] >= 0 else None

  for act in (lambda: path.write_bytes(b'x'), path.read_bytes, path.is_dir, path.unlink):
    left[0] = 7
    gcs.fault = wrong
    act()
    gcs.put(bucket, 'a/b', b'x') if act == path.unlink else None
  assert gcs.names(bucket) == ['a/b']


@pytest.mark.parametrize(
  'status, words', [(403, 'permission is denied'), (401, 'permission is denied'), (404, 'no bucket')]
)
def test_a_bucket_that_refuses(gcs, bucket, status, words):
  gcs.fault = lambda method, name: status
  path = files.place(f'gs://{bucket}/a')
  with pytest.raises(FileAccessError, match=f'gs://{bucket}/a could not be written: .*{words}'):
    files.write_text(path, 'x')
  if status != 404:  # a missing file has the same answer
    with pytest.raises(FileAccessError, match=words):
      path.exists()


def test_a_bucket_that_is_away(gcs, bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'PATIENCE', 0.3)
  gcs.fault = lambda method, name: 503
  with pytest.raises(FileAccessError, match='written: the bucket does not serve it .* run the same'):
    files.write_text(f'gs://{bucket}/a', 'x')


# Leases.


def test_one_owner(gcs, bucket):
  folder = files.place(f'gs://{bucket}/run')
  assert not files.is_owned(folder)
  with files.owned(folder, 'training in'):
    (folder / 'a').write_text('mine')
    start = time.monotonic()
    with pytest.raises(ConfigError) as refusal, files.owned(folder, 'training in'):
      pass
    assert time.monotonic() - start < 2
    assert f'process {os.getpid()} on {socket.gethostname()}) is training in {folder}' in str(refusal.value)
    assert files.is_owned(folder)
    with files.owned(files.place(f'gs://{bucket}/run2'), 'training in'):  # another folder
      pass
  assert not files.is_owned(folder)
  assert gcs.names(bucket) == ['run/a']


@pytest.mark.parametrize('text', ['1m', '0.5', '3600', 'nan'])
def test_seconds_of_a_lease_that_others_would_not_trust(text):
  with pytest.raises(
    ConfigError, match=f"LRA_SPT_LEASE_SECONDS is '{text}'; give a number of .* from 1 to 600"
  ):
    leases._chosen(text)


def test_an_owner_with_a_slow_beat_is_watched_long_enough(gcs, bucket, monkeypatch):
  """It renews its lease every 1.5 s; this process renews its leases every 0.5 s."""
  folder = files.place(f'gs://{bucket}/run')
  with monkeypatch.context() as patch:
    for name, value in {'SILENCE': 9.0, 'BEAT': 1.5, 'FENCE': 4.5}.items():
      patch.setattr(leases, name, value)
    with files.owned(folder, 'training in'):
      patch.undo()
      watched = [files.is_owned(folder) for _ in range(2)]
  assert watched == [True, True]


def test_a_dead_owner_is_followed_after_its_silence(gcs, bucket, dead_owner, monkeypatch, capsys):
  """The clock of this machine jumps by days."""
  jump = itertools.count()
  monkeypatch.setattr(time, 'time', lambda: 1e5 * next(jump))
  dead_owner(seconds=1.5)
  folder = files.place(f'gs://{bucket}/run')
  start = time.monotonic()
  with files.owned(folder, 'training in'):
    assert 1.5 < time.monotonic() - start < 4
    assert f'"process": {os.getpid()}'.encode() in gcs.objects[bucket, f'run/{leases.LEASE}'].data
  assert 'process 7 on gone' in capsys.readouterr().err


def test_two_that_wait_for_a_dead_owner(bucket, dead_owner):
  """One of two processes takes the lease over."""
  dead_owner()
  folder, outcomes = files.place(f'gs://{bucket}/run'), []

  def wait():
    try:
      with files.owned(folder, 'training in'):
        outcomes.append('owner')
        time.sleep(2)
    except ConfigError as error:
      outcomes.append(str(error))

  threads = [threading.Thread(target=wait) for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  (refusal,) = [outcome for outcome in outcomes if outcome != 'owner']
  assert 'is training in' in refusal


@pytest.mark.parametrize('fault', [503, ('done', 503)], ids=str)
def test_a_lease_is_kept_through_faults(gcs, bucket, fault):
  """Every third write is refused, or done without an answer, so that it is repeated."""
  count, folder = itertools.count(), files.place(f'gs://{bucket}/run')
  gcs.fault = lambda method, name: fault if method == 'POST' and next(count) % 3 == 0 else None
  with files.owned(folder, 'training in'):
    for _ in range(8):
      time.sleep(0.25)
      (folder / 'a').write_text('x')
  assert gcs.names(bucket) == ['run/a']


def test_a_lost_lease(gcs, bucket, dead_owner, monkeypatch):
  """A process that was suspended meets another owner; it writes nothing more and removes nothing."""
  monkeypatch.setattr(leases._Lease, '_beat', lambda self: None)
  folder = files.place(f'gs://{bucket}/run')
  with files.owned(folder, 'training in'):
    (folder / 'a').write_text('mine')
    dead_owner()
    time.sleep(leases.FENCE + 0.1)
    for write in (
      lambda: (folder / 'a').write_text('late'),
      lambda: (folder / 'a').unlink(),
      lambda: (folder / 'b').mkdir(),
      lambda: files.write_json(folder / 'c', {}),
    ):
      with pytest.raises(ConfigError, match=f'{folder} belongs to process 7 on gone now'):
        write()
    files.write_text(f'gs://{bucket}/elsewhere', 'x')
  assert gcs.names(bucket) == ['elsewhere', f'run/{leases.LEASE}', 'run/a']
  assert gcs.objects[bucket, 'run/a'].data == b'mine'


def test_a_suspended_owner_goes_on_where_nobody_followed(gcs, bucket, monkeypatch):
  monkeypatch.setattr(leases._Lease, '_beat', lambda self: None)
  folder = files.place(f'gs://{bucket}/run')
  with files.owned(folder, 'training in'):
    before = gcs.objects[bucket, f'run/{leases.LEASE}']
    time.sleep(leases.FENCE + 0.1)
    (folder / 'a').write_text('mine')
    assert gcs.objects[bucket, f'run/{leases.LEASE}'].generation > before.generation


def test_a_bucket_that_may_not_be_listed(gcs, bucket):
  """TensorStore returns an empty list for a refusal, and checkpoints would seem to be missing."""
  gcs.put(bucket, 'run/config.json', b'{}')
  gcs.fault = lambda method, name: 403 if method == 'GET' and name.endswith('/') else None
  with pytest.raises(FileAccessError, match='could not be listed: permission is denied'):
    with files.owned(f'gs://{bucket}/run', 'training in'):
      pass
  assert gcs.names(bucket) == ['run/config.json']


# Prepared sets.


@pytest.fixture
def set_in(gcs, bucket, tiny_data, tmp_path, monkeypatch):
  """A prepared set in a bucket, and an empty folder for copies of it."""
  monkeypatch.setenv('LRA_SPT_SETS', str(tmp_path / 'sets'))
  gcs.upload(bucket, tiny_data, 'data')
  return f'gs://{bucket}/data'


def shard(gcs, bucket, split='train'):
  return next(name for name in gcs.names(bucket, 'data/') if f'{split}.array_record' in name)


def test_a_set_is_read_from_a_copy(gcs, set_in, tiny_data, tmp_path):
  task = lra_spt.load_config(f'{TINY}:regime=scratch').task
  here, there = (examples_lib.open_split(task, 'train', data_dir) for data_dir in (tiny_data, set_in))
  for name, values in here.gather(range(8)).items():
    np.testing.assert_array_equal(there.gather(range(8))[name], values)
  (copy,) = (path for path in (tmp_path / 'sets').iterdir() if path.suffix != prepared.COPYING)
  assert not list(copy.with_name(f'{copy.name}{prepared.COPYING}').iterdir())
  before = len(gcs.requests)
  examples_lib.open_splits(task, set_in)
  assert len(gcs.requests) - before <= 6
  with pytest.raises(MissingFile, match='in gs://.*/none/tiny_listops/.*cp -r data/tiny_listops gs'):
    examples_lib.open_split(task, 'train', f'{set_in}/none')


def test_one_process_of_a_machine_copies(gcs, bucket, set_in, tmp_path, capsys):
  """The others wait for it, and the rest of a killed process is removed."""
  uploaded = len(gcs.requests)
  prepared.dataset_folder(set_in, 'tiny_listops')
  once = sum(name == shard(gcs, bucket) for _, name in gcs.requests[uploaded:])
  (place,) = (tmp_path / 'sets').glob(f'*{prepared.COPYING}')
  shutil.rmtree(place.with_suffix(''))
  left = place / 'copying_1' / 'copy'
  left.mkdir(parents=True)
  before = len(gcs.requests)
  others = [threading.Thread(target=prepared.dataset_folder, args=(set_in, 'tiny_listops')) for _ in range(3)]
  with files.owned(place, 'copying'):
    for other in others:
      other.start()
    printed, end = '', time.monotonic() + 60
    while printed.count('; waiting for it') < 3 and time.monotonic() < end:
      time.sleep(0.1)
      printed += capsys.readouterr().err
    assert not place.with_suffix('').exists()
  for other in others:
    other.join(timeout=60)
  assert place.with_suffix('').is_dir()
  assert not left.exists()
  assert sum(name == shard(gcs, bucket) for _, name in gcs.requests[before:]) == once
  assert (printed + capsys.readouterr().err).count('; waiting for it') == 3


def test_a_set_that_is_damaged_in_the_bucket(gcs, bucket, set_in, capsys):
  task = lra_spt.load_config(f'{TINY}:regime=scratch').task
  name = shard(gcs, bucket)
  gcs.flip(bucket, name, at=40_000)
  with pytest.raises(DataError, match=f'gs://{bucket}/{name} is not the file that was prepared'):
    examples_lib.open_split(task, 'train', set_in)
  assert cli.main(['doctor', f'--data_dir={set_in}']) == 1
  assert name in capsys.readouterr().out
  gcs.flip(bucket, name, at=40_000)
  assert cli.main(['doctor', f'--data_dir={set_in}']) == 0
  examples_lib.open_split(task, 'train', set_in)
  gcs.flip(bucket, name, at=40_000)  # an existing copy is used, but the doctor reads the bucket
  examples_lib.open_split(task, 'train', set_in)
  assert cli.main(['doctor', f'--data_dir={set_in}']) == 1
  gcs.put(bucket, name, b'short')
  with pytest.raises(DataError, match='fewer than'), prepared.copied(dataset(set_in), pathlib.Path('/tmp')):
    pass
  del gcs.objects[bucket, name]
  with pytest.raises(DataError, match='is missing'), prepared.copied(dataset(set_in), pathlib.Path('/tmp')):
    pass


def dataset(data_dir):
  return files.place(data_dir) / 'tiny_listops' / prepared.VERSION


def test_local_folders_import_no_module_for_buckets():
  """Modules for buckets take half a second to import."""
  code = (
    'import sys, lra_spt.cli.commands.report, lra_spt.report.pages.report, lra_spt.runs.doctor\n'
    'print(sorted({"tensorstore", "etils.epath", "lra_spt.files.gcs"} & sys.modules.keys()))'
  )
  assert subprocess.check_output([sys.executable, '-c', code], text=True).strip() == '[]'
