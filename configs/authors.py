"""Rows of models that the paper did not train, with what their authors published for the Long Range Arena.

  MEGA      arXiv 2209.10655, Table 8; facebookresearch/mega @ aeaa4b4, examples/mega/README.lra.md
  LongConv  HazyResearch/safari @ 02220c6, configs/experiment/lra
  DSS       ag1988/dss @ 777084e, configs and README
  HGRN2     OpenNLPLab/HGRN2 @ b154c39, script_lra*.sh; on PathX theirs reads rows, then columns in another
            layer (`series`), which ours does not: no row. Theirs of Image is for augmented colour images

Training from scratch is theirs, in the form (causal or not) that they trained. The other arms are ours: their
model, and as S5 and LRU have it (`ssm.complete`) S4's learning rates, batch sizes and pretraining. Of what
they publish we leave out MEGA's head, which has a hidden layer (here it is linear, as for the others), and
its warmup with a square on PathX, which is a straight line here.
"""

from configs import ssm
from configs.rows import both, code, of_mixer, ours


def mega(
  depth,
  width,
  z,
  *,
  batch_size,
  lr,
  weight_decay,
  epochs,
  warmup_steps,
  norm='batch',
  prenorm=True,
  function='laplace',
  dropout=0.0,
  truncation=1024,
) -> dict:
  """Values are twice as wide as the model, and so are feed-forward layers; 16 moving averages a channel."""
  model = _model(depth, width, 2 * width, norm=norm, prenorm=prenorm, dropout=dropout)
  mixer = {'z': z, 'v': 2 * width, 'h': 16, 'function': function, 'truncation': truncation}
  training = _training(batch_size, lr, weight_decay, epochs, warmup_steps, 'linear', pool='mean')
  adam = {'optimizer.b2': (0.98, 0.98), 'optimizer.clip_norm': (1.0, 1.0)}
  return code(model | _mixer(mixer) | training | both(adam))


def longconv(
  depth,
  width,
  *,
  threshold,
  kernel_lr,
  batch_size,
  epochs,
  warmup_steps,
  cosine,
  lr=0.01,
  weight_decay=0.05,
  kernel_dropout=0.2,
  norm='batch',
  prenorm=True,
  dropout=0.0,
  pool='',
) -> dict:
  """pool: '' for that of S4 from scratch, whose code theirs is built on."""
  model = _model(depth, width, 0, norm=norm, prenorm=prenorm, dropout=dropout, tied_dropout=True)
  mixer = {'threshold': threshold, 'kernel_lr': kernel_lr, 'kernel_dropout': kernel_dropout}
  training = _training(batch_size, lr, weight_decay, epochs, warmup_steps, 'cosine', cosine, pool=pool)
  return code(model | _mixer(mixer | {'dropout': dropout}) | training)


def dss(
  depth,
  width,
  *,
  batch_size,
  lr,
  epochs,
  patience,
  pool,
  weight_decay=0.0,
  dt_lr=1e-3,
  dt=(1e-3, 0.1),
  prenorm=True,
  dropout=0.0,
) -> dict:
  """The softmax form; patience: of the plateau schedule, in evaluations, which are one an epoch; pool: as in
  `longconv`."""
  model = _model(depth, width, 0, norm='batch', prenorm=prenorm, dropout=dropout)
  mixer = {'dt_min': dt[0], 'dt_max': dt[1], 'dt_lr': dt_lr, 'dropout': dropout}
  training = _training(batch_size, lr, weight_decay, epochs, 0, 'plateau', pool=pool)
  return code(model | _mixer(mixer) | training | {'finetune.schedule.patience': patience})


def hgrn2(
  depth,
  width,
  expand_ratio,
  *,
  batch_size,
  lr,
  epochs,
  warmup_steps,
  clip_norm=0.0,
  glu=1,
  columns=0,
  cosine=50_000,
  norm='batch',
  dropout=0.0,
) -> dict:
  """glu: width of the gated feed-forward layers, in widths of the model; columns: of an image."""
  model = _model(depth, width, glu * width, norm=norm, prenorm=True, dropout=dropout)
  model |= {'model.gated_feed_forward': True, 'model.activation': 'silu'}
  training = _training(batch_size, lr, 0.0, epochs, warmup_steps, 'cosine', cosine, pool='mean')
  return code(
    model
    | _mixer({'expand_ratio': expand_ratio, 'columns': columns})
    | training
    | both({'optimizer.clip_norm': (clip_norm,) * 2})
  )


def _model(depth, width, feed_forward, *, norm, prenorm, dropout, tied_dropout=False):
  return {
    'model.depth': depth,
    'model.width': width,
    'model.feed_forward': feed_forward,
    'model.norm': norm,
    'model.prenorm': prenorm,
    'model.dropout': dropout,
    'model.tied_dropout': tied_dropout,
  }


def _mixer(options):
  return {f'model.mixer.{key}': value for key, value in options.items()}


def _training(batch_size, lr, weight_decay, epochs, warmup_steps, schedule, total_steps=0, *, pool):
  return {
    'finetune.batch_size': batch_size,
    'finetune.optimizer.lr': lr,
    'finetune.optimizer.weight_decay': weight_decay,
    'pretrain.optimizer.weight_decay': weight_decay,
    'finetune.epochs': float(epochs),
    'finetune.schedule.warmup_steps': warmup_steps,
    'finetune.schedule.name': schedule,
    'finetune.schedule.total_steps': total_steps,
  } | ({'finetune.pool': pool} if pool else {})


SOFTMAX = {'norm': 'layer', 'prenorm': False, 'function': 'softmax', 'dropout': 0.1}
ROWS = {
  'mega': {
    'listops': mega(
      6, 80, 64, batch_size=64, lr=1e-3, weight_decay=0.01, epochs=60, warmup_steps=3000, **SOFTMAX
    ),
    'text': mega(
      4,
      128,
      64,
      batch_size=50,
      lr=4e-3,
      weight_decay=0.01,
      epochs=50,
      warmup_steps=10_000,
      **SOFTMAX | {'norm': 'scale'},
    ),
    'retrieval': mega(
      6,
      128,
      64,
      batch_size=64,
      lr=3e-3,
      weight_decay=0.04,
      epochs=40,
      warmup_steps=10_000,
      **SOFTMAX | {'norm': 'scale'},
    ),
    'image': mega(8, 160, 96, batch_size=50, lr=0.01, weight_decay=0.02, epochs=200, warmup_steps=9000),
    'pathfinder': mega(
      6, 128, 64, batch_size=128, lr=0.01, weight_decay=0.01, epochs=200, warmup_steps=50_000
    ),
    'pathx': mega(
      4, 64, 32, batch_size=128, lr=0.01, weight_decay=0.01, epochs=100, warmup_steps=25_000, truncation=4096
    ),
  },
  'longconv': {
    'listops': longconv(
      8,
      128,
      threshold=0.002,
      kernel_lr=5e-4,
      batch_size=50,
      epochs=40,
      warmup_steps=10_000,
      cosine=80_000,
      prenorm=False,
      pool='mean',
    ),
    'text': longconv(
      6,
      256,
      threshold=0.003,
      kernel_lr=1e-3,
      batch_size=16,
      epochs=32,
      warmup_steps=5000,
      cosine=50_000,
      pool='mean',
    ),
    'retrieval': longconv(
      6,
      256,
      threshold=0.004,
      kernel_lr=1e-4,
      kernel_dropout=0.1,
      batch_size=64,
      epochs=20,
      warmup_steps=2500,
      cosine=50_000,
    ),
    'image': longconv(
      6,
      512,
      threshold=0.003,
      kernel_lr=1e-3,
      batch_size=50,
      epochs=200,
      warmup_steps=1000,
      cosine=200_000,
      norm='layer',
      prenorm=False,
      dropout=0.1,
    ),
    'pathfinder': longconv(
      6,
      256,
      threshold=0.001,
      kernel_lr=1e-3,
      kernel_dropout=0.3,
      batch_size=64,
      lr=4e-3,
      weight_decay=0.03,
      epochs=200,
      warmup_steps=2500,
      cosine=500_000,
      pool='last',
    ),
    'pathx': longconv(
      6,
      256,
      threshold=0.001,
      kernel_lr=5e-4,
      kernel_dropout=0.3,
      batch_size=16,
      lr=5e-4,
      epochs=50,
      warmup_steps=10_000,
      cosine=500_000,
    ),
  },
  'dss': {
    'listops': dss(
      6,
      128,
      batch_size=50,
      lr=0.01,
      weight_decay=0.01,
      dt_lr=0.02,
      epochs=50,
      patience=5,
      pool='mean',
      prenorm=False,
    ),
    'text': dss(4, 128, batch_size=50, lr=0.01, dt_lr=0.02, epochs=40, patience=10, pool='last'),
    'retrieval': dss(6, 256, batch_size=64, lr=2e-3, epochs=25, patience=20, pool='mean'),
    'image': dss(
      6,
      512,
      batch_size=50,
      lr=4e-3,
      weight_decay=0.01,
      epochs=200,
      patience=10,
      pool='mean',
      prenorm=False,
      dropout=0.2,
    ),
    'pathfinder': dss(6, 256, batch_size=100, lr=4e-3, epochs=200, patience=13, pool='last', dropout=0.1),
    'pathx': dss(
      6, 256, batch_size=16, lr=5e-4, dt_lr=1e-4, dt=(1e-4, 0.01), epochs=35, patience=40, pool=''
    ),
  },
  'hgrn2': {
    'listops': hgrn2(5, 64, 4, batch_size=1024, lr=5e-4, epochs=50, warmup_steps=5000),
    'text': hgrn2(
      4, 128, 8, norm='layer', batch_size=128, lr=5e-3, epochs=40, warmup_steps=10_000, dropout=0.1
    ),
    'image': hgrn2(
      6,
      512,
      2,
      columns=32,
      batch_size=512,
      lr=3e-3,
      epochs=75,
      warmup_steps=30_000,
    ),
    'pathfinder': hgrn2(
      6,
      128,
      2,
      columns=32,
      batch_size=1024,
      lr=2e-3,
      epochs=100,
      warmup_steps=50_000,
      cosine=500_000,
    ),
    'retrieval': hgrn2(
      2, 256, 2, glu=2, batch_size=1024, lr=5e-3, epochs=20, warmup_steps=312, clip_norm=1.0
    ),
  },
}
# Which form they trained; bidirectional where nothing is said.
CAUSAL = {'dss': ('listops', 'text', 'retrieval', 'image', 'pathfinder', 'pathx')}
CAUSAL['longconv'] = CAUSAL['dss'][:4]


def row(model, arm, task, table) -> dict | None:
  """The row of a model in an arm, None where its authors published nothing for the task.

  Args:
    table: {(model, arm): row} of the task.
  """
  if task not in ROWS.get(model, ()):
    return None
  theirs = code({'finetune.pool': table['s4', 'scratch']['finetune.pool'].value}) | ROWS[model][task]
  if task != 'retrieval':
    theirs = ours({'finetune.head': 'linear'}) | theirs
  causal = 'causal' in arm
  trained = arm == ('causal scratch' if task in CAUSAL.get(model, ()) else 'scratch')
  found = of_mixer(model, table['transformer', arm]) | (theirs if trained else ours(theirs))
  if arm in ('masked', 'causal'):
    found |= ours(ssm.of_pretrained(table))
  if causal and not trained:
    found |= ours({'finetune.pool': table['transformer', 'causal']['finetune.pool'].value})
    if 'model.mixer.columns' in found:  # an image is read in all directions
      found |= ours({'model.mixer.columns': 0})
  return found
