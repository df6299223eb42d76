"""Runs of one process share compiled programs, but only where the programs are the same."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt import objectives
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.models import register_mixer
from lra_spt.models.registry import _MIXERS
from lra_spt.runs.build import build, resolve
from lra_spt.training.evaluate import evaluation_step
from lra_spt.training.programs import CACHED, forget_programs, shared
from lra_spt.training.step import StepProgram, train_steps


def built(tiny_config, **overrides):
  overrides = {key.replace('__', '.'): value for key, value in overrides.items()}
  return build(resolve(loading.load(f'{tiny_config}:regime=scratch', overrides)), 'finetune')


def program(stage):
  return StepProgram(stage.model, stage.objective, stage.spec.optimizer, stage.spec.schedule, 6.0)


def test_seeds_share_their_programs(tiny_config):
  one, other = built(tiny_config), built(tiny_config, seed=7)
  assert one.model is other.model
  assert train_steps(program(one)) is train_steps(program(other))
  assert evaluation_step(one.model, one.objective) is evaluation_step(other.model, other.objective)
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh):  # their initial values differ all the same
    states = [stage.fresh_state(mesh)['params']['head'] for stage in (one, other, one)]
  kernels = [np.asarray(jax.tree.leaves(state)[-1]) for state in states]
  np.testing.assert_array_equal(kernels[0], kernels[2])
  assert not np.array_equal(kernels[0], kernels[1])


@pytest.mark.parametrize(
  'overrides',
  [
    {'model__width': 24},
    {'model__mixer__heads': 1},
    {'finetune__optimizer__lr': 1e-4},
    {'finetune__optimizer__clip_norm': 1.0},
    {'finetune__schedule__warmup_steps': 9},
    {'finetune__pool': 'last'},
    {'runtime__precision': 'bfloat16'},
    {'runtime__scan_layers': 'never'},
  ],
)
def test_other_programs_are_not_shared(tiny_config, overrides):
  assert train_steps(program(built(tiny_config))) is not train_steps(program(built(tiny_config, **overrides)))


def test_mixers_and_objectives_of_others_are_not_shared(tiny_config, monkeypatch):
  """User code may change between two runs of a process."""

  @register_mixer('of_another')
  class OfAnother(nnx.Module):
    def __init__(self, width, *, length, causal, protocol, rngs):
      self.linear = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x_BLD, *, lengths_B, deterministic=True, rngs=None):
      return self.linear(x_BLD)

  @dataclasses.dataclass(frozen=True)
  class Objective(objectives.Classification):
    pass

  monkeypatch.delitem(_MIXERS, 'of_another')
  monkeypatch.setitem(_MIXERS, 'of_another', OfAnother)
  config = loading.load(f'{tiny_config}:regime=scratch')
  with config.unlocked():
    config.model.name, config.model.mixer = 'of_another', {'name': 'of_another'}
  assert build(resolve(config), 'finetune').model is not build(resolve(config), 'finetune').model

  stage = built(tiny_config)
  fields = {field.name: getattr(stage.objective, field.name) for field in dataclasses.fields(stage.objective)}
  of_another = dataclasses.replace(program(stage), objective=Objective(**fields))
  assert train_steps(of_another) is not train_steps(of_another)
  assert evaluation_step(stage.model, of_another.objective) is not evaluation_step(
    stage.model, of_another.objective
  )


def test_what_cannot_be_compared_is_not_shared():
  stage = build(resolve(loading.load('configs/image.py:regime=scratch')), 'finetune')
  again = stage.with_task(dataclasses.replace(stage.task))
  assert train_steps(program(again)) is train_steps(program(stage))
  by_position = np.ones((1024, 1), np.float32)
  normalised = stage.with_task(stage.task.with_inputs(mean=by_position, std=by_position))
  assert train_steps(program(normalised)) is not train_steps(program(normalised))


def test_the_oldest_are_forgotten():
  made = []
  make = shared(lambda key: made.append(key) or object())
  first = make(0)
  assert [make(key) for key in range(CACHED)][0] is first
  make(CACHED)
  assert make(0) is not first
  assert len(made) == CACHED + 2
  forget_programs()
  make(0)
  assert len(made) == CACHED + 3
