"""What a task is: modality, length, vocabulary, splits, normalisation and label space.

Sizes, normalisation constants and denoising losses are those of Never Train from Scratch (Amos, Berant,
Gupta, ICLR 2024), Table 4, and of its public code.
"""

import dataclasses

import jax.numpy as jnp

SPLITS = ('files', 'holdout', 'random', 'reused')


@dataclasses.dataclass(frozen=True)
class Task:
  """Everything about a data set that an objective or a training loop must know.

  Attributes:
    name: how the task is called on the command line.
    dataset: name of the prepared set it reads (several tasks can share one).
    modality: 'tokens' (ids, embedded by a table) or 'values' (integers, embedded by a linear layer).
    length: most positions an input has; inputs are padded to it.
    channels: values per position; 0 for tokens.
    vocabulary: number of token ids with the special ones; 0 for values.
    classes: number of labels.
    denoising_loss: 'ce' (cross entropy over ids or bytes) or 'l1' (absolute error of normalised values).
    denoising_classes: how many classes the denoising head has: the vocabulary, 256 for bytes, 0 for l1.
    scale: what stored values are divided by before all else: 255 for bytes.
    mean, std: per channel, of inputs / scale; empty for tokens.
    splits: 'files' (the set holds the three splits), 'holdout' (validation is a tenth of the training file),
      'random' (80/10/10 of one file) or 'reused' (the test file is the validation set too).
    published_splits: those of the published code, where they are others; see `Protocol.published_splits`.
    grayscale: the set holds RGB and the task reads its luminance; converted on the host when an example is
      read, so that one prepared set serves both tasks and an in-memory copy is three times smaller.
    mask_id, pad_id: token ids.
    published_identity_head: the published code denoises this task without an output projection.
    metric: what finetuning reports and is selected by.
    chance: what guessing reaches, for readers of a report.
    description: one sentence.
    prepare_command: what makes the prepared set; empty means `lra-spt prepare <dataset>`.
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
  scale: float = 255.0
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  splits: str = 'files'
  published_splits: str = ''
  grayscale: bool = False
  mask_id: int = 0
  pad_id: int = 1
  published_identity_head: bool = False
  metric: str = 'accuracy'
  chance: str = ''
  description: str = ''
  prepare_command: str = ''

  def __post_init__(self):
    if self.modality not in ('tokens', 'values'):
      raise ValueError(f'Task {self.name!r}: modality {self.modality!r} is not one of tokens, values.')
    for splits in (self.splits, self.published_splits or self.splits):
      if splits not in SPLITS:
        raise ValueError(f'Task {self.name!r}: splits {splits!r} is not one of {", ".join(SPLITS)}.')
    if self.denoising_loss not in ('ce', 'l1'):
      raise ValueError(f'Task {self.name!r}: denoising_loss {self.denoising_loss!r} is not one of ce, l1.')
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
        and len(self.mean) == len(self.std) == self.channels > 0
        and self.denoising_classes == classes
        and (self.channels == 1 or self.denoising_loss == 'l1')
      )
      wanted = 'no vocabulary, a mean and std per channel, and l1 or (one channel only) ce over 256 bytes'
    if not right:
      raise ValueError(f'Task {self.name!r}: a task of {self.modality} needs {wanted}.')

  def normalise(self, inputs):
    """Storage dtype to what the encoder eats; pure, runs inside the jitted step.

    Args:
      inputs: uint8, int16 or int32, [B, L] or [B, L, C].

    Returns:
      values: float32 [B, L, C] = (inputs / scale - mean) / std, where [B, L] gets C = 1;
      tokens: int32 [B, L] ids, unchanged.
    """
    inputs = jnp.asarray(inputs)
    if self.modality == 'tokens':
      return inputs.astype(jnp.int32)
    x_BLC = (inputs[..., None] if inputs.ndim == 2 else inputs).astype(jnp.float32)
    mean = jnp.asarray(self.mean, jnp.float32).reshape(1, 1, -1)
    std = jnp.asarray(self.std, jnp.float32).reshape(1, 1, -1)
    return (x_BLC / self.scale - mean) / std

  def targets(self, inputs):
    """What denoising has to restore.

    Args:
      inputs: uint8, int16 or int32, [B, L] or [B, L, C], uncorrupted.

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
    Task(
      name='text',
      dataset='text',
      modality='tokens',
      length=4096,
      vocabulary=135,
      classes=2,
      denoising_loss='ce',
      denoising_classes=135,
      splits='holdout',
      published_splits='reused',
      published_identity_head=True,
      chance='50 % (two balanced classes)',
      description='Does a film review (IMDb), read character by character, praise the film or not?',
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
    # Published code normalises every time step by itself. Here one mean and one standard deviation serve all:
    # measured on 600 clips of the test list (0.0007 and 0.0900).
    Task(
      name='speech_commands',
      dataset='speech_commands',
      modality='values',
      length=16_000,
      channels=1,
      classes=35,
      denoising_loss='l1',
      denoising_classes=0,
      scale=32_768.0,
      mean=(0.0,),
      std=(0.09,),
      chance='4 % (always the most frequent of 35 words)',
      description='Which of 35 words is spoken? One second of sound at 16 kHz, sample by sample. Not in LRA.',
    ),
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
    raise ValueError(f'There is no task {name!r}; choose one of {", ".join(sorted(TASKS))}.')
  return TASKS[name]


def register_task(task: Task) -> Task:
  """Makes `get_task(task.name)` find the task; registering an equal task again does nothing.

  Raises:
    ValueError: a different task already has that name.
  """
  if TASKS.setdefault(task.name, task) != task:
    raise ValueError(f'A different task is already called {task.name!r}; give the new one another name.')
  return task
