"""The keys of the section `runtime`, declared once as those of `schema`. Does not need jax."""

import dataclasses

from lra_spt.config.fields import Section, key
from lra_spt.config.values import listed
from lra_spt.errors import FieldError

# Names of implementations. A test compares them with the modules that hold the implementations.
ATTENTION = ('blockwise', 'triton', 'tokamax', 'cudnn', 'mosaic', 'splash', 'reference')
SCANS = ('associative', 'sequential', 'chunked', 'pallas')
CONVOLUTIONS = ('fft', 'matmul')
REMAT = ('none', 'elementwise', 'mixers', 'dots', 'blocks')
PLACEMENTS = ('', 'host', 'device')
TRACKERS = ('wandb', 'mlflow')


@dataclasses.dataclass(frozen=True)
class MeshSpec(Section):
  """Sizes of the axes of the mesh of devices. `sharding.make_mesh` compares them with the devices."""

  data: int = key('devices over which batches are split; -1: all that remain', -1)
  fsdp: int = key('devices over which parameters and optimizer state are split as well', 1)
  seq: int = key('devices over which positions are split', 1)


@dataclasses.dataclass(frozen=True)
class ExecutionSpec(Section):
  """How an encoder is run. This changes neither its parameters nor, beyond rounding, what it computes.

  remat '' is 'elementwise' on TPUs, where a step waits for memory (benchmarks/compiled.py), else 'none'.
  scan_layers '' is a loop except for training on GPUs, where a loop copies what it keeps for the gradient
  (benchmarks/accelerator.py).
  """

  scan_layers: str = key(
    "layers as one loop, which compiles faster: 'always', 'never'; '': except for training on GPUs",
    '',
    choices=('', 'always', 'never'),
  )
  remat: str = key(
    "what the backward pass recomputes to save memory: 'none', 'elementwise' operations, everything but the "
    "outputs of 'mixers' or 'dots' (matrix products), whole 'blocks'; '': by platform",
    '',
    choices=('', *REMAT),
  )
  precision: str = key(
    "of the inputs of matrix products and attention: 'float32' or 'bfloat16'",
    'float32',
    choices=('float32', 'bfloat16'),
  )
  attention: str = key(
    "its implementation, a name in lra_spt.ops.attention; '': by platform", '', choices=('', *ATTENTION)
  )
  scan: str = key(
    'implementation of the recurrences of b2s6, hgrn2 (expand_ratio up to 8), linoss, lru, mamba, min_lstm, '
    "mingru, rglru and s5, a name in lra_spt.ops.scan; '': by platform",
    '',
    choices=('', *SCANS),
  )
  convolution: str = key(
    "implementation of long convolutions: 'fft' or 'matmul'; '': by platform",
    '',
    choices=('', *CONVOLUTIONS),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeSpec(ExecutionSpec):
  """Where and how a run computes; never part of what the run is."""

  data_dir: str = key('folder of the prepared sets', 'data')
  devices: int = key('number of devices that are used, the first ones; 0: all', 0)
  mesh: MeshSpec = dataclasses.field(default_factory=MeshSpec)
  # Statistics of BatchNorm are those of a part. What a mixer draws once for all rows, as performer and
  # longconv do, each part draws anew.
  microbatches: int = key('parts into which a batch is split; their gradients are added up', 1, least=1)
  members: int = key(
    'number of runs that train as one program, out of those that --seeds and lists of lr and weight_decay '
    "name; without these, that many seeds starting with the config's",
    1,
    least=1,
  )
  steps_per_dispatch: int = key('steps that the devices take before they return to the host', 8, least=1)
  placement: str = key(
    "where training examples are kept: 'host', 'device', or '': on accelerators that have room for them",
    '',
    choices=PLACEMENTS,
  )
  threads: int = key('number of threads that read examples', 4, least=0)
  evaluation_batch_size: int = key(
    "examples per batch of evaluations; 0, and always under protocol 'paper': as in training", 0, least=0
  )
  training_examples: int = key(
    'number of training examples that every validation evaluates as well, for curves', 0, least=0
  )
  check_mixer: bool = key(
    'whether mixers from outside the package are checked before a run: shape, look-ahead, padding, gradient',
    True,
  )
  matmul_precision: str = key(
    "of products of float32 matrices on accelerators: 'default' has fewer bits (TF32, as in the runs of the "
    "paper; bfloat16 on TPUs), 'highest' all of them. JAX_DEFAULT_MATMUL_PRECISION has no effect",
    'default',
    choices=('default', 'high', 'highest'),
  )
  prng: str = key(
    "generator of the masks and dropout of training: 'threefry2x32', or on accelerators the faster 'rbg' or "
    "'unsafe_rbg', whose numbers depend on the number of devices and on microbatches",
    'threefry2x32',
    choices=('threefry2x32', 'rbg', 'unsafe_rbg'),
  )
  prove_kernels: bool = key('whether kernels are checked before a stage trains on an accelerator', True)
  checkpoint_every: int = key(
    'steps between checkpoints in addition to those of validations; 0: none by steps', 0, least=0
  )
  checkpoint_minutes: float = key('minutes between them; 0: none by time', 10.0, least=0)
  log_every: int = key('steps between lines of metrics.jsonl', 50, least=1)
  tensorboard: bool = key('whether metrics also go to a TensorBoard event file', True)
  trackers: str = key("trackers that also get the metrics: 'wandb', 'mlflow' or 'wandb,mlflow'", '')
  progress: bool = key('whether progress is shown: as bars on a terminal, as lines elsewhere', True)
  profile_steps: int = key('number of steps that the profiler records', 0, least=0)

  def __post_init__(self):
    super().__post_init__()
    if not self.data_dir.strip():
      raise FieldError(
        'data_dir', 'is empty; name the folder of prepared sets (a shell variable may be unset)'
      )
    for name in self.tracker_names:
      if name not in TRACKERS:
        raise FieldError('trackers', f'has {name!r}; choose among {listed(TRACKERS)}, with commas between')

  @property
  def execution(self) -> ExecutionSpec:
    """The part that the encoder reads."""
    return ExecutionSpec(
      **{field.name: getattr(self, field.name) for field in dataclasses.fields(ExecutionSpec)}
    )

  @property
  def tracker_names(self) -> tuple[str, ...]:
    """('wandb', 'mlflow') for trackers='wandb,mlflow'."""
    return tuple(dict.fromkeys(part.strip() for part in self.trackers.split(',') if part.strip()))
