"""The cost of a study before it starts, and the time that is left while it runs."""

import collections
import pathlib
import re
import types

import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.config.schema import NO_LIMIT
from lra_spt.report.study.arms import duration
from lra_spt.studies import estimate, progress, queues, runner, study
from lra_spt.studies.study import Cell, Study

ARMS = ('scratch', 'scratch,causal=true', 'masked', 'causal')

SMALL = Study(
  'small',
  'Every regime in miniature',
  [Cell(arm, 'Stripes', f'configs/miniature.py:model=transformer,regime={arm}') for arm in ARMS],
  seeds=(0, 1),
)


def test_time_left_follows_the_runs_that_are_done(tmp_path):
  jobs = study.jobs(SMALL)
  steps = {job: dict.fromkeys(job.stages, 60) for job in jobs}
  lines = []
  shown = progress.Progress(jobs, tmp_path, steps, 2, lines.append)
  assert shown.seconds_left({}) is None
  scratch, pretrained = jobs[0], next(job for job in jobs if 'pretrain' in job.stages)
  shown.tell(scratch, runner.RUNNING, 0)
  shown.tell(scratch, runner.FINISHED, 6.0)
  # A step takes a tenth of a second. Three runs of 60 steps and four of 120 are left, two at a time.
  assert shown.seconds_left({}) == pytest.approx((3 * 6 + 4 * 12) / 2)
  files.write_json(
    _made(tmp_path / pretrained.folder) / 'failure.json', {'error': 'lr 3 in /a/b is too large'}
  )
  shown.tell(pretrained, runner.FAILED, 2.0)
  other = jobs[jobs.index(pretrained) + 1]
  files.write_json(_made(tmp_path / other.folder) / 'failure.json', {'error': 'lr 4 in /a/c is too large'})
  shown.tell(other, runner.FAILED, 2.0)
  assert 'FAILED: lr 3' in lines[-2]
  assert f'(like {pretrained.name}: probably the same cause)' in lines[-1]


def test_time_left_counts_what_an_earlier_attempt_trained(tmp_path):
  chosen = study.jobs(SMALL)
  first, second = [job for job in chosen if 'pretrain' not in job.stages][:2]
  steps = {job: {'finetune': 60} for job in (first, second)}
  shown = progress.Progress((first, second), tmp_path, steps, 1, [].append)
  (at,) = [_made(tmp_path / first.folder / name) / 'metrics.jsonl' for name in first.stages.values()]
  at.write_text('{"step": 45, "split": "train"}\n')
  shown.tell(first, runner.RUNNING, 0.0)
  attempt = types.SimpleNamespace(seconds=3.0)
  assert shown.seconds_left({first: attempt}) is None
  at.write_text('{"step": 51, "split": "train"}\n')
  # 6 steps took 3 s. 9 steps are left of this run, and 60 of the other.
  assert shown.seconds_left({first: attempt}) == pytest.approx((9 + 60) / 2)
  at.write_text('{"step": 60, "split": "train"}\n')
  shown.tell(first, runner.FINISHED, 7.5)
  assert shown.seconds_left({}) == pytest.approx(60 / 2)


def of_rates(*rates):
  """(a study with one pretraining and several learning rates of finetuning, its jobs)."""
  settings = [{'finetune.optimizer.lr': rate} for rate in rates]
  cells = [Cell(f'{each}', 'b', 'configs/image.py:model=s4,regime=masked', each) for each in settings]
  return (one := Study('x', 'X', cells)), study.jobs(one)


def test_time_left_knows_what_is_trained_already(tmp_path):
  """The run with the second learning rate uses the pretraining of the first."""
  _, (first, second) = of_rates(1e-3, 4e-3)
  steps = {job: {'pretrain': 60, 'finetune': 40} for job in (first, second)}
  shown = progress.Progress((first, second), tmp_path, steps, 1, [].append)
  shown.tell(first, runner.RUNNING, 0.0)
  shown.tell(first, runner.FINISHED, 50.0)
  assert shown.seconds_left({}) == pytest.approx(20)
  shown.tell(second, runner.RUNNING, 0.0)
  shown.tell(second, runner.FINISHED, 20.0)
  assert shown.seconds[second.program] == pytest.approx([50])


def test_time_left_counts_a_shared_stage_once(tmp_path):
  """Four rates of finetuning share a pretraining. The first run trains it, then a second run begins."""
  _, jobs = of_rates(1e-3, 2e-3, 4e-3, 8e-3)
  shown = progress.Progress(
    jobs, tmp_path, {job: {'pretrain': 500, 'finetune': 400} for job in jobs}, 1, [].append
  )
  shown.tell(jobs[0], runner.RUNNING, 0.0)
  stages = {name: _made(tmp_path / jobs[0].folder / key) for name, key in jobs[0].stages.items()}
  (stages['pretrain'] / 'metrics.jsonl').write_text('{"step": 250, "split": "train"}\n')
  running = {jobs[0]: types.SimpleNamespace(seconds=100.0)}
  assert shown.seconds_left(running) == pytest.approx((250 + 4 * 400) * 0.4)
  (stages['pretrain'] / 'metrics.jsonl').write_text('{"step": 500, "split": "train"}\n')
  (stages['pretrain'] / 'stage.json').write_text('{}')
  (stages['finetune'] / 'metrics.jsonl').write_text('{"step": 100, "split": "train"}\n')
  running[jobs[0]].seconds = 240.0
  shown.tell(jobs[1], runner.RUNNING, 0.0)
  assert shown.seconds_left(running) == pytest.approx((300 + 3 * 400) * 0.4)
  other = _made(tmp_path / jobs[1].folder / jobs[1].stages['finetune'])
  (other / 'metrics.jsonl').write_text('{"step": 200, "split": "train"}\n')
  running[jobs[1]] = types.SimpleNamespace(seconds=80.0)
  assert shown.seconds_left(running) == pytest.approx((300 + 200 + 2 * 400) * 0.4)


def _made(folder):
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def test_what_trains_together_is_one_command(tmp_path):
  jobs = study.jobs(SMALL, seeds=(0, 1, 2), overrides=['runtime.members=2'])
  groups = study.together(jobs)
  assert collections.Counter(map(len, groups)) == {1: len(jobs) // 3, 2: len(jobs) // 3}
  assert sorted(job.name for group in groups for job in group) == sorted(job.name for job in jobs)
  for group in groups:
    assert len({job.program for job in group}) == 1
    words = study.command(group, tmp_path)
    assert f'--workdir={tmp_path / group[0].folder.parent}' in words
    assert '--seeds=' + ','.join(str(job.seed) for job in group) in words
    assert not [word for word in words if word.startswith('--config.seed')]
  lines = queues.script(jobs, tmp_path, 'plain').splitlines()
  assert sum(line.count('lra-spt train') for line in lines) == len(groups)


@pytest.mark.parametrize('most', [1e12, 1.0])
def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(monkeypatch, tmp_path, tiny_data, capsys, most):
  monkeypatch.setattr(estimate, '_step_seconds', lambda share: 0.1)
  monkeypatch.setattr(estimate, 'MOST_FLOPS', {'cpu': most})
  file = f'{pathlib.Path(__file__).parents[1]}/tiny_study.py:good'
  workdir = tmp_path / 'W'
  flags = [f'--workdir={workdir}', f'--config.runtime.data_dir={tiny_data}', '--dry_run', '--processes=2']
  assert cli.main(['study', file, *flags]) == 0
  printed = capsys.readouterr().out
  assert 'Trees in seconds (study tiny): 3 runs, 0 of them finished' in printed
  assert 'stages      4 to train, 1 more are shared' in printed
  steps = int(re.search(r'steps +(\d+) at most', printed)[1])
  took = re.search('time +(.*)', printed)[1]
  if most > 1:
    assert took.startswith(f'about {duration(0.1 * steps / 2)} on cpu, 2 at a time')
    assert f'{steps // 4} steps of 100 ms' in printed
  else:
    assert took.startswith('not measured: the smallest step has ')
    assert f'{steps // 4} steps, ' in printed
  assert not workdir.exists()


def test_a_dry_run_counts_no_stage_that_a_finished_run_has(monkeypatch, tmp_path):
  """Two learning rates of finetuning share one pretraining, which the first run has finished."""
  one, jobs = of_rates(1e-3, 4e-3)
  monkeypatch.setattr(estimate, '_step_seconds', lambda share: 0.1)
  monkeypatch.setattr(
    estimate.runner, 'state', lambda workdir, job: runner.FINISHED if job is jobs[0] else runner.WAITING
  )
  steps = {job: {'pretrain': 60, 'finetune': 40} for job in jobs}
  printed = estimate.describe(one, jobs, steps, [], tmp_path, 1)
  assert 'stages      1 to train, 0 more are shared' in printed
  assert 'steps       40 at most' in printed


def test_a_dry_run_counts_stages_that_only_time_ends_by_their_time(monkeypatch, tmp_path):
  one, jobs = of_rates(1e-3)
  monkeypatch.setattr(estimate, '_step_seconds', lambda share: 0.1)
  monkeypatch.setattr(estimate, 'MOST_FLOPS', {'cpu': 1e15})
  steps = {job: {'pretrain': 100, 'finetune': NO_LIMIT} for job in jobs}
  printed = estimate.describe(one, jobs, steps, [], tmp_path, 1)
  assert 'steps       100 at most, without stages that only max_seconds ends: 1' in printed
  (limit,) = (job.config.finetune.max_seconds for job in jobs)
  assert f'about {duration(10 + limit)} on' in printed
  assert f'finetune: {limit:g} s of steps of 100 ms' in printed
