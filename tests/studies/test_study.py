"""Studies: what their files expand to, what is shared and skipped, what a run that fails costs the others."""

import base64
import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest

from lra_spt import cli, config, config_files, files, load_run, run_folder
from lra_spt.errors import ConfigError, DamagedFile, DataError, InUse
from lra_spt.report import published
from lra_spt.report import studies as report
from lra_spt.report.tables import duration
from lra_spt.studies import budget, estimate, progress, queues, records, runner, study
from lra_spt.studies.study import Cell, Study

INSTALLED = config_files.installed('studies', 'get_study')
RUNS = {  # what the files expand to: cells, those with a config, runs, stages to train
  'figure1': (40, 38, 38, 57),
  'figure3': (36, 36, 36, 46),
  'figure4': (4, 4, 4, 8),
  'figure5': (4, 4, 4, 6),
  'grid': (4, 4, 12, 18),
  'mini_arms': (20, 20, 60, 84),
  'mini_labels': (11, 11, 33, 45),
  'mini_length': (16, 16, 16, 24),
  'mini_random': (16, 16, 48, 72),
  'mini_table': (20, 20, 60, 90),
  'miniature': (24, 24, 48, 72),
  'table1': (60, 60, 60, 72),
  'table2': (56, 43, 43, 56),
  'table3': (24, 24, 24, 36),
  'table7': (32, 32, 32, 48),
  'table8': (24, 24, 24, 44),
  'table9': (20, 20, 20, 30),
}


@pytest.fixture(scope='module')
def loaded():
  """{name: (study, its jobs)} of the installed study files."""
  studies = [study.load(path) for path in INSTALLED]
  return {one.name: (one, study.jobs(one)) for one in studies}


def test_every_file_is_one_study_of_its_name(loaded):
  assert sorted(pathlib.Path(path).stem for path in INSTALLED) == sorted(loaded) == sorted(RUNS)


@pytest.mark.parametrize('name', RUNS)
def test_cells_runs_and_stages(loaded, name):
  one, jobs = loaded[name]
  stages = {key for job in jobs for key in job.stages.values()}
  with_config = sum(bool(cell.config) for cell in one.cells)
  assert (len(one.cells), with_config, len(jobs), len(stages)) == RUNS[name]
  assert len({job.folder for job in jobs}) == len(jobs)


@pytest.mark.parametrize('table', [1, 2, 3, 7, 8, 9])
def test_every_printed_number_of_a_table_stands_in_its_study_as_printed(loaded, table):
  one, _ = loaded[f'table{table}']
  printed = sorted(
    (row.source, '\u00d7' if row.value is None else f'{row.value:.{3 if row.metric == "r2" else 2}f}')
    for row in published.ROWS
    if row.table == table
  )
  assert sorted((c.published.source, c.published.printed) for c in one.cells if c.published) == printed


def test_shares_of_table_8_add_up_to_the_same_epochs(loaded):
  _, jobs = loaded['table8']
  for job in jobs:
    epochs = sum(job.config[stage].epochs for stage in job.stages)
    assert epochs == {'image': 150, 'text': 30}[job.config.task]


@pytest.mark.parametrize('name', ['figure3', 'table8'])
def test_stages_of_parts_and_shares_leave_their_warmup(loaded, name):
  _, jobs = loaded[name]
  for job, steps in budget.plan(jobs)[0].items():
    for stage, total in steps.items():
      assert job.config[stage].schedule.warmup_steps < total / 2, (job.name, stage)


def test_figure_3_pretrains_once_for_all_parts_where_it_sees_all(loaded):
  _, jobs = loaded['figure3']
  on_all = [job for job in jobs if job.cell.row == 'Image, SPT on all']
  on_parts = [job for job in jobs if job.cell.row == 'Image, SPT']
  assert len({job.stages['pretrain'] for job in on_all}) == 1
  assert len({job.stages['pretrain'] for job in on_parts}) == 6
  assert on_all[-1].stages == on_parts[-1].stages  # all of the data


def test_a_choice_of_runs(loaded):
  one, jobs = loaded['table2']
  chosen = study.jobs(one, only=study.selection('task=image, model=s4'), seeds=(3, 4))
  assert [(job.cell.row, job.seed) for job in chosen] == [
    ('S4', 3),
    ('S4 + Masked SPT', 3),
    ('S4', 4),  # by now compiled
    ('S4 + Masked SPT', 4),
  ]
  (job,) = study.jobs(one, only={'task': 'text', 'row': 'S4'}, overrides=['finetune.max_steps=7'])
  assert job.config.finetune.max_steps == 7
  with pytest.raises(ConfigError, match='No run of the study table2 has task=images'):
    study.jobs(one, only={'task': 'images'})
  with pytest.raises(ConfigError, match="'tasks=x'.* Did you mean task?"):
    study.selection('tasks=x')
  with pytest.raises(ConfigError, match="--only has task twice, 'image' and 'text'"):
    study.selection('task=image,task=text')


def test_every_row_and_column_can_be_chosen(loaded):
  for one, jobs in loaded.values():
    for job in jobs[:40]:
      only = study.selection(f'row={job.cell.row}, column={job.cell.column},')
      assert only == {'row': job.cell.row, 'column': job.cell.column}, one.name


@pytest.mark.parametrize(
  ('cells', 'sentence'),
  [
    ([Cell('a', 'b'), Cell('A', 'b')], r'several cells at one place, \(a, b\) and \(A, b\)'),
    ([], 'has no cells'),
    ((Cell('a', letter) for letter in 'bc'), 'has cells=<generator .*: list Cells'),
    (['a'], r"has cells=\['a'\]: list Cells"),
  ],
)
def test_a_study_that_makes_no_table_is_refused(cells, sentence):
  with pytest.raises(ConfigError, match=sentence):
    Study('x', 'X', cells)


@pytest.mark.parametrize(
  ('key', 'value'),
  [('row', None), ('column', 0.1), ('published', 75.3), ('overrides', ['a=b']), ('config', 3), ('x', 'many')],
)
def test_a_cell_of_other_types_is_refused(key, value):
  reason = re.escape(f'has {key}={value!r}: make it ')
  with pytest.raises(ConfigError, match=r'The cell \(.*\) ' + reason):
    Cell(**({'row': 'a', 'column': 'b'} | {key: value}))


@pytest.mark.parametrize('seeds', [3, '012', (0, 0), [0.5]])
def test_seeds_that_are_none_are_refused(seeds):
  reason = re.escape(f'has seeds={seeds!r}: list different whole numbers')
  with pytest.raises(ConfigError, match=r'The cell \(a, b\) ' + reason):
    Cell('a', 'b', seeds=seeds)
  with pytest.raises(ConfigError, match='The study x ' + reason):
    Study('x', 'X', [Cell('a', 'b')], seeds=seeds)


def test_a_cell_with_a_wrong_config_is_named():
  one = Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s5', {'finetune.epoch': 3})])
  with pytest.raises(ConfigError, match=r'The cell \(a, b\) of study x: .*finetune.epoch'):
    study.jobs(one)


def test_the_study_of_the_docs_is_one(repository, tmp_path):
  (code,) = re.findall(r'```python\n(.*?)```', (repository / 'docs/studies.md').read_text(), re.DOTALL)
  (tmp_path / 'my_study.py').write_text(code)
  jobs = study.jobs(study.load(str(tmp_path / 'my_study.py')))
  assert len(jobs) == 12
  assert {job.config.finetune.epochs for job in jobs} == {50.0}


@pytest.mark.parametrize(
  ('content', 'sentence'),
  [
    ('x = 1', 'has no function get_study'),
    ('def get_study(): return {}', 'get_study of .* returns dict'),
    ('def get_study(', 'no Python file'),
  ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, content, sentence):
  (tmp_path / 'mine.py').write_text(content)
  with pytest.raises(ConfigError, match=sentence):
    study.load(str(tmp_path / 'mine.py'))


def test_all_missing_sets_are_named_at_once(loaded, tmp_path):
  one, _ = loaded['table7']
  jobs = study.jobs(one, overrides=[f'runtime.data_dir={tmp_path}'])
  with pytest.raises(DataError, match='4 data sets are not there') as caught:
    budget.check(jobs)
  for name in ('listops', 'text', 'cifar10', 'pathfinder128'):
    assert f'lra-spt prepare {name}' in str(caught.value)
  steps, missing = budget.plan(jobs)
  assert len(missing) == 4
  of = {(job.config.task, job.cell.row): steps[job] for job in jobs}
  assert of['image', 'S4 + SPT'] == {'pretrain': 200 * 45_000 // 32, 'finetune': -(-200 * 45_000 // 512)}
  assert list(of['image', 'S4']) == ['finetune']


def test_commands_for_queues(loaded, tmp_path):
  _, jobs = loaded['figure3']
  lines = queues.script(jobs, tmp_path, 'plain').splitlines()
  # From scratch each run is alone; those on all of the training inputs wait for one pretraining.
  assert len(lines) == 24
  assert sum(' && ' in line for line in lines) == 2
  words = shlex.split(lines[0])
  assert words[:2] == ['lra-spt', 'train']
  assert f'--stages={tmp_path}/stages' in words
  elsewhere = queues.script(jobs, tmp_path, 'plain', stages=tmp_path / 'kept')
  assert elsewhere.count(f'--stages={tmp_path}/kept') == len(jobs)
  slurm = queues.script(jobs, tmp_path, 'slurm', ['my task.py'])
  assert '#SBATCH --array=0-23' in slurm
  assert "--register='" in slurm
  subprocess.run(['bash', '-n'], input=slurm, text=True, check=True)
  subprocess.run(['bash', '-n'], input=queues.script(jobs, tmp_path, 'xpk'), text=True, check=True)


def test_time_left_follows_the_runs_that_are_done(loaded, tmp_path):
  one, _ = loaded['miniature']
  jobs = study.jobs(one, only={'model': 'transformer', 'column': 'Stripes'}, seeds=(0, 1))
  steps = {job: dict.fromkeys(job.stages, 60) for job in jobs}
  said = []
  shown = progress.Progress(jobs, tmp_path, steps, 2, said.append)
  assert shown.seconds_left({}) is None
  scratch, pretrained = jobs[0], next(job for job in jobs if 'pretrain' in job.stages)
  shown.tell(scratch, runner.RUNNING, 0)
  shown.tell(scratch, runner.FINISHED, 6.0)
  # Per step a tenth of a second: three more of 60 steps and four of 120, two at a time.
  assert shown.seconds_left({}) == pytest.approx((3 * 6 + 4 * 12) / 2)
  files.write_json(
    _made(tmp_path / pretrained.folder) / 'failure.json', {'error': 'lr 3 in /a/b is too large'}
  )
  shown.tell(pretrained, runner.FAILED, 2.0)
  other = jobs[jobs.index(pretrained) + 1]
  files.write_json(_made(tmp_path / other.folder) / 'failure.json', {'error': 'lr 4 in /a/c is too large'})
  shown.tell(other, runner.FAILED, 2.0)
  assert 'FAILED: lr 3' in said[-2]
  assert f'(as {pretrained.name} did: probably one cause)' in said[-1]


def _made(folder):
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def run_study(workdir, tiny_data, compilation_cache, on_devices, *flags, arg='', **options):
  """Starts `lra-spt study` on tests/tiny_study.py; returns the Popen."""
  root = pathlib.Path(__file__).resolve().parents[2]
  command = [sys.executable, '-m', 'lra_spt.cli', 'study', f'tests/tiny_study.py{":" + arg if arg else ""}']
  command += [f'--workdir={workdir}', f'--config.runtime.data_dir={tiny_data}', *flags]
  environment = os.environ | compilation_cache | on_devices(1) | {'PYTHONPATH': str(root)}
  return subprocess.Popen(
    command,
    cwd=root,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
    **options,
  )


@pytest.fixture(scope='module')
def finished(tmp_path_factory, tiny_data, compilation_cache, on_devices):
  """(workdir, output) of the tiny study."""
  workdir = tmp_path_factory.mktemp('study') / 'W'
  process = run_study(workdir, tiny_data, compilation_cache, on_devices, '--processes=2')
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 1, output + errors  # one run fails
  return workdir, output


def test_a_run_that_fails_costs_no_other(finished):
  workdir, output = finished
  table = report.read_table(workdir)
  assert table.counts == {'finished': 3, 'failed': 1, 'open': 0}
  assert re.search(r'broken, Trees, seed 0: FAILED: finetune met a non-finite number', output)
  assert table.cells['broken', 'Trees'].state == 'failed'
  assert table.cells['not ours', 'Trees'].state == 'not implemented'
  assert '(25.00)' in output
  assert '\u00d7' in output


def test_runs_share_their_pretraining(finished):
  workdir, _ = finished
  (kept,) = (workdir / 'stages').glob('pretrain-*')
  links = {row: workdir / 'runs' / row / 'trees' / 'seed0' / kept.name for row in ('masked', 'masked_slower')}
  assert all(link.is_symlink() and link.resolve() == kept.resolve() for link in links.values())
  logs = [(link.parent / 'log.txt').read_text() for link in links.values()]
  assert sum('pretrain: done before' in log for log in logs) == 1


def test_studies_can_share_their_stages(finished, tmp_path, tiny_data, compilation_cache, on_devices):
  workdir, _ = finished
  flags = f'--stages={workdir / "stages"}', '--only=row=masked'
  process = run_study(tmp_path, tiny_data, compilation_cache, on_devices, *flags)
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  assert not (tmp_path / 'stages').exists()
  place = pathlib.Path('runs', 'masked', 'trees', 'seed0')
  log = (tmp_path / place / 'log.txt').read_text()
  assert log.count('done before') == 2  # neither stage is trained again
  one, other = (run_folder.read_result(folder / place) for folder in (workdir, tmp_path))
  assert one['metrics'] == other['metrics']


def test_runs_of_a_study_can_be_loaded(finished, tiny_config):
  config.load(tiny_config)  # registers its task
  workdir, _ = finished
  run = load_run(workdir / 'runs' / 'masked_slower' / 'trees' / 'seed0')
  assert run.config.finetune.optimizer.lr == 1e-3


def test_the_same_command_trains_nothing_that_is_finished(finished, tiny_data, compilation_cache, on_devices):
  workdir, _ = finished
  before = {path: path.stat().st_mtime_ns for path in workdir.rglob('result.json')}
  flags = ('--only=row=masked',)
  process = run_study(workdir, tiny_data, compilation_cache, on_devices, *flags)
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  assert 'started' not in output
  assert '3 runs finished, 1 failed' in output
  assert {path: path.stat().st_mtime_ns for path in workdir.rglob('result.json')} == before


def test_results_of_another_config_are_refused(finished, repository):
  workdir, _ = finished
  one = study.load(str(repository / 'tests' / 'tiny_study.py'))

  def check(*overrides):
    runner.check(workdir, study.jobs(one, only={'row': 'masked'}, overrides=overrides))

  check()
  check('runtime.devices=1')
  with pytest.raises(ConfigError, match=r'of another config than masked, Trees has now.*\n.*lr: .* -> 0.5'):
    check('finetune.optimizer.lr=0.5')


def test_a_command_that_is_refused_changes_nothing(finished, repository, tiny_data, capsys):
  workdir, _ = finished
  before = (workdir / 'study.json').read_bytes()
  arguments = ['study', f'{repository}/tests/tiny_study.py:good', f'--workdir={workdir}']
  arguments += [f'--config.runtime.data_dir={tiny_data}']
  assert cli.main([*arguments, '--config.finetune.optimizer.lr=0.5']) == 2
  assert 'of another config' in capsys.readouterr().err
  assert cli.main([*arguments, '--smoke']) == 2
  assert (workdir / 'study.json').read_bytes() == before


def test_results_of_a_smoke_run_stay_by_themselves(finished):
  record = report.read_record(finished[0])
  with pytest.raises(ConfigError, match='has results of runs to the end, and this is a smoke run; choose'):
    report.claim(finished[0], record | {'smoke': True})


def test_options_of_a_mixer_are_compared_also_where_one_side_has_none(monkeypatch, tmp_path):
  (one,) = study.jobs(Study('x', 'X', [Cell('a', 'b', 'configs/image.py:model=s4')]))
  identity = config.identity(one.config)
  folder = tmp_path / one.folder
  folder.mkdir(parents=True)
  (folder / run_folder.RESULT).touch()

  def check(**mixer):
    before = {'config': identity | {'model': identity['model'] | {'mixer': mixer}}}
    monkeypatch.setattr(run_folder, 'read_result', lambda folder: before)
    runner.check(tmp_path, [one])

  own = dict(identity['model']['mixer'])
  check(**own)
  del own['a_lr']
  with pytest.raises(ConfigError, match=r'model.mixer.a_lr: \(absent\) -> '):
    check(**own)


def test_the_page_says_all(finished, tiny_data):
  workdir, _ = finished
  html = (workdir / 'report.html').read_text()
  for text in (
    'Trees in seconds',
    'published 25.00',
    'not implemented',
    'non-finite number',
    'lra-spt train',
    f'--config.runtime.data_dir={tiny_data}',
    '--config.seed=0 --workdir=W',
  ):
    assert text in html


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


@pytest.mark.parametrize(
  ('first', 'status'), [(runner.FINISHED, 0), (runner.WAITING, 75), (runner.FAILED, 1)]
)
def test_the_exit_status_says_whether_to_run_it_again(monkeypatch, tmp_path, tiny_data, first, status):
  ends = {0: first, 1: runner.WAITING if first == runner.FAILED else runner.FINISHED}

  def run_all(jobs, workdir, **options):
    return {job: ends[min(number, 1)] for number, job in enumerate(jobs)}

  monkeypatch.setattr(runner, 'run_all', run_all)
  file = f'{pathlib.Path(__file__).parents[1]}/tiny_study.py:good'
  arguments = ['study', file, f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  assert cli.main(arguments) == status


def test_seeds_of_a_cell_train_as_one_program(
  finished, tmp_path, tiny_data, compilation_cache, on_devices, trajectory
):
  """On one CPU device with the numbers that they have by themselves; one command makes each cell."""
  flags = ('--seeds=0,1,2', '--config.runtime.members=2', '--only=row=masked')
  process = run_study(tmp_path, tiny_data, compilation_cache, on_devices, *flags, arg='good')
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, output + errors
  place = pathlib.Path('runs', 'masked', 'trees')
  members = [json.loads((tmp_path / place / f'seed{seed}' / 'result.json').read_text()) for seed in range(3)]
  assert [result['stages']['finetune'].get('members') for result in members] == [2, 2, None]
  assert trajectory(tmp_path / place / 'seed0') == trajectory(finished[0] / place / 'seed0')
  told = (tmp_path / place / 'seed1' / 'log.txt').read_text()
  assert told == 'Trained with seed0, see the log.txt of that.\n'


def test_what_trains_together_is_one_command(loaded, tmp_path):
  one, _ = loaded['miniature']
  jobs = study.jobs(one, seeds=(0, 1, 2), overrides=['runtime.members=2'])
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


def test_another_study_is_refused(finished):
  workdir, _ = finished
  record = report.read_record(workdir)
  with pytest.raises(ConfigError, match='belongs to the study tiny, not to other'):
    report.claim(workdir, record | {'study': 'other'})


@pytest.mark.parametrize('damage', ['', '[1]', '{}', '{"study": 3}', '\0'])
def test_a_damaged_record_is_a_sentence(tmp_path, damage):
  (tmp_path / 'study.json').write_text(damage)
  with pytest.raises(DamagedFile, match='study.json is not the record of a study'):
    report.read_table(tmp_path)


def test_a_damaged_run_is_named_and_the_others_stay(finished, tmp_path, capsys):
  workdir = tmp_path / 'W'
  shutil.copytree(finished[0], workdir, symlinks=True)
  (workdir / 'runs' / 'scratch' / 'trees' / 'seed0' / 'result.json').write_text('[1]')
  table = report.read_table(workdir)
  assert table.counts == {'finished': 2, 'failed': 2, 'open': 0}
  assert 'result.json is not the result of a run' in report.text(table)
  assert cli.main(['export', f'--workdir={workdir}', '--format=csv']) == 1
  assert '! result.json is not' in capsys.readouterr().err.replace(f'{workdir}/runs/scratch/trees/seed0/', '')


def test_averages_as_the_paper_prints_them(loaded, tmp_path):
  one, jobs = loaded['table1']
  report.claim(tmp_path, records.record(one, jobs))
  table = report.read_table(tmp_path)
  for row in table.rows:
    (_, ours, of_five), (_, _, of_six), (_, _, without_listops) = table.averages(row)
    assert ours is None
    assert 100 * of_six == pytest.approx(published.average(1, row))
    assert of_five is not None
    assert (without_listops is None) == (row in _FAILING_PATHX)
  assert 100 * table.averages('Transformer')[0][2] == pytest.approx(54.39, abs=0.005)


_FAILING_PATHX = {row.approach for row in published.ROWS if row.task == 'pathx' and row.value is None}


@pytest.mark.slow
def test_killed_twice_it_ends_as_if_undisturbed(
  finished, tmp_path, tiny_data, compilation_cache, on_devices, trajectory
):
  """SIGKILL of the command, whose runs end with it, and Ctrl-C; then the same command to its end."""
  workdir, start = tmp_path / 'W', (tiny_data, compilation_cache, on_devices, '--processes=2')
  for stages, sign in ((1, signal.SIGKILL), (3, signal.SIGINT)):
    process = run_study(workdir, *start)
    while len(list(workdir.glob('stages/*/metrics.jsonl'))) < stages and process.poll() is None:
      time.sleep(0.1)
    process.send_signal(sign)
    process.communicate(timeout=200)
    assert process.returncode == (-sign if sign == signal.SIGKILL else 130)
  process = run_study(workdir, *start)
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 1, output + errors
  for run in sorted(finished[0].glob('runs/*/*/*')):
    other = workdir / run.relative_to(finished[0])
    assert trajectory(run) == trajectory(other)
    if (run / 'result.json').exists():
      ours, theirs = (json.loads((folder / 'result.json').read_text()) for folder in (run, other))
      assert ours['metrics'] == theirs['metrics']


@pytest.mark.parametrize('most', [1e12, 1.0])
def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(monkeypatch, tmp_path, tiny_data, capsys, most):
  monkeypatch.setattr(estimate, '_step_seconds', lambda share: 0.1)
  monkeypatch.setattr(estimate, 'MOST_FLOPS', {'cpu': most})
  file = f'{pathlib.Path(__file__).parents[1]}/tiny_study.py:good'
  workdir = tmp_path / 'W'
  flags = [f'--workdir={workdir}', f'--config.runtime.data_dir={tiny_data}', '--dry_run', '--processes=2']
  assert cli.main(['study', file, *flags]) == 0
  said = capsys.readouterr().out
  assert 'Trees in seconds (study tiny): 3 runs, 0 of them finished' in said
  assert 'stages      4 to train, 1 more are shared' in said
  steps = int(re.search(r'steps +(\d+) at most', said)[1])
  took = re.search('time +(.*)', said)[1]
  if most > 1:
    assert took.startswith(f'about {duration(0.1 * steps / 2)} on cpu, 2 at a time')
    assert f'{steps // 4} steps of 100 ms' in said
  else:
    assert took.startswith('not measured: the smallest step has ')
    assert f'{steps // 4} steps, ' in said
  assert not workdir.exists()


def test_a_part_keeps_what_was_found_for_the_others(tmp_path, repository):
  one = study.load(str(repository / 'configs/studies/mini_table.py'))
  tried = [{'values': 'finetune.optimizer.lr=0.004', 'score': 0.5}]
  for name in ('text', 'image'):
    only = {'task': f'{name}_mini', 'model': 's4'}
    part = study.jobs(one, only=only, overrides=[tried[0]['values']])
    searched = {str(study.folder_of(job.cell)): [{'tried': tried, 'won': tried[0]['values']}] for job in part}
    assert report.claim(tmp_path, records.record(one, part, searched)) == []
  cells = [cell for cell in report.read_record(tmp_path)['cells'] if cell['seeds']]
  assert len(cells) == 4
  assert {cell['column'] for cell in cells} == {'Text', 'Image'}
  assert all(cell['search'][0]['won'] for cell in cells)
  assert all(cell['overrides']['finetune.optimizer.lr'] == '0.004' for cell in cells)
  others = dataclasses.replace(one, cells=[cell for cell in one.cells if cell.column != 'Image'])
  left_out = report.claim(tmp_path, records.record(others, []))
  assert left_out == ['S4, scratch, Image', 'S4, masked, Image']


def test_a_process_of_several_runs_is_asked_to_end_once():
  """A second signal would end it before it has saved."""

  class Attempt:
    asked = 0
    process = types.SimpleNamespace(poll=lambda: 75)

    def ask_to_end(self):
      self.asked += 1

  attempt = Attempt()
  runner._end(dict.fromkeys(('seed0', 'seed1', 'seed2'), attempt))
  assert attempt.asked == 1


def test_a_run_that_another_process_holds_up_is_tried_again(monkeypatch, tmp_path, loaded):
  """Such as one that trains a stage of a folder that two studies share."""
  (job, *_) = loaded['miniature'][1]
  folder, told, attempts = tmp_path / job.folder, [], []

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
  states = runner.run_all([job], tmp_path, tell=lambda job, what, seconds: told.append(what))
  assert list(states.values()) == [runner.FINISHED]
  assert told == [runner.RUNNING, runner.HELD_UP, runner.RUNNING, runner.FINISHED]
