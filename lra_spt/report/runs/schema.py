"""The JSON files of a run folder as frozen dataclasses. `values.problem` compares a file with its class.

A field without a default must be in the file. A field of type `X | None` may also be null. Files may hold
further keys.
"""

import dataclasses
from typing import Any

from lra_spt import files
from lra_spt.config.values import problem
from lra_spt.errors import FieldError


@dataclasses.dataclass(frozen=True)
class Model:
  """The part of a config's section `model` that every reader needs."""

  name: str


@dataclasses.dataclass(frozen=True)
class Fingerprints:
  """SHA-256 of the examples of a prepared set, and of how they are split."""

  data: str
  splits: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """config.json: the identity of a run, see `loading.identity`. It holds further sections of the config."""

  task: str
  model: Model
  protocol: str
  regime: str
  causal: bool
  seed: int
  finetune: dict
  fingerprints: Fingerprints
  pretrain: dict = dataclasses.field(default_factory=dict)
  pretrained: str = ''  # hash of another run's pretraining, from which this run goes on
  code: dict = dataclasses.field(default_factory=dict)  # digests of user code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
  """stage.json, and a stage of result.json. stage.json has all of `NEEDED`; predictions that were made
  elsewhere have a result whose stages are empty."""

  NEEDED = ('steps', 'examples', 'epochs', 'seconds', 'flops_per_step', 'best_step', 'metrics', 'folder')

  steps: int = 0
  examples: int = 0
  epochs: float = 0
  seconds: float = 0
  flops_per_step: float = 0
  flops_at_least: bool = (
    False  # the mixer does not count its operations, so only those of its matrices are in
  )
  best_step: int = 0
  metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)  # of the best validation
  undefined: dict[str, str] = dataclasses.field(default_factory=dict)  # {name: why} of metrics that are null
  folder: str = 'of_the_run'  # a name, without parents
  diverged: bool = False  # see `lra_spt.objectives.contract`
  time: dict[str, float] = dataclasses.field(default_factory=dict)  # {part: seconds} of the last process
  kernels: dict = dataclasses.field(default_factory=dict)  # {call: implementation}, see `training.autotune`
  members: int = 1  # of the population that it trained in; `seconds` is a share of that population's time
  best_digest: str = ''  # of the checkpoint of the best validation, see `training.checkpoints.digests`
  computed: dict = dataclasses.field(default_factory=dict)  # see `lra_spt.runs.provenance.computed`
  computed_before: list[dict] = dataclasses.field(default_factory=list)  # of attempts that differed

  def __post_init__(self):
    if not files.is_name(self.folder):
      raise FieldError('folder', f'is {self.folder!r:.80}, which is no name of a folder')
    _check_reasons('metrics', self.metrics, self.undefined)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempts:
  """computed.json: the attempts to compute a stage, one after the other."""

  attempts: list[dict]


@dataclasses.dataclass(frozen=True)
class Metrics:
  """{name: value} per split, null for a metric that is not defined; `test` also has the number of its
  examples. undefined: {split: {name: why}} of the metrics that are null. by_length: for a task with longer
  test splits, {test split: {'length': positions, and either its metrics or 'why'}}, where 'why' says why the
  model cannot read it."""

  test: dict[str, float | None]
  validation: dict[str, float | None] = dataclasses.field(default_factory=dict)
  undefined: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
  by_length: dict[str, dict] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for split in ('test', 'validation'):
      _check_reasons(split, getattr(self, split), self.undefined.get(split, {}))


def _check_reasons(where, metrics, undefined):
  """Raises a FieldError for a metric that is null without a reason."""
  for name, value in metrics.items():
    if value is None and not undefined.get(name):
      raise FieldError(where, f'has null for {name}, and undefined does not say why')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained:
  """The run whose pretraining was finetuned: its folder, its seed and the hash of its stage."""

  run: str
  seed: int
  hash: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
  """The origin of predictions that were made elsewhere, and the seconds that all of their training took."""

  source: str
  seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """result.json of a finished run."""

  task: str
  model: str
  regime: str
  causal: bool  # the form of the mixer
  protocol: str
  seed: int
  metrics: Metrics
  stages: dict[str, Stage]
  arm: str | None = None  # the name of the run in reports, where regime and form do not say enough
  metric: str | None = None  # that scores the test set: a key of metrics.test
  parameters: int | None = None
  splits: str | None = None  # kind of the splits, see `lra_spt.data.splits`
  groups: dict[str, str] | None = None  # {'name': 'patients', 'members': 'windows'} if examples form groups
  cautions: list[str] | None = None  # sentences to stand beside the numbers
  published: dict[str, str] | None = None  # {'task', 'model'}: key of the published numbers
  pretrained: Pretrained | None = None
  recorded: Recorded | None = None
  hardware: dict | None = None
  versions: dict | None = None
  settings: dict | None = None  # of jax, see `lra_spt.distributed.settings.in_force`
  commit: str | None = None
  date: str | None = None
  config: dict | None = None
  runtime: dict | None = None
  origins: dict | None = None
  fingerprints: dict[str, str] | None = None  # of data and splits
  code: dict[str, str] | None = None  # digests of mixer, objective and task, where they are user code
  data: dict | None = None  # source, and whether it was verified


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
  """failure.json: why a run ended before its result."""

  error: str = ''
  kind: str = ''
  date: str = ''


def stage_problem(stage: Any) -> str | None:
  """The first thing that is wrong with a stage.json, or None."""
  missing = [key for key in Stage.NEEDED if key not in stage]
  return f'it lacks the key {missing[0]}' if missing else problem(Stage, stage)
