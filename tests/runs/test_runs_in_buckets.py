"""Runs in a bucket, on a stand-in for Google Cloud Storage (tests/fake_gcs.py)."""

import itertools
import os
import pathlib
import signal
import socket

import numpy as np
import pytest

import lra_spt
from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.files import leases

TINY = pathlib.Path(__file__).parents[1] / 'tiny_config.py'
CHEAP = pathlib.Path(__file__).parents[1] / 'faults' / 'tiny_run.py'


@pytest.fixture(scope='module')
def stripes(tmp_path_factory):
  """Folder of the set that tests/faults/tiny_run.py reads."""
  from data_prep.sources import stripes

  folder = tmp_path_factory.mktemp('stripes')
  stripes.prepare_stripes(folder, examples=40)
  return folder


@pytest.fixture
def cheap(gcs, bucket, stripes, tmp_path, monkeypatch, capsys):
  """Runs a short `lra-spt train` in the bucket, in this process; returns (status, output)."""
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
    status, message = cheap()
  assert status == 2
  assert (
    f'Another process (process {os.getpid()} on {socket.gethostname()}) is training in gs://{bucket}/run'
    in message
  )
  assert gcs.names(bucket) == []


@pytest.mark.parametrize('writing', ['metrics.jsonl', 'latest/2/state/manifest.ocdbt'])
def test_a_run_that_loses_its_lease(gcs, bucket, cheap, dead_owner, monkeypatch, writing):
  """The machine sleeps in the middle of a write, until another process has taken over. After that only files
  arrive that were already on their way, and arrays that make no checkpoint."""
  now, slept, then = leases._now, [0.0], {}
  monkeypatch.setattr(leases, '_now', lambda: now() + slept[0])

  def stop(method, name):
    if method == 'POST' and name.endswith(writing) and not then and lines(name) >= 2:
      dead_owner()
      then.update(gcs.objects)
      slept[0] = 1000.0

  def lines(name):
    known = gcs.objects.get((bucket, f'{"/".join(name.split("/")[:2])}/metrics.jsonl'))
    return known.data.count(b'\n') if known else 0

  gcs.fault = stop
  status, message = cheap()
  assert status == 2
  assert message.splitlines()[-1].startswith(f'lra-spt: gs://{bucket}/run belongs to process 7 on gone now')
  assert 'Traceback' not in message
  changed = {key[1] for key, actual in gcs.objects.items() if then.get(key) != actual}
  arrives = 'metrics.jsonl', 'manifest.ocdbt', '/state/_sharding'
  assert all(name.endswith(arrives) or '/d/' in name for name in changed), changed


@pytest.mark.parametrize(
  'refused',
  [
    '',
    'manifest.ocdbt',
    *(pytest.param(part, marks=pytest.mark.slow) for part in ('checkpoints', 'result.json')),
  ],
)
def test_a_run_in_a_bucket_that_may_not_be_written_to(gcs, bucket, cheap, refused):
  gcs.fault = lambda method, name: 403 if method == 'POST' and refused in name else None
  status, message = cheap()
  assert status == 2
  sentence = message.splitlines()[-1]
  assert sentence.startswith(f'lra-spt: gs://{bucket}/run')
  assert 'permission' in sentence
  assert 'Traceback' not in message
  gcs.fault = lambda method, name: None
  status, message = cheap()
  assert status == 0, message


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # Orbax leaves readers behind
def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(gcs, bucket, cheap):
  store = f'--stages=gs://{bucket}/stages'
  assert cheap('runs/one', store, argument='regime=masked')[0] == 0
  for refused in ('/d/', 'manifest.ocdbt', '_METADATA', '/state/'):
    parts = 'best', refused
    gcs.fault = lambda method, name, parts=parts: (
      403 if method == 'GET' and all(part in name for part in parts) else None
    )
    status, message = cheap(
      'runs/two', store, '--config.finetune.optimizer.lr=1e-4', argument='regime=masked'
    )
    assert status == 2, refused
    sentence = message.splitlines()[-1]
    assert 'could not be read: permission is denied' in sentence
    assert 'delete' not in sentence
    assert 'damaged' not in sentence


@pytest.mark.slow  # the test of this on a disk always runs
def test_runs_share_their_pretraining(gcs, bucket, cheap):
  store = f'--stages=gs://{bucket}/stages'
  assert cheap('runs/one', store, argument='regime=masked')[0] == 0
  status, message = cheap('runs/two', store, '--config.finetune.optimizer.lr=1e-4', argument='regime=masked')
  assert status == 0
  assert f'pretrain: already done, in gs://{bucket}/stages/pretrain-' in message
  assert len({name.split('/')[1] for name in gcs.names(bucket, 'stages/')}) == 3
  assert not [name for name in gcs.names(bucket) if leases.LEASE in name]
  assert cli.main(['doctor', f'--workdir=gs://{bucket}/runs']) == 0
  assert cli.main(['report', f'--workdir=gs://{bucket}/runs']) == 0
  status, message = cheap('runs/two', '--config.finetune.optimizer.lr=1e-4', argument='regime=masked')
  assert 'holds a finished run' in message
  status, message = cheap('runs/three', '--stages=stages', argument='regime=masked')
  assert status == 2
  assert 'give two folders, or two places in buckets' in message


@pytest.mark.slow
def test_runs_of_one_program(gcs, bucket, cheap):
  """The two runs share one pretraining and differ only in their finetuning."""
  flags = ('--config.runtime.members=2', '--config.finetune.optimizer.lr=1e-4,1e-3')
  status, message = cheap('runs', *flags, argument='regime=masked')
  assert status == 0, message
  names = gcs.names(bucket, 'runs/')
  assert len([name for name in names if name.endswith('/result.json')]) == 2
  pretrained = {name.split('/')[2] for name in names if name.endswith('stage.json') and '/pretrain-' in name}
  assert len(pretrained) == 1
  assert {name.split('/')[1] for name in names if name.endswith('stage.json')} == {'stages'}
  assert not [name for name in gcs.names(bucket) if leases.LEASE in name]


@pytest.mark.parametrize('flag', ['trackers=wandb', 'profile_steps=2'])
def test_what_is_written_to_folders_only(gcs, cheap, flag):
  status, message = cheap('run', f'--config.runtime.{flag}')
  assert status == 2
  assert 'written to folders only' in message or 'not installed' in message


@pytest.fixture(scope='module')
def shaken(gcs_server, start_training, tiny_data, tmp_path_factory):
  """The bucket of a finished masked run, with its data, that was killed twice and met faults of the server.

  The first kill is in pretraining. The second is in finetuning, when all of a checkpoint is there except the
  file that marks it as complete. Every 90th request is refused, and every 40th is late. Every 111th is done
  but not answered, so that it is sent again.
  """
  name, count = 'shaken', itertools.count(1)
  gcs_server.upload(name, tiny_data, 'data')
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
      gcs_server.fault = wrong
      printed, _ = process.communicate(timeout=300)
      assert process.returncode == (-signal.SIGKILL if killed_at else 0), printed
  gcs_server.fault = lambda method, name: None
  return name


def test_a_killed_run_is_the_undisturbed_one(gcs, shaken, undisturbed, trajectory, tmp_path):
  """Losses and predictions are bit for bit those of a run in a folder, without kills and faults."""
  gcs.download(shaken, 'runs/one', tmp_path)
  actual, expected = trajectory(tmp_path), trajectory(undisturbed)
  assert actual.keys() == expected.keys()
  for stage, lines in expected.items():
    assert actual[stage] == lines
  here, there = (np.load(folder / 'predictions.npz') for folder in (undisturbed, tmp_path))
  np.testing.assert_array_equal(here['prediction'], there['prediction'])
  assert not [name for name in gcs.names(shaken) if leases.LEASE in name or 'failure' in name]
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
  gcs.download(shaken, 'runs/one', tmp_path / 'copy')  # a copy in a folder is good too
  assert cli.main(['doctor', f'--workdir={tmp_path / "copy"}']) == 0


def test_flipped_bytes_are_found(gcs, shaken, capsys):
  """One bit flips in the largest object of each kind: in a letter of result.json, else in the middle."""
  expected = {
    'result.json': 'result.json was edited or damaged',
    'predictions.npz': 'predictions.npz was edited or damaged',
    'metrics.jsonl': 'metrics.jsonl was edited or damaged',
    'checkpoints/best/': f'the checkpoint gs://{shaken}/runs/one/',
  }
  runs, before = f'--workdir=gs://{shaken}/runs', dict(gcs.objects)
  for part in expected:
    names = [name for name in gcs.names(shaken, 'runs/one/') if part in name]
    name = max(names, key=lambda name: len(gcs.objects[shaken, name].data))
    data = gcs.objects[shaken, name].data
    gcs.flip(shaken, name, at=data.index(b'seconds') if part == 'result.json' else len(data) // 2)
  try:
    assert cli.main(['doctor', runs]) == 1
    message = capsys.readouterr().out
    for part in ('result.json', 'metrics.jsonl', 'checkpoints/best/'):  # it holds the checksum of predictions
      assert expected[part] in message
    result = shaken, 'runs/one/result.json'
    gcs.objects[result] = before[result]
    assert cli.main(['report', runs, '--output=gs://elsewhere/report.html']) == 2
    assert expected['predictions.npz'] in capsys.readouterr().err
  finally:
    gcs.objects.update(before)


@pytest.mark.slow
def test_processes_that_share_nothing_but_a_bucket(
  gcs, bucket, start_training, tiny_data, undisturbed, trajectory, tmp_path
):
  """Two processes split the parameters, and each has a copy of the set. One is killed; both start again."""
  gcs.upload(bucket, tiny_data, 'data')

  def run(second_killed_at):
    with socket.socket() as probe:
      probe.bind(('127.0.0.1', 0))
      cluster = [f'--coordinator=127.0.0.1:{probe.getsockname()[1]}', '--processes=2']
    started = []
    for i in range(2):
      with pytest.MonkeyPatch.context() as patch:
        patch.setenv('LRA_SPT_SETS', str(tmp_path / f'sets{i}'))
        options = {'data_dir': f'gs://{bucket}/data', 'killed_at': second_killed_at if i else None}
        flags = (*cluster, f'--process={i}', '--config.runtime.mesh.fsdp=4')
        started.append(start_training(f'gs://{bucket}/run', *flags, **options))
    message = [process.communicate(timeout=300)[0] for process in started]
    return [process.returncode for process in started], message

  statuses, message = run('logged:finetune:8')
  assert statuses == [75, -signal.SIGKILL], message
  statuses, message = run(None)
  assert statuses == [0, 0], message
  gcs.download(bucket, 'run', tmp_path / 'run')
  actual, expected = trajectory(tmp_path / 'run'), trajectory(undisturbed)
  for stage, lines in expected.items():
    for one, other in zip(actual[stage], lines, strict=True):
      assert one.keys() == other.keys()
      np.testing.assert_allclose(one['loss'], other['loss'], rtol=1e-4)
  assert cli.main(['doctor', f'--workdir=gs://{bucket}/run']) == 0
