"""What a task is: modality, length, vocabulary, splits, normalisation and label space.

Sizes, normalisation constants and denoising losses are those of Never Train from Scratch (Amos, Berant,
Gupta, ICLR 2024), Table 4, and of its public code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.errors import ConfigError

SPLITS = ('files', 'holdout', 'random', 'reused', 'grouped', 'shuffled')
DTYPES = ('uint8', 'int16', 'float32')


@dataclasses.dataclass(frozen=True)
class Task:
  """Everything about a data set that an objective or a training loop must know.

  Attributes:
    name: how the task is called on the command line.
    dataset: name of the prepared set it reads (several tasks can share one).
    modality: 'tokens' (ids, embedded by a table) or 'values' (numbers, embedded by a linear layer).
    length: most positions an input has; inputs are padded to it.
    channels: values per position; 0 for tokens.
    vocabulary: number of token ids with the special ones; 0 for values.
    classes: number of labels; 0 for regression, whose labels are real numbers.
    documents: 2 where an example is a pair of sequences, else 1.
    dtype: of stored inputs, which batches keep: uint8 (ids, bytes), int16 (sound) or float32.
    denoising_loss: 'ce' (cross entropy over ids or bytes) or 'l1' (absolute error of normalised values).
    denoising_classes: how many classes the denoising head has: the vocabulary, 256 for bytes, 0 for l1.
    scale: what stored values are divided by before all else: 255 for bytes.
    mean, std: of inputs / scale, float per channel [C] or array per position and channel [L, C]; empty for
      tokens.
    label_mean, label_std, label_range: of the training labels of a regression, (least, largest).
    splits: 'files' (the set holds the three splits), 'holdout' (validation is a tenth of the training file),
      'random' (80/10/10 of one file), 'reused' (the test file is the validation set too), 'grouped' (70/15/15
      of the groups of one file) or 'shuffled' (70/15/15 of its examples).
    published_splits: those of the published code, where they are others; see `Protocol.published_splits`.
    grayscale: the set holds RGB and the task reads its luminance; converted on the host when an example is
      read, so that one prepared set serves both tasks and an in-memory copy is three times smaller.
    published_position_statistics: the published code normalises every position by itself; see
      `Protocol.position_statistics`.
    mask_id, pad_id: token ids.
    published_identity_head: the published code denoises this task without an output projection.
    chance: what guessing reaches, for readers of a report.
    description: one sentence.
    prepare_command: what makes the prepared set, but for its --data_dir; empty means `lra-spt prepare
      <dataset>`.
  """

  name: str
  dataset: str
  modality: str
  length: int
  classes: int
  denoising_loss: str
  denoising_classes: int
  channels: int = 0
  vocabulary: int = 0
  documents: int = 1
  dtype: str = 'uint8'
  scale: float = 255.0
  mean: tuple[float, ...] | np.ndarray = ()
  std: tuple[float, ...] | np.ndarray = ()
  label_mean: float = 0.0
  label_std: float = 1.0
  label_range: tuple[float, float] = (-1.0, 1.0)
  splits: str = 'files'
  published_splits: str = ''
  grayscale: bool = False
  published_position_statistics: bool = False
  mask_id: int = 0
  pad_id: int = 1
  published_identity_head: bool = False
  chance: str = ''
  description: str = ''
  prepare_command: str = ''

  def __post_init__(self):
    if self.modality not in ('tokens', 'values'):
      raise ConfigError(f'Task {self.name!r}: modality {self.modality!r} is not one of tokens, values.')
    for splits in (self.splits, self.published_splits or self.splits):
      if splits not in SPLITS:
        raise ConfigError(f'Task {self.name!r}: splits {splits!r} is not one of {", ".join(SPLITS)}.')
    if self.denoising_loss not in ('ce', 'l1'):
      raise ConfigError(f'Task {self.name!r}: denoising_loss {self.denoising_loss!r} is not one of ce, l1.')
    if self.modality == 'tokens':
      right = (
        self.vocabulary > 0
        and self.channels == 0
        and self.denoising_loss == 'ce'
        and self.denoising_classes == self.vocabulary
      )
      wanted = 'a vocabulary, no channels, and ce over the vocabulary'
    else:
      classes = 256 if self.denoising_loss == 'ce' else 0
      right = (
        self.vocabulary == 0
        and np.shape(self.mean)[-1] == np.shape(self.std)[-1] == self.channels > 0
        and self.denoising_classes == classes
        and (self.channels == 1 or self.denoising_loss == 'l1')
      )
      wanted = 'no vocabulary, a mean and std per channel, and l1 or (one channel only) ce over 256 bytes'
    if not right:
      raise ConfigError(f'Task {self.name!r}: a task of {self.modality} needs {wanted}.')
    if self.dtype not in DTYPES:
      raise ConfigError(f'Task {self.name!r}: dtype {self.dtype!r} is not one of {", ".join(DTYPES)}.')
    if self.documents not in (1, 2) or (self.documents == 2 and self.modality != 'tokens'):
      raise ConfigError(
        f'Task {self.name!r}: documents is {self.documents}, not 1, or 2 for pairs of tokens.'
      )

  @property
  def regression(self) -> bool:
    """Whether labels are real numbers."""
    return self.classes == 0

  def preparation(self, data_dir) -> str:
    """The command that makes the prepared set in `data_dir`."""
    return f'{self.prepare_command or f"lra-spt prepare {self.dataset}"} --data_dir {data_dir}'

  @property
  def row(self) -> tuple[int, ...]:
    """Shape of one example's inputs in a batch: (L,), (L, C) or (2, L)."""
    if self.documents == 2:
      return (2, self.length)
    return (self.length, self.channels) if self.channels > 1 else (self.length,)

  def batch(self, *leading: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a batch of [*leading] examples, as `examples.Examples.gather` makes them."""
    lengths = (2,) if self.documents == 2 else ()
    parts = {
      'inputs': (self.row, self.dtype),
      'lengths': (lengths, 'int32'),
      'label': ((), 'float32' if self.regression else 'int32'),
      'weight': ((), 'float32'),
      'index': ((), 'int32'),
    }
    return {name: jax.ShapeDtypeStruct((*leading, *shape), dtype) for name, (shape, dtype) in parts.items()}

  def normalise(self, inputs):
    """Storage dtype to what the encoder eats; pure, runs inside the jitted step.

    Args:
      inputs: in a storage dtype or int32, [B, L] or [B, L, C].

    Returns:
      values: float32 [B, L, C] = (inputs / scale - mean) / std, where [B, L] gets C = 1;
      tokens: int32 [B, L] ids, unchanged.
    """
    inputs = jnp.asarray(inputs)
    if self.modality == 'tokens':
      return inputs.astype(jnp.int32)
    x_BLC = (inputs[..., None] if inputs.ndim == 2 else inputs).astype(jnp.float32)
    parts = (jnp.asarray(part, jnp.float32) for part in (self.mean, self.std))
    mean, std = (part.reshape(1, -1, self.channels) for part in parts)
    return (x_BLC / self.scale - mean) / std

  def targets(self, inputs):
    """What denoising has to restore.

    Args:
      inputs: in a storage dtype or int32, [B, L] or [B, L, C], uncorrupted.

    Returns:
      ce: int32 [B, L], the id or the byte itself; l1: float32 [B, L, C], the normalised values.
    """
    if self.denoising_loss == 'l1':
      return self.normalise(inputs)
    inputs = jnp.asarray(inputs)
    return (inputs[..., 0] if inputs.ndim == 3 else inputs).astype(jnp.int32)


def _pathfinder(name, resolution, note):
  return Task(
    name=name,
    dataset=f'pathfinder{resolution}',
    modality='values',
    length=resolution * resolution,
    channels=1,
    classes=2,
    denoising_loss='ce',
    denoising_classes=256,
    mean=(0.5,),
    std=(0.5,),
    splits='random',
    chance='50 % (two balanced classes)',
    description=f'Does a dashed path join the two marked ends in a {resolution} x {resolution} image? {note}',
  )


def _text(name, length, vocabulary):
  return Task(
    name=name,
    dataset=name,
    modality='tokens',
    length=length,
    vocabulary=vocabulary,
    classes=2,
    denoising_loss='ce',
    denoising_classes=vocabulary,
    splits='holdout',
    published_splits='reused',
    published_identity_head=True,
    chance='50 % (two balanced classes)',
    description='Does a film review (IMDb), read character by character, praise the film or not?',
  )


def _bidmc(name, what, label_mean_and_std, label_range):
  return Task(
    name=name,
    dataset=name,
    modality='values',
    length=4000,
    channels=2,
    classes=0,
    denoising_loss='l1',
    denoising_classes=0,
    dtype='float32',
    scale=1.0,
    mean=(0.78948, 0.32249),
    std=(0.65669, 0.28715),
    label_mean=label_mean_and_std[0],
    label_std=label_mean_and_std[1],
    label_range=label_range,
    splits='grouped',
    published_splits='shuffled',
    chance='R2 of 0 at best (always answering one number)',
    description=f'The {what} of a patient, from 32 seconds of pulse oximetry and ECG at 125 Hz. Not in LRA.',
    prepare_command='lra-spt prepare bidmc',
  )


TASKS = {
  task.name: task
  for task in (
    Task(
      name='listops',
      dataset='listops',
      modality='tokens',
      length=2048,
      vocabulary=19,
      classes=10,
      denoising_loss='ce',
      denoising_classes=19,
      chance='17 % (always answering 0 or 9)',
      description='The value of a nested expression of MIN, MAX, MED and SM (sum modulo 10) over digits.',
    ),
    # 131 characters occur at least 15 times within the first 4,095 of the training reviews; 4 special tokens.
    _text('text', 4096, 135),
    # The paper's text speaks of 2,048 positions, its published configs all have 4,096.
    _text('text_2048', 2048, 130),
    Task(
      name='retrieval',
      dataset='retrieval',
      modality='tokens',
      length=4000,
      documents=2,
      vocabulary=99,
      classes=2,
      denoising_loss='ce',
      denoising_classes=99,
      published_identity_head=True,
      chance='50 % (two balanced classes)',
      description='Does one of two papers of the ACL Anthology Network, read by character, cite the other?',
    ),
    Task(
      name='image',
      dataset='cifar10',
      modality='values',
      length=1024,
      channels=1,
      classes=10,
      denoising_loss='l1',
      denoising_classes=0,
      mean=(122.6 / 255,),
      std=(61.0 / 255,),
      splits='holdout',
      grayscale=True,
      chance='10 % (ten balanced classes)',
      description='CIFAR-10 in gray, read pixel by pixel.',
    ),
    Task(
      name='scifar',
      dataset='cifar10',
      modality='values',
      length=1024,
      channels=3,
      classes=10,
      denoising_loss='l1',
      denoising_classes=0,
      mean=(0.4914, 0.4822, 0.4465),
      std=(0.247, 0.243, 0.261),
      splits='holdout',
      chance='10 % (ten balanced classes)',
      description='CIFAR-10 in colour, read pixel by pixel.',
    ),
    _pathfinder('pathfinder', 32, 'LRA Pathfinder.'),
    _pathfinder('pathfinder64', 64, 'Between Pathfinder and Path-X.'),
    _pathfinder('pathx', 128, 'LRA Path-X.'),
    _pathfinder('pathx256', 256, 'Path-256.'),
    # One mean and one standard deviation for all, measured on 600 clips of the test list (0.0007 and 0.0900).
    Task(
      name='speech_commands',
      dataset='speech_commands',
      modality='values',
      length=16_000,
      channels=1,
      classes=35,
      denoising_loss='l1',
      denoising_classes=0,
      dtype='int16',
      scale=32_768.0,
      mean=(0.0,),
      std=(0.09,),
      published_position_statistics=True,
      chance='4 % (always the most frequent of 35 words)',
      description='Which of 35 words is spoken? One second of sound at 16 kHz, sample by sample. Not in LRA.',
    ),
    # Means and deviations are of the training patients, ranges of the published training split.
    _bidmc('bidmc_hr', 'heart rate', (88.8225, 14.7309), (56.03125, 128.25)),
    _bidmc('bidmc_rr', 'respiratory rate', (17.1408, 2.7916), (0.153846, 27.375)),
    _bidmc('bidmc_spo2', 'oxygen saturation', (97.0813, 2.998), (83.9375, 100.0)),
    Task(
      name='stripes',
      dataset='stripes',
      modality='values',
      length=64,
      channels=1,
      classes=4,
      denoising_loss='l1',
      denoising_classes=0,
      mean=(0.5,),
      std=(0.29,),
      chance='25 % (four balanced classes)',
      description='In which of four directions do the stripes of a noisy 8 x 8 image run? Not in LRA.',
    ),
  )
}


def get_task(name: str) -> Task:
  """The task of that name; ValueError with the known names if there is none."""
  if name not in TASKS:
    raise ConfigError(f'There is no task {name!r}; choose one of {", ".join(sorted(TASKS))}.')
  return TASKS[name]


def register_task(task: Task) -> Task:
  """Makes `get_task(task.name)` find the task; registering an equal task again does nothing.

  Raises:
    ValueError: a different task already has that name.
  """
  if TASKS.setdefault(task.name, task) != task:
    raise ConfigError(f'A different task is already called {task.name!r}; give the new one another name.')
  return task
