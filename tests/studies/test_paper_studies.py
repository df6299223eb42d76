"""Studies of the paper: the changes that their cells make, and the sentences about them."""

import collections
import dataclasses
import functools

import pytest

from configs.studies import of_paper
from lra_spt.config import loading, protocol, user_files
from lra_spt.errors import ConfigError
from lra_spt.runs.build import build, resolve
from lra_spt.studies import budget, search, study


@pytest.fixture(scope='module')
def loaded():
  """loaded(name) -> (study, its jobs)."""

  @functools.cache
  def load(name):
    one = study.load(f'configs/studies/{name}.py')
    return one, study.jobs(one)

  return load


def test_figure_3_chooses_the_learning_rate_of_text_from_scratch(loaded):
  one, jobs = loaded('figure3')
  tried = search.all_jobs(one, jobs)
  assert {(job.cell.row, job.seed) for job in tried} == {('Text, scratch', 100)}
  assert collections.Counter(job.config.finetune.optimizer.lr for job in tried) == {1e-3: 6, 5e-4: 6}
  assert len({job.config.finetune.data_fraction for job in tried}) == 6


def test_states_of_table_9_grow_with_its_width(loaded):
  _, jobs = loaded('table9')
  models = {job.cell.column: job.config.model for job in jobs if job.cell.row == 'S4'}
  sizes = {column: (model.width, model.mixer.state_size) for column, model in models.items()}
  # The model of 3 million parameters is that of Table 2.
  assert sizes == {'100K': (84, 10), '300K': (148, 18), '1M': (272, 34), '3M': (512, 64), '10M': (864, 108)}


def test_larger_s4_is_as_large_as_the_transformer(loaded):
  _, jobs = loaded('larger_s4')
  for job in jobs:
    if job.config.regime == 'scratch' and 'larger' in job.cell.row:
      transformer = loading.load(of_paper.config(job.config.task, 'transformer_rotary', 'scratch'))
      counts = [build(resolve(one), 'finetune').model.parameter_count for one in (job.config, transformer)]
      assert counts[0] == pytest.approx(counts[1], rel=0.01)


def test_pools_of_pathx_share_their_pretraining(loaded):
  one, jobs = loaded('pooling')
  assert {job.config.finetune.pool for job in jobs} == {'mean', 'max', 'last'}
  assert len({job.stages['pretrain'] for job in jobs if 'pretrain' in job.stages}) == 2
  printed = {(cell.row, cell.column): cell.published.printed for cell in one.cells if cell.published}
  assert printed['Transformers + Causal SPT', 'max'] == '88.05'
  assert sorted(printed.values()) == ['87.73', '88.05', *['\u00d7'] * 3]


def test_pretrained_pythia_joins_table_2_with_its_weights(tmp_path, loaded):
  path = tmp_path / 'model.safetensors'
  with pytest.raises(ConfigError, match=r'There is no file .*model.safetensors: give weights='):
    study.load(f'configs/studies/table2.py:weights={path}')
  path.touch()
  one = study.load(f'configs/studies/table2.py:weights={path}')
  jobs = study.jobs(one)
  new = [job for job in jobs if job.cell.row == 'Pythia 70M']
  assert len(jobs) == len(loaded('table2')[1]) + 5 == 43 + len(new)
  assert {(job.config.model.weights, job.config.regime) for job in new} == {(str(path), 'scratch')}
  assert not {job.stages['finetune'] for job in new} & {job.stages['finetune'] for job in loaded('table2')[1]}


def test_studies_say_what_protocol_paper_changes(repository):
  page = (repository / 'docs/studies.md').read_text()
  behaviours = [field.name for field in dataclasses.fields(protocol.Protocol) if field.name != 'name']
  assert not [name for name in behaviours if f'`{name}`' not in page]
  for path in user_files.installed('studies', 'get_study'):
    others = ('mini', 'questions', 'lab', 'recall', 'archives')  # their tasks are not in the paper
    if not path.removeprefix('configs/studies/').startswith(others):
      assert '--config.protocol=paper' in (repository / path).read_text(), path


def test_a_set_split_by_groups_counts_its_training_groups_before_it_is_prepared(loaded, tmp_path):
  one, _ = loaded('table3')
  for name, examples in (('clean', (5_700, 5_621, 5_700)), ('paper', (5_565, 5_509, 5_565))):
    overrides = [f'runtime.data_dir={tmp_path}', f'protocol={name}']
    jobs = study.jobs(one, only={'row': 'S4 + SPT'}, overrides=overrides)
    jobs = [job for job in jobs if job.config.task.startswith('bidmc')]
    steps, missing = budget.plan(jobs)
    assert [steps[job]['pretrain'] for job in jobs] == [-(-500 * count // 64) for count in examples]
    assert len(missing) == 3
