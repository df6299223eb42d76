"""What the config files share: their argument, and the config built from a row.

Every key is explained where it is set: here, in `rows` or in `ssm`. What makes a run this run is everything
but `runtime`.

Controls, on every task:

  model=bag_of_tokens (config argument)   which tokens or values occur and how often, nothing of their order
  --config.model.shuffle=true             any model, reading all positions in one scrambled order: no nearness

Any other registered mixer, of `lra_spt/models/mixers/` or from outside, is model=NAME on every task too: the
task's Transformer with this mixer in attention's place (`rows.of_mixer`), every value ours; or what its
authors published for the task (`authors`).
"""

from configs import authors
from configs.rows import ARMS, CONTROLS, MODELS, bag_of_tokens, code, of_mixer, other_models, ours, paper
from lra_spt import config as config_lib
from lra_spt import protocol
from lra_spt.errors import ConfigError
from lra_spt.regimes import REGIMES, get_regime

ONE_DAY = 24 * 60 * 60.0


def choose(arg: str, **options):
  """Reads 'model=s4,regime=masked': model, regime, causal, protocol, seed and `options`."""
  choice = config_lib.arguments(
    arg,
    model=(*MODELS, *CONTROLS, *other_models()),
    regime=tuple(REGIMES),
    causal=False,
    protocol=tuple(protocol.PROTOCOLS),
    seed=0,
    **options,
  )
  regime = get_regime(choice.regime)
  if choice.causal and regime.objective and not regime.causal:
    raise ConfigError(
      f'{regime.name.capitalize()} pretraining has no causal form: write regime=causal, or '
      'regime=scratch,causal=true.'
    )
  choice.causal = choice.causal or regime.causal
  return choice


def from_row(rows, choice, *, task, mask_rate, remat=''):
  """The config of one choice.

  Args:
    rows: {(model, arm): row}, see `rows`.
    choice: from `choose`.
    task: name of the task.
    mask_rate: fraction of positions hidden in masked pretraining (paper, section 2).
    remat: see `runtime`.
  """
  causal_scratch = choice.causal and choice.regime == 'scratch'
  # A regime of your own has the hyperparameters of the published one of its form.
  published = choice.regime if choice.regime in ARMS else 'causal' if choice.causal else 'masked'
  arm = 'causal scratch' if causal_scratch else published
  if (choice.model, arm) in rows:
    row = rows[choice.model, arm]
  elif choice.model in CONTROLS:
    row = bag_of_tokens(rows['transformer', arm])
  else:
    row = authors.row(choice.model, arm, task, rows) or of_mixer(choice.model, rows['transformer', arm])
  shared = paper(
    {
      # 'all' draws every parameter from a normal distribution (C.1.3), 'ssm' those of the state space (3.3),
      # 'matrices' those of linear maps and embeddings.
      'model.random_init': '',
      'model.random_std': 0.1,  # of that distribution
      'pretrain.mask_rate': mask_rate,
      # C.1: at most 200 epochs or 24 hours on one GPU, whichever comes first. 0: no limit.
      'pretrain.max_seconds': ONE_DAY,
      'finetune.max_seconds': ONE_DAY,
    }
  ) | code(
    {
      'model.dropout': 0.0,
      'model.tied_dropout': False,  # one draw per sequence and channel, for all positions
    }
  )
  for stage in ('pretrain', 'finetune'):  # pretrain is there, and unused, in regime scratch too
    shared |= code({f'{stage}.{key}': value for key, value in stage_of_the_code().items()})
    shared |= ours({f'{stage}.{key}': value for key, value in stage_of_ours().items()})
  shared |= ours(
    {
      'task': task,
      'protocol': choice.protocol,
      'regime': choice.regime,
      'causal': choice.causal,  # whether the mixer is causal; always so in regime causal
      'seed': choice.seed,
      'model.name': choice.model,
      # Read all positions in one scrambled order, the same for every example and seed; not in regime causal.
      'model.shuffle': False,
      'model.weights': '',  # safetensors file that the encoder starts from: of `lra-spt export`, or of Pythia
      'runtime': runtime() | {'remat': remat},
    }
  )
  sources = {'paper': {}, 'code': {}, 'ours': {}}
  for key, value in (shared | row).items():
    sources[value.origin][key] = value.value
  return config_lib.from_sources(**sources)


def stage_of_the_code():
  """What both stages have in every config of the published code, unless a row says otherwise."""
  return {
    'patience': 0,  # evaluations without improvement before the stage stops; 0: it never stops early
    'optimizer.b1': 0.9,  # of AdamW
    'optimizer.b2': 0.999,
    'optimizer.eps': 1e-8,
    'optimizer.clip_norm': 0.0,  # 0: gradients are not clipped
    'schedule.name': 'constant',  # after a linear warmup; or 'cosine', 'linear', 'plateau', 'multistep'
    'schedule.factor': 0.2,  # of 'plateau'; the code's 'multistep' (BIDMC) has 0.5
    'schedule.patience': 20,  # of 'plateau', in evaluations
  }


def stage_of_ours():
  """What no source gives."""
  return {
    'max_steps': 0,  # 0: no limit
    'evaluate_every': 0,  # steps; 0: once per epoch (published code: twice, in pretraining on images)
    'data_fraction': 1.0,  # of the training examples that are used; smaller ones lie within larger (C.1.4)
    'schedule.total_steps': 0,  # of 'cosine' and 'linear'; 0: the steps of the stage
    'schedule.milestones': (),  # of 'multistep', in epochs
  }


def runtime():
  """Where and how to compute: never part of what a run is."""
  return {
    'mesh': {'data': -1, 'fsdp': 1, 'seq': 1},  # -1: all remaining devices
    'devices': 0,  # use the first so many; 0: all
    'data_dir': 'data',
    'threads': 4,  # that read examples
    # Where training examples lie: 'host', 'device' (the step itself gathers the same batches) or '': device
    # on accelerators of whose memory this takes a quarter at most.
    'placement': '',
    'steps_per_dispatch': 8,
    # Runs that train as one program, of those that --seeds and lists of lr and weight_decay name; else so
    # many seeds, from the config's on.
    'members': 1,
    'microbatches': 1,  # parts of a batch whose gradients are accumulated
    'evaluation_batch_size': 0,  # 0: as in training
    'training_examples': 0,  # so many are evaluated whenever the validation set is, for curves (Figure 5)
    # Of what enters matrix products and attention; or 'bfloat16'. Accelerators multiply float32 with fewer
    # bits (TF32, bfloat16 passes) unless JAX_DEFAULT_MATMUL_PRECISION=highest; the paper's runs used TF32.
    'precision': 'float32',
    # What the backward pass computes again, which takes time and saves memory: 'none' nothing, 'elementwise'
    # elementwise operations, 'mixers' all but what mixers put out, 'dots' all but matrix products, 'blocks'
    # all; '': by platform.
    'remat': '',
    'attention': '',  # implementation of attention, a name of lra_spt.ops.attention; '': by platform
    'scan': '',  # implementation of linear recurrences, a name of lra_spt.ops.scan; '': by platform
    'convolution': '',  # Fourier transforms of long convolutions: 'fft' or 'matmul'; '': by platform
    'scan_layers': '',  # layers as one loop: 'always' or 'never'; '': but for training on GPUs
    'log_every': 50,  # steps
    # One from outside the package, before a run starts: shape, look-ahead, padding, gradient.
    'check_mixer': True,
    'prove_kernels': True,  # before a stage trains on an accelerator (lra_spt.selftest)
    'checkpoint_every': 0,  # steps; 0: at evaluations only, and
    'checkpoint_minutes': 10.0,  # after so many minutes; 0: not by time
    'profile_steps': 0,  # steps to record with the profiler
    'tensorboard': True,
    'trackers': '',  # to which metrics also go: 'wandb', 'mlflow' or 'wandb,mlflow'
    'progress': True,
  }
