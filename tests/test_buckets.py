"""Runs and prepared sets in a bucket, on a stand-in for Google Cloud Storage (tests/fake_gcs.py)."""

import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lra_spt
from lra_spt import buckets, cli, files, leases
from lra_spt.data import examples as examples_lib
from lra_spt.data import storage
from lra_spt.errors import ConfigError, DataError, FileAccessError, MissingFile
from tests import fake_gcs

TINY = pathlib.Path(__file__).parent / 'tiny_config.py'
CHEAP = pathlib.Path(__file__).parent / 'faults' / 'tiny_run.py'
_numbers = itertools.count()


@pytest.fixture(scope='module')
def server():
  """The stand-in, for this process and those that it starts; owners count as dead after 3 s."""
  with fake_gcs.FakeGCS() as server, pytest.MonkeyPatch.context() as patch:
    for name, value in server.environment.items():
      patch.setenv(name, value)
    patch.setenv('LRA_SPT_LEASE_SECONDS', '3')
    patch.setattr(leases, 'SILENCE', 3.0)
    patch.setattr(leases, 'BEAT', 0.5)
    patch.setattr(leases, 'FENCE', 1.5)
    patch.setattr(buckets, '_RETRIES', {'max_retries': 4, 'initial_delay': '10ms', 'max_delay': '40ms'})
    yield server


@pytest.fixture
def gcs(server):
  """The stand-in without faults."""
  server.fault = lambda method, name: None
  yield server
  server.fault = lambda method, name: None


@pytest.fixture
def bucket():
  """The name of a new bucket."""
  return f'bucket{next(_numbers)}'


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
  """It refuses 7 times, more often than TensorStore asks again, or once did what it did not answer."""
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
  if status != 404:  # which is the answer for a file that is missing, too
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


def dead_owner(gcs, bucket, name='run', seconds=1.0):
  lease = {'process': 7, 'host': 'gone', 'id': 'x', 'number': 3, 'seconds': seconds}
  gcs.put(bucket, f'{name}/{leases.LEASE}', json.dumps(lease).encode())


def test_a_dead_owner_is_followed_after_its_silence(gcs, bucket, monkeypatch, capsys):
  """Whatever the clocks of machines say: those of this one jump by days."""
  jump = itertools.count()
  monkeypatch.setattr(time, 'time', lambda: 1e5 * next(jump))
  dead_owner(gcs, bucket, seconds=1.5)
  folder = files.place(f'gs://{bucket}/run')
  start = time.monotonic()
  with files.owned(folder, 'training in'):
    assert 1.5 < time.monotonic() - start < 4
    assert f'"process": {os.getpid()}'.encode() in gcs.objects[bucket, f'run/{leases.LEASE}'].data
  assert 'process 7 on gone, which is not heard of' in capsys.readouterr().err


def test_two_that_wait_for_a_dead_owner(gcs, bucket):
  """One of them follows it."""
  dead_owner(gcs, bucket)
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
  """Every third write of it is refused, or done and not answered, so that it is sent again."""
  count, folder = itertools.count(), files.place(f'gs://{bucket}/run')
  gcs.fault = lambda method, name: fault if method == 'POST' and next(count) % 3 == 0 else None
  with files.owned(folder, 'training in'):
    for _ in range(8):
      time.sleep(0.25)
      (folder / 'a').write_text('x')
  assert gcs.names(bucket) == ['run/a']


def test_a_lost_lease(gcs, bucket, monkeypatch):
  """A process that was stopped for a while finds another owner, and writes nothing more, nor tidies up."""
  monkeypatch.setattr(leases._Lease, '_beat', lambda self: None)
  folder = files.place(f'gs://{bucket}/run')
  with files.owned(folder, 'training in'):
    (folder / 'a').write_text('mine')
    dead_owner(gcs, bucket)
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
  """TensorStore takes the refusal for an empty list, in which checkpoints would be missing."""
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
  assert len(list((tmp_path / 'sets').iterdir())) == 1
  before = len(gcs.requests)
  examples_lib.open_splits(task, set_in)
  assert len(gcs.requests) - before <= 6
  with pytest.raises(MissingFile, match='in gs://.*/none/tiny_listops/.*cp -r data/tiny_listops gs'):
    examples_lib.open_split(task, 'train', f'{set_in}/none')


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
  gcs.flip(bucket, name, at=40_000)  # a copy is not asked again, but the doctor looks at the bucket
  examples_lib.open_split(task, 'train', set_in)
  assert cli.main(['doctor', f'--data_dir={set_in}']) == 1
  gcs.put(bucket, name, b'short')
  with pytest.raises(DataError, match='fewer than'), storage.copied(dataset(set_in), pathlib.Path('/tmp')):
    pass
  del gcs.objects[bucket, name]
  with pytest.raises(DataError, match='is missing'), storage.copied(dataset(set_in), pathlib.Path('/tmp')):
    pass


def dataset(data_dir):
  return files.place(data_dir) / 'tiny_listops' / storage.VERSION


# Runs.


@pytest.fixture(scope='module')
def stripes(tmp_path_factory):
  """Folder of the set that tests/faults/tiny_run.py reads."""
  from data_prep.sources import stripes

  folder = tmp_path_factory.mktemp('stripes')
  stripes.prepare_stripes(folder, examples=40)
  return folder


@pytest.fixture
def cheap(gcs, bucket, stripes, tmp_path, monkeypatch, capsys):
  """Runs `lra-spt train` of seconds in the bucket, in this process: (status, what it said)."""
  monkeypatch.setenv('LRA_SPT_SETS', str(tmp_path / 'sets'))
  monkeypatch.setenv('LRA_SPT_CACHE', str(tmp_path / 'programs'))

  def train(workdir='run', *flags, data_dir=stripes, argument='regime=scratch'):
    capsys.readouterr()
    given = (f'--workdir=gs://{bucket}/{workdir}', f'--config.runtime.data_dir={data_dir}')
    status = cli.main(['train', f'--config={CHEAP}:{argument}', *given, *flags])
    printed = capsys.readouterr()
    return status, printed.out + printed.err

  return train


def test_a_workdir_that_another_process_trains_in(gcs, bucket, cheap):
  with files.owned(f'gs://{bucket}/run', 'training in'):
    status, said = cheap()
  assert status == 2
  assert (
    f'Another process (process {os.getpid()} on {socket.gethostname()}) is training in gs://{bucket}/run'
    in said
  )
  assert gcs.names(bucket) == []


def test_a_run_that_loses_its_lease(gcs, bucket, cheap, monkeypatch):
  """While it writes a line, it is stopped for so long that another process follows."""
  monkeypatch.setattr(leases._Lease, '_beat', lambda self: None)
  left = []

  def stop(method, name):
    if method == 'POST' and name.endswith('metrics.jsonl') and b'"step": 2' in files_of(gcs, bucket, name):
      if not left:
        dead_owner(gcs, bucket)
        time.sleep(leases.FENCE + 0.1)
        left.append(dict(gcs.objects))
    return None

  gcs.fault = stop
  status, said = cheap()
  assert status == 2
  sentence = said.splitlines()[-1]
  assert sentence.startswith(f'lra-spt: gs://{bucket}/run belongs to process 7 on gone now')
  assert 'Traceback' not in said
  changed = {name for name, found in gcs.objects.items() if left[0].get(name) != found}
  assert {name.rpartition('/')[2] for _, name in changed} <= {'metrics.jsonl'}, (
    'more than what was on its way'
  )


def files_of(gcs, bucket, name):
  found = gcs.objects.get((bucket, name))
  return found.data if found else b''


@pytest.mark.parametrize('refused', ['', 'checkpoints', 'result.json'])
def test_a_run_in_a_bucket_that_may_not_be_written_to(gcs, bucket, cheap, refused):
  gcs.fault = lambda method, name: 403 if method == 'POST' and refused in name else None
  status, said = cheap()
  assert status == 2
  sentence = said.splitlines()[-1]
  assert sentence.startswith(f'lra-spt: gs://{bucket}/run')
  assert 'permission' in sentence
  assert 'Traceback' not in said
  gcs.fault = lambda method, name: None
  status, said = cheap()
  assert status == 0, said


def test_runs_share_their_pretraining(gcs, bucket, cheap):
  store = f'--stages=gs://{bucket}/stages'
  assert cheap('runs/one', store, argument='regime=masked')[0] == 0
  status, said = cheap('runs/two', store, '--config.finetune.optimizer.lr=1e-4', argument='regime=masked')
  assert status == 0
  assert f'pretrain: done before, in gs://{bucket}/stages/pretrain-' in said
  assert len({name.split('/')[1] for name in gcs.names(bucket, 'stages/')}) == 3
  assert not [name for name in gcs.names(bucket) if leases.LEASE in name]
  assert cli.main(['doctor', f'--workdir=gs://{bucket}/runs']) == 0
  assert cli.main(['report', f'--workdir=gs://{bucket}/runs']) == 0
  status, said = cheap('runs/two', '--config.finetune.optimizer.lr=1e-4', argument='regime=masked')
  assert 'holds a finished run' in said
  status, said = cheap('runs/three', '--stages=stages', argument='regime=masked')
  assert status == 2
  assert 'give two folders, or two in buckets' in said


@pytest.mark.parametrize('flag', ['trackers=wandb', 'profile_steps=2'])
def test_what_is_written_to_folders_only(gcs, cheap, flag):
  status, said = cheap('run', f'--config.runtime.{flag}')
  assert status == 2
  assert 'written to folders only' in said or 'not installed' in said


@pytest.fixture(scope='module')
def shaken(server, start_training, tiny_data, tmp_path_factory):
  """The bucket of a masked run, from start to end through kills and faults, with its data in it.

  It is killed in pretraining, and in finetuning when all of a checkpoint is there but the mark that it is
  whole. Of its requests every 90th is refused, every 111th done and not answered, so that it is sent again,
  and every 40th late.
  """
  name, count = 'shaken', itertools.count(1)
  server.upload(name, tiny_data, 'data')
  faults = {90: 503, 111: ('done', 503), 40: ('late', 0.02)}

  def wrong(method, name):
    mark = '/finetune-' in name and name.endswith('latest/12/commit_success.txt')
    if killed_at == 'unmarked' and method == 'POST' and mark:
      os.kill(process.pid, signal.SIGKILL)
      return 503
    number = next(count)
    return next((fault for every, fault in faults.items() if number % every == 0), None)

  places = f'gs://{name}/runs/one', '--config.runtime.tensorboard=True'
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('LRA_SPT_SETS', str(tmp_path_factory.mktemp('sets')))
    for killed_at in ('logged:pretrain:8', 'unmarked', ''):
      moment = killed_at if ':' in killed_at else None
      process = start_training(*places, data_dir=f'gs://{name}/data', killed_at=moment)
      server.fault = wrong
      printed, _ = process.communicate(timeout=300)
      assert process.returncode == (-signal.SIGKILL if killed_at else 0), printed
  server.fault = lambda method, name: None
  return name


def test_a_killed_run_is_the_undisturbed_one(server, shaken, undisturbed, trajectory, tmp_path):
  """The same losses as in a folder without any trouble, bit by bit, and the same predictions."""
  server.download(shaken, 'runs/one', tmp_path)
  found, expected = trajectory(tmp_path), trajectory(undisturbed)
  assert found.keys() == expected.keys()
  for stage, lines in expected.items():
    assert found[stage] == lines
  here, there = (np.load(folder / 'predictions.npz') for folder in (undisturbed, tmp_path))
  np.testing.assert_array_equal(here['prediction'], there['prediction'])
  assert not [name for name in server.names(shaken) if leases.LEASE in name or 'failure' in name]
  assert list(tmp_path.glob('*/tensorboard/events*'))


def test_report_doctor_and_evaluate(gcs, shaken, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('LRA_SPT_SETS', str(tmp_path))
  runs = f'gs://{shaken}/runs'
  assert cli.main(['report', f'--workdir={runs}']) == 0
  assert b'tiny_listops' in gcs.objects[shaken, 'runs/report.html'].data
  assert cli.main(['doctor', f'--workdir={runs}', f'--data_dir=gs://{shaken}/data']) == 0
  assert '1 run, 4 checkpoints, 1 set: good' in capsys.readouterr().out
  assert cli.main(['evaluate', f'--workdir={runs}/one', '--split=test', f'--register={TINY}']) == 0
  assert 'Equal: result.json says' in capsys.readouterr().out
  run = lra_spt.load_run(f'{runs}/one', 'pretrain')
  assert run.step > 0
  gcs.download(shaken, 'runs/one', tmp_path / 'copy')  # and a copy of it in a folder is as good
  assert cli.main(['doctor', f'--workdir={tmp_path / "copy"}']) == 0


@pytest.mark.parametrize(
  'part, words',
  [
    ('result.json', 'result.json was edited or damaged'),
    ('predictions.npz', 'predictions.npz was edited or damaged'),
    ('metrics.jsonl', 'metrics.jsonl was edited or damaged'),
    ('checkpoints/best/', 'the checkpoint gs://shaken/runs/one/'),
  ],
)
def test_a_flipped_byte_is_found(gcs, shaken, capsys, part, words):
  names = [name for name in gcs.names(shaken, 'runs/one/') if part in name]
  name = max(names, key=lambda name: len(gcs.objects[shaken, name].data))
  at = len(gcs.objects[shaken, name].data) // 2
  whole = gcs.objects[shaken, name]
  gcs.flip(shaken, name, at)
  try:
    assert cli.main(['doctor', f'--workdir=gs://{shaken}/runs']) == 1
    assert words in capsys.readouterr().out
    if 'checkpoints' not in part:
      assert cli.main(['report', f'--workdir=gs://{shaken}/runs', '--output=gs://elsewhere/report.html']) > 0
      assert words in ''.join(capsys.readouterr())
  finally:
    gcs.objects[shaken, name] = whole


def test_folders_need_nothing_of_this():
  """What is only for buckets takes half a second to import."""
  code = (
    'import sys, lra_spt.commands.report, lra_spt.report.survey, lra_spt.report.page, lra_spt.doctor\n'
    'print(sorted({"tensorstore", "fsspec", "etils.epath", "lra_spt.buckets"} & sys.modules.keys()))'
  )
  assert subprocess.check_output([sys.executable, '-c', code], text=True).strip() == '[]'
