"""The scripts for TPU slices, one by hand and queued resources, with the stand-ins of `cloud`."""

import os
import re
import signal

import pytest

from tests.launch.cloud import FLAGS


def test_spot_run_from_request_to_result(cloud):
  cloud.put('states', 'NONE\nACCEPTED\nPROVISIONING\nACTIVE\n')
  status, printed = cloud.run('queued_resource.sh', CONFIG='configs/a.py:model=x,regime=masked')
  assert status == 0, printed
  assert cloud.calls() == ['create', 'install', 'data', 'train', 'fetch', 'delete']
  (command,) = cloud.lines('starts')
  assert command == (
    f'train --distributed --config=configs/a.py:model=x,regime=masked --workdir={cloud.workdir}'
  )
  (log,) = (cloud.checkout / 'launch_logs').rglob('*.log')
  assert re.fullmatch(r'--- started \d{4}-.*Z\ntrained by process \d+\n', log.read_text())
  assert (cloud.folder / 'host/lra_spt/code.py').read_text() == 'committed\n'
  assert not list(cloud.folder.glob('tmp*')), 'the archive is left behind'


def test_a_run_over_two_slices_uses_both(cloud):
  """While one of them does not answer, the run counts as alive."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  process = cloud.start('queued_resource.sh', SLICES='2')
  cloud.until(lambda: len(cloud.lines('starts')) == 2)
  cloud.put('ssh_fails', 'x\n')
  cloud.until(lambda: 'ssh failed' in cloud.lines('calls'))
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  (created,) = cloud.lines('created')
  assert ' --node-count=2 --node-prefix=lra --spot ' in created
  both = ['install', 'install', 'data', 'data', 'train', 'train']
  assert cloud.calls() == ['create', *both, 'fetch', 'fetch', 'delete']
  for name in ('lra-0', 'lra-1'):
    assert (cloud.folder / name / 'lra_spt' / 'code.py').exists()
    assert list((cloud.checkout / 'launch_logs' / name).rglob('*.log'))


@pytest.mark.parametrize('trouble', ['ssh', 'service', 'script'])
def test_a_run_that_may_live_gets_no_second_copy(cloud, trouble):
  """ssh or the service fails for a while, or the script is started again."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  if trouble == 'ssh':
    cloud.put('ssh_fails', 'x\n' * 4)
    cloud.until(lambda: cloud.lines('calls').count('ssh failed') == 4)
  elif trouble == 'service':
    cloud.put('states', 'NETWORK\n' * 4 + 'ACTIVE\n')
    cloud.until(lambda: cloud.lines('calls').count('describe NETWORK') == 4)
  else:
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    process = cloud.start('queued_resource.sh')
  asked = len(cloud.lines('calls'))
  cloud.until(lambda: len(cloud.lines('calls')) >= asked + 4)
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  assert len(cloud.lines('starts')) == 1
  assert cloud.lines('calls').count('create') == 1


def test_a_slice_that_is_taken_away_is_requested_again(cloud):
  """Ends of training before the loss do not count on the next slice."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', 'bad\nbad\nbad\nbad\ngood\n')
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  cloud.put('states', 'SUSPENDED\nNONE\nCREATING\nCREATING\nACTIVE\n')
  cloud.until(lambda: 'delete' in cloud.lines('calls'))
  cloud.put('go', '')  # the processes of the lost slice end
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 1, printed
  calls = [call for call in cloud.calls() if call not in ('install', 'data')]
  assert calls == ['create', 'train', 'delete', 'create', *['train'] * 3, 'fetch', 'delete']
  (log,) = (cloud.checkout / 'launch_logs').rglob('*.log')
  assert log.read_text().count('--- started') == 4  # the log of the lost slice is there too


@pytest.mark.parametrize(
  ('fails', 'ends', 'status', 'calls', 'starts'),
  [
    ({'delete_fails': 2}, 'bad', 1, ['fetch', 'delete', 'delete', 'delete'], 3),
    ({}, 'again\n' * 5 + 'good\n', 0, ['fetch', 'delete'], 6),
    ({'install_fails': 9}, 'good', 1, [*['install'] * 5, 'fetch', 'fetch', 'fetch', 'delete'], 0),
    ({'ssh_fails': 12}, 'good', 1, ['create', 'fetch', 'fetch', 'fetch', 'delete'], 0),
  ],
)
def test_a_slice_is_given_up_only_after_repeated_failures(cloud, fails, ends, status, calls, starts):
  """Three ends without a result, five failures to prepare it, or five to reach it; status 75 never counts."""
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', ends)
  for name, times in fails.items():
    cloud.put(name, 'x\n' * times)
  assert cloud.run('queued_resource.sh')[0] == status
  assert cloud.calls()[-len(calls) :] == calls
  assert len(cloud.lines('starts')) == starts
  logs = [path.read_text() for path in (cloud.checkout / 'launch_logs').rglob('*.log')]
  assert sum(text.count('trained by') for text in logs) == starts


def test_a_slice_that_is_prepared_in_the_end_is_kept(cloud):
  """Only failures in a row count, and a start of training ends the row."""
  (cloud.folder / 'go').unlink()
  cloud.put('states', 'NONE\nACTIVE\n')
  cloud.put('ends', 'again\ngood\n')
  cloud.put('install_fails', 'x\n' * 4)
  process = cloud.start('queued_resource.sh')
  cloud.until(lambda: cloud.lines('starts'))
  cloud.put('train_fails', 'x\n' * 4)
  cloud.put('go', '')
  printed, _ = process.communicate(timeout=60)
  assert process.returncode == 0, printed
  assert [cloud.lines('calls').count(call) for call in ('create', 'install', 'train')] == [1, 10, 6]


def test_a_run_whose_results_lie_elsewhere_is_done_when_it_ends_well(cloud):
  """Results of --seeds do. A command that ended before this script started may have been another one."""
  cloud.put('states', 'ACTIVE\n')
  cloud.put('ends', 'elsewhere')
  assert cloud.run('tpu_vm.sh', 'install')[0] == 0
  assert cloud.run('tpu_vm.sh', 'train', '--dry_run') == (0, '')
  cloud.until(lambda: cloud.run('tpu_vm.sh', 'status') == (0, 'ended\n'))
  status, printed = cloud.run('queued_resource.sh', '--seeds=0..2')
  assert status == 0, printed
  assert [line.split()[-1] for line in cloud.lines('starts')] == ['--dry_run', '--seeds=0..2']


@pytest.mark.parametrize('script', ['tpu_vm.sh', 'queued_resource.sh', 'two slices'])
def test_further_flags_reach_every_host(cloud, script):
  slices = '2' if script == 'two slices' else '1'
  cloud.put('states', 'NONE\nACTIVE\n')
  if script == 'tpu_vm.sh':
    assert cloud.run(script, 'install')[0] == 0
    assert cloud.run(script, 'train', *FLAGS) == (0, '')
    cloud.until(lambda: cloud.run(script, 'status') == (0, 'finished\n'))
  else:
    status, printed = cloud.run('queued_resource.sh', *FLAGS, SLICES=slices)
    assert status == 0, printed
  assert cloud.lines('words')[:2] == ['train', '--distributed']
  assert cloud.lines('words')[4:] == [*FLAGS]
  starts = cloud.lines('starts')
  assert len(starts) == int(slices)
  assert len({*starts}) == 1


def test_a_slice_that_cannot_be_deleted_is_reported(cloud):
  cloud.put('states', 'ACTIVE\n')
  cloud.workdir.mkdir()
  (cloud.workdir / 'result.json').touch()
  cloud.put('delete_fails', 'x\n' * 9)
  status, printed = cloud.run('queued_resource.sh')
  assert status == 1
  assert 'gcloud compute tpus queued-resources delete lra' in printed


@pytest.mark.parametrize('script', ['queued_resource.sh', 'tpu_vm.sh'])
def test_uncommitted_files_are_refused_or_taken_along(cloud, script):
  words = ['install'] if script == 'tpu_vm.sh' else []
  cloud.put('states', 'NONE\nACTIVE\n')
  (cloud.checkout / 'code.py').write_text('changed\n')
  (cloud.checkout / 'a new file').write_text('new\n')
  status, printed = cloud.run(script, *words)
  assert status == 1
  assert all(part in printed for part in ('code.py', 'a new file', 'UNCOMMITTED'))
  assert cloud.lines('calls') == []
  status, printed = cloud.run(script, *words, UNCOMMITTED='include')
  assert status == 0, printed
  installed = cloud.folder / 'host' / 'lra_spt'
  assert (installed / 'code.py').read_text() == 'changed\n'
  assert (installed / 'a new file').read_text() == 'new\n'
  assert (installed / 'launch' / 'tpu_vm.sh').exists()
  assert not (installed / 'ignored').exists()


def test_one_slice_by_hand(cloud):
  """A second start is no second run; hosts report the status; deleting fetches the log first."""
  (cloud.folder / 'go').unlink()
  assert cloud.run('tpu_vm.sh', 'install')[0] == 0
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'stopped\n')
  assert cloud.run('tpu_vm.sh', 'train') == (0, '')
  cloud.until(lambda: cloud.lines('starts'))
  assert cloud.run('tpu_vm.sh', 'train')[0] == 0
  assert not list(cloud.folder.glob('tmp*')), 'the archive is left behind'
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'running\n')
  cloud.put('ssh_fails', 'x\n')
  assert cloud.run('tpu_vm.sh', 'status') == (0, 'unknown\n')
  cloud.put('go', '')
  cloud.until(lambda: cloud.run('tpu_vm.sh', 'status') == (0, 'finished\n'))
  assert len(cloud.lines('starts')) == 1
  assert cloud.run('tpu_vm.sh', 'delete')[0] == 0
  assert cloud.lines('calls')[-2:] == ['fetch', 'delete']
  assert cloud.run('tpu_vm.sh', 'alive')[0] == 2
