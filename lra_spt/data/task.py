"""Tasks: inputs, labels, splits, and departures of the published code from good practice.

A task is composed of parts, so that impossible combinations cannot be written:

```python
Task(
  name='birds', dataset='birds',
  inputs=Values(length=8000, mean=(0.0,), std=(0.1,), dtype='int16'),
  labels=Classes(12),
  groups=Groups('singer', 'recordings'), splits='grouped',
)
```

This module does not need jax; `lra_spt.objectives.rows` holds the parts that run under jit. Sizes,
normalisation constants and denoising losses are those of Never Train from Scratch (Amos, Berant, Gupta, ICLR
2024), Table 4, and of its public code.
"""

import dataclasses

import numpy as np

from lra_spt.data.parts import (
  ArraySpec,
  Bytes,
  ByteTokens,
  Classes,
  Groups,
  MultiLabel,
  PerPosition,
  Published,
  Real,
  Tokens,
  Values,
)
from lra_spt.data.splits import Splits
from lra_spt.errors import ConfigError, DataError, FieldError


@dataclasses.dataclass(frozen=True)
class Task:
  """Everything about a data set that a model, an objective or a report needs to know.

  Attributes:
    name: name of the task, on the command line.
    dataset: name of the prepared set that it reads; several tasks can share one.
    inputs: `Tokens`, `Values`, `Bytes` or, through `with_byte_tokens`, `ByteTokens`.
    labels: `Classes`, `PerPosition`, `MultiLabel` or `Real`.
    splits: rule that assigns examples to splits, see `splits.Splits`.
    groups: names of groups of dependent examples; None if examples are independent.
    metric: the main score, which chooses checkpoints and stands in tables: 'accuracy' or 'macro_f1' for
      classes and positions, of two classes also 'auroc', 'macro_f1' or 'auroc' for several labels, 'r2' for
      real numbers; '' is the first of these. Tests report further ones beside it. Errors such as MAE and RMSE
      are never the main score, because tables count higher as better.
    published: departures of the published code.
    chance: the score of guessing, for readers of a report.
    description: one sentence.
    longer: test splits with longer examples, ((split, length), ...), stored in files of their names.
    prepare_command: the command that makes the prepared set, without --data_dir. Empty means
      `lra-spt prepare <dataset>` or, for a set of your own,
      `lra-spt prepare npz --name <dataset> --raw_dir RAW`.

  Raises:
    ConfigError: a standard deviation of inputs or labels is not above 0, positions of a pair have labels, or
      the metric is none of these.
  """

  name: str
  dataset: str
  inputs: Tokens | Values | Bytes | ByteTokens
  labels: Classes | PerPosition | MultiLabel | Real
  splits: Splits = 'files'
  groups: Groups | None = None
  metric: str = ''
  published: Published = Published()
  chance: str = ''
  description: str = ''
  prepare_command: str = ''
  longer: tuple[tuple[str, int], ...] = ()

  def __post_init__(self):
    for name, part in (('inputs', self.inputs), ('labels', self.labels)):
      std = np.asarray(getattr(part, 'std', 1.0))
      if len(wrong := std[~(np.isfinite(std) & (std > 0))]):
        raise ConfigError(
          f'Task {self.name!r} divides its {name} by std={wrong[0]:g}; give a number above 0 (1 for '
          'values that never vary).'
        )
    if self.per_position and self.documents == 2:
      raise ConfigError(f'Task {self.name!r} has pairs, whose positions have no labels; give it Classes.')
    if self.score not in (scores := self.labels.scores):
      raise ConfigError(
        f'Task {self.name!r} has the metric {self.metric!r}, but the main score of such labels is one of '
        f'{", ".join(scores)}; correct it.'
      )

  @property
  def length(self) -> int:
    """L, the largest number of positions in a sequence."""
    return self.inputs.length

  @property
  def documents(self) -> int:
    """2 if an example is a pair of sequences, else 1."""
    return self.inputs.documents

  @property
  def vocabulary(self) -> int:
    """Number of ids; 0 if inputs are not tokens."""
    return self.inputs.vocabulary

  @property
  def channels(self) -> int:
    """C, the values per position; 0 for tokens."""
    return self.inputs.channels

  @property
  def classes(self) -> int:
    """Number of classes; 0 for a regression."""
    return self.labels.count

  @property
  def outputs(self) -> int:
    """Numbers of an answer: one for each class, label or dimension."""
    return self.classes or self.label_width or 1

  @property
  def regression(self) -> bool:
    """True if labels are real numbers."""
    return isinstance(self.labels, Real)

  @property
  def score(self) -> str:
    """The main score, see `metric`."""
    return self.metric or self.labels.scores[0]

  @property
  def measures(self) -> tuple[str, ...]:
    """All scores that a test reports, see `lra_spt.data.measures`."""
    measures = self.labels.measures
    return measures if self.score in measures else (*measures, self.score)

  @property
  def probabilities(self) -> bool:
    """True if predictions are probabilities: of several labels, or of class 1 for an AUROC."""
    return self.multi_label or self.score == 'auroc'

  @property
  def per_position(self) -> bool:
    """True if every position has a label."""
    return isinstance(self.labels, PerPosition)

  @property
  def multi_label(self) -> bool:
    """True if an example has several labels."""
    return isinstance(self.labels, MultiLabel)

  @property
  def label_width(self) -> int:
    """K, the numbers of a label that is an array [K]; 0 for one number and for labels of positions."""
    if self.multi_label:
      return self.classes
    return self.labels.dimensions if self.regression and self.labels.dimensions > 1 else 0

  @property
  def row(self) -> tuple[int, ...]:
    """Shape of one example's inputs in a batch: (L,), (L, C) or (2, L)."""
    if self.documents == 2:
      return (2, self.length)
    return (self.length, self.channels) if self.channels > 1 else (self.length,)

  def batch(self, *leading: int) -> dict[str, ArraySpec]:
    """Shapes and dtypes of a batch of [*leading] examples of `examples.Examples.gather`."""
    width = self.length if self.per_position else self.label_width
    kind = 'float32' if self.regression else 'bool' if self.multi_label else 'int32'
    parts = {
      'inputs': (self.row, self.inputs.dtype),
      'lengths': ((2,) if self.documents == 2 else (), 'int32'),
      'label': ((width,) if width else (), kind),
      'weight': ((), 'float32'),
      'index': ((), 'int32'),
    }
    return {name: ArraySpec((*leading, *shape), np.dtype(dtype)) for name, (shape, dtype) in parts.items()}

  def for_split(self, split: str) -> 'Task':
    """The task with the length that its examples have in a split."""
    length = dict(self.longer).get(split)
    return self if length is None else self.with_inputs(length=length)

  def with_inputs(self, **changes) -> 'Task':
    """The task with these attributes of its inputs changed; a new mean brings its number of channels."""
    if 'mean' in changes and isinstance(self.inputs, Values):
      changes = {'channels': 0} | changes
    return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, **changes))

  @property
  def measured(self) -> bool:
    """True if preparation measures the normalisation of inputs or labels."""
    return getattr(self.inputs, 'measured', False) or getattr(self.labels, 'measured', False)

  def with_measured(self, statistics: dict) -> 'Task':
    """Returns the task with its `measured` normalisation from the `statistics` of a prepared set's metadata;
    raises a DataError if they do not hold it."""
    changes = {}
    for name, key in (('inputs', 'train'), ('labels', 'labels')):
      if not getattr(part := getattr(self, name), 'measured', False):
        continue
      if key not in statistics:
        raise DataError(
          f'The prepared set {self.dataset!r} does not hold the mean and standard deviation of the {name} of '
          'its training file; remove its folder and prepare it again.'
        )
      changes[name] = part.normalised_by(statistics[key])
    return dataclasses.replace(self, **changes)

  def with_byte_tokens(self) -> 'Task':
    """The task that reads its bytes as tokens and not as numbers; sets and splits stay the same.

    Raises:
      FieldError: its positions do not hold one byte each.
    """
    inputs = self.inputs
    if isinstance(inputs, Tokens) or inputs.dtype != 'uint8' or inputs.channels > 1 or inputs.padded:
      content = 'tokens already' if isinstance(inputs, Tokens) else f'{inputs.channels} x {inputs.dtype}'
      content += ' of differing lengths' if inputs.padded else ''
      raise FieldError(
        'byte_tokens',
        f'is true, which is for tasks of one byte per position, but those of {self.name} hold {content}; set '
        'it to false',
      )
    return dataclasses.replace(self, inputs=ByteTokens(inputs.length, getattr(inputs, 'grayscale', False)))

  def as_published(self) -> 'Task':
    """The task with the splits of the published code."""
    return dataclasses.replace(self, splits=self.published.splits) if self.published.splits else self

  @property
  def cautions(self) -> tuple[str, ...]:
    """Sentences on what the test set can and cannot show, for every result with these splits."""
    names = {'r2': 'R2', 'macro_f1': 'macro-F1', 'auroc': 'AUROC'}
    score, groups = names.get(self.score, self.score), self.groups
    published = ', as in the published code' if self.splits == self.published.splits else ''
    if self.splits == 'reused':
      return (
        f'The validation set is the test set{published}: checkpoints were chosen by the very examples on '
        f'which this {score} is measured, which flatters it.',
      )
    if groups and self.splits == 'grouped':
      apart = f'{groups.name.capitalize()} of the test set are in no other split.'
      if self.published.splits == 'shuffled':
        mixed = f'{groups.members} of one {groups.one} lie in all three'
        apart += f' In the paper, {mixed}: its {score} answers an easier question.'
      return (apart,)
    if groups and self.splits in ('random', 'stratified', 'shuffled'):
      return (
        f'{groups.members.capitalize()} of one {groups.one} lie in training, validation and test set'
        f'{published}: nothing here says how the model does on {groups.name} that it has not seen.',
      )
    return ()
