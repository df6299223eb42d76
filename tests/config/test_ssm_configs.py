"""The rows of state-space models: those of the paper, of its published code, of other papers, and ours."""

import itertools
import math

import pytest

from configs import rows
from lra_spt.config import loading
from tests.config.choices import ALL, BIDMC, load, spec

# Tables 5 and 6, written out once more: lr FT, batch FT and, after pretraining, lr PT, batch PT. None: not in
# print.
TABLES_5_AND_6 = {
  ('listops', 's4_random', 'masked'): (1e-3, 16, 1e-3, 32),
  ('listops', 's4_random', 'scratch'): (5e-4, 16),
  ('listops', 's4', 'masked'): (1e-3, 16, 1e-3, 128),
  ('listops', 'dlr_random', 'masked'): (5e-4, 64, 5e-4, 32),
  ('listops', 'dlr_random', 'scratch'): (1e-4, 16),
  ('listops', 'dlr', 'masked'): (5e-4, 16, 1e-3, 128),
  ('listops', 'dlr', 'scratch'): (5e-4, 16),
  ('text', 's4_random', 'masked'): (1e-3, 16, None, 32),
  ('text', 's4_random', 'scratch'): (1e-3, 16),
  ('text', 's4', 'masked'): (5e-4, 16, 5e-4, 8),
  ('text', 'dlr_random', 'masked'): (5e-4, 16, 5e-4, 8),
  ('text', 'dlr_random', 'scratch'): (1e-3, 16),
  ('text', 'dlr', 'masked'): (1e-3, 16, 5e-4, 8),
  ('text', 'dlr', 'scratch'): (5e-4, 16),
  ('retrieval', 's4', 'masked'): (5e-4, 256, 5e-4, 8),
  ('image', 's4_random', 'masked'): (5e-4, 64, 1e-3, 32),
  ('image', 's4_random', 'scratch'): (1e-4, 128),
  ('image', 's4', 'masked'): (1e-3, 512, 1e-3, 32),
  ('image', 'dlr_random', 'masked'): (1e-3, 64, None, 32),
  ('image', 'dlr_random', 'scratch'): (1e-3, 16),
  ('image', 'dlr', 'masked'): (1e-3, 64, 1e-3, 32),
  ('image', 'dlr', 'scratch'): (5e-4, 64),
  ('pathfinder', 's4', 'masked'): (1e-3, 64, 1e-3, 8),
  ('pathx', 's4_random', 'masked'): (5e-4, 16, 1e-3, 4),
  ('pathx', 's4_random', 'scratch'): (5e-4, 16),
  ('pathx', 's4', 'masked'): (1e-3, 64, 1e-3, 8),
  ('pathx', 'dlr_random', 'masked'): (5e-4, 16, 5e-4, 8),
  ('pathx', 'dlr_random', 'scratch'): (5e-4, 64),
  ('pathx', 'dlr', 'masked'): (5e-4, 64, 5e-4, 8),
  ('pathx', 'dlr', 'scratch'): (5e-4, 64),
  ('scifar', 's4', 'masked'): (5e-4, 64, 1e-3, 32),
  ('speech_commands', 's4', 'masked'): (5e-3, 16, 1e-3, 32),
  ('speech_commands', 's4', 'causal'): (5e-4, 16, 1e-3, 32),
  ('bidmc_hr', 's4', 'masked'): (1e-3, 64, 1e-3, 64),
  ('bidmc_rr', 's4', 'masked'): (1e-3, 64, 1e-3, 64),
  ('bidmc_spo2', 's4', 'masked'): (1e-3, 64, 1e-3, 64),
  ('bidmc_hr', 's4', 'scratch'): (1e-3, 32),
  ('bidmc_rr', 's4', 'scratch'): (1e-2, 32),
  ('bidmc_spo2', 's4', 'scratch'): (1e-2, 32),
}

# The published code's configs of S4 (its authors') and DLR, likewise. Encoder: depth, width, state size,
# norm, prenorm, dropout, tied over positions; kernel: what else the mixer has; stage: pool, weight decay,
# epochs (FT, PT), warmup (FT, PT), FT schedule and its steps; of S4 from scratch, by its authors
# (state-spaces/s4, v3.0.0): lr, batch, warmup, steps of the cosine, pool.
S4_KERNEL = {
  'dt_min': 1e-3,
  'dt_max': 0.1,
  'dt_lr': 1e-3,
  'a_lr': 1e-3,
  'b_lr': 1e-3,
  'parametrization': 'truncated',
}
DLR_KERNEL = {'dt_min': 1e-4, 'dt_max': 0.1, 'lambda_lr': 1e-4, 'w_lr': 1e-4}
PUBLISHED_CODE = {
  ('listops', 's4'): (
    (8, 128, 64, 'batch', False, 0.0, True),
    {'copies': 128, **S4_KERNEL, 'dt_lr': 0.0},
    ('mean', 0.05, (40, 100), (2000, 2000), 'constant', 0),
    (0.01, 50, 1000, 80_000, 'mean'),
  ),
  ('text', 's4'): (
    (6, 256, 64, 'batch', True, 0.0, True),
    {'copies': 256, **S4_KERNEL, 'dt_lr': 0.0},
    ('mean', 0.05, (32, 32), (5000, 1000), 'cosine', 50_000),
    (0.01, 16, 1000, 50_000, 'mean'),
  ),
  ('retrieval', 's4'): (
    (6, 256, 64, 'batch', True, 0.0, True),
    {'copies': 256, **S4_KERNEL, 'dt_lr': 0.0},
    ('mean', 0.05, (20, 20), (2500, 2500), 'constant', 0),
    (0.01, 64, 2500, 50_000, 'mean'),
  ),
  ('image', 's4'): (
    (6, 512, 64, 'layer', False, 0.1, True),
    {'copies': 2, **S4_KERNEL, 'dt_lr': 0.0},
    ('mean', 0.05, (200, 200), (1000, 1000), 'cosine', 200_000),
    (0.01, 50, 1000, 200_000, 'mean'),
  ),
  ('scifar', 's4'): (
    (6, 512, 64, 'layer', False, 0.1, True),
    {'copies': 2, **S4_KERNEL},
    ('mean', 0.05, (200, 200), (1000, 2000), 'cosine', 200_000),
    (0.01, 50, 1000, 200_000, 'mean'),
  ),
  ('pathfinder', 's4'): (
    (6, 256, 64, 'batch', True, 0.0, True),
    {'copies': 256, **S4_KERNEL},
    ('last', 0.03, (200, 200), (2500, 2500), 'constant', 0),
    (0.004, 64, 2500, 500_000, 'last'),
  ),
  ('pathx', 's4'): (
    (6, 256, 64, 'batch', True, 0.0, True),
    {'copies': 256, **S4_KERNEL, 'dt_min': 1e-4, 'dt_lr': 5e-4, 'a_lr': 5e-4, 'b_lr': 5e-4},
    ('mean', 0.05, (50, 50), (10_000, 5000), 'cosine', 500_000),
    (5e-4, 16, 10_000, 500_000, 'mean'),
  ),
  ('speech_commands', 's4'): (
    (6, 128, 64, 'batch', True, 0.0, True),
    {'copies': 64, **S4_KERNEL},
    ('max', 0.05, (40, 40), (1000, 1000), 'cosine', 200_000),
    (0.01, 16, 1000, 200_000, 'mean'),
  ),
  **{
    (task, 's4'): (
      (6, 128, 256, 'layer', True, 0.0, True),
      {'copies': 2, **S4_KERNEL},
      ('mean', 0.05, (500, 500), (0, 500), 'multistep', 0),
      None,
    )
    for task in BIDMC
  },
  ('pathx', 'dlr'): (
    (6, 256, 1024, 'layer', True, 0.0, False),
    DLR_KERNEL,
    ('mean', 0.05, (50, 50), (5000, 5000), 'cosine', 250_000),
    None,
  ),
  ('listops', 'dlr'): (
    (8, 128, 1024, 'layer', False, 0.0, False),
    DLR_KERNEL,
    ('mean', 0.05, (40, 100), (2000, 2000), 'constant', 0),
    None,
  ),
  ('text', 'dlr'): (
    (6, 256, 1024, 'layer', True, 0.0, False),
    DLR_KERNEL,
    ('mean', 0.05, (32, 32), (2000, 1000), 'constant', 0),
    None,
  ),
  ('image', 'dlr'): (
    (6, 512, 1024, 'layer', True, 0.0, False),
    DLR_KERNEL,
    ('mean', 0.05, (200, 200), (1000, 1000), 'constant', 0),
    None,
  ),
}

# S5's public scripts (run_lra_*.sh) and LRU's Tables 8 and 9, likewise: depth, width, state size, dropout,
# the layer's lr; what else; from scratch: lr, batch, weight decay, epochs, warmup.
B_FAST = {'c_init': 'lecun_normal', 'b_group': 'stage'}  # opt_config BfastandCdecay
S5_IMAGE = (
  (6, 512, 384, 0.1, 1e-3),
  {'blocks': 3, 'gate': 'half_glu1', **B_FAST},
  (4.5e-3, 50, 0.07, 250, 45_000 // 50),
)
LRU_IMAGE = ((6, 512, 384, 0.1, 1e-3), {'r_min': 0.9, 'r_max': 0.999}, (4e-3, 50, 0.05, 200, 18_000))
OTHERS = {
  ('listops', 's5'): (
    (8, 128, 16, 0.0, 1e-3),
    {'blocks': 8, 'gate': 'half_glu2', **B_FAST},
    (3e-3, 50, 0.04, 40, 96_000 // 50),
  ),
  ('text', 's5'): (
    (6, 256, 192, 0.1, 1e-3),
    {'blocks': 12, 'gate': 'half_glu2', 'c_init': 'lecun_normal', 'b_group': 'ssm', 'dt_global': True},
    (4 * 1e-3, 50, 0.07, 35, 0),
  ),
  ('retrieval', 's5'): (
    (6, 128, 256, 0.0, 1e-3),
    {
      'blocks': 16,
      'gate': 'half_glu1',
      'c_init': 'trunc_standard_normal',
      'b_group': 'ssm',
      'dt_min': 1e-3,
      'dt_global': True,
    },
    (2 * 1e-3, 32, 0.05, 20, 147_086 // 32),
  ),
  ('image', 's5'): S5_IMAGE,
  ('scifar', 's5'): S5_IMAGE,
  ('pathfinder', 's5'): (
    (6, 192, 256, 0.05, 9e-4),
    {'blocks': 8, 'gate': 'half_glu1', 'c_init': 'trunc_standard_normal', 'b_group': 'ssm'},
    (4.5e-3, 64, 0.03, 200, 160_000 // 64),
  ),
  ('pathx', 's5'): (
    (6, 128, 256, 0.0, 6e-4),
    {'blocks': 16, 'gate': 'half_glu1', 'c_init': 'complex_normal', 'b_group': 'ssm_decay', 'dt_min': 1e-4},
    (3 * 6e-4, 32, 0.06, 75, 160_000 // 32),
  ),
  ('speech_commands', 's5'): (
    (6, 96, 128, 0.1, 2e-3),
    {
      'blocks': 16,
      'gate': 'half_glu1',
      'c_init': 'lecun_normal',
      'b_group': 'ssm',
      'c_group': 'ssm',
      'dt_min': 1e-3,
    },
    (4 * 2e-3, 16, 0.04, 40, 84_843 // 16),
  ),
  ('pathx', 'lru'): (
    (6, 128, 256, 0.0, 1e-3),
    {'r_min': 0.999, 'r_max': 0.9999, 'max_phase': math.pi / 50},
    (4e-3, 32, 0.05, 250_000 * 32 / 160_000, 25_000),
  ),
  ('listops', 'lru'): (
    (6, 128, 256, 0.0, 1e-3),
    {'r_min': 0.0, 'r_max': 0.99},
    (2e-3, 32, 0.05, 80_000 / 3000, 8_000),
  ),
  ('text', 'lru'): (
    (6, 256, 192, 0.1, 1e-3),
    {'r_min': 0.5, 'r_max': 0.9},
    (1e-3 / 0.1, 32, 0.05, 50_000 * 32 / 25_000, 5000),
  ),
  ('retrieval', 'lru'): (
    (6, 128, 256, 0.1, 1e-3),
    {'r_min': 0.5, 'r_max': 0.9},
    (1e-3 / 0.5, 64, 0.05, 100_000 * 64 / 147_086, 10_000),
  ),
  ('image', 'lru'): LRU_IMAGE,
  ('scifar', 'lru'): LRU_IMAGE,
  ('pathfinder', 'lru'): (
    (6, 192, 256, 0.0, 1e-3),
    {'r_min': 0.9, 'r_max': 0.999},
    (4e-3, 64, 0.05, 200, 50_000),
  ),
}


def search(stage):
  """The values that the paper's search chose: learning rate and batch size."""
  return stage.optimizer.lr, stage.batch_size


@pytest.mark.parametrize('task, model, regime', TABLES_5_AND_6)
def test_rows_of_tables_5_and_6(task, model, regime):
  config = load(task, model, regime, regime == 'causal')
  printed = TABLES_5_AND_6[task, model, regime]
  stages = ('finetune',) if regime == 'scratch' else ('finetune', 'pretrain')
  given = sum((search(config[stage]) for stage in stages), ())
  origins = sum((search(config.origins[stage]) for stage in stages), ())
  assert tuple(b if a is None else a for a, b in zip(printed, given, strict=True)) == given
  assert origins == tuple('ours' if value is None else 'paper' for value in printed)
  if None in printed:  # the nearest value: that of the structured initialisation
    structured = load(task, model.removesuffix('_random'), regime)
    assert config.pretrain.optimizer.lr == structured.pretrain.optimizer.lr


@pytest.mark.parametrize('task, model', PUBLISHED_CODE)
def test_published_code_of_s4_and_dlr(task, model):
  encoder, kernel, stage, scratch = PUBLISHED_CODE[task, model]
  for regime in ('masked', 'scratch'):
    for name in (model, f'{model}_random'):
      config = load(task, name, regime)
      assert encoder == tuple(
        config.model.mixer.state_size if key == 'state_size' else config.model[key]
        for key in ('depth', 'width', 'state_size', 'norm', 'prenorm', 'dropout', 'tied_dropout')
      )
      mixer = config.model.mixer.to_dict()
      finetune, pretrain = config.finetune, config.pretrain
      cited = scratch and (name, regime) == (model, 'scratch')
      if cited:
        cosine = (finetune.schedule.name, finetune.schedule.warmup_steps, finetune.schedule.total_steps)
        assert (*search(finetune), cosine[1], cosine[2], finetune.pool) == scratch
        assert cosine[0] == 'cosine'
        origins = loading.flattened(config.origins.finetune.to_dict())
        keys = ('pool', 'schedule.name', 'schedule.warmup_steps', 'schedule.total_steps')
        assert {*search(config.origins.finetune), *(origins[key] for key in keys)} == {'code'}
      assert (mixer.pop('name'), mixer.pop('state_size')) == (model, encoder[2])
      assert (mixer.pop('dropout'), mixer.pop('tied_dropout')) == encoder[5:]
      assert mixer == kernel
      assert (config.model.feed_forward, config.model.position) == (0, 'none')
      assert stage[1:3] == (finetune.optimizer.weight_decay, (finetune.epochs, pretrain.epochs))
      assert pretrain.schedule.warmup_steps == stage[3][1]
      if not cited:
        assert finetune.pool == ('max' if task == 'pathx' else stage[0])  # C.1.3
        assert config.origins.finetune.pool == ('paper' if task == 'pathx' else 'code')
        of_finetuning = finetune.schedule
        assert (stage[3][0], *stage[4:]) == (
          of_finetuning.warmup_steps,
          of_finetuning.name,
          of_finetuning.total_steps,
        )
      assert pretrain.optimizer.weight_decay == finetune.optimizer.weight_decay
      pretraining = ('cosine', 200_000) if task == 'speech_commands' else ('constant', 0)
      assert (pretrain.schedule.name, pretrain.schedule.total_steps) == pretraining
      assert finetune.head == ('match' if task == 'retrieval' else 'linear')
      origins = loading.flattened(config.origins.to_dict())
      for key in (
        'model.width',
        'model.dropout',
        'pretrain.epochs',
        'finetune.epochs',
        'model.mixer.dt_min',
        'finetune.optimizer.weight_decay',
      ):
        assert origins[key] == 'code', key
      assert (
        origins['model.mixer.state_size'] == origins['model.norm'] == ('paper' if model == 'dlr' else 'code')
      )


@pytest.mark.parametrize('task', ALL)
def test_random_initialisation(task):
  for model, regime in itertools.product(rows.MODELS, ('masked', 'scratch')):
    config = load(task, model, regime)
    assert config.model.random_init == ('all' if model.endswith('_random') else '')  # C.1.3
    assert (config.model.random_std, config.origins.model.random_init) == (0.1, 'paper')
    assert config.model.mixer.name == (
      'attention' if model in rows.TRANSFORMERS else model.removesuffix('_random')
    )
  text = loading.load(f'{spec(task)}model=s4_random', ['model.random_init=ssm'])
  assert text.model.random_init == 'ssm'  # section 3.3


@pytest.mark.parametrize('task, model', OTHERS)
def test_s5_and_lru_have_the_values_of_their_papers(task, model):
  config = load(task, model, 'scratch')
  mixer, finetune = config.model.mixer, config.finetune
  (depth, width, states, dropout, rate), more, (lr, batch, decay, epochs, warmup) = OTHERS[task, model]
  assert (config.model.depth, config.model.width, mixer.state_size) == (depth, width, states)
  assert (config.model.dropout, mixer.dropout, mixer.ssm_lr) == (dropout, dropout, rate)
  assert (config.model.norm, config.model.prenorm) == ('batch', True)
  assert {key: mixer[key] for key in more} == more
  assert search(finetune) == (pytest.approx(lr), batch)
  assert finetune.epochs == pytest.approx(epochs)
  assert (finetune.optimizer.weight_decay, finetune.schedule.warmup_steps) == (decay, warmup)
  assert (finetune.schedule.name, finetune.schedule.total_steps) == ('cosine', 0)  # to the last step
