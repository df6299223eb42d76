"""Rows of models with what their authors published: values, origins, and what the other arms take from S4."""

import pytest

from configs import authors
from lra_spt.config import loading
from lra_spt.runs.build import build, resolve

TASKS = ('listops', 'text', 'retrieval', 'image', 'pathfinder', 'pathx')
EXAMPLES = dict(zip(TASKS, (96_000, 22_500, 147_086, 45_000, 160_000, 160_000), strict=True))
ARMS = {'scratch': '', 'causal scratch': ',causal=true', 'masked': '', 'causal': ''}
# (model, task): depth, width, feed-forward, norm, prenorm, dropout; batch, lr, weight decay, epochs, warmup,
# schedule; typed again from the sources that `configs.authors` names.
PUBLISHED = {
  ('mega', 'listops'): ((6, 80, 160, 'layer', False, 0.1), (64, 1e-3, 0.01, 60, 3000, 'linear')),
  ('mega', 'text'): ((4, 128, 256, 'scale', False, 0.1), (50, 4e-3, 0.01, 50, 10_000, 'linear')),
  ('mega', 'retrieval'): ((6, 128, 256, 'scale', False, 0.1), (64, 3e-3, 0.04, 40, 10_000, 'linear')),
  ('mega', 'image'): ((8, 160, 320, 'batch', True, 0.0), (50, 0.01, 0.02, 200, 9000, 'linear')),
  ('mega', 'pathfinder'): ((6, 128, 256, 'batch', True, 0.0), (128, 0.01, 0.01, 200, 50_000, 'linear')),
  ('mega', 'pathx'): ((4, 64, 128, 'batch', True, 0.0), (128, 0.01, 0.01, 100, 25_000, 'linear')),
  ('longconv', 'listops'): ((8, 128, 0, 'batch', False, 0.0), (50, 0.01, 0.05, 40, 10_000, 'cosine')),
  ('longconv', 'text'): ((6, 256, 0, 'batch', True, 0.0), (16, 0.01, 0.05, 32, 5000, 'cosine')),
  ('longconv', 'retrieval'): ((6, 256, 0, 'batch', True, 0.0), (64, 0.01, 0.05, 20, 2500, 'cosine')),
  ('longconv', 'image'): ((6, 512, 0, 'layer', False, 0.1), (50, 0.01, 0.05, 200, 1000, 'cosine')),
  ('longconv', 'pathfinder'): ((6, 256, 0, 'batch', True, 0.0), (64, 4e-3, 0.03, 200, 2500, 'cosine')),
  ('longconv', 'pathx'): ((6, 256, 0, 'batch', True, 0.0), (16, 5e-4, 0.05, 50, 10_000, 'cosine')),
  ('dss', 'listops'): ((6, 128, 0, 'batch', False, 0.0), (50, 0.01, 0.01, 50, 0, 'plateau')),
  ('dss', 'text'): ((4, 128, 0, 'batch', True, 0.0), (50, 0.01, 0.0, 40, 0, 'plateau')),
  ('dss', 'retrieval'): ((6, 256, 0, 'batch', True, 0.0), (64, 2e-3, 0.0, 25, 0, 'plateau')),
  ('dss', 'image'): ((6, 512, 0, 'batch', False, 0.2), (50, 4e-3, 0.01, 200, 0, 'plateau')),
  ('dss', 'pathfinder'): ((6, 256, 0, 'batch', True, 0.1), (100, 4e-3, 0.0, 200, 0, 'plateau')),
  ('dss', 'pathx'): ((6, 256, 0, 'batch', True, 0.0), (16, 5e-4, 0.0, 35, 0, 'plateau')),
  ('hgrn2', 'listops'): ((5, 64, 64, 'batch', True, 0.0), (128, 5e-4, 0.0, 50, 5000, 'cosine')),
  ('hgrn2', 'text'): ((4, 128, 128, 'layer', True, 0.1), (64, 5e-3, 0.0, 40, 10_000, 'cosine')),
  ('hgrn2', 'retrieval'): ((2, 256, 512, 'batch', True, 0.0), (128, 5e-3, 0.0, 20, 312, 'cosine')),
  ('hgrn2', 'image'): ((6, 512, 512, 'batch', True, 0.0), (64, 3e-3, 0.0, 75, 30_000, 'cosine')),
  ('hgrn2', 'pathfinder'): ((6, 128, 128, 'batch', True, 0.0), (128, 2e-3, 0.0, 100, 50_000, 'cosine')),
}
MIXERS = {  # a row of options: of each task in the order of TASKS
  ('mega', 'z'): (64, 64, 64, 96, 64, 32),
  ('mega', 'v'): (160, 256, 256, 320, 256, 128),
  ('mega', 'function'): ('softmax', 'softmax', 'softmax', 'laplace', 'laplace', 'laplace'),
  ('mega', 'truncation'): (1024, 1024, 1024, 1024, 1024, 4096),
  ('mega', 'dropout'): (0.1, 0.1, 0.1, 0.0, 0.0, 0.0),
  ('longconv', 'dropout'): (0.0, 0.0, 0.0, 0.1, 0.0, 0.0),
  ('dss', 'dropout'): (0.0, 0.0, 0.0, 0.2, 0.1, 0.0),
  ('longconv', 'threshold'): (0.002, 0.003, 0.004, 0.003, 0.001, 0.001),
  ('longconv', 'kernel_dropout'): (0.2, 0.2, 0.1, 0.2, 0.3, 0.3),
  ('longconv', 'kernel_lr'): (5e-4, 1e-3, 1e-4, 1e-3, 1e-3, 5e-4),
  ('dss', 'dt_lr'): (0.02, 0.02, 1e-3, 1e-3, 1e-3, 1e-4),
  ('dss', 'dt_max'): (0.1, 0.1, 0.1, 0.1, 0.1, 0.01),
  ('hgrn2', 'expand_ratio'): (4, 8, 2, 2, 2, None),
  ('hgrn2', 'columns'): (0, 0, 0, 32, 32, None),
}


def load(task, model, arm):
  regime = arm.split()[-1]
  return loading.load(f'configs/{task}.py:model={model},regime={regime}{ARMS[arm]}')


def trained(task, model):
  """The arm that the authors trained."""
  causal = model == 'dss' or (model == 'longconv' and not task.startswith('path'))
  return 'causal scratch' if causal else 'scratch'


@pytest.mark.parametrize('model, task', PUBLISHED)
def test_training_from_scratch_is_theirs(model, task):
  config = load(task, model, trained(task, model))
  spec, stage, origins = config.model, config.finetune, config.origins
  sizes = spec.depth, spec.width, spec.feed_forward, spec.norm, spec.prenorm, spec.dropout
  optimizer, schedule = stage.optimizer, stage.schedule
  training = stage.batch_size, optimizer.lr, optimizer.weight_decay, stage.epochs, schedule.warmup_steps
  assert (sizes, (*training, schedule.name)) == PUBLISHED[model, task]
  assert (optimizer.b2, optimizer.clip_norm) == {
    'mega': (0.98, 1.0),
    'hgrn2': (0.999, float(task == 'retrieval')),
  }.get(model, (0.999, 0.0))
  assert {origins.model[key] for key in ('depth', 'width', 'norm', 'prenorm', 'dropout')} == {'code'}
  assert {origins.finetune[key] for key in ('batch_size', 'epochs', 'pool')} == {'code'}
  assert {origins.finetune.optimizer.lr, origins.finetune.schedule.name} == {'code'}
  assert origins.model.mixer.name == 'ours'  # what we call it


@pytest.mark.parametrize('model, option', MIXERS)
def test_options_of_mixers_are_theirs(model, option):
  for task, value in zip(TASKS, MIXERS[model, option], strict=True):
    if value is not None:
      config = load(task, model, trained(task, model))
      assert config.model.mixer[option] == value, task
      assert config.origins.model.mixer[option] == 'code', task


# Shares that are dropped, (behind the embedding, within feed-forward layers); None: as the model's others.
DROPOUTS = {
  ('mega', 'listops'): (0.1, 0.0),
  ('mega', 'text'): (0.1, 0.0),
  ('mega', 'retrieval'): (0.1, 0.0),
  ('hgrn2', 'listops'): (0.1, None),
  ('hgrn2', 'text'): (None, None),
  ('hgrn2', 'retrieval'): (0.1, None),
  ('hgrn2', 'image'): (0.1, None),
  ('hgrn2', 'pathfinder'): (None, None),
}


@pytest.mark.parametrize('model, task', DROPOUTS)
def test_places_of_dropout_are_theirs(model, task):
  spec = load(task, model, 'scratch').model
  assert (spec.get('input_dropout'), spec.get('feed_forward_dropout')) == DROPOUTS[model, task]


@pytest.mark.parametrize('task', TASKS)
def test_dropout_of_dss_and_longconv_is_one_draw_for_all_positions(task):
  """This is Dropout2d in the PyTorch version that they name, and the dropout of the S4 code."""
  for model in ('dss', 'longconv'):
    spec = load(task, model, trained(task, model)).model
    assert (spec.tied_dropout, spec.mixer.get('tied_dropout', True)) == (True, True)


@pytest.mark.parametrize('model, task', PUBLISHED)
def test_warmup_ends_before_training_does(model, task):
  for arm in ARMS:
    config = load(task, model, arm)
    steps = config.finetune.epochs * EXAMPLES[task] // config.finetune.batch_size
    assert 0 <= config.finetune.schedule.warmup_steps < 0.75 * steps


def test_hgrn2_adds_positions_where_theirs_does():
  positions = {task: load(task, 'hgrn2', 'scratch').model.position for task in authors.ROWS['hgrn2']}
  added = {task for task, position in positions.items() if position == 'sinusoidal'}
  assert added == {'listops', 'retrieval', 'image'}
  assert {positions[task] for task in ('text', 'pathfinder')} == {'none'}


def test_text_has_their_rows_at_either_length():
  for model in authors.ROWS:
    long, short = (
      loading.load(f'configs/text.py:model={model},regime=scratch,length={length}') for length in (4096, 2048)
    )
    assert short.task == 'text_2048'
    assert loading.difference(loading.identity(long), loading.identity(short)).count('\n') == 0


def test_every_row_is_held_to_its_source():
  assert {(model, task) for model, tasks in authors.ROWS.items() for task in tasks} == set(PUBLISHED)


@pytest.mark.parametrize('model, task', PUBLISHED)
def test_other_arms_are_ours_with_the_pretraining_of_s4(model, task):
  theirs = load(task, model, trained(task, model))
  s4, transformer = load(task, 's4', 'masked'), load(task, 'transformer', 'causal')
  for arm in ARMS:
    config = load(task, model, arm)
    changed = loading.difference(theirs.model.to_dict(), config.model.to_dict())
    assert changed.split(':')[0] in ('', 'mixer.columns'), changed  # the causal form reads no image
    if arm != trained(task, model):
      assert {config.origins.model.width, config.origins.finetune.pool} == {'ours'}
    if 'causal' in arm:
      pooled = theirs if 'causal' in trained(task, model) else transformer
      assert config.finetune.pool == pooled.finetune.pool
    if 'scratch' not in arm:
      assert (config.finetune.optimizer.lr, config.finetune.batch_size) == (
        s4.finetune.optimizer.lr,
        s4.finetune.batch_size,
      )
      # As many epochs of warmup, and of the cosine or line where it has an end of its own.
      ratio = theirs.finetune.batch_size / s4.finetune.batch_size
      for key in ('warmup_steps', 'total_steps'):
        assert config.finetune.schedule[key] == round(theirs.finetune.schedule[key] * ratio)
      assert config.pretrain.schedule == s4.pretrain.schedule
      assert config.pretrain.optimizer.lr == s4.pretrain.optimizer.lr
      assert config.pretrain.optimizer.weight_decay == theirs.finetune.optimizer.weight_decay


@pytest.mark.parametrize('model', sorted(authors.ROWS))
def test_their_models_build(model):
  for task in authors.ROWS[model]:
    assert build(resolve(load(task, model, 'masked')), 'finetune').model.parameter_count > 0


def test_tasks_without_a_published_row_have_the_transformers():
  for task, model in (('scifar', 'mega'), ('pathx', 'hgrn2'), ('image', 'sgconv')):
    config, transformer = load(task, model, 'masked'), load(task, 'transformer', 'masked')
    assert (config.model.width, config.origins.model.width) == (transformer.model.width, 'ours')
    assert config.finetune.optimizer == transformer.finetune.optimizer
