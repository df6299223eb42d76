"""`lra-spt compare`: the recipe, runs that come with the package, sizes, order and estimates."""

import json
import types

import pytest
from ml_collections import ConfigDict

from benchmarks import compare_runs
from benchmarks.tables import lra_mini
from lra_spt.cli import main
from lra_spt.config import loading
from lra_spt.data import tasks
from lra_spt.errors import ConfigError, MissingFile
from lra_spt.report.study import archive, notes
from lra_spt.studies import compare, search, study
from lra_spt.studies.study import folder_of

FOLDER = 'configs/studies/'


def test_the_recipe():
  plan = compare.load(['mingru', 's4'])
  assert (plan.name, plan.focus) == ('compare_1', 'mingru')
  assert plan.columns == ['ListOps', 'Pathfinder']
  assert plan.rows == ['mingru, scratch', 'mingru, masked', 'S4, scratch', 'S4, masked']
  assert 'which favours other models slightly' in plan.about
  jobs = study.jobs(plan, only={'model': 'mingru', 'task': 'listops_mini'})
  assert [job.seed for job in jobs] == [2, 2, 3, 3, 4, 4]
  steps = {job.config.regime: (job.config.pretrain.max_steps, job.config.finetune.max_steps) for job in jobs}
  assert (steps['scratch'][1], steps['masked']) == (8_500, (2_500, 6_000))  # equal steps in all
  searched = search.all_jobs(plan, study.jobs(plan))
  assert {job.config.model.name for job in searched} == {'mingru'}  # baselines have a rate
  assert {job.config.finetune.optimizer.lr for job in searched} == {2.5e-4, 1e-3, 4e-3}
  assert {(job.seed, job.config.finetune.max_steps) for job in searched} == {(0, 6_000), (0, 8_500)}
  jobs = study.jobs(plan, only={'task': 'pathfinder_mini'})
  assert {(job.seed, job.config.finetune.patience) for job in jobs} == {(21, 0), (22, 0), (23, 0)}
  causal = compare.load(['mingru', 'linformer'], 'text', 'masked,causal')
  assert (len(causal.rows), causal.columns) == (6, ['Text'])  # Linformer has no causal form
  with pytest.raises(ConfigError, match=r"no task 'pathfindr'.* Did you mean pathfinder\?.*--register"):
    compare.load(['mingru'], 'pathfindr')


@pytest.mark.parametrize(
  'name, tasks',
  [('mini.py:part=longer', 'listops'), ('questions.py', 'pathfinder'), ('questions.py', 'text,image')],
)
def test_other_studies_have_its_runs(name, tasks):
  """Runs of these studies are exactly those of baselines: same folders, same configs."""
  theirs = {str(job.folder): loading.identity(job.config) for job in study.jobs(study.load(FOLDER + name))}
  ours = {
    str(job.folder): loading.identity(job.config)
    for job in study.jobs(compare.load(compare.recipe().BASELINES, tasks))
    if tasks != 'pathfinder' or job.config.model.name != 'dlr'
  }
  assert ours
  assert ours.items() <= theirs.items()


@pytest.fixture
def waves(monkeypatch):
  """A user's task of noisy waves, registered for one test."""
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  inputs = tasks.Values(128, dtype='float32', measured=True)
  return tasks.register_task(tasks.Task('waves', 'waves', inputs, tasks.Classes(2), splits='random'))


def test_a_task_of_a_user(waves, tmp_path):
  """Everything is trained: baselines choose their rates too, because no run of the package has this task."""
  plan = compare.load(['mingru', 's4'], 'listops,waves')
  assert plan.columns == ['ListOps', 'waves']
  jobs = study.jobs(plan, only={'column': 'waves'})
  steps = {(job.config.regime, job.config.finetune.max_steps) for job in jobs}
  assert steps == {('scratch', 8_500), ('masked', 6_000)}
  assert {job.config.model.name for job in search.all_jobs(plan, jobs)} == {'mingru', 's4'}
  assert jobs[0].config.pretrain.mask_rate == 0.5
  assert compare.lacking(jobs, tmp_path) == []
  with pytest.raises(MissingFile, match='lra-spt prepare npz --name waves'):
    compare.prepare(compare.load(['s4'], 'waves'), tmp_path)
  with pytest.raises(ConfigError, match='Did you mean waves'):
    compare.load(['mingru'], 'wave')


@pytest.mark.parametrize('regimes', ['masked', 'masked,causal'])
def test_a_quick_look_is_short_and_marked(regimes):
  plan = compare.load(['mingru'], '', regimes, quick=True)
  jobs = study.jobs(plan)
  assert 'quick look' in plan.title
  assert ({job.seed for job in jobs}, plan.columns, {cell.search for cell in plan.cells}) == (
    {2},
    ['ListOps'],
    {None},
  )
  stages = [job.config[stage] for job in jobs for stage in job.stages]
  assert sum(stage.max_seconds for stage in stages) == pytest.approx(420)
  steps = {job.config.regime: sum(job.config[stage].max_steps for stage in job.stages) for job in jobs}
  assert len({*steps.values()}) == 1


def test_runs_of_the_package_are_chosen_from_committed_ones(tmp_path):
  path = tmp_path / 'runs.jsonl'
  assert compare_runs.run_compare_runs([f'--output={path}']) == 0
  is_up_to_date = path.read_bytes() == compare.RUNS.read_bytes()
  assert is_up_to_date, 'write the file again: python -m benchmarks compare_runs'
  lines = archive.lines_of(path)
  assert {line['result']['task'] for line in lines.values()} >= {'listops_mini'}
  assert len([1 for line in lines.values() if line['result']['task'] == 'listops_mini']) == 18
  stages = [stage for line in lines.values() for stage in line['result']['stages'].values()]
  assert not any('seconds' in stage for stage in stages)


@pytest.fixture
def shipped():
  """(a job, the line of the run of the package that has the same config)."""
  folder, line = next(iter(archive.lines_of(compare.RUNS).items()))
  jobs = study.jobs(compare.load([line['result']['model']], 'listops'))
  return next(job for job in jobs if str(job.folder) == folder), line


def test_only_a_run_with_the_same_config_and_data_replaces_training(tmp_path, monkeypatch, shipped):
  job, line = shipped
  put, prints = [], dict(line['result']['fingerprints'])
  split = types.SimpleNamespace(fingerprint=prints['data'], split_fingerprint=prints['splits'])
  monkeypatch.setattr(compare.examples, 'open_split', lambda *_: split)
  monkeypatch.setattr(archive, 'restore_run', lambda line, *_: put.append(line['folder']))
  assert (compare.restore([job], tmp_path), put) == (1, [str(job.folder)])
  with job.config.unlocked():
    job.config.finetune.optimizer.lr *= 2
  assert compare.restore([job], tmp_path) == 0
  with job.config.unlocked():
    job.config.finetune.optimizer.lr /= 2
  split.fingerprint = 'another version of the set'
  assert compare.restore([job], tmp_path) == 0


def test_baselines_that_are_missing_are_named(tmp_path):
  plan = compare.load(['mingru', 'dlr', 's4'], 'pathfinder')
  missing = compare.lacking(study.jobs(plan), tmp_path)
  assert {job.config.model.name for job in missing} == {'dlr', 's4'}
  plan, sentence = compare.without(plan, missing)
  assert 'on Pathfinder: DLR, S4. --train_baselines trains them, in 12 runs.' in sentence
  assert [cell.note for cell in plan.cells] == ['', '', *['no baseline'] * 4]


def test_sizes():
  """Depth comes first, then width; costs grow linearly with depth, and with the square of width."""
  values = ConfigDict({'width': 64, 'feed_forward': 128})

  def cost(size, of_block=30_000, of_rest=5_000):
    width = size.get('model.width', 64)
    if width % 8:
      raise ConfigError('heads do not divide it')
    return round(of_rest + of_block * size.get('model.depth', 2) * (width / 64) ** 2)

  assert compare._sized(cost, 66_000, values, 'it', 'parameters') == ({}, 65_000)
  assert compare._sized(cost, 95_000, values, 'it', 'parameters') == ({'model.depth': 3}, 95_000)
  size, actual = compare._sized(cost, 50_000, values, 'it', 'parameters')
  assert (size, abs(actual / 50_000 - 1) <= 0.1) == ({'model.width': 56, 'model.feed_forward': 112}, True)
  with pytest.raises(ConfigError, match='no depth or width brings it within 10%'):
    compare._sized(lambda size: 10**9 * size.get('model.depth', 1), 5, values, 'it', 'parameters')


def test_cheap_cells_come_first_and_are_finished_first(tmp_path):
  plan = compare.load(['mingru'], 'listops')
  scratch, masked = (study.jobs(plan, only={'regime': regime}) for regime in ('scratch', 'masked'))
  costs = {folder_of(scratch[0].cell): 10.0, folder_of(masked[0].cell): 5.0}
  assert 'the first row, mingru, masked, ListOps, comes after 5.0 s' in compare.outlook(costs, masked, 1)
  pick, searched = compare.by_cost(costs, tmp_path), search.all_jobs(plan, scratch)
  assert pick(searched, masked) == masked  # it needs no search, and is cheaper
  assert pick(searched, masked) == searched
  assert pick([], [*masked, *scratch]) == scratch
  assert pick([], [*masked, *scratch]) == [*masked, *scratch]


def test_the_best_rate_at_the_edge_is_noted():
  tried = [{'values': f'finetune.optimizer.lr={rate}', 'score': 0.5} for rate in (0.00025, 0.001, 0.004)]
  record = {'search': [{'tried': tried, 'won': 'finetune.optimizer.lr=0.004', 'problem': ''}]}
  (sentence,) = notes.at_edge(record)
  assert '0.004, the largest that was tried, so a larger one may do better' in sentence
  for search_of in ({'won': 'finetune.optimizer.lr=0.001'}, {'won': None}, {'tried': tried[1:]}):
    assert notes.at_edge({'search': [record['search'][0] | search_of]}) == []


@pytest.mark.slow
def test_a_smoke_run_ends_with_a_page_and_a_table(tmp_path, capsys):
  command = ['compare', '--model=mingru', f'--workdir={tmp_path}/w', f'--data_dir={tmp_path}/data']
  command += ['--tasks=listops', '--match=parameters', '--smoke', '--processes=2']
  assert main.main(command) == 0
  printed = capsys.readouterr().out
  assert 'the first row, ' in printed
  assert (tmp_path / 'w/report.html').exists()
  table = (tmp_path / 'w/compare.md').read_text()
  assert '| mingru, masked | smoke run |' in table
  assert '**Gains and cost**' in table
  about = json.loads((tmp_path / 'w/study.json').read_text())['about']
  assert 'mingru is as large as transformer_rotary, by parameters' in about


@pytest.mark.slow
def test_quick_looks_become_rows_of_a_table(tmp_path):
  command = [f'--json={tmp_path}/quick.json', f'--workdir={tmp_path}/w', f'--data_dir={tmp_path}/data']
  command += ['--mixers=min_lstm', '--smoke']
  for _ in range(2):
    compare_runs.run_compare_quick(command)
  (row,) = json.loads((tmp_path / 'quick.json').read_text())['rows']  # the second call ran nothing
  assert row['arms'].keys() == {'scratch', 'masked'}
  *_, line = lra_mini.quick({'rows': [row]})
  assert line.startswith('| `min_lstm` | ')
