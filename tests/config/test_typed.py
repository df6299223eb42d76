"""Nested values become frozen dataclasses, and a wrong one is named with its path."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from ml_collections import ConfigDict

from lra_spt.config import values as config_values
from lra_spt.errors import ConfigError, FieldError


@dataclasses.dataclass(frozen=True)
class Optimizer:
  lr: float
  clip: float | None = None


@dataclasses.dataclass(frozen=True)
class Stage:
  epochs: int
  pool: Literal['mean', 'max']
  optimizer: Optimizer
  milestones: tuple[int, ...] = ()
  pair: tuple[int, float] = (1, 2.0)
  fast: bool = False
  options: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_typed_builds_nested_dataclasses():
  section = {
    'epochs': 3,
    'pool': 'max',
    'optimizer': {'lr': 1, 'clip': None},
    'milestones': (1, 2),
    'options': {'heads': 4},
  }
  stage = config_values.typed(Stage, ConfigDict(section), 'finetune')
  assert stage == Stage(3, 'max', Optimizer(1.0), (1, 2), options={'heads': 4})
  assert type(stage.optimizer.lr) is float
  assert type(stage.options) is dict
  assert config_values.typed(Stage, json.loads(json.dumps(section)), 'finetune') == stage


@dataclasses.dataclass(frozen=True)
class Careful:
  lr: float

  def __post_init__(self):
    if not self.lr >= 0:
      raise FieldError('lr', f'is {self.lr}; choose at least 0')


@dataclasses.dataclass(frozen=True)
class Outer:
  optimizer: Careful


def test_a_value_that_a_spec_refuses_is_named_with_its_section():
  with pytest.raises(ConfigError, match='^finetune.optimizer.lr is -1.0; choose at least 0$'):
    config_values.typed(Outer, {'optimizer': {'lr': -1}}, 'finetune')
  with pytest.raises(ConfigError, match='^lr is nan;'):
    Careful(float('nan'))


@pytest.mark.parametrize(
  'change, message',
  [
    ({'epohcs': 3}, 'finetune has no key epohcs: it takes epochs, pool, .*Did you mean epochs'),
    ({'epochs': None}, 'finetune.epochs takes int, not None'),
    ({'epochs': 1.5}, 'finetune.epochs takes int, not 1.5'),
    ({'epochs': True}, 'finetune.epochs takes int, not True'),
    ({'fast': 0}, 'finetune.fast takes bool, not 0'),
    ({'pool': 'mxa'}, 'choose one of mean, max'),
    ({'optimizer': {'lr': '1e-3'}}, "finetune.optimizer.lr takes float, not '1e-3'"),
    ({'optimizer': {'lr': 1e-3, 'clip': 'no'}}, 'finetune.optimizer.clip takes float'),
    ({'optimizer': {}}, 'finetune.optimizer lacks the key lr: it takes lr, clip'),
    ({'optimizer': 3}, 'finetune.optimizer is a section with the keys lr, clip, not 3'),
    ({'milestones': (1, 'x')}, r'finetune.milestones\[1\] takes int'),
    ({'pair': (1,)}, 'finetune.pair takes 2 values, not 1'),
  ],
)
def test_typed_names_what_is_wrong(change, message):
  section = {'epochs': 3, 'pool': 'mean', 'optimizer': {'lr': 1e-3}}
  with pytest.raises(ConfigError, match=message):
    config_values.typed(Stage, {**section, **change}, 'finetune')


@dataclasses.dataclass(frozen=True)
class Note:
  stages: dict[str, Stage]
  losses: list[float]
  tried: list[Optimizer] = dataclasses.field(default_factory=list)
  weights: Mapping[str, float] | None = None


@pytest.mark.parametrize(
  'change, message',
  [
    ({}, None),
    ({'date': 'of a later version', 'tried': [{'lr': 1, 'note': ''}], 'weights': None}, None),
    ({'losses': [1, 'x']}, "losses[1] takes float, not 'x'"),
    ({'losses': [float('nan')]}, 'losses[0] takes float, not nan'),
    ({'losses': [1e200]}, 'losses[0] takes float, not 1e+200'),
    ({'losses': [2**63]}, f'losses[0] takes float, not {2**63}'),
    ({'losses': (1.0,)}, 'losses takes list, not (1.0,)'),
    ({'tried': [{}]}, 'tried[0] lacks the key lr: it takes lr, clip'),
    ({'tried': ['x']}, "tried[0] is a section with the keys lr, clip, not 'x'"),
    ({'weights': {'a': True}}, 'weights.a takes float, not True'),
    ({'stages': {'finetune': {'epochs': 'x'}}}, "stages.finetune.epochs takes int, not 'x'"),
    ({'stages': 3}, 'stages takes dict, not 3'),
  ],
)
def test_the_first_wrong_key_of_a_json_file_is_named_with_its_path(change, message):
  assert config_values.problem(Note, {'stages': {}, 'losses': []} | change) == message
  assert config_values.problem(Note, [change]).startswith('it is a section with the keys stages, losses')
