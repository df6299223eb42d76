"""Studies: files expand to runs, a dry run estimates their cost, and folders hold their records."""

import dataclasses
import pathlib
import re
import shlex
import subprocess

import pytest

from configs.studies import mini
from lra_spt.config import user_files
from lra_spt.errors import ConfigError, DamagedFile, DataError
from lra_spt.report import published
from lra_spt.report.study import record as study_record
from lra_spt.report.study import table as report
from lra_spt.studies import budget, choice, queues, records, study
from lra_spt.studies.study import Cell, Study

# archives.py is left out: its tasks exist only where their sets are prepared.
INSTALLED = [path for path in user_files.installed('studies', 'get_study') if 'archives' not in path]
RUNS = {  # study: (cells, cells with a config, runs, stages to train)
  'figure1': (40, 38, 38, 57),
  'figure2': (32, 32, 32, 48),
  'figure3': (36, 36, 36, 46),
  'figure4': (4, 4, 4, 8),
  'figure5': (4, 4, 4, 6),
  'grid': (4, 4, 12, 18),
  'image_epochs': (2, 2, 2, 3),
  'larger_s4': (8, 8, 8, 12),
  'lab': (9, 9, 45, 50),
  'lab_image': (12, 12, 36, 45),
  'mini_arms': (90, 90, 90, 126),  # all of LRA-mini, with one seed
  'mini_further': (8, 8, 8, 12),
  'mini_labels': (11, 11, 11, 15),
  'mini_length': (16, 16, 16, 24),
  'mini_longer': (12, 12, 12, 18),
  'mini_longer_random': (8, 8, 8, 12),
  'mini_longer_tasks': (36, 36, 36, 54),
  'mini_random': (16, 16, 16, 24),
  'mini_table': (60, 60, 60, 90),
  'pathx_training': (2, 2, 2, 3),
  'pooling': (9, 9, 9, 11),
  'questions': (18, 18, 98, 147),
  'recall': (16, 16, 16, 16),
  'table1': (60, 60, 60, 72),
  'table2': (56, 43, 43, 56),
  'table3': (24, 24, 24, 36),
  'table7': (32, 32, 32, 48),
  'table8': (24, 24, 24, 44),
  'table9': (20, 20, 20, 30),
}
ONE_SEED = {f'mini_{part}': (2,) for part in mini.PARTS}


@pytest.fixture(scope='module')
def loaded():
  """{name: (study, its jobs)} of the installed study files."""
  parts = [f'configs/studies/mini.py:part={part}' for part in mini.PARTS]
  studies = [study.load(path) for path in [*INSTALLED, *parts]]
  return {one.name: (one, study.jobs(one, seeds=ONE_SEED.get(one.name))) for one in studies}


def test_every_file_is_one_study_of_its_name_or_has_parts(loaded):
  names = {pathlib.Path(path).stem for path in INSTALLED} - {'mini'}
  assert names | {f'mini_{part}' for part in mini.PARTS} == loaded.keys() == RUNS.keys()


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
  chosen = study.jobs(one, only=choice.selection('task=image, model=s4'), seeds=(3, 4))
  assert [(job.cell.row, job.seed) for job in chosen] == [
    ('S4', 3),
    ('S4 + Masked SPT', 3),
    ('S4', 4),  # seed 3 has compiled its programs
    ('S4 + Masked SPT', 4),
  ]
  (job,) = study.jobs(one, only={'task': 'text', 'row': 'S4'}, overrides=['finetune.max_steps=7'])
  assert job.config.finetune.max_steps == 7
  with pytest.raises(ConfigError, match='No run of the study table2 has task=images'):
    study.jobs(one, only={'task': 'images'})
  with pytest.raises(ConfigError, match="'tasks=x'.* Did you mean task?"):
    choice.selection('tasks=x')
  with pytest.raises(ConfigError, match="--only has task twice, 'image' and 'text'"):
    choice.selection('task=image,task=text')


def test_every_row_and_column_can_be_chosen(loaded):
  for one, jobs in loaded.values():
    for job in jobs[:40]:
      only = choice.selection(f'row={job.cell.row}, column={job.cell.column},')
      assert only == {'row': job.cell.row, 'column': job.cell.column}, one.name


@pytest.mark.parametrize(
  ('cells', 'sentence'),
  [
    ([Cell('a', 'b'), Cell('A', 'b')], r'several cells at one place, \(a, b\) and \(A, b\)'),
    ([Cell('a', 'b')] * 3, r'one place, \(a, b\): give'),
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
    ('def get_study(', 'cannot be run as a Python file'),
    (
      'from lra_spt.studies.study import *\ndef get_study():\n  return Study("x", "X", [], seed=(0,))',
      r"mine.py cannot make a Study in line 3 \(.* keyword argument 'seed'\): .* Did you mean seeds",
    ),
    (
      'from lra_spt.studies.study import *\ndef get_study():\n  return Study("x", "X", [Cell("a")])',
      r"mine.py cannot make a Cell in line 3 \(missing 1 .* argument: 'column'\): correct it",
    ),
  ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, content, sentence):
  (tmp_path / 'mine.py').write_text(content)
  with pytest.raises(ConfigError, match=sentence):
    study.load(str(tmp_path / 'mine.py'))


def test_a_defect_of_a_study_file_keeps_its_traceback(tmp_path):
  (tmp_path / 'mine.py').write_text('def get_study(): return len(3)')
  with pytest.raises(TypeError, match='has no len'):
    study.load(str(tmp_path / 'mine.py'))


def test_all_missing_sets_are_named_at_once(loaded, tmp_path):
  one, _ = loaded['table7']
  jobs = study.jobs(one, overrides=[f'runtime.data_dir={tmp_path}'])
  with pytest.raises(DataError, match='4 data sets are missing') as caught:
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
  # A run from scratch has a line. Runs that pretrain on all inputs share a line, to share one pretraining.
  assert len(lines) == 24
  assert sum(line.startswith('(bad=; ') for line in lines) == 2
  words = shlex.split(lines[0])
  assert words[:2] == ['lra-spt', 'train']
  assert f'--stages={tmp_path}/stages' in words
  elsewhere = queues.script(jobs, tmp_path, 'plain', stages=tmp_path / 'kept')
  assert elsewhere.count(f'--stages={tmp_path}/kept') == len(jobs)
  slurm = queues.script(jobs, tmp_path, 'slurm', ['my task.py'])
  assert '#SBATCH --array=0-23' in slurm
  assert "--register='" in slurm
  assert '#SBATCH --job-name=my-study\n' in queues.script(jobs, tmp_path, 'slurm', name='my_study')
  assert ' --workload=my-study-23 ' in queues.script(jobs, tmp_path, 'xpk', name='my_study')
  subprocess.run(['bash', '-n'], input=slurm, text=True, check=True)
  missing = subprocess.run(
    ['bash'], input=queues.script(jobs, tmp_path, 'xpk'), text=True, capture_output=True, check=False, env={}
  )
  assert 'CLUSTER: name of the cluster' in missing.stderr  # and nothing is started
  xpk = queues.script(jobs, tmp_path, 'xpk').splitlines()
  assert sum("--command='exec lra-spt train " in line for line in xpk) == len(lines) - 2
  assert missing.returncode != 0


@pytest.mark.parametrize(
  'statuses, started, expected',
  [((2,), 1, 2), ((0, 0, 0), 3, 0), ((0, 2, 0), 3, 2), ((1, 2, 0), 3, 1), ((1, 75, 0), 2, 75)],
)
def test_a_run_that_fails_keeps_no_other_of_its_line_from_starting(statuses, started, expected):
  """Only a run that must be queued again (75) stops its line."""
  scripts = [f'echo {number}; exit {status}' for number, status in enumerate(statuses)]
  line = queues._in_sequence([f'bash -c {shlex.quote(each)}' for each in scripts])
  done = subprocess.run(['bash', '-c', line], capture_output=True, text=True, check=False)
  assert done.stdout.split() == list(map(str, range(started)))
  assert done.returncode == expected


@pytest.mark.parametrize('damage', ['', '[1]', '{}', '{"study": 3}', '\0'])
def test_a_damaged_record_is_a_sentence(tmp_path, damage):
  (tmp_path / 'study.json').write_text(damage)
  with pytest.raises(DamagedFile, match='study.json is not the record of a study'):
    report.read_table(tmp_path)


def test_averages_as_the_paper_prints_them(loaded, tmp_path):
  one, jobs = loaded['table1']
  study_record.claim(tmp_path, records.record(one, jobs))
  table = report.read_table(tmp_path)
  for row in table.rows:
    (_, ours, of_five), (_, _, of_six), (_, _, without_listops) = table.averages(row)
    assert ours is None
    values = [each.value or 50.0 for each in published.ROWS if (each.table, each.approach) == (1, row)]
    assert 100 * of_six == pytest.approx(sum(values) / len(values))
    assert of_five is not None
    assert (without_listops is None) == (row in _FAILING_PATHX)
  assert 100 * table.averages('Transformer')[0][2] == pytest.approx(54.39, abs=0.005)


_FAILING_PATHX = {row.approach for row in published.ROWS if row.task == 'pathx' and row.value is None}


def test_a_part_keeps_what_was_found_for_the_others(tmp_path, repository):
  one = study.load(str(repository / 'configs/studies/mini.py'))
  tried = [{'values': 'finetune.optimizer.lr=0.004', 'score': 0.5}]
  for name in ('text', 'image'):
    only = {'task': f'{name}_mini', 'model': 's4'}
    part = study.jobs(one, only=only, overrides=[tried[0]['values']])
    searched = {str(study.folder_of(job.cell)): [{'tried': tried, 'won': tried[0]['values']}] for job in part}
    assert study_record.claim(tmp_path, records.record(one, part, searched)) == []
  cells = [cell for cell in study_record.read_record(tmp_path)['cells'] if cell['seeds']]
  assert len(cells) == 4
  assert {cell['column'] for cell in cells} == {'Text', 'Image'}
  assert all(cell['search'][0]['won'] for cell in cells)
  assert all(cell['overrides']['finetune.optimizer.lr'] == '0.004' for cell in cells)
  others = dataclasses.replace(one, cells=[cell for cell in one.cells if cell.column != 'Image'])
  left_out = study_record.claim(tmp_path, records.record(others, []))
  assert left_out == ['S4, scratch, Image', 'S4, masked, Image']
