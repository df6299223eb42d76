"""Flags of lra-spt train decide which runs it makes."""

import pytest

from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import NonFiniteError


@pytest.fixture
def runs(monkeypatch):
  """The runs that `train` would start: (seed, workdir, pretrained, max_steps, progress) of each."""
  from lra_spt.runs import experiment

  calls = []

  def run(requests, *, stages, arm, announce):
    announce('told')
    for each in requests:
      seed, steps, progress = (
        each.spec.seed,
        each.spec.stages['finetune'].max_steps,
        each.spec.runtime.progress,
      )
      calls.append((seed, each.workdir, each.pretrained, steps, progress))
    return [{'metric': 'accuracy', 'metrics': {'test': {'accuracy': 0.5}}}] * len(requests)

  monkeypatch.setattr(experiment, 'run_together', run)
  return calls


def test_a_run_per_seed(runs, capsys):
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--seeds=3..5']) == 0
  assert [(seed, workdir) for seed, workdir, *_ in runs] == [(3, 'W/seed3'), (4, 'W/seed4'), (5, 'W/seed5')]
  assert capsys.readouterr().out == 'told\n' * 3


@pytest.mark.parametrize(
  'flags, times, names',
  [
    (['--config.runtime.members=2'], 1, ['seed0', 'seed1']),
    (['--config.seed=3', '--config.runtime.members=2'], 1, ['seed3', 'seed4']),
    (['--seeds=3..5', '--config.runtime.members=2'], 2, ['seed3', 'seed4', 'seed5']),
    (
      ['--seeds=1,2', '--config.finetune.optimizer.lr=[1e-3, 1e-2]', '--config.runtime.members=4'],
      1,
      [f'seed{seed},finetune.optimizer.lr={rate}' for seed in (1, 2) for rate in ('1e-3', '1e-2')],
    ),
    (
      ['--config.finetune.optimizer.lr=0.1,0.2', '--config.finetune.optimizer.weight_decay=0,1'],
      4,
      [f'finetune.optimizer.lr={a},finetune.optimizer.weight_decay={b}' for a in (0.1, 0.2) for b in (0, 1)],
    ),
  ],
)
def test_runs_that_train_together(runs, capsys, flags, times, names):
  """Every seed runs with every listed value, as many at a time as there are members."""
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', *flags]) == 0
  assert [workdir for _, workdir, *_ in runs] == [f'W/{name}' for name in names]
  assert capsys.readouterr().out == 'told\n' * times


def test_rates_that_diverge_end_no_others(runs, monkeypatch, capsys):
  from lra_spt.runs import experiment

  run = experiment.run_together  # the fixture's

  def diverging(requests, **options):
    if requests[0].spec.stages['finetune'].optimizer.lr > 0.1:
      raise NonFiniteError('step 3: the loss is nan')
    return run(requests, **options)

  monkeypatch.setattr(experiment, 'run_together', diverging)
  rates = '--config.finetune.optimizer.lr=0.2,0.1,0.3'
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', rates]) == 2
  assert [workdir for _, workdir, *_ in runs] == ['W/finetune.optimizer.lr=0.1']
  printed = capsys.readouterr()
  assert 'lra-spt: W/finetune.optimizer.lr=0.2: step 3: the loss is nan' in printed.out
  assert printed.err.count('step 3: the loss is nan') == 2
  monkeypatch.setenv('LRA_SPT_TRACEBACK', '1')
  with pytest.raises(NonFiniteError, match='^step 3: the loss is nan$'):
    cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--config.finetune.optimizer.lr=0.2'])


def test_seeds_may_each_have_a_pretraining(runs, tmp_path):
  (tmp_path / 'seed1').mkdir()
  assert (
    cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--seeds=0,1', f'--pretrained={tmp_path}'])
    == 0
  )
  assert [pretrained for _, _, pretrained, *_ in runs] == [str(tmp_path), str(tmp_path / 'seed1')]


def test_smoke_and_quiet(runs, capsys):
  assert cli.main(['train', '--config=configs/demo.py', '--workdir', 'W', '--smoke', '--quiet']) == 0
  assert runs == [(0, 'W', None, loading.SMOKE_STEPS['max_steps'], False)]
  assert capsys.readouterr().out == 'W: test accuracy 0.5000\n'


def test_dry_run_says_what_would_be_run_and_writes_nothing(tiny_data, repository, tmp_path, capsys):
  tiny = repository / 'tests' / 'tiny_config.py'
  arguments = [f'--config={tiny}:regime=masked', f'--workdir={tmp_path}/W', '--dry_run']
  assert cli.main(['train', *arguments, f'--config.runtime.data_dir={tiny_data}']) == 0
  printed = capsys.readouterr().out
  assert 'transformer on tiny_listops, regime masked, protocol clean, seed 0' in printed
  assert f'{tmp_path}/W (new)' in printed
  assert '96 train, 20 validation, 24 test' in printed
  assert printed.count(' parameters, at most 18 steps of 16 (3 epochs)') == 2
  assert printed.count('encoder/embed') == 1
  assert list(tmp_path.iterdir()) == []
