"""The tasks of the package, and those that a user registers."""

import os
import shlex

from lra_spt.data import generated, prepared, set_tasks
from lra_spt.data.parts import (
  Bytes,
  Classes,
  Groups,
  MultiLabel,
  PerPosition,
  Published,
  Real,
  Tokens,
  Values,
)
from lra_spt.data.task import Task
from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest

__all__ = [
  'TASKS',
  'Bytes',
  'Classes',
  'Groups',
  'MultiLabel',
  'PerPosition',
  'Published',
  'Real',
  'Task',
  'Tokens',
  'Values',
  'get_task',
  'is_own',
  'preparation',
  'register_task',
]


def _pathfinder(name, resolution, note):
  return Task(
    name=name,
    dataset=f'pathfinder{resolution}',
    inputs=Bytes(resolution * resolution),
    labels=Classes(2),
    splits='random',
    chance='50 % (two balanced classes)',
    description=f'Does a dashed path join the two marked ends in a {resolution} x {resolution} image? {note}',
  )


def _text(name, length, vocabulary):
  return Task(
    name=name,
    dataset=name,
    inputs=Tokens(length, vocabulary),
    labels=Classes(2),
    splits='holdout',
    published=Published(splits='reused', identity_head=True),
    chance='50 % (two balanced classes)',
    description='Does a film review (IMDb), read character by character, praise the film or not?',
  )


def _listops(name, length, chance, description):
  return Task(
    name=name,
    dataset=name,
    inputs=Tokens(length, vocabulary=19),
    labels=Classes(10),
    chance=chance,
    description=description,
  )


def _bidmc(name, what, labels):
  return Task(
    name=name,
    dataset=name,
    inputs=Values(4000, mean=(0.78948, 0.32249), std=(0.65669, 0.28715), dtype='float32'),
    labels=labels,
    splits='grouped',
    groups=Groups('patient', 'windows'),
    published=Published(splits='shuffled', input_range=((0.0, 4.002), (-0.50196, 1.5039))),
    chance='R2 of 0 at best (always answering one number)',
    description=f'The {what} of a patient, from 32 seconds of pulse oximetry and ECG at 125 Hz. Not in LRA.',
    prepare_command='lra-spt prepare bidmc',
  )


TASKS = {
  task.name: task
  for task in (
    _listops(
      'listops',
      2048,
      '17 % (always answering 0 or 9)',
      'The value of a nested expression of MIN, MAX, MED and SM (sum modulo 10) over digits.',
    ),
    # 131 characters occur at least 15 times within the first 4,095 of the training reviews; 4 special tokens.
    _text('text', 4096, 135),
    # The paper's text has 2,048 positions, all its published configs have 4,096.
    _text('text_2048', 2048, 130),
    Task(
      name='retrieval',
      dataset='retrieval',
      inputs=Tokens(4000, vocabulary=99, documents=2),
      labels=Classes(2),
      published=Published(identity_head=True),
      chance='50 % (two balanced classes)',
      description='Does one of two papers of the ACL Anthology Network, read by character, cite the other?',
    ),
    Task(
      name='image',
      dataset='cifar10',
      inputs=Values(1024, mean=(122.6 / 255,), std=(61.0 / 255,), grayscale=True),
      labels=Classes(10),
      splits='holdout',
      chance='10 % (ten balanced classes)',
      description='CIFAR-10 in gray, read pixel by pixel.',
    ),
    Task(
      name='scifar',
      dataset='cifar10',
      inputs=Values(1024, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.243, 0.261)),
      labels=Classes(10),
      splits='holdout',
      chance='10 % (ten balanced classes)',
      description='CIFAR-10 in colour, read pixel by pixel.',
    ),
    _pathfinder('pathfinder', 32, 'LRA Pathfinder.'),
    _pathfinder('pathfinder64', 64, 'Between Pathfinder and Path-X.'),
    _pathfinder('pathx', 128, 'LRA Path-X.'),
    _pathfinder('pathx256', 256, 'Path-256.'),
    Task(
      name='speech_commands',
      dataset='speech_commands',
      inputs=Values(16_000, mean=(0.0,), std=(1.0,), dtype='int16', measured=True),
      labels=Classes(35),
      published=Published(position_statistics=True, worst_checkpoint=True),
      chance='4 % (always the most frequent of 35 words)',
      description='Which of 35 words is spoken? One second of sound at 16 kHz, sample by sample. Not in LRA.',
    ),
    # Means and deviations of the training patients; ranges of the published training split.
    _bidmc('bidmc_hr', 'heart rate', Real(88.8225, 14.7309, (56.03125, 128.25))),
    _bidmc('bidmc_rr', 'respiratory rate', Real(17.1408, 2.7916, (0.153846, 27.375))),
    _bidmc('bidmc_spo2', 'oxygen saturation', Real(97.0813, 2.998, (83.9375, 100.0))),
    Task(
      name='ppg_dalia',
      dataset='ppg_dalia',
      inputs=Values(49_920, channels=6, dtype='float32', measured=True),
      labels=Real(measured=True),
      splits='grouped',
      groups=Groups('subject', 'windows'),
      chance='R2 of 0 at best (always answering one number)',
      description='The mean heart rate in 13 minutes of daily life, from a wristband at 64 Hz. Not in LRA.',
    ),
    # The small tasks, with means, deviations, range and vocabulary of their training examples.
    _listops(
      'listops_mini',
      128,
      '12 % (always answering 0)',
      'ListOps with expressions of 16 to 126 tokens. Not in LRA.',
    ),
    Task(
      name='image_mini',
      dataset='image_mini',
      inputs=Values(144, mean=(0.48012,), std=(0.22358,)),
      labels=Classes(10),
      chance='10 % (ten balanced classes)',
      description='CIFAR-10 in gray at 12 x 12, read pixel by pixel. Not in LRA.',
    ),
    Task(
      name='text_mini',
      dataset='text_mini',
      inputs=Tokens(256, vocabulary=90),
      labels=Classes(2),
      chance='50 % (two balanced classes)',
      description='Do the first 255 characters of a film review (IMDb) praise the film or not? Not in LRA.',
    ),
    Task(
      name='pathfinder_mini',
      dataset='pathfinder_mini',
      inputs=Bytes(256, mean=0.0663, std=0.1832),
      labels=Classes(2),
      chance='50 % (two balanced classes)',
      description='Does a dashed path join the two marked ends in a 16 x 16 image? Not in LRA.',
    ),
    Task(
      name='pulse_mini',
      dataset='pulse_mini',
      inputs=Values(256, mean=(0.78956, 0.32247), std=(0.65583, 0.27219), dtype='float32'),
      labels=Real(88.8223, 14.8041, (51.88889, 131.66667)),
      splits='grouped',
      groups=Groups('patient', 'windows'),
      chance='R2 of 0 at best (always answering one number)',
      description='The heart rate of a patient, from 8 s of pulse oximetry and ECG at 31.25 Hz. Not in LRA.',
    ),
    Task(
      name='stripes',
      dataset='stripes',
      inputs=Values(64, mean=(0.5,), std=(0.29,)),
      labels=Classes(4),
      chance='25 % (four balanced classes)',
      description='In which of four directions do the stripes of a noisy 8 x 8 image run? Not in LRA.',
    ),
  )
}
_OURS = frozenset(TASKS)
# Sets that `lra-spt prepare` knows by name. Its catalogue imports this module, so it cannot be imported here.
_SHIPPED = frozenset(task.dataset for task in TASKS.values())
DATA_DIR = 'LRA_SPT_DATA_DIR'  # environment variable that commands set


def preparation(task: Task, data_dir) -> str:
  """The command that makes the prepared set in `data_dir`, for a bucket by way of a local folder."""
  named = task.dataset if task.dataset in _SHIPPED else f'npz --name {task.dataset} --raw_dir RAW'
  command = f'{task.prepare_command or f"lra-spt prepare {named}"} --data_dir'
  if '://' not in str(data_dir):
    return f'{command} {shlex.quote(str(data_dir))}'
  bucket = shlex.quote(f'{str(data_dir).rstrip("/")}/')
  return f'{command} data && gcloud storage cp -r data/{task.dataset} {bucket}'


def get_task(name: str, data_dir=None) -> Task:
  """The task of that name: one of the package, one that was registered, or else that of the prepared set of
  this name (`set_tasks.task_of`).

  Args:
    name: of the task.
    data_dir: folder given to `lra-spt prepare`; None: that of the environment variable LRA_SPT_DATA_DIR,
      which `lra-spt` sets by its flags.

  Raises:
    ConfigError: there is none.
    DataError: the description of the set is damaged.
  """
  if name not in TASKS and (task := generated.task_of(name)) is not None:
    TASKS[name] = task
  if name in TASKS:
    return TASKS[name]
  folder = os.environ.get(DATA_DIR) if data_dir is None else data_dir
  if folder is not None and prepared.NAME.fullmatch(name) and (task := set_tasks.task_of(name, folder)):
    return task
  nor = f', and no prepared set of this name in {folder}' if folder is not None else ''
  raise ConfigError(
    f'There is no task {name!r}{nor}; choose one of `lra-spt list tasks`.{nearest(name, TASKS)}{IMPORT_FIRST}'
  )


def is_own(task: Task) -> bool:
  """True for a task from outside the package."""
  return task.name not in _OURS and generated.parts_of(task.name) is None


def register_task(task: Task) -> Task:
  """Registers a task, so that `get_task(task.name)` returns it. Registering an equal one again does nothing.

  Raises:
    ConfigError: it is no `Task`, or a different one has that name.
  """
  if not isinstance(task, Task):
    raise ConfigError(f'register_task was given {task!r}: give it a Task.')
  if TASKS.setdefault(task.name, task) != task:
    raise ConfigError(f'A different task is already called {task.name!r}; give the new one another name.')
  return task
