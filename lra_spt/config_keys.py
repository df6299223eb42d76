"""What the keys of a config mean: for `lra-spt config --about`, docs/config.md, writers of config files."""

WHOLE = {
  'task': 'name of the task: `lra-spt list tasks`',
  'protocol': "'clean', good practice, or 'paper', what the published code does (`lra_spt/protocol.py`)",
  'regime': "'scratch', 'masked' or 'causal' self-pretraining before finetuning, or one that is registered",
  'causal': 'whether the mixer has its causal form; always so in regime causal',
  'seed': 'of initial values, order of examples, masks and dropout',
}
MODEL = {
  'name': 'of the model, in reports',
  'width': 'channels of the residual stream',
  'depth': 'number of blocks',
  'feed_forward': 'width inside of the feed-forward layers; 0: there are none',
  'activation': "of the feed-forward layers: 'gelu' or 'silu'",
  'gated_feed_forward': 'feed-forward layers multiply by a second linear map of their input',
  'position': "'learned', 'sinusoidal' or 'none'; rotary positions are an option of attention",
  'norm': "'layer', 'batch' or 'scale'",
  'prenorm': 'norms before mixer and feed-forward layer, not after their residual sums',
  'parallel_residual': 'mixer and feed-forward layer both read the input of the block (GPT-NeoX)',
  'dropout': 'share that is dropped behind mixers and in feed-forward layers',
  'tied_dropout': 'one draw per sequence and channel, for all positions',
  'input_dropout': 'share that is dropped behind the embedding; as if it were `dropout` where positions are '
  'added, else 0, unless set',
  'feed_forward_dropout': 'share that is dropped within feed-forward layers; `dropout` unless set',
  'random_init': "'all' draws every parameter from a normal distribution (paper, C.1.3), 'ssm' those of the "
  "state space (section 3.3), 'matrices' those of linear maps and embeddings; '': each module its own way",
  'random_std': 'standard deviation of that distribution',
  'shuffle': 'positions are read in one scrambled order, the same for every example: a control',
  'byte_tokens': 'bytes of the task, such as pixels, are tokens of a table instead of numbers',
  'weights': 'safetensors file that the encoder starts from: of `lra-spt export`, or of Pythia',
  'mixer.name': 'of the mixer; the other keys of `mixer` are its options, which its class explains',
}
STAGE = {
  'batch_size': 'examples a step, over all devices',
  'epochs': 'most passes over the training examples; 0: no limit',
  'max_steps': 'most steps; 0: no limit',
  'max_seconds': 'longest time, restarts included; 0: no limit. The first limit reached ends the stage',
  'evaluate_every': 'steps between validations; 0: one per epoch',
  'patience': 'validations without improvement before the stage ends; 0: it does not end so',
  'data_fraction': 'share of the training examples that is used; smaller ones lie within larger ones',
  'optimizer.lr': 'learning rate of AdamW after the warmup; a list of them is a run each',
  'optimizer.weight_decay': 'of AdamW, times the learning rate; a list of them is a run each',
  'optimizer.b1': 'decay of the mean of gradients',
  'optimizer.b2': 'decay of the mean of their squares',
  'optimizer.eps': 'added to its root',
  'optimizer.clip_norm': 'norm to which gradients are clipped; 0: they are not',
  'schedule.name': "after a linear warmup 'constant', 'cosine', 'linear', 'plateau' or 'multistep'",
  'schedule.warmup_steps': 'steps of the warmup',
  'schedule.total_steps': "where 'cosine' and 'linear' reach 0; 0: at the end of the stage",
  'schedule.factor': "of 'plateau' and 'multistep': what the rate is multiplied by",
  'schedule.patience': "of 'plateau': validations without improvement before that",
  'schedule.milestones': "of 'multistep': after which epochs",
}
PRETRAIN = {'mask_rate': 'share of the positions that masked pretraining hides'}
FINETUNE = {
  'head': "'linear', 'mlp', or 'match' for pairs of documents",
  'pool': "over positions: 'mean', 'max' or 'last'",
}
RUNTIME = {
  'data_dir': 'folder of the prepared sets',
  'devices': 'the first so many are used; 0: all',
  'mesh.data': 'devices over which batches are split; -1: all that remain',
  'mesh.fsdp': 'devices over which parameters and optimizer are split, too',
  'mesh.seq': 'devices over which positions are split',
  'precision': "of what enters matrix products and attention: 'float32' or 'bfloat16'. Accelerators multiply "
  'float32 with fewer bits (TF32, as in the runs of the paper) unless JAX_DEFAULT_MATMUL_PRECISION=highest',
  'microbatches': 'parts of a batch whose gradients are added up',
  'members': 'runs that train as one program, of those that --seeds and lists of lr and weight_decay name; '
  "else so many seeds from the config's on",
  'steps_per_dispatch': 'steps that the devices take before the host is asked again',
  'placement': "where training examples lie: 'host', 'device', or '': on accelerators that have the room",
  'threads': 'that read examples',
  'evaluation_batch_size': "0: as in training; so always under protocol 'paper'",
  'training_examples': 'so many are evaluated at every validation, for curves',
  'remat': "what the backward pass computes again, to save memory: 'none', 'elementwise' operations, all but "
  "what 'mixers' or 'dots' (matrix products) put out, whole 'blocks'; '': by platform",
  'scan_layers': "layers as one loop, which compiles faster: 'always', 'never'; '': but for training on GPUs",
  'attention': "implementation, a name of lra_spt.ops.attention; '': by platform",
  'scan': 'of the recurrences of hgrn2 (expand_ratio up to 8), lru, mamba, mingru, rglru and s5, a name of '
  "lra_spt.ops.scan; '': by platform",
  'convolution': "of long convolutions: 'fft' or 'matmul'; '': by platform",
  'check_mixer': 'before a run of a mixer from outside the package: shape, look-ahead, padding, gradient',
  'prove_kernels': 'before a stage trains on an accelerator: do its kernels compute what they should?',
  'checkpoint_every': 'steps between checkpoints beside those of validations; 0: none by steps',
  'checkpoint_minutes': 'minutes between them; 0: none by time',
  'log_every': 'steps between lines of metrics.jsonl',
  'tensorboard': 'metrics also go to an event file',
  'trackers': "and to 'wandb', 'mlflow' or 'wandb,mlflow'",
  'progress': 'bars on a terminal, lines elsewhere',
  'profile_steps': 'steps that the profiler records',
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
