"""Every key of a config, declared once: its type, default, bounds, choices and meaning. Does not need jax.

A section of a config is a frozen dataclass, and `key` declares a field of it. `values.typed` makes a section
from what a config file or the command line gave. `lra-spt config --about`, docs/config.md and the defaults in
configs/common.py are read from here.

Two places stay open, because other people's code adds to them: options of mixers (`model.mixer.KEY`, checked
by the mixer's class) and options of pretraining objectives (`pretrain.KEY`, checked by the objective).
"""

import dataclasses
from typing import Any

from lra_spt.config.fields import Section, defaults, key, keys_of
from lra_spt.config.runtime import RuntimeSpec
from lra_spt.errors import FieldError

ACTIVATIONS = ('gelu', 'silu')
NORMS = ('layer', 'batch', 'scale')
POSITIONS = ('learned', 'sinusoidal', 'none')
POOLS = ('mean', 'max', 'last')
HEADS = ('linear', 'mlp', 'match')
EVERYTHING = ('*',)  # the pattern that matches all parameters
SCHEDULES = ('constant', 'cosine', 'linear', 'plateau', 'multistep')

_STEPS = 2**31  # steps and seeds are int32
NO_LIMIT = _STEPS - 1  # the steps of a stage that only max_seconds ends


@dataclasses.dataclass(frozen=True)
class ModelSpec(Section):
  """The structure of an encoder. Sizes have the letters of the paper's Table 4: d, depth, FF."""

  name: str = key('name of the model in reports')
  width: int = key('channels of the residual stream', least=1)
  depth: int = key('number of blocks', least=1)
  mixer: dict[str, Any] = dataclasses.field(default_factory=dict)  # name and options, see `models.registry`
  feed_forward: int = key('hidden width of the feed-forward layers; 0: no such layers', 0, least=0)
  activation: str = key(
    "activation of the feed-forward layers: 'gelu' (exact) or 'silu'", 'gelu', choices=ACTIVATIONS
  )
  gated_feed_forward: bool = key(
    'whether feed-forward layers multiply by a second linear map of their input', False
  )
  position: str = key(
    "position embedding: 'learned', 'sinusoidal' or 'none'; rotary positions are an option of attention",
    'none',
    choices=POSITIONS,
  )
  norm: str = key("normalisation: 'layer', 'batch' or 'scale'", 'layer', choices=NORMS)
  prenorm: bool = key(
    'whether norms come before mixer and feed-forward layer, not after their residual sums', True
  )
  parallel_residual: bool = key(
    'whether mixer and feed-forward layer both read the input of the block (GPT-NeoX)', False
  )
  dropout: float = key('dropout rate after mixers and in feed-forward layers', 0.0, least=0, below=1)
  tied_dropout: bool = key('whether dropout draws once per sequence and channel, for all positions', False)
  input_dropout: float | None = key(
    'dropout rate after the embedding; unless set: `dropout` where positions are added, else 0',
    None,  # published for the Transformers, encoders.py:82-131
    least=0,
    below=1,
  )
  feed_forward_dropout: float | None = key(
    'dropout rate within feed-forward layers; unless set: `dropout`', None, least=0, below=1
  )
  random_init: str = key(
    "'all' draws every parameter from a normal distribution (paper, C.1.3), 'ssm' those of the state space "
    "(section 3.3), 'matrices' those of linear maps and embeddings; '': the initialisation of each module",
    '',
    # 'all' as published (train.py:832-837); 'matrices', with biases of 0, as transformers starts GPT-NeoX
    choices=('', 'all', 'ssm', 'matrices'),
  )
  random_std: float = key('standard deviation of that distribution', 0.1, least=0)
  shuffle: bool = key(
    'whether positions are read in one scrambled order, the same for every example: a control', False
  )
  byte_tokens: bool = key(
    'whether bytes of the task, such as pixels, are embedded as tokens instead of read as numbers', False
  )
  mixers: tuple[dict[str, Any], ...] = ()  # instead of `mixer`: those of the first blocks, which repeat

  def __post_init__(self):
    super().__post_init__()
    if self.parallel_residual and not (self.prenorm and self.feed_forward):
      raise FieldError(
        'parallel_residual',
        'is true, which needs feed-forward layers and norms before the layers; set model.feed_forward and '
        'model.prenorm=true, or leave it out',
      )
    if self.gated_feed_forward and not self.feed_forward:
      raise FieldError(
        'gated_feed_forward',
        'is true, but there is no feed-forward layer; set model.feed_forward, or leave it out',
      )
    if self.mixer and self.mixers:
      raise FieldError('mixers', 'stands beside model.mixer; give one mixer, or several as model.mixers')
    if not self.mixers and not isinstance(self.mixer.get('name'), str):
      raise FieldError('mixer', 'has no name; give model.mixer.name, such as attention')
    for place, mixer in enumerate(self.mixers):
      if not isinstance(mixer.get('name'), str):
        raise FieldError(f'mixers.{place}', f'has no name; give model.mixers.{place}.name, such as attention')
    if self.depth % len(self.period):
      raise FieldError(
        'mixers',
        f'has {len(self.mixers)} mixers, which do not divide model.depth={self.depth}; set model.depth to a '
        f'multiple of {len(self.mixers)}, or change the list',
      )

  @property
  def period(self) -> tuple[dict[str, Any], ...]:
    """Name and options of the mixers of the first P blocks; block i has the one at i % P."""
    return self.mixers or (self.mixer,)

  @property
  def mixer_name(self) -> str:
    """The name of the mixer, or those of a period, joined by '-'."""
    return '-'.join(mixer['name'] for mixer in self.period)


@dataclasses.dataclass(frozen=True)
class OptimizerSpec(Section):
  """AdamW (Loshchilov & Hutter 2019) as in torch: p -= lr * (m / (sqrt(v) + eps) + weight_decay * p)."""

  lr: float = key('learning rate of AdamW after the warmup; a list gives one run per value', least=0)
  weight_decay: float = key(
    'weight decay of AdamW, times the learning rate; a list gives one run per value', least=0
  )
  b1: float = key('decay rate of the mean of gradients', 0.9, least=0, below=1)
  b2: float = key('decay rate of the mean of their squares', 0.999, least=0, below=1)
  eps: float = key('added to the root of the mean of squares', 1e-8, least=0)
  clip_norm: float = key('norm to which gradients are clipped; 0: no clipping', 0.0, least=0)


@dataclasses.dataclass(frozen=True)
class ScheduleSpec(Section):
  """The course of the learning rate.

  constant: min(1, step / warmup_steps).
  cosine: that warmup, then half a cosine to 0 at total_steps. If `rises`, the cosine goes on, up again and
    down (`protocol.cosine_rises`).
  linear: that warmup, then a straight line to 0 at total_steps.
  plateau: constant, times `factor` after more than `patience` evaluations without improvement.
  multistep: that warmup, times `factor` at each of `milestones`.
  """

  name: str = key(
    "after a linear warmup: 'constant', 'cosine', 'linear', 'plateau' or 'multistep'",
    'constant',
    choices=SCHEDULES,
  )
  warmup_steps: int = key('steps of the warmup', 0, least=0, below=_STEPS)
  total_steps: int = key(
    "step at which 'cosine' and 'linear' reach 0; 0: the end of the stage", 0, least=0, below=_STEPS
  )
  # The default is that of 'plateau'; the published 'multistep' (BIDMC) has 0.5.
  factor: float = key("factor by which 'plateau' and 'multistep' multiply the rate", 0.2, least=0)
  patience: int = key(
    "validations without improvement before 'plateau' lowers the rate", 20, least=0, below=_STEPS
  )
  milestones: tuple[int, ...] = key("epochs after which 'multistep' lowers the rate", (), least=0)
  rises: bool = False  # no key: the protocol sets it

  def __post_init__(self):
    super().__post_init__()
    if self.ends and self.total_steps and self.total_steps <= self.warmup_steps:
      raise FieldError(
        'warmup_steps',
        f'is {self.warmup_steps}, but a {self.name} schedule needs total_steps above warmup_steps, and its '
        f'total_steps are {self.total_steps}; lower the one or raise the other',
      )

  @property
  def ends(self) -> bool:
    """True if the learning rate reaches 0 at total_steps."""
    return self.name in ('cosine', 'linear')

  @property
  def goes_on(self) -> bool:
    """True if the cosine rises again after total_steps."""
    return self.rises and self.name == 'cosine'

  @property
  def last_step(self) -> int:
    """The step after which the learning rate stays 0; 0: none is known."""
    return self.total_steps if self.ends and not self.goes_on else 0

  def resolved(self, steps: int) -> 'ScheduleSpec':
    """The schedule of a stage of `steps` steps: they stand in for total_steps = 0."""
    return self if self.total_steps or not self.ends else dataclasses.replace(self, total_steps=steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSpec(Section):
  """How long and how a stage trains. The first limit that is reached ends the stage."""

  batch_size: int = key('examples per step, over all devices', least=1)
  epochs: float = key('maximum number of passes over the training examples; 0: no limit', least=0)
  max_steps: int = key('maximum number of steps; 0: no limit', 0, least=0)
  max_seconds: float = key(
    'longest time, restarts included; 0: no limit. The first limit reached ends the stage', 0, least=0
  )
  evaluate_every: int = key('steps between validations; 0: one per epoch', 0, least=0)
  patience: int = key(
    'validations without improvement before the stage ends; 0: no early stopping', 0, least=0
  )
  data_fraction: float = key(
    'share of the training examples that is used; smaller shares are subsets of larger ones',
    1.0,
    above=0,
    most=1,
  )
  optimizer: OptimizerSpec
  schedule: ScheduleSpec

  def total_steps(self, examples: int) -> int:
    """The steps that epochs, max_steps and a schedule that ends at 0 allow on `examples` of training;
    NO_LIMIT if only max_seconds limits the stage.

    Raises:
      FieldError: nothing limits the stage, or a schedule lasts as long as a stage that only time ends.
    """
    by_epochs = -(-max(1, int(self.epochs * examples)) // self.batch_size) if self.epochs else 0
    limits = [limit for limit in (by_epochs, self.max_steps, self.schedule.last_step) if limit]
    if not (limits or self.max_seconds):
      raise FieldError(
        'epochs', 'is 0, and so are max_steps and max_seconds, so nothing bounds the stage; set one of them'
      )
    if not limits and self.schedule.ends and not self.schedule.total_steps:
      raise FieldError(
        'schedule.total_steps',
        'is 0, the end of the stage, but max_seconds alone ends it, at a step that nobody knows before; set '
        "total_steps, epochs or max_steps, or schedule.name='constant'",
      )
    return min(limits, default=NO_LIMIT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSpec(StageSpec):
  """Pretraining; `options` are those of its objective, which stand beside the other keys in a config."""

  options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSpec(StageSpec):
  """Finetuning, or training from scratch."""

  head: str = key("head of the model: 'linear', 'mlp', or 'match' for pairs of documents", choices=HEADS)
  pool: str = key("pooling over positions: 'mean', 'max' or 'last'", choices=POOLS)
  transfer: tuple[str, ...] = key(
    "patterns of the encoder's parameters that start from the pretrained ones, such as '*/query/*,embed/*'; "
    "'!PATTERN' leaves parameters out (`lra-spt list --parameters=CONFIG` lists the names)",
    EVERYTHING,
  )
  freeze: tuple[str, ...] = key("patterns of the encoder's parameters that do not train", ())
  class_weights: tuple[float, ...] = key(
    'how much an answer of each class counts in the loss, sum w l / sum w; unless set: all alike', (), above=0
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigSpec:
  """A whole config. The section `pretrain` may be missing where the regime has no pretraining."""

  task: str = key('name of the task: `lra-spt list tasks`')
  model: ModelSpec
  protocol: str = key(
    "'clean' (good practice) or 'paper' (as the published code); see `lra_spt/config/protocol.py`"
  )
  regime: str = key(
    "'scratch', 'masked' or 'causal' (self-pretraining before finetuning), 'spans', 'suffix', 'prefix' or "
    "'mixture' (docs/objectives.md), or one that you register"
  )
  causal: bool = key('whether the mixer takes its causal form; always true in regime causal')
  seed: int = key('seed of initial values, order of examples, masks and dropout', least=0, below=_STEPS)
  pretrain: PretrainSpec
  finetune: FinetuneSpec
  runtime: RuntimeSpec


def meanings(cls: type = ConfigSpec) -> dict[str, str]:
  """{dotted key: meaning} of a section, or of all keys of a config that this package knows."""
  known = {name: field.metadata['meaning'] for name, field in keys_of(cls).items()}
  return known | (_OPEN if cls is ConfigSpec else {})


DEFAULTS = defaults(ConfigSpec)  # {dotted key: default}
PATTERNS = ('finetune.transfer', 'finetune.freeze')  # keys that hold patterns of parameters
# With their defaults these are no part of a run's identity: folders of earlier runs are named without them.
LATER = (*PATTERNS, 'finetune.class_weights')

# Keys in open sections, and the one key of `model` that does not shape the model.
_OPEN = {
  'model.mixer.name': 'name of the mixer; other keys of `mixer` are its options, which its class explains. A '
  'hybrid has model.mixers.0.name, model.mixers.1.name and so on',
  'model.weights': 'safetensors file that the encoder starts from, made by `lra-spt export` or of Pythia',
  'pretrain.mask_rate': 'share of the positions that masked pretraining hides, whole spans in regime spans',
  'pretrain.span_lengths': 'lengths of hidden spans, in positions, each equally likely (regime spans)',
  'pretrain.hidden_share': 'smallest and largest share of a row that completion hides (suffix and prefix)',
  'pretrain.mixture': 'objectives of which each row gets one (regime mixture)',
  'pretrain.mixture_weights': 'their weights, all above 0; their sum does not matter',
}
