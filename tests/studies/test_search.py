"""Searches of hyperparameters: values are tried, the best ones win, and fresh seeds run with them."""

import pathlib

import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.config.values import problem
from lra_spt.errors import ConfigError, DamagedFile
from lra_spt.report.pages import report as pages
from lra_spt.report.statistics.scores import R2
from lra_spt.report.study import record as study_record
from lra_spt.report.study import table as report
from lra_spt.studies import records, runner, search, study
from lra_spt.studies.study import Cell, Search, Study

CONFIG = 'configs/miniature.py:task=stripes,model=s4,regime='
PRETRAIN = tuple({'pretrain.optimizer.lr': lr} for lr in (1e-3, 1e-4))
FINETUNE = tuple({'finetune.optimizer.lr': lr} for lr in (1e-2, 1e-3))


def searched(**changes):
  cells = [Cell('scratch', 'Stripes', CONFIG + 'scratch'), Cell('masked', 'Stripes', CONFIG + 'masked')]
  options = {'cells': cells, 'seeds': (2, 3), 'search': Search((PRETRAIN, FINETUNE), seeds=(0, 1))}
  return Study('searched', 'Searched', **options | changes)


class Runs:
  """Stands in for the runs of a study: holds their states and their validation scores."""

  def __init__(self, monkeypatch):
    self.states, self.score = {}, lambda job: 0.5
    self.folders, self.failures = {}, {}
    monkeypatch.setattr(runner, 'state', lambda workdir, job: self.states.get(job.folder, runner.WAITING))
    monkeypatch.setattr(runner, 'failure', lambda workdir, job: self.failures.get(job.folder, ''))
    monkeypatch.setattr(runner, 'failed_by_its_values', lambda workdir, job: job.folder not in self.failures)
    monkeypatch.setattr(search, '_validation', lambda folder: self.score(self.folders[folder]))

  def end(self, jobs, state=runner.FINISHED, workdir=pathlib.Path()):
    for job in jobs:
      self.states[job.folder] = state
      self.folders[workdir / job.folder] = job


@pytest.fixture
def runs(monkeypatch):
  return Runs(monkeypatch)


def names(jobs):
  return [job.name for job in jobs]


def test_rounds_build_on_what_won_and_fresh_seeds_run_with_it(runs):
  one = searched()
  chosen = study.jobs(one)
  first = search.decide(one, chosen, '')
  assert names(first.open) == [
    'scratch, Stripes (round 2, finetune lr 0.01), seed 0',
    'scratch, Stripes (round 2, finetune lr 0.001), seed 0',
    'masked, Stripes (round 1, pretrain lr 0.001), seed 0',
    'masked, Stripes (round 1, pretrain lr 0.0001), seed 0',
    *[name.replace('seed 0', 'seed 1') for name in names(first.open)[:4]],
  ]
  assert first.jobs == ()
  # In the mean, pretraining's smaller rate wins, though not for seed 0. Finetuning's larger rate wins.
  runs.score = lambda job: (
    {0: 0.6, 1: 0.2}[job.seed] if 'pretrain lr 0.001' in job.what else job.config.finetune.optimizer.lr + 0.5
  )
  runs.end(first.open)
  second = search.decide(one, chosen, '')
  assert names(second.open) == [
    f'masked, Stripes (round 2, finetune lr {lr}), seed {seed}' for seed in (0, 1) for lr in (0.01, 0.001)
  ]
  assert {job.config.pretrain.optimizer.lr for job in second.open} == {1e-4}
  # The second round uses the winner's pretraining of the first round.
  assert {job.stages['pretrain'] for job in second.open} == {
    job.stages['pretrain'] for job in first.open if 'pretrain lr 0.0001' in job.what
  }
  assert names(second.jobs) == ['scratch, Stripes, seed 2', 'scratch, Stripes, seed 3']
  runs.end(second.open)
  last = search.decide(one, chosen, '')
  assert last.open == ()
  assert names(last.jobs) == names(chosen)
  assert {job.config.finetune.optimizer.lr for job in last.jobs} == {1e-2}
  assert last.records['runs/masked/stripes'] == [
    {
      'tried': [
        {'values': 'pretrain.optimizer.lr=0.001', 'score': pytest.approx(0.4)},
        {'values': 'pretrain.optimizer.lr=0.0001', 'score': pytest.approx(0.501)},
      ],
      'won': 'pretrain.optimizer.lr=0.0001',
      'problem': '',
    },
    {
      'tried': [
        {'values': 'finetune.optimizer.lr=0.01', 'score': pytest.approx(0.51)},
        {'values': 'finetune.optimizer.lr=0.001', 'score': pytest.approx(0.501)},
      ],
      'won': 'finetune.optimizer.lr=0.01',
      'problem': '',
    },
  ]


def test_a_cell_may_search_alone(runs):
  ours = Search((FINETUNE,), seeds=(9,))
  cells = [Cell('a', 'x', CONFIG + 'scratch', search=ours), Cell('b', 'x', CONFIG + 'masked')]
  one = searched(search=None, cells=cells)
  chosen = study.jobs(one)
  first = search.decide(one, chosen, '')
  assert names(first.open) == [f'a, x (round 1, finetune lr {lr}), seed 9' for lr in (0.01, 0.001)]
  assert names(search.all_jobs(one, chosen)) == names(first.open)
  assert names(first.jobs) == ['b, x, seed 2', 'b, x, seed 3']
  runs.score = lambda job: job.config.finetune.optimizer.lr
  runs.end(first.open)
  last = search.decide(one, chosen, '')
  assert (last.open, [*last.records]) == ((), ['runs/a/x'])
  assert [(job.cell.row, job.config.finetune.optimizer.lr == 1e-2) for job in last.jobs if job.seed == 2] == [
    ('a', True),
    ('b', False),
  ]
  with pytest.raises(ConfigError, match='Seed 9 of the study searched chooses hyperparameters'):
    study.jobs(one, seeds=(9,))
  assert len(study.shortened(searched(cells=cells)).cells[0].search.rounds[0]) == 2


def test_values_that_fail_lose_and_all_failing_costs_the_cell_only(runs):
  one = searched(search=Search((FINETUNE,), seeds=(0,)))
  chosen = study.jobs(one)
  open_jobs = search.decide(one, chosen, '').open
  runs.score = lambda job: 0.1
  runs.end(open_jobs, runner.FAILED)
  runs.end([job for job in open_jobs if job.name.startswith('masked') and '0.001' in job.what])
  decided = search.decide(one, chosen, '')
  assert decided.open == ()
  assert decided.problems == {
    'scratch, Stripes': 'no values of its search could be trained, see the logs of its runs'
  }
  assert {job.config.finetune.optimizer.lr for job in decided.jobs} == {1e-3}
  assert names(decided.jobs) == ['masked, Stripes, seed 2', 'masked, Stripes, seed 3']


def test_the_loss_chooses_where_validation_has_no_score(runs, monkeypatch):
  one = searched(search=Search((FINETUNE,), seeds=(0, 1)))
  chosen = study.jobs(one)
  rate = lambda folder: runs.folders[folder].config.finetune.optimizer.lr  # noqa: E731
  monkeypatch.setattr(search, '_validation', lambda folder, metric='': rate(folder) if metric else None)
  while open_jobs := search.decide(one, chosen, '').open:
    runs.end(open_jobs)
  decided = search.decide(one, chosen, '')
  assert {job.config.finetune.optimizer.lr for job in decided.jobs} == {1e-3}
  (part,) = decided.records['runs/scratch/stripes']
  assert part['won'] == 'finetune.optimizer.lr=0.001'
  assert [(tried['score'], tried['loss']) for tried in part['tried']] == [(None, 1e-2), (None, 1e-3)]
  record = records.record(one, chosen, decided.records)
  assert problem(study_record.StudyRecord, record) is None
  assert pages._validation(R2, part['tried'][0]) == 'no R\u00b2, loss 0.01'


def test_an_accident_does_not_choose(runs, monkeypatch, tmp_path, tiny_data, capsys):
  """If a process was killed, its values are not at fault, so every command tries them once more."""
  tiny, asked = pathlib.Path(__file__).resolve().parents[1] / 'tiny_study.py', []
  fails = [True]

  def run_all(jobs, workdir, **options):
    asked.append(names(jobs))
    runs.end(jobs, workdir=workdir)
    if not any(job.what for job in jobs) or not fails[0]:
      return dict.fromkeys(jobs, runner.FINISHED)
    runs.end(jobs[-1:], runner.FAILED, workdir)
    runs.failures[jobs[-1].folder] = 'its process was ended by signal 9'
    return dict.fromkeys(jobs[:-1], runner.FINISHED) | {jobs[-1]: runner.FAILED}

  monkeypatch.setattr(runner, 'run_all', run_all)
  arguments = ['study', f'{tiny}:search', f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  runs.score = lambda job: job.config.finetune.optimizer.lr
  assert cli.main(arguments) == 1
  assert [len(one) for one in asked] == [2, 0]
  sentence = 'its search needs a run that failed: its process was ended by signal 9'
  assert sentence in capsys.readouterr().out
  table = report.read_table(tmp_path)
  (cell,) = table.cells.values()
  assert (cell.state, cell.failed) == ('failed', (sentence,))
  assert table.counts['failed'] == 1
  fails[0] = False
  assert cli.main(arguments) == 0
  assert [len(one) for one in asked] == [2, 0, 1, 1]
  assert asked[2] == asked[0][1:]


def test_all_runs_of_a_search_are_counted():
  one = searched()
  counted = search.all_jobs(one, study.jobs(one))
  assert len(counted) == 2 * (2 + 2 + 2)  # seeds times values of scratch, and of the two rounds of masked
  assert len({job.folder for job in counted}) == 12


def test_a_round_of_one_value_is_not_tried(runs):
  one = searched(search=Search((PRETRAIN[:1], FINETUNE), seeds=(0,)))
  chosen = study.jobs(one, only={'row': 'masked'})
  decided = search.decide(one, chosen, '')
  assert names(decided.open) == names(search.all_jobs(one, chosen))
  assert {job.what.partition(',')[0] for job in decided.open} == {'round 2'}
  assert {job.config.pretrain.optimizer.lr for job in decided.open} == {PRETRAIN[0]['pretrain.optimizer.lr']}
  runs.end(decided.open)
  (last, *_) = search.decide(one, chosen, '').jobs
  assert last.cell.overrides == PRETRAIN[0] | FINETUNE[0]


def test_a_search_that_was_asked_to_end_goes_on_though_values_failed(runs, monkeypatch, tmp_path, tiny_data):
  def run_all(jobs, workdir, **options):
    runs.end(jobs[:1], runner.FAILED, workdir)
    return {job: runner.FAILED if job is jobs[0] else runner.WAITING for job in jobs}

  monkeypatch.setattr(runner, 'run_all', run_all)
  tiny = pathlib.Path(__file__).resolve().parents[1] / 'tiny_study.py'
  flags = [f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  assert cli.main(['study', f'{tiny}:search', *flags]) == runner.AGAIN


@pytest.mark.parametrize(
  'search', [[1], [{'won': 3, 'tried': []}], [{'won': None}], [{'won': '', 'tried': [2]}]]
)
def test_a_record_of_another_form_is_named(tmp_path, search):
  one = searched()
  study_record.claim(tmp_path, records.record(one, study.jobs(one)))
  record = study_record.read_record(tmp_path)
  record['cells'][0]['search'] = search
  files.write_json(tmp_path / 'study.json', record)
  with pytest.raises(DamagedFile, match=r'cells\[0\]\.search\[0\]'):
    study_record.read_record(tmp_path)


@pytest.mark.parametrize(
  'rounds, seeds, sentence',
  [
    ([FINETUNE], 0, 'A search has seeds=0: list different'),
    ([FINETUNE], (), r'A search has seeds=\(\): list different'),
    ([FINETUNE], (1, 1), r'A search has seeds=\(1, 1\): list different'),
    (FINETUNE, (0,), r'A search has the round \{.*0.01\}: make rounds a list of lists of dicts'),
    (FINETUNE[0], (0,), 'make rounds a list of lists of dicts'),
    ([[1e-2, 1e-3]], (0,), r'A search has the round \[0.01, 0.001\]'),
  ],
)
def test_a_search_of_another_form_is_refused(rounds, seeds, sentence):
  with pytest.raises(ConfigError, match=sentence):
    Search(rounds, seeds=seeds)


def test_a_seed_of_the_search_cannot_test_and_its_values_are_not_given():
  with pytest.raises(ConfigError, match='Seed 1 of the study searched chooses hyperparameters'):
    study.jobs(searched(), seeds=(1, 2))
  one, override = searched(), ['finetune.optimizer.lr=0.1']
  with pytest.raises(ConfigError, match=r'study searched searches finetune.optimizer.lr'):
    search.decide(one, study.jobs(one, overrides=override), '', override)


def test_the_command_goes_from_round_to_round(runs, monkeypatch, tmp_path, tiny_data, capsys):
  tiny = pathlib.Path(__file__).resolve().parents[1] / 'tiny_study.py'
  asked = []

  def run_all(jobs, workdir, **options):
    asked.append(names(jobs))
    runs.end(jobs, workdir=workdir)
    return dict.fromkeys(jobs, runner.FINISHED)

  monkeypatch.setattr(runner, 'run_all', run_all)
  arguments = ['study', f'{tiny}:search', f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  runs.score = lambda job: job.config.finetune.optimizer.lr
  assert cli.main([*arguments, '--print=plain']) == 0
  printed = capsys.readouterr().out
  assert printed.count('lra-spt train') == 2
  assert '# These runs search hyperparameters.' in printed
  assert cli.main(arguments) == 0
  assert asked == [
    [
      'scratch, Trees (round 1, finetune lr 0.001), seed 0',
      'scratch, Trees (round 1, finetune lr 0.01), seed 0',
    ],
    ['scratch, Trees, seed 1'],
  ]
  assert study_record.read_record(tmp_path)['cells'][0]['search'][0]['won'] == 'finetune.optimizer.lr=0.01'
  page = (tmp_path / 'report.html').read_text()
  assert '--config.finetune.optimizer.lr=0.01' in page  # the command of the cell
  assert '<th scope="row">finetune.optimizer.lr=0.01</th>' in page
  assert cli.main([*arguments, '--print=plain']) == 0
  assert '--config.finetune.optimizer.lr=0.01' in capsys.readouterr().out


def test_a_smoke_run_of_a_study_has_few_runs_of_few_steps():
  rates = tuple({'finetune.optimizer.lr': lr} for lr in (1e-2, 1e-3, 1e-4))
  one = study.shortened(searched(search=Search((rates,), seeds=(0, 1))))
  chosen = study.jobs(one)
  every = [*search.all_jobs(one, chosen), *chosen]
  assert sorted(job.seed for job in every) == [0, 0, 0, 0, 2, 2]
  assert {job.config.finetune.max_steps for job in every} == {loading.SMOKE_STEPS['max_steps']}
  assert all('--smoke' in job.arguments for job in every)
