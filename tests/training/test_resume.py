"""kill -9 at any moment and the same command again: the same losses, bit for bit."""

import json
import os

import numpy as np
import pytest

MOMENTS = {
  # the checkpoint of step 8 may not be complete yet
  'between checkpoints': ('logged:pretrain:11', 'pretrain', {6, 8}, None),
  'while a checkpoint is written': ('saving:pretrain:16', 'pretrain', {12}, [12]),
  'between best and latest': ('between:finetune:6', 'finetune', {4}, [6]),
  'between a better one and latest': ('between:finetune:18', 'finetune', {16}, [6, 18]),
  'while that is written again': ('saving_best:finetune:18', 'finetune', {16}, [6]),
}


def saved_steps(workdir, stage):
  """Returns (the newest step in `latest` or None, all steps in `best`)."""
  latest, best = (
    sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    for name in ('latest', 'best')
    for folder in workdir.glob(f'{stage}-*/checkpoints/{name}')
  )
  assert len(latest) <= 2
  return max(latest, default=None), best


@pytest.fixture(scope='module')
def disturbed(train, tmp_path_factory):
  """Workdir of one run that was killed at each of MOMENTS in turn, and then finished."""
  workdir = tmp_path_factory.mktemp('disturbed') / 'run'
  for moment, stage, latest, best in MOMENTS.values():
    train(workdir, killed_at=moment)
    assert not (workdir / 'result.json').exists()
    steps = saved_steps(workdir, stage)
    assert steps[0] in latest
    assert steps[1] == best if best else len(steps[1]) <= 1
  train(workdir)
  return workdir


def test_trajectory_is_bitwise_the_same(undisturbed, disturbed, trajectory):
  expected = trajectory(undisturbed)
  assert [name.split('-')[0] for name in expected] == ['finetune', 'pretrain']
  for lines in expected.values():
    assert [line['step'] for line in lines if line['split'] == 'validation'] == [6, 12, 18]
    assert [line['step'] for line in lines if line['split'] == 'train'] == [4, 6, 8, 11, 12, 15, 16, 18]
    assert len({line['loss'] for line in lines}) == len(lines)
  assert trajectory(disturbed) == expected


@pytest.fixture(scope='module')
def asked(start_training, train, tmp_path_factory):
  """Workdir of a run that SIGINT ended, then SIGTERM, and that was then finished."""
  workdir = tmp_path_factory.mktemp('asked') / 'run'
  for moment, stage in (('interrupted', 'pretrain'), ('asked', 'finetune')):
    process = start_training(workdir, killed_at=f'{moment}:{stage}:8')
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 75, printed
    assert not (workdir / 'failure.json').exists()
    (latest,) = workdir.glob(f'{stage}-*/checkpoints/latest')
    step = max(os.listdir(latest), key=int)
    assert f'lra-spt: {stage} was asked to end and stopped at step {step}; ' in printed
    assert ('interrupt again' in printed) == (moment == 'interrupted')
    assert 'Traceback' not in printed
  train(workdir)
  return workdir


# Runs that are asked to end are also tested in tests/faults and tests/distributed/test_multi_process.py.
@pytest.mark.parametrize('name', ['disturbed', pytest.param('asked', marks=pytest.mark.slow)])
def test_results_are_bitwise_the_same(undisturbed, name, request):
  disturbed = request.getfixturevalue(name)
  results = [json.loads((workdir / 'result.json').read_text()) for workdir in (undisturbed, disturbed)]
  for result in results:
    for stage in result['stages'].values():
      assert stage.pop('seconds') > 0
      assert sum(stage.pop('time').values()) > 0
  for key in ('metrics', 'stages', 'parameters', 'fingerprints', 'config'):
    assert results[0][key] == results[1][key]
  first, second = (np.load(workdir / 'predictions.npz') for workdir in (undisturbed, disturbed))
  for name in ('index', 'label', 'prediction'):
    np.testing.assert_array_equal(first[name], second[name])


def test_nothing_is_left_over(disturbed):
  """No temporary folder of a killed save is left, and each stage has its last and its best checkpoint."""
  assert saved_steps(disturbed, 'pretrain') == (18, [12])
  assert saved_steps(disturbed, 'finetune') == (18, [18])
  names = [name for _, folders, files in os.walk(disturbed) for name in folders + files]
  assert not [name for name in names if 'tmp' in name or name.endswith('.part')]
