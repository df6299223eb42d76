"""What the config files share: the row format of the paper's Table 4, and the config built from a row.

Every key is explained where it is set below. What makes a run this run is everything but `runtime`.
"""
import dataclasses

from lra_spt import config as config_lib
from lra_spt import protocol

MODELS = ('transformer', 'transformer_rotary')
REGIMES = ('masked', 'scratch', 'causal')
ONE_DAY = 24 * 60 * 60.0


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of Table 4; pairs printed there as (FT, PT) are two fields each."""

  width: int
  depth: int
  heads: int
  feed_forward: int
  pool: str
  finetune_lr: float
  pretrain_lr: float
  finetune_batch: int
  pretrain_batch: int
  weight_decay: float
  sizes: str = 'paper'  # origin of width, depth, heads and feed_forward
  tuning: str = 'paper'  # origin of the rest


def complete(rows: dict) -> dict:
  """Adds the configs that the paper has no row for, marked 'ours': {(model, regime): Row} for all six pairs.

  The paper gives no hyperparameters of its own for Transformers trained from scratch: they use the finetuning
  values of the masked row (their causal form: of the causal row). The causal rotary Transformer, which the
  paper did not run, uses the masked rotary row with the pooling of the causal row.
  """
  rows = dict(rows)
  rows['transformer_rotary', 'causal'] = dataclasses.replace(
      rows['transformer_rotary', 'masked'], pool=rows['transformer', 'causal'].pool,
      sizes='ours', tuning='ours')
  for model in MODELS:
    rows[model, 'scratch'] = dataclasses.replace(rows[model, 'masked'], tuning='ours')
  return rows


def choose(arg: str, **options):
  """Reads 'model=transformer_rotary,regime=masked': model, regime, causal, protocol, seed and `options`."""
  choice = config_lib.arguments(arg, model=MODELS, regime=REGIMES, causal=False,
                                protocol=tuple(protocol.PROTOCOLS), seed=0, **options)
  if choice.causal and choice.regime == 'masked':
    raise config_lib.ConfigError('Masked pretraining has no causal form: write regime=causal, or '
                                 'regime=scratch,causal=true.')
  choice.causal = choice.causal or choice.regime == 'causal'
  return choice


def from_row(rows, choice, *, task, mask_rate, head, epochs, warmup_steps):
  """The config of one choice.

  Args:
    rows: {(model, regime): Row}, from `complete`.
    choice: from `choose`.
    task: name of the task.
    mask_rate: fraction of positions hidden in masked pretraining (paper, section 2).
    head: 'linear' or 'mlp' (width to width, ReLU, width to classes), as in the published code.
    epochs, warmup_steps: (finetuning, pretraining), as in the published code.
  """
  row = rows[choice.model, choice.regime]
  if choice.regime == 'scratch' and choice.causal:
    row = dataclasses.replace(rows[choice.model, 'causal'], tuning='ours')
  rotary = choice.model == 'transformer_rotary'
  paper = {
      'model.norm': 'layer',  # or 'batch' (C.1)
      'model.prenorm': True,  # C.1
      'model.position': 'none' if rotary else 'sinusoidal',  # added to the embedding; or 'learned'
      'model.mixer.rotary': rotary,
      'pretrain.mask_rate': mask_rate,
      # C.1: at most 200 epochs or 24 hours on one GPU, whichever comes first. 0: no limit.
      'pretrain.max_seconds': ONE_DAY,
      'finetune.max_seconds': ONE_DAY,
  }
  code = {
      'model.dropout': 0.0,
      'finetune.head': head,
      'finetune.epochs': float(epochs[0]),
      'finetune.schedule.warmup_steps': warmup_steps[0],
      'pretrain.epochs': float(epochs[1]),  # may be a fraction
      'pretrain.schedule.warmup_steps': warmup_steps[1],
  }
  ours = {
      'task': task,
      'protocol': choice.protocol,
      'regime': choice.regime,
      'causal': choice.causal,  # whether the mixer is causal; always so in regime causal
      'seed': choice.seed,
      'model.name': choice.model,
      'model.mixer.name': 'attention',
      'runtime': runtime(),
  }
  for stage in ('pretrain', 'finetune'):  # pretrain is there, and unused, in regime scratch too
    code[stage] = stage_of_the_code()
    ours[stage] = stage_of_ours()
  sources = {'paper': paper, 'code': code, 'ours': ours}
  sources[row.sizes].update({
      'model.width': row.width,
      'model.depth': row.depth,
      'model.feed_forward': row.feed_forward,  # width inside the feed-forward blocks; 0: there are none
      'model.mixer.heads': row.heads,
  })
  sources[row.tuning].update({
      'pretrain.batch_size': row.pretrain_batch,  # of the whole machine, not of one device
      'pretrain.optimizer.lr': row.pretrain_lr,
      'pretrain.optimizer.weight_decay': row.weight_decay,
      'finetune.batch_size': row.finetune_batch,
      'finetune.optimizer.lr': row.finetune_lr,
      'finetune.optimizer.weight_decay': row.weight_decay,
      'finetune.pool': row.pool,  # 'mean', 'max' or 'last', over the valid positions
  })
  return config_lib.from_sources(**sources)


def stage_of_the_code():
  """What both stages of the published code's Transformer configs have in common."""
  return {
      'patience': 0,  # evaluations without improvement before the stage stops; 0: it never stops early
      'optimizer.b1': 0.9,  # of AdamW
      'optimizer.b2': 0.999,
      'optimizer.eps': 1e-8,
      'optimizer.clip_norm': 0.0,  # 0: gradients are not clipped
      'schedule.name': 'constant',  # after a linear warmup; or 'cosine', 'plateau', 'multistep'
      'schedule.factor': 0.2,  # of 'plateau'; the code's 'multistep' (BIDMC) has 0.5
      'schedule.patience': 20,  # of 'plateau', in evaluations
  }


def stage_of_ours():
  """What no source gives."""
  return {
      'max_steps': 0,  # 0: no limit
      'evaluate_every': 0,  # steps; 0: once per epoch (published code: twice, in pretraining on images)
      'schedule.total_steps': 0,  # of 'cosine'; 0: the steps of the stage
      'schedule.milestones': (),  # of 'multistep', in epochs
  }


def runtime():
  """Where and how to compute: never part of what a run is."""
  return {
      'mesh': {'data': -1, 'fsdp': 1, 'seq': 1},  # -1: all remaining devices
      'devices': 0,  # use the first so many; 0: all
      'data_dir': 'data',
      'threads': 4,  # that read examples
      'steps_per_dispatch': 8,
      'microbatches': 1,  # parts of a batch whose gradients are accumulated
      'evaluation_batch_size': 0,  # 0: as in training
      # Of what enters matrix products and attention; or 'bfloat16'. Accelerators multiply float32 with fewer
      # bits (TF32, bfloat16 passes) unless JAX_DEFAULT_MATMUL_PRECISION=highest; the paper's runs used TF32.
      'precision': 'float32',
      'remat': False,  # recompute activations in the backward pass
      'scan_layers': True,
      'log_every': 50,  # steps
      'checkpoint_every': 0,  # steps; 0: at every evaluation
      'profile_steps': 0,  # steps to record with the profiler
      'tensorboard': True,
      'progress': True,
  }
