"""Runs that train as one program get the numbers that each gets alone, on any mesh, whatever others do."""

import contextlib
import json
import re

import numpy as np
import pytest
from flax import nnx

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.distributed import processes
from lra_spt.errors import ConfigError
from lra_spt.runs import experiment
from lra_spt.runs.active_run import ActiveRun
from lra_spt.runs.api import one_device
from lra_spt.runs.build import resolve, stages_of
from lra_spt.training.checkpoints.transfer import by_name


@pytest.fixture(scope='module')
def lra_spt_train(tiny_config, tiny_data):
  """Trains on the tiny config by the command line, in this process; returns the status. It saves only when it
  evaluates and when it ends, because more saves would take a third of the time."""

  def run(workdir, *flags, argument='regime=masked', devices=1):
    return cli.main(
      [
        'train',
        f'--config={tiny_config}:{argument}',
        f'--workdir={workdir}',
        f'--config.runtime.data_dir={tiny_data}',
        f'--config.runtime.devices={devices}',
        '--config.runtime.checkpoint_every=0',
        *flags,
      ]
    )

  return run


@pytest.fixture(scope='module')
def alone(lra_spt_train, tmp_path_factory):
  """Folder of three runs that trained one after the other: seed0, seed1, seed2."""
  folder = tmp_path_factory.mktemp('alone')
  assert lra_spt_train(folder, '--seeds=0..2') == 0
  return folder


def result_of(run):
  return json.loads((run / 'result.json').read_text())


def answers_of(run):
  with np.load(run / 'predictions.npz') as file:
    return dict(file)


def assert_equal(run, other, trajectory, rtol=0.0):
  """Asserts that two runs have the same numbers, except for times."""
  lines, expected = trajectory(run), trajectory(other)
  assert lines.keys() == expected.keys()
  for name, stage in lines.items():
    assert [(line['step'], line['split']) for line in stage] == [
      (line['step'], line['split']) for line in expected[name]
    ]
    for key in ('loss', 'gradient_norm', 'learning_rate', 'accuracy'):
      ours, theirs = ([line.get(key, 0.0) for line in each] for each in (stage, expected[name]))
      np.testing.assert_allclose(ours, theirs, rtol=rtol)
  ours, theirs = answers_of(run), answers_of(other)
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name])
  ours, theirs = result_of(run), result_of(other)
  for key in ('seed', 'fingerprints', 'config', 'parameters', 'regime'):
    assert ours[key] == theirs[key]
  for stage, report in ours['stages'].items():
    for key in ('steps', 'best_step', 'examples', 'folder'):
      assert report[key] == theirs['stages'][stage][key]


def test_seeds_on_one_device_are_those_by_themselves_to_the_last_bit(
  lra_spt_train, alone, trajectory, tmp_path
):
  assert lra_spt_train(tmp_path, '--config.runtime.members=3') == 0
  for seed in range(3):
    assert_equal(tmp_path / f'seed{seed}', alone / f'seed{seed}', trajectory)
    assert result_of(tmp_path / f'seed{seed}')['stages']['finetune']['members'] == 3


@pytest.mark.slow
def test_members_over_devices_that_share_their_batches(lra_spt_train, alone, trajectory, tmp_path):
  """The tolerance is there because products that are vectorised over members add up in another order."""
  assert lra_spt_train(tmp_path, '--seeds=0..2', '--config.runtime.members=3', devices=6) == 0
  for seed in range(3):
    assert_equal(tmp_path / f'seed{seed}', alone / f'seed{seed}', trajectory, rtol=1e-6)


RATES = '--config.finetune.optimizer.lr=1e-3,3e-2'


@pytest.fixture(scope='module')
def alone_from_scratch(lra_spt_train, tmp_path_factory):
  """Folder of runs with two learning rates, one after the other."""
  folder = tmp_path_factory.mktemp('rates')
  assert lra_spt_train(folder, RATES, argument='regime=scratch') == 0
  return folder


def folder_of(rate):
  return f'finetune.optimizer.lr={rate}'


@pytest.mark.slow
def test_listed_learning_rates(lra_spt_train, alone_from_scratch, trajectory, tmp_path):
  assert lra_spt_train(tmp_path, RATES, '--config.runtime.members=2', argument='regime=scratch') == 0
  for rate in ('1e-3', '3e-2'):
    assert_equal(tmp_path / folder_of(rate), alone_from_scratch / folder_of(rate), trajectory)
  rates = [result_of(run)['config']['finetune']['optimizer']['lr'] for run in sorted(tmp_path.glob('f*'))]
  assert rates == [1e-3, 3e-2]


@pytest.mark.parametrize('devices', [4, pytest.param(2, marks=pytest.mark.slow)])
def test_a_device_or_two_for_each_member(lra_spt_train, alone_from_scratch, trajectory, tmp_path, devices):
  flags = (RATES, '--config.runtime.members=2')
  assert lra_spt_train(tmp_path, *flags, argument='regime=scratch', devices=devices) == 0
  for rate in ('1e-3', '3e-2'):
    assert_equal(tmp_path / folder_of(rate), alone_from_scratch / folder_of(rate), trajectory, rtol=1e-6)


def test_rates_of_finetuning_share_one_pretraining(lra_spt_train, tmp_path, capsys):
  assert lra_spt_train(tmp_path, RATES, '--config.runtime.members=2') == 0
  assert len(list(tmp_path.glob('stages/pretrain-*'))) == 1
  message = capsys.readouterr().out
  assert message.count('pretrain: best validation') == 1
  assert message.count('pretrain: already done') == 1
  assert re.search('finetune: .* 2 runs as one program', message)
  assert len({link.resolve() for link in tmp_path.glob('finetune*/pretrain-*')}) == 1
  reports = [result_of(tmp_path / folder_of(rate))['stages'] for rate in ('1e-3', '3e-2')]
  assert reports[0]['pretrain'] == reports[1]['pretrain']
  assert reports[0]['finetune']['metrics'] != reports[1]['finetune']['metrics']


@pytest.mark.parametrize('devices', [2, pytest.param(1, marks=pytest.mark.slow)])
def test_every_member_takes_over_and_freezes_its_own_parts(lra_spt_train, tmp_path, devices):
  """Queries are frozen at their initial values, and keys at their pretrained ones. The embedding starts from
  pretraining and trains."""
  flags = '--config.finetune.transfer=embed/*,*/key/*', '--config.finetune.freeze=*/query/*,*/key/*'
  assert lra_spt_train(tmp_path, '--seeds=0,1', *flags, '--config.runtime.members=2', devices=devices) == 0
  members = []
  for run in (tmp_path / 'seed0', tmp_path / 'seed1'):
    pretrained, finetuned = (lra_spt.load_run(run, stage) for stage in ('pretrain', 'finetune'))
    drawn = stages_of(finetuned.spec)['finetune'].fresh_state(one_device())['params']
    states = pretrained.model, finetuned.model
    pretrained, finetuned = (by_name(nnx.to_pure_dict(nnx.state(model, nnx.Param))) for model in states)
    drawn = by_name(drawn)
    assert result_of(run)['stages']['finetune']['members'] == 2
    for name, value in finetuned.items():
      source = pretrained if '/key/' in name else drawn
      frozen = '/key/' in name or '/query/' in name
      assert np.array_equal(value, source[name]) == frozen, name
    queries = 'encoder/blocks/mixer/query/kernel'
    assert not np.array_equal(pretrained[queries], drawn[queries])
    members.append(finetuned)
  first, second = ({name: one for name, one in member.items() if 'kernel' in name} for member in members)
  assert not [name for name in first if np.array_equal(first[name], second[name])]


def test_one_that_diverges_does_not_disturb_the_others(
  lra_spt_train, alone_from_scratch, trajectory, tmp_path, capsys
):
  rates = '--config.finetune.optimizer.lr=1e-3,1e38,3e-2'
  assert lra_spt_train(tmp_path, rates, '--config.runtime.members=3', argument='regime=scratch') == 2
  message = capsys.readouterr().err
  assert message.startswith('lra-spt: 1 of 3 runs that trained together failed: ')
  assert message.count('finetune met a non-finite number at step ') == 1
  failed = tmp_path / folder_of('1e38')
  assert not (failed / 'result.json').exists()
  assert json.loads((failed / 'failure.json').read_text())['kind'] == 'NonFiniteError'
  for rate in ('1e-3', '3e-2'):
    assert_equal(tmp_path / folder_of(rate), alone_from_scratch / folder_of(rate), trajectory)


def test_members_end_when_they_would_by_themselves(lra_spt_train, trajectory, tmp_path):
  """Patience ends one member. The other trains on, and the numbers of the first do not change any more."""
  flags = ('--config.finetune.optimizer.lr=0.0,1e-2', '--config.finetune.patience=1')
  assert lra_spt_train(tmp_path / 'alone', *flags, argument='regime=scratch') == 0
  flags = (*flags, '--config.runtime.members=2')
  assert lra_spt_train(tmp_path / 'together', *flags, argument='regime=scratch') == 0
  reports = []
  for rate in ('0.0', '1e-2'):
    run = tmp_path / 'together' / folder_of(rate)
    assert_equal(run, tmp_path / 'alone' / folder_of(rate), trajectory)
    reports.append(result_of(run)['stages']['finetune'])
  assert reports[0]['steps'] == 12  # its validation never improves on the first one
  assert reports[1]['steps'] == 18
  assert reports[0]['seconds'] < reports[1]['seconds']  # the second trained longer


def test_the_reported_metrics_are_those_that_chose_the_best_step(lra_spt_train, trajectory, tmp_path):
  """Every evaluation draws new masks here, and the runs are best at different steps."""
  flags = ('--seeds=0..3', '--config.runtime.members=4', '--config.finetune.max_steps=1')
  assert lra_spt_train(tmp_path, *flags, argument='regime=masked,protocol=paper') == 0
  best = set()
  for run in tmp_path.glob('seed*'):
    reported = result_of(run)['stages']['pretrain']
    lines = [line for line in trajectory(run)[reported['folder']] if line['split'] == 'validation']
    (line,) = (line for line in lines if line['step'] == reported['best_step'])
    assert reported['metrics'] == {key: line[key] for key in reported['metrics']}
    best.add(line['step'])
  assert len(best) > 1


def test_they_go_on_together_or_alone(lra_spt_train, alone, trajectory, tmp_path):
  """Three members are interrupted. One continues alone for a while, then all continue together. Their numbers
  are bit for bit those of runs that were never interrupted."""
  flags = ('--seeds=0..2', '--config.runtime.members=3')
  with asked_to_end_after(4):
    assert lra_spt_train(tmp_path, *flags) == 75
  with asked_to_end_after(3):
    assert lra_spt_train(tmp_path / 'seed1') == 2  # the folder is of another seed
    assert lra_spt_train(tmp_path / 'seed1', argument='regime=masked,seed=1') == 75
  ahead = last_step(trajectory(tmp_path / 'seed1'))
  assert ahead > last_step(trajectory(tmp_path / 'seed0'))
  with asked_to_end_after(6):
    assert lra_spt_train(tmp_path, *flags) == 75
  assert lra_spt_train(tmp_path, *flags) == 0
  for seed in range(3):
    assert_equal(tmp_path / f'seed{seed}', alone / f'seed{seed}', trajectory)


@contextlib.contextmanager
def asked_to_end_after(count):
  """`asked_to_end` is false `count` times, then true. The `monkeypatch` fixture would drop traced
  programs."""
  seen = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(processes, 'asked_to_end', lambda: seen.append(1) or len(seen) > count)
    yield


def last_step(stages):
  return max(line['step'] for lines in stages.values() for line in lines)


def test_other_differences_are_refused(tiny_config, tmp_path):
  configs = [
    loading.load(f'{tiny_config}:regime=scratch', {'seed': seed, 'model.width': 16 + seed}) for seed in (0, 8)
  ]
  runs = [ActiveRun(resolve(config), tmp_path / str(i)) for i, config in enumerate(configs)]
  with pytest.raises(ConfigError, match=r'may differ in seed, lr .* by themselves:\nmodel.width: 16 -> 24$'):
    experiment.run_together(runs)
  assert not list(tmp_path.iterdir())


def test_members_that_are_none_and_values_listed_twice_are_refused(lra_spt_train, tmp_path, capsys):
  for members in (0, -1):
    assert lra_spt_train(tmp_path, f'--config.runtime.members={members}') == 2
    assert f'runtime.members is {members}, but it must be at least 1' in capsys.readouterr().err
  assert lra_spt_train(tmp_path, '--config.finetune.optimizer.lr=1e-3,1e-3') == 2
  assert 'finetune.optimizer.lr lists 1e-3 twice' in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_damaged_step_that_others_go_on_from_costs_them_nothing(lra_spt_train, alone, trajectory, tmp_path):
  """The member that is ahead cannot go back to the step of the other, so it continues alone."""
  flags = ('--seeds=0,1', '--config.runtime.members=2')
  with asked_to_end_after(3):
    assert lra_spt_train(tmp_path, *flags) == 75
  with asked_to_end_after(3):
    assert lra_spt_train(tmp_path / 'seed1', argument='regime=masked,seed=1') == 75
  steps = sorted(
    (tmp_path / 'seed1').glob('pretrain-*/checkpoints/latest/*'), key=lambda path: int(path.name)
  )
  for path in steps[0].rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  assert lra_spt_train(tmp_path, *flags) == 0
  for seed in range(2):
    assert_equal(tmp_path / f'seed{seed}', alone / f'seed{seed}', trajectory)
