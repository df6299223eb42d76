"""Families of generated tasks on which architectures are told apart; a number in the name is the difficulty.

`recall_16` asks for the values of 16 keys. `lra-spt prepare recall_16` makes the set, and `task=recall_16`
reads it. `data_prep.sources.sequences` has the generators.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

from lra_spt.data.parts import Classes, PerPosition, Tokens
from lra_spt.data.task import Task
from lra_spt.errors import ConfigError

SPECIAL = 4  # ids 0 to 3: <mask>, <pad>, <unk>, <eos>
KEYS = VALUES = 64  # of recall
SYMBOLS = 16  # of copying and induction
COUNTS = {'train': 20_000, 'validation': 1_000, 'test': 2_000}  # examples; each longer test split has 1,000
GROUPS = {'parity': 2, 's3': 6, 'a5': 60}  # elements of the groups of state tracking


@dataclasses.dataclass(frozen=True)
class Family:
  """Tasks that differ in one number.

  description: one sentence; number: what it counts; least, most: its limits; make: the task of a name and a
  number.
  """

  description: str
  number: str
  least: int
  most: int
  make: Callable[[str, int], Task]


def _task(name, length, vocabulary, labels, chance, description, longer=()):
  return Task(
    name=name,
    dataset=name,
    inputs=Tokens(length, SPECIAL + vocabulary),
    labels=labels,
    chance=f'{chance}; the rule itself scores 100 %',
    description=description,
    prepare_command=f'lra-spt prepare {name}',
    longer=tuple((f'test_{times}x', times * length) for times in longer),
  )


def _recall(name, pairs):
  return _task(
    name,
    max(64, 8 * pairs),
    KEYS + VALUES,
    PerPosition(VALUES),
    f'{100 / pairs:.1f} % (a random value of the sequence)',
    f'{FAMILIES["recall"].description} {pairs} pairs.',
  )


def _copying(name, symbols):
  return _task(
    name,
    17 * symbols,
    SYMBOLS + 2,
    PerPosition(SYMBOLS),
    f'{100 / SYMBOLS:.1f} % ({SYMBOLS} symbols)',
    f'{FAMILIES["copying"].description} {symbols} symbols.',
  )


def _induction(name, length):
  return _task(
    name,
    length,
    SYMBOLS + 1,
    Classes(SYMBOLS),
    f'{100 / SYMBOLS:.1f} % ({SYMBOLS} symbols)',
    FAMILIES['induction'].description,
    longer=(2, 4),
  )


def _product(name, length, group):
  elements = GROUPS[group]
  return _task(
    name,
    length,
    elements,
    PerPosition(elements),
    f'{100 / elements:.1f} % ({elements} states)',
    FAMILIES[group].description,
    longer=(2, 4),
  )


FAMILIES = {
  'recall': Family(
    'Which value followed this key? Keys and values, then each key once more among random symbols (MQAR).',
    'pairs', 1, KEYS, _recall,
  ),
  'copying': Family(
    'Symbols lie among blanks; which was the first, the second, ...?', 'symbols', 1, 1024, _copying
  ),
  'induction': Family(
    'A mark occurs within the sequence and at its end; which symbol followed it the first time?',
    'positions', 8, 2**16, _induction,
  ),
  'parity': Family(
    'Is the number of ones so far odd? Asked at every position.',
    'positions', 2, 2**16, functools.partial(_product, group='parity'),
  ),
  's3': Family(
    'The product of the elements of the group S3 so far, at every position.',
    'positions', 2, 2**16, functools.partial(_product, group='s3'),
  ),
  'a5': Family(
    'The product of the elements of the group A5 so far, at every position.',
    'positions', 2, 2**16, functools.partial(_product, group='a5'),
  ),
}  # fmt: skip


def parts_of(name: str) -> tuple[str, int] | None:
  """The family and the number of a name such as 'recall_16'; None for another name.

  Raises:
    ConfigError: the number is out of range.
  """
  match = re.fullmatch(rf'({"|".join(FAMILIES)})_([1-9]\d*)', name)
  if match is None:
    return None
  family, number = FAMILIES[match[1]], int(match[2])
  if not family.least <= number <= family.most:
    raise ConfigError(
      f'{name!r} has {number} {family.number}; choose {match[1]}_{family.least} to {match[1]}_{family.most}.'
    )
  return match[1], number


def task_of(name: str) -> Task | None:
  """The task of a name such as 'recall_16'; None for another name. Raises as `parts_of`."""
  parts = parts_of(name)
  return parts and FAMILIES[parts[0]].make(name, parts[1])


def counts_of(task: Task) -> dict[str, int]:
  """{file: examples} of the whole set of a task."""
  return COUNTS | {split: 1_000 for split, _ in task.longer}
