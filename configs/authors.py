"""Rows of models that the paper did not train, with values that their authors published for LRA.

  MEGA      arXiv 2209.10655, Table 8; facebookresearch/mega @ aeaa4b4, examples/mega/README.lra.md
  LongConv  HazyResearch/safari @ 02220c6, configs/experiment/lra
  DSS       ag1988/dss @ 777084e, configs and README; their Text has 2,048 characters (length=2048)
  HGRN2     OpenNLPLab/HGRN2 @ b154c39, script_lra*.sh. There is no row for PathX: there the published model
            passes over one dimension and then, with the same layer, over the other (`series`), which ours
            does not do. The published Image uses augmented colour images. Batch sizes are totals over all
            GPUs (run_lra.py: `batches`). Models that add positions drop a tenth of their inputs, which is the
            default there (OpenNLPLab/lra @ dd871ef, src/tasks/encoders.py). They trained in bfloat16

Training from scratch follows the authors, in the form (causal or bidirectional) that they trained. The other
arms are ours: the authors' model with S4's learning rates, batch sizes and pretraining, as for S5 and LRU
(`ssm.complete`). A causal form that the authors did not train pools as the causal Transformer; everything
else pools as theirs.

Three published details of MEGA are left out. Its head has a hidden layer; ours is linear, as for the other
models (on Retrieval, the head is that of the others, which also sees products and differences). Its warmup on
PathX is quadratic; ours is linear. Its initial values outside the mixer differ: feed-forward layers start
from N(0, 0.02^2) without bias, an embedding from N(0, 1 / width).
"""

from configs import ssm
from configs.rows import both, code, of_mixer, ours


def mega(depth, width, z, norm, prenorm, function, dropout, batch_size, lr, decay, epochs, warmup, cut=1024):
  """Values and feed-forward layers are twice as wide as the model; 16 moving averages per channel.
  truncation: number of positions after which their kernels are cut."""
  model = _model(depth, width, 2 * width, norm, prenorm, dropout)
  model |= {'model.input_dropout': dropout, 'model.feed_forward_dropout': 0.0}  # theirs: act-dropout
  mixer = {'z': z, 'v': 2 * width, 'h': 16, 'function': function, 'truncation': cut, 'dropout': dropout}
  training = _training(batch_size, lr, decay, epochs, warmup, 'linear', pool='mean')
  adam = {'optimizer.b2': (0.98, 0.98), 'optimizer.clip_norm': (1.0, 1.0)}
  return code(model | _mixer(mixer) | training | both(adam))


def longconv(
  depth, width, norm, prenorm, dropout, threshold, kernel_dropout, kernel_lr,
  batch_size, lr, decay, epochs, warmup, cosine, pool='',
):  # fmt: skip
  """pool: '' for the pooling of S4 from scratch, on whose code theirs is built."""
  model = _model(depth, width, 0, norm, prenorm, dropout, tied_dropout=True)
  mixer = {'threshold': threshold, 'kernel_lr': kernel_lr, 'kernel_dropout': kernel_dropout}
  training = _training(batch_size, lr, decay, epochs, warmup, 'cosine', cosine, pool=pool)
  return code(model | _mixer(mixer | {'dropout': dropout}) | training)


def dss(depth, width, prenorm, dropout, dt, dt_lr, batch_size, lr, decay, epochs, patience, pool=''):
  """The softmax form; patience: of the plateau schedule, in evaluations, one per epoch; pool: as in
  `longconv`."""
  model = _model(depth, width, 0, 'batch', prenorm, dropout, tied_dropout=True)
  mixer = {'dt_min': dt[0], 'dt_max': dt[1], 'dt_lr': dt_lr, 'dropout': dropout, 'tied_dropout': True}
  training = _training(batch_size, lr, decay, epochs, 0, 'plateau', pool=pool)
  return code(model | _mixer(mixer) | training | {'finetune.schedule.patience': patience})


def hgrn2(
  depth, width, ratio, glu, norm, dropout, batch_size, lr, epochs, warmup, cosine, clip_norm=0.0, columns=0,
  position='none',
):  # fmt: skip
  """ratio: channels of a head; glu: width of the gated feed-forward layers, in multiples of the model's
  width; columns: of an image; position: position encoding of their encoder."""
  model = _model(depth, width, glu * width, norm, True, dropout)
  model |= {'model.gated_feed_forward': True, 'model.activation': 'silu', 'model.position': position}
  model |= {'model.input_dropout': 0.1} if position != 'none' else {}
  mixer = _mixer({'expand_ratio': ratio, 'columns': columns})
  training = _training(batch_size, lr, 0.0, epochs, warmup, 'cosine', cosine, pool='mean')
  return code(model | mixer | training | both({'optimizer.clip_norm': (clip_norm,) * 2}))


def _model(depth, width, feed_forward, norm, prenorm, dropout, tied_dropout=False):
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


DT = (1e-3, 0.1)
ADDED = 'sinusoidal'  # the S4 code's encoder `position`
ROWS = {
  'mega': {  # depth, width, z, norm, prenorm, function, dropout; batch, lr, weight decay, epochs, warmup
    'listops': mega(6, 80, 64, 'layer', False, 'softmax', 0.1, 64, 1e-3, 0.01, 60, 3000),
    'text': mega(4, 128, 64, 'scale', False, 'softmax', 0.1, 50, 4e-3, 0.01, 50, 10_000),
    'retrieval': mega(6, 128, 64, 'scale', False, 'softmax', 0.1, 64, 3e-3, 0.04, 40, 10_000),
    'image': mega(8, 160, 96, 'batch', True, 'laplace', 0.0, 50, 0.01, 0.02, 200, 9000),
    'pathfinder': mega(6, 128, 64, 'batch', True, 'laplace', 0.0, 128, 0.01, 0.01, 200, 50_000),
    'pathx': mega(4, 64, 32, 'batch', True, 'laplace', 0.0, 128, 0.01, 0.01, 100, 25_000, cut=4096),
  },
  # depth, width, norm, prenorm, dropout, threshold, kernels' dropout and lr; batch, lr, weight decay, epochs,
  # warmup, cosine
  'longconv': {
    'listops': longconv(
      8, 128, 'batch', False, 0.0, 0.002, 0.2, 5e-4, 50, 0.01, 0.05, 40, 10_000, 80_000, 'mean'
    ),
    'text': longconv(6, 256, 'batch', True, 0.0, 0.003, 0.2, 1e-3, 16, 0.01, 0.05, 32, 5000, 50_000, 'mean'),
    'retrieval': longconv(6, 256, 'batch', True, 0.0, 0.004, 0.1, 1e-4, 64, 0.01, 0.05, 20, 2500, 50_000),
    'image': longconv(6, 512, 'layer', False, 0.1, 0.003, 0.2, 1e-3, 50, 0.01, 0.05, 200, 1000, 200_000),
    'pathfinder': longconv(
      6, 256, 'batch', True, 0.0, 0.001, 0.3, 1e-3, 64, 4e-3, 0.03, 200, 2500, 500_000, 'last'
    ),
    'pathx': longconv(6, 256, 'batch', True, 0.0, 0.001, 0.3, 5e-4, 16, 5e-4, 0.05, 50, 10_000, 500_000),
  },
  'dss': {  # depth, width, prenorm, dropout, steps and their lr; batch, lr, weight decay, epochs, patience
    'listops': dss(6, 128, False, 0.0, DT, 0.02, 50, 0.01, 0.01, 50, 5, 'mean'),
    'text': dss(4, 128, True, 0.0, DT, 0.02, 50, 0.01, 0.0, 40, 10, 'last'),
    'retrieval': dss(6, 256, True, 0.0, DT, 1e-3, 64, 2e-3, 0.0, 25, 20, 'mean'),
    'image': dss(6, 512, False, 0.2, DT, 1e-3, 50, 4e-3, 0.01, 200, 10, 'mean'),
    'pathfinder': dss(6, 256, True, 0.1, DT, 1e-3, 100, 4e-3, 0.0, 200, 13, 'last'),
    'pathx': dss(6, 256, True, 0.0, (1e-4, 0.01), 1e-4, 16, 5e-4, 0.0, 35, 40),
  },
  'hgrn2': {  # depth, width, ratio, glu, norm, dropout; batch, lr, epochs, warmup, cosine
    'listops': hgrn2(5, 64, 4, 1, 'batch', 0.0, 128, 5e-4, 50, 5000, 50_000, position=ADDED),
    'text': hgrn2(4, 128, 8, 1, 'layer', 0.1, 64, 5e-3, 40, 10_000, 50_000),
    'retrieval': hgrn2(2, 256, 2, 2, 'batch', 0.0, 128, 5e-3, 20, 312, 50_000, clip_norm=1.0, position=ADDED),
    'image': hgrn2(6, 512, 2, 1, 'batch', 0.0, 64, 3e-3, 75, 30_000, 50_000, columns=32, position=ADDED),
    'pathfinder': hgrn2(6, 128, 2, 1, 'batch', 0.0, 128, 2e-3, 100, 50_000, 500_000, columns=32),
  },
}
# {model: tasks} that they trained in the causal form; all others in the bidirectional form.
CAUSAL = {'dss': ('listops', 'text', 'retrieval', 'image', 'pathfinder', 'pathx')}
CAUSAL['longconv'] = CAUSAL['dss'][:4]


def row(model, arm, task, table) -> dict | None:
  """The row of a model in an arm; None where its authors published nothing for the task.

  Args:
    table: {(model, arm): row} of the task.
  """
  task = 'text' if task == 'text_2048' else task  # as rows of the paper, at either length
  if task not in ROWS.get(model, ()):
    return None
  theirs = code({'finetune.pool': table['s4', 'scratch']['finetune.pool'].value}) | ROWS[model][task]
  if task != 'retrieval':
    theirs = ours({'finetune.head': 'linear'}) | theirs
  causal = 'causal' in arm
  causally = task in CAUSAL.get(model, ())  # trained by them
  trained = arm == ('causal scratch' if causally else 'scratch')
  values = of_mixer(model, table['transformer', arm]) | (theirs if trained else ours(theirs))
  if arm in ('masked', 'causal'):
    values = ssm.pretrained(values, table)
  if causal and not causally:
    values |= ours({'finetune.pool': table['transformer', 'causal']['finetune.pool'].value})
    if 'model.mixer.columns' in values:  # an image is read in all directions
      values |= ours({'model.mixer.columns': 0})
  return values
