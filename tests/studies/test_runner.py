"""The runs of a study share stages. Finished ones are skipped, and one that fails stops no other."""

import base64
import contextlib
import hashlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest

from lra_spt import files, load_run
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import ConfigError, InUse
from lra_spt.report.runs import run_folder
from lra_spt.report.study import record as study_record
from lra_spt.report.study import table as report
from lra_spt.report.study.text import text
from lra_spt.studies import progress, runner, study
from lra_spt.studies.study import Cell, Study


@pytest.fixture(scope='module')
def finished(tmp_path_factory, run_study):
  """(workdir, output) of the tiny study."""
  workdir = tmp_path_factory.mktemp('study') / 'W'
  process = run_study(workdir, '--processes=2')
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 1, output + errors  # one run fails
  return workdir, output


def test_a_run_that_fails_costs_no_other(finished):
  workdir, output = finished
  table = report.read_table(workdir)
  assert table.counts == {'finished': 3, 'failed': 1, 'open': 0, 'damaged': 0}
  assert re.search(r'broken, Trees, seed 0: FAILED: finetune met a non-finite number', output)
  assert table.cells['broken', 'Trees'].state == 'failed'
  assert table.cells['not ours', 'Trees'].state == 'not implemented'
  assert '(25.00)' in output
  assert '\u00d7' in output


def test_runs_share_their_pretraining(finished):
  workdir, _ = finished
  (stage,) = (workdir / 'stages').glob('pretrain-*')
  links = {
    row: workdir / 'runs' / row / 'trees' / 'seed0' / stage.name for row in ('masked', 'masked_slower')
  }
  assert all(link.is_symlink() and link.resolve() == stage.resolve() for link in links.values())
  logs = [(link.parent / 'log.txt').read_text() for link in links.values()]
  assert sum('pretrain: already done' in log for log in logs) == 1


def test_studies_can_share_their_stages(finished, tmp_path, run_study):
  workdir, _ = finished
  flags = f'--stages={workdir / "stages"}', '--only=row=masked'
  process = run_study(tmp_path, *flags)
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  assert not (tmp_path / 'stages').exists()
  place = pathlib.Path('runs', 'masked', 'trees', 'seed0')
  log = (tmp_path / place / 'log.txt').read_text()
  assert log.count('already done') == 2  # neither stage is trained again
  one, other = (run_folder.read_result(folder / place) for folder in (workdir, tmp_path))
  assert one['metrics'] == other['metrics']


def test_runs_of_a_study_can_be_loaded(finished, tiny_config):
  loading.load(tiny_config)  # registers its task
  workdir, _ = finished
  run = load_run(workdir / 'runs' / 'masked_slower' / 'trees' / 'seed0')
  assert run.config.finetune.optimizer.lr == 1e-3


def test_the_same_command_trains_nothing_that_is_finished(finished, run_study):
  workdir, _ = finished
  before = {path: path.stat().st_mtime_ns for path in workdir.rglob('result.json')}
  flags = ('--only=row=masked',)
  process = run_study(workdir, *flags)
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  assert 'started' not in output
  assert 'runs: 3 finished, 1 failed' in output
  assert {path: path.stat().st_mtime_ns for path in workdir.rglob('result.json')} == before


def test_results_of_another_config_are_refused(finished, repository):
  workdir, _ = finished
  one = study.load(str(repository / 'tests' / 'tiny_study.py'))

  def check(*overrides):
    runner.check(workdir, study.jobs(one, only={'row': 'masked'}, overrides=overrides))

  check()
  check('runtime.devices=1')
  with pytest.raises(ConfigError, match=r'different config than masked, Trees has now.*\n.*lr: .* -> 0.5'):
    check('finetune.optimizer.lr=0.5')


def test_a_seed_of_another_command_is_one_of_the_same_cell(finished, repository):
  """Its config is compared with seeds that the command does not name, since all seeds of a cell are
  averaged."""
  workdir, _ = finished
  one = study.load(str(repository / 'tests' / 'tiny_study.py'))
  others = study.jobs(one, seeds=(7,), only={'row': 'masked'})
  runner.check(workdir, others)
  with pytest.raises(ConfigError, match=r'seed\d has a result of a different config .*\n.*lr: .* -> 0.5'):
    runner.check(
      workdir, study.jobs(one, seeds=(7,), only={'row': 'masked'}, overrides=('finetune.optimizer.lr=0.5',))
    )


@pytest.fixture
def planned(monkeypatch, tmp_path):
  """(a job, check); check(result) compares the result in the folder of the job with its config."""
  (job,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4,regime=scratch')]))
  (tmp_path / job.folder).mkdir(parents=True)
  (tmp_path / job.folder / run_folder.RESULT).touch()

  def check(result):
    monkeypatch.setattr(run_folder, 'read_result', lambda folder: result)
    runner.check(tmp_path, [job])

  return job, check


def test_a_recorded_run_in_the_place_of_another_is_refused(planned):
  one, check = planned
  matching = {key: one.config[key] for key in ('task', 'regime', 'causal', 'protocol', 'seed')}
  matching['model'] = one.config.model.name
  check(matching)
  for facts in ({'seed': 7}, {'model': 's5'}, {'regime': 'masked'}, {'causal': True}, {'protocol': 'paper'}):
    with pytest.raises(ConfigError, match=f'a different config than a, b has now.*\n{[*facts][0]}: '):
      check(matching | facts)


def test_weights_that_a_cell_starts_from_are_compared(planned):
  one, check = planned
  before = {'config': loading.identity(one.config)}
  check(before)
  one.config.model.weights = 'sha256:abc'
  with pytest.raises(ConfigError, match=r'model.weights: \(absent\) -> '):
    check(before)


def test_options_of_a_mixer_are_compared_also_where_one_side_has_none(planned):
  one, check = planned
  before = loading.identity(one.config)
  del before['model']['mixer']['a_lr']
  with pytest.raises(ConfigError, match=r'model.mixer.a_lr: \(absent\) -> '):
    check({'config': before})


def test_a_command_that_is_refused_changes_nothing(finished, repository, tiny_data, capsys):
  workdir, _ = finished
  before = (workdir / 'study.json').read_bytes()
  arguments = ['study', f'{repository}/tests/tiny_study.py:good', f'--workdir={workdir}']
  arguments += [f'--config.runtime.data_dir={tiny_data}']
  assert cli.main([*arguments, '--config.finetune.optimizer.lr=0.5']) == 2
  assert 'of a different config' in capsys.readouterr().err
  assert cli.main([*arguments, '--smoke']) == 2
  assert (workdir / 'study.json').read_bytes() == before


@pytest.mark.parametrize(
  'change, words',
  [
    ({'smoke': True}, 'has results of full runs, but this command makes a smoke run; choose'),
    ({'study': 'other'}, 'belongs to the study tiny, not to other'),
  ],
)
def test_the_folder_of_other_results_is_refused(finished, change, words):
  with pytest.raises(ConfigError, match=words):
    study_record.claim(finished[0], study_record.read_record(finished[0]) | change)


def test_the_page_says_all(finished, tiny_data):
  workdir, _ = finished
  html = (workdir / 'report.html').read_text()
  for words in (
    'Trees in seconds',
    'published 25.00',
    'not implemented',
    'non-finite number',
    'lra-spt train',
    f'--config.runtime.data_dir={tiny_data}',
    '--config.seed=0 --workdir=W',
  ):
    assert words in html


def test_the_page_runs_its_own_script_and_no_other(finished):
  workdir, _ = finished
  html = (workdir / 'report.html').read_text()
  (script,) = re.findall('<script>(.*?)</script>', html, re.DOTALL)
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
  (policy,) = re.findall('http-equiv="Content-Security-Policy" content="(.*?)"', html)
  assert policy.startswith("default-src 'none'; ")
  assert policy.partition('script-src ')[2] == f"'sha256-{digest}'"
  assert html.count('<script') == 1
  assert 'class="study sorted"' in html


def test_seeds_of_a_cell_train_as_one_program(finished, tmp_path, run_study, trajectory):
  """One command trains all seeds of a cell on one CPU device. Their numbers are those of separate runs."""
  flags = ('--seeds=0,1,2', '--config.runtime.members=2', '--only=row=scratch')
  process = run_study(tmp_path, *flags, arg='good')
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  place = pathlib.Path('runs', 'scratch', 'trees')
  members = [json.loads((tmp_path / place / f'seed{seed}' / 'result.json').read_text()) for seed in range(3)]
  assert [result['stages']['finetune'].get('members') for result in members] == [2, 2, None]
  assert trajectory(tmp_path / place / 'seed0') == trajectory(finished[0] / place / 'seed0')
  log = (tmp_path / place / 'seed1' / 'log.txt').read_text()
  assert log == 'Trained together with seed0, see its log.txt.\n'


def test_a_damaged_run_is_named_and_the_others_stay(finished, tmp_path, capsys):
  workdir = tmp_path / 'W'
  shutil.copytree(finished[0], workdir, symlinks=True)
  (workdir / 'runs' / 'scratch' / 'trees' / 'seed0' / 'result.json').write_text('[1]')
  table = report.read_table(workdir)
  assert table.counts == {'finished': 2, 'failed': 2, 'open': 0, 'damaged': 0}
  assert 'result.json is not the result of a run' in ' '.join(text(table).split())
  assert cli.main(['export', f'--workdir={workdir}', '--format=csv']) == 1
  assert '! result.json is not' in capsys.readouterr().err.replace(f'{workdir}/runs/scratch/trees/seed0/', '')


def test_the_last_line_of_a_failure_is_of_this_attempt(monkeypatch, tmp_path):
  """An attempt that was killed silently does not get the reason of an earlier attempt."""
  (job,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4')]))
  folder = tmp_path / job.folder
  folder.mkdir(parents=True)
  (folder / run_folder.LOG).write_text('no space is left on the disk\n')
  die = [sys.executable, '-c', 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)']
  popen = subprocess.Popen
  monkeypatch.setattr(subprocess, 'Popen', lambda words, preexec_fn, **options: popen(die, **options))
  attempt = runner.Attempt([job], tmp_path, 0, 1, (), None)
  attempt.process.wait()
  assert runner._outcome(job, attempt, tmp_path) == runner.FAILED
  sentence = (
    'its process was ended by signal 9 (the system may have run out of memory); its last line: it '
    'printed nothing'
  )
  assert run_folder.read_failure(folder)['error'] == sentence


@pytest.mark.parametrize(
  ('given', 'of_slots'), [('', ['', '', '']), ('2,5', ['2', '5', '2']), ('GPU-1a,', ['GPU-1a'] * 3)]
)
def test_only_gpus_that_are_not_hidden_are_given(given, of_slots, monkeypatch, tmp_path):
  monkeypatch.delenv('JAX_PLATFORMS', raising=False)
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', given)
  monkeypatch.setattr(runner.shutil, 'which', lambda tool: pytest.fail('the driver was asked'))
  actual = [runner.environment(tmp_path, slot, 3)['CUDA_VISIBLE_DEVICES'] for slot in range(3)]
  assert actual == of_slots


@pytest.mark.slow
def test_killed_twice_it_ends_as_if_undisturbed(finished, tmp_path, run_study, trajectory):
  """SIGKILL ends the command and its runs, then Ctrl-C does. The same command is repeated and finishes."""
  workdir = tmp_path / 'W'
  for stages, sign in ((1, signal.SIGKILL), (3, signal.SIGINT)):
    process = run_study(workdir, '--processes=2')
    while len(list(workdir.glob('stages/*/metrics.jsonl'))) < stages and process.poll() is None:
      time.sleep(0.1)
    process.send_signal(sign)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == (-sign if sign == signal.SIGKILL else 75)
    assert ('interrupt again to end them at once.' in errors) == (sign == signal.SIGINT)
  process = run_study(workdir, '--processes=2')
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 1, output + errors
  for run in sorted(finished[0].glob('runs/*/*/*')):
    other = workdir / run.relative_to(finished[0])
    assert trajectory(run) == trajectory(other)
    if (run / 'result.json').exists():
      ours, theirs = (json.loads((folder / 'result.json').read_text()) for folder in (run, other))
      assert ours['metrics'] == theirs['metrics']


def test_a_run_that_another_process_holds_up_is_tried_again(monkeypatch, tmp_path):
  """The other process may train the same stage, in a folder that two studies share."""
  (job,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4')]))
  folder, events, attempts = tmp_path / job.folder, [], []

  class Attempt:
    seconds = 1.0
    process = types.SimpleNamespace(poll=lambda: 2, returncode=2)

    def __init__(self, jobs, workdir, slot, *_):
      self.jobs, self.slot = jobs, slot
      attempts.append(slot)
      folder.mkdir(parents=True, exist_ok=True)
      if len(attempts) == 1:
        run_folder.write_failure(folder, InUse('Another process is training the stage.'))
      else:
        (folder / run_folder.RESULT).write_text('{}')

  monkeypatch.setattr(runner, 'Attempt', Attempt)
  monkeypatch.setattr(runner, 'PAUSE', 0.2)
  states = runner.run_all([job], tmp_path, tell=lambda job, what, seconds: events.append(what))
  assert list(states.values()) == [runner.FINISHED]
  assert events == [runner.RUNNING, runner.HELD_UP, runner.RUNNING, runner.FINISHED]


def test_a_run_starts_as_soon_as_the_stage_that_it_shares_is_done(tmp_path):
  rates = ({'finetune.optimizer.lr': rate} for rate in (1e-3, 4e-3))
  cells = [Cell(f'{rate}', 'b', 'configs/image.py:model=s4,regime=masked', rate) for rate in rates]
  first, other = study.jobs(Study('x', 'X', cells))
  assert {*first.stages.values()} & {*other.stages.values()} == {first.stages['pretrain']}
  pretraining = tmp_path / first.folder / first.stages['pretrain']
  pretraining.mkdir(parents=True)
  assert runner._next([[other]], {first: None}, {}, tmp_path) is None
  (pretraining / run_folder.STAGE).write_text('{}')
  assert runner._next([[other]], {first: None}, {}, tmp_path) == [other]


def test_a_folder_that_another_process_owns_is_waited_for_and_said(monkeypatch, tmp_path):
  """All stages are done here, but the other process is still testing."""
  (job,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4')]))
  folder, events, lines = tmp_path / job.folder, [], []
  for key in job.stages.values():
    (folder / key).mkdir(parents=True)
    (folder / key / run_folder.STAGE).write_text('{}')
  shown = progress.Progress([job], tmp_path, {job: {'finetune': 1}}, 1, lines.append)
  owner = contextlib.ExitStack()
  owner.enter_context(files.owned(folder, 'training in'))

  class Attempt:
    seconds = 1.0
    process = types.SimpleNamespace(poll=lambda: 0, returncode=0)

    def __init__(self, jobs, workdir, slot, *_):
      assert not files.is_owned(folder)
      self.jobs, self.slot = jobs, slot
      (folder / run_folder.RESULT).write_text('{}')

  def tell(*event):
    events.append(event[1])
    shown.tell(*event)

  def watch(running):
    if events == [runner.HELD_UP]:
      owner.close()

  monkeypatch.setattr(runner, 'Attempt', Attempt)
  with owner:
    states = runner.run_all([job], tmp_path, tell=tell, watch=watch)
  assert list(states.values()) == [runner.FINISHED]
  assert events == [runner.HELD_UP, runner.RUNNING, runner.FINISHED]
  assert lines[0].endswith(f'waiting for another process, which is training in {folder}')


def test_a_run_that_finds_its_folder_taken_has_not_failed(tmp_path):
  (job,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4')]))
  attempt = types.SimpleNamespace(jobs=[job], process=types.SimpleNamespace(returncode=2))
  with files.owned(tmp_path / job.folder, 'training in'):
    assert runner._outcome(job, attempt, tmp_path) == runner.HELD_UP


@pytest.mark.parametrize(
  ('variables', 'processes', 'sentence'),
  [
    ({'CUDA_VISIBLE_DEVICES': '0,1'}, 3, 'but there are 2 GPUs, .* give --processes=2, or set XLA_PYTHON'),
    ({'CUDA_VISIBLE_DEVICES': '3'}, 2, 'but there is one GPU, .* give --processes=1, or set XLA_PYTHON'),
    ({'CUDA_VISIBLE_DEVICES': '0,1'}, 2, None),
    ({'CUDA_VISIBLE_DEVICES': '0', 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}, 8, None),
    ({'CUDA_VISIBLE_DEVICES': '0', 'JAX_PLATFORMS': 'cpu'}, 8, None),
    ({'CUDA_VISIBLE_DEVICES': ''}, 8, None),
  ],
)
def test_each_run_has_the_memory_of_a_gpu(variables, processes, sentence, monkeypatch):
  for name in ('JAX_PLATFORMS', *runner.MEMORY):
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(ConfigError, match=sentence) if sentence else contextlib.nullcontext():
    runner.check_processes(processes)


def test_a_driver_that_does_not_answer_is_no_traceback(monkeypatch):
  def hang(*arguments, **options):
    raise subprocess.TimeoutExpired('nvidia-smi', 60)

  runner._all_gpus.cache_clear()
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  monkeypatch.delenv('JAX_PLATFORMS', raising=False)
  monkeypatch.setattr(runner.shutil, 'which', lambda tool: tool)
  monkeypatch.setattr(runner.subprocess, 'run', hang)
  with pytest.raises(ConfigError, match='does not say which GPUs there are; name them'):
    runner.check_processes(2)
