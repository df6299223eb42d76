"""What the keys of a config mean: for `lra-spt config --about`, docs/config.md, writers of config files."""

WHOLE = {
  'task': 'name of the task: `lra-spt list tasks`',
  'protocol': "'clean' (good practice) or 'paper' (as the published code); see `lra_spt/config/protocol.py`",
  'regime': "'scratch', 'masked' or 'causal' (self-pretraining before finetuning), or one that you register",
  'causal': 'whether the mixer takes its causal form; always true in regime causal',
  'seed': 'seed of initial values, order of examples, masks and dropout',
}
MODEL = {
  'name': 'name of the model in reports',
  'width': 'channels of the residual stream',
  'depth': 'number of blocks',
  'feed_forward': 'hidden width of the feed-forward layers; 0: no such layers',
  'activation': "activation of the feed-forward layers: 'gelu' or 'silu'",
  'gated_feed_forward': 'whether feed-forward layers multiply by a second linear map of their input',
  'position': "position embedding: 'learned', 'sinusoidal' or 'none'; rotary positions are an option of "
  'attention',
  'norm': "normalisation: 'layer', 'batch' or 'scale'",
  'prenorm': 'whether norms come before mixer and feed-forward layer, not after their residual sums',
  'parallel_residual': 'whether mixer and feed-forward layer both read the input of the block (GPT-NeoX)',
  'dropout': 'dropout rate after mixers and in feed-forward layers',
  'tied_dropout': 'whether dropout draws once per sequence and channel, for all positions',
  'input_dropout': 'dropout rate after the embedding; unless set: `dropout` where positions are added, else '
  '0',
  'feed_forward_dropout': 'dropout rate within feed-forward layers; unless set: `dropout`',
  'random_init': "'all' draws every parameter from a normal distribution (paper, C.1.3), 'ssm' those of the "
  "state space (section 3.3), 'matrices' those of linear maps and embeddings; '': the initialisation of each "
  'module',
  'random_std': 'standard deviation of that distribution',
  'shuffle': 'whether positions are read in one scrambled order, the same for every example: a control',
  'byte_tokens': 'whether bytes of the task, such as pixels, are embedded as tokens instead of read as '
  'numbers',
  'weights': 'safetensors file that the encoder starts from, made by `lra-spt export` or of Pythia',
  'mixer.name': 'name of the mixer; the other keys of `mixer` are its options, which its class explains',
}
STAGE = {
  'batch_size': 'examples per step, over all devices',
  'epochs': 'maximum number of passes over the training examples; 0: no limit',
  'max_steps': 'maximum number of steps; 0: no limit',
  'max_seconds': 'longest time, restarts included; 0: no limit. The first limit reached ends the stage',
  'evaluate_every': 'steps between validations; 0: one per epoch',
  'patience': 'validations without improvement before the stage ends; 0: no early stopping',
  'data_fraction': 'share of the training examples that is used; smaller shares are subsets of larger ones',
  'optimizer.lr': 'learning rate of AdamW after the warmup; a list gives one run per value',
  'optimizer.weight_decay': 'weight decay of AdamW, times the learning rate; a list gives one run per value',
  'optimizer.b1': 'decay rate of the mean of gradients',
  'optimizer.b2': 'decay rate of the mean of their squares',
  'optimizer.eps': 'added to the root of the mean of squares',
  'optimizer.clip_norm': 'norm to which gradients are clipped; 0: no clipping',
  'schedule.name': "after a linear warmup: 'constant', 'cosine', 'linear', 'plateau' or 'multistep'",
  'schedule.warmup_steps': 'steps of the warmup',
  'schedule.total_steps': "step at which 'cosine' and 'linear' reach 0; 0: the end of the stage",
  'schedule.factor': "factor by which 'plateau' and 'multistep' multiply the rate",
  'schedule.patience': "validations without improvement before 'plateau' lowers the rate",
  'schedule.milestones': "epochs after which 'multistep' lowers the rate",
}
PRETRAIN = {'mask_rate': 'share of the positions that masked pretraining hides'}
FINETUNE = {
  'head': "head of the model: 'linear', 'mlp', or 'match' for pairs of documents",
  'pool': "pooling over positions: 'mean', 'max' or 'last'",
}
RUNTIME = {
  'data_dir': 'folder of the prepared sets',
  'devices': 'number of devices that are used, the first ones; 0: all',
  'mesh.data': 'devices over which batches are split; -1: all that remain',
  'mesh.fsdp': 'devices over which parameters and optimizer state are split as well',
  'mesh.seq': 'devices over which positions are split',
  'precision': "of the inputs of matrix products and attention: 'float32' or 'bfloat16'. Accelerators "
  'multiply float32 with fewer bits (TF32, as in the runs of the paper) unless '
  'JAX_DEFAULT_MATMUL_PRECISION=highest',
  'microbatches': 'parts into which a batch is split; their gradients are added up',
  'members': 'number of runs that train as one program, out of those that --seeds and lists of lr and '
  "weight_decay name; without these, that many seeds starting with the config's",
  'steps_per_dispatch': 'steps that the devices take before they return to the host',
  'placement': "where training examples are kept: 'host', 'device', or '': on accelerators that have room "
  'for them',
  'threads': 'number of threads that read examples',
  'evaluation_batch_size': "examples per batch of evaluations; 0, and always under protocol 'paper': as in "
  'training',
  'training_examples': 'number of training examples that every validation evaluates as well, for curves',
  'remat': "what the backward pass recomputes to save memory: 'none', 'elementwise' operations, everything "
  "but the outputs of 'mixers' or 'dots' (matrix products), whole 'blocks'; '': by platform",
  'scan_layers': "layers as one loop, which compiles faster: 'always', 'never'; '': except for training on "
  'GPUs',
  'attention': "its implementation, a name in lra_spt.ops.attention; '': by platform",
  'scan': 'implementation of the recurrences of hgrn2 (expand_ratio up to 8), lru, mamba, mingru, rglru and '
  "s5, a name in lra_spt.ops.scan; '': by platform",
  'convolution': "implementation of long convolutions: 'fft' or 'matmul'; '': by platform",
  'check_mixer': 'whether mixers from outside the package are checked before a run: shape, look-ahead, '
  'padding, gradient',
  'prove_kernels': 'whether kernels are checked before a stage trains on an accelerator',
  'checkpoint_every': 'steps between checkpoints in addition to those of validations; 0: none by steps',
  'checkpoint_minutes': 'minutes between them; 0: none by time',
  'log_every': 'steps between lines of metrics.jsonl',
  'tensorboard': 'whether metrics also go to a TensorBoard event file',
  'trackers': "trackers that also get the metrics: 'wandb', 'mlflow' or 'wandb,mlflow'",
  'progress': 'whether progress is shown: as bars on a terminal, as lines elsewhere',
  'profile_steps': 'number of steps that the profiler records',
}
SECTIONS = {
  '': WHOLE,
  'model': MODEL,
  'pretrain': PRETRAIN | STAGE,
  'finetune': FINETUNE | STAGE,
  'runtime': RUNTIME,
}


def meaning(key: str) -> str:
  """What a dotted key of a config means; '' of a key that is not ours, such as an option of a mixer."""
  section, dot, rest = key.partition('.')
  return SECTIONS.get(section, {}).get(rest, '') if dot else WHOLE.get(key, '')
