"""The schema: every rule refuses in one sentence, and its choices are those that the rooms implement."""

import jax
import pytest
from flax import nnx

from lra_spt.config import runtime, schema
from lra_spt.config.fields import keys_of
from lra_spt.config.values import typed
from lra_spt.errors import ConfigError
from lra_spt.models import execution, layers
from lra_spt.models.heads import pool
from lra_spt.ops import attention, fourier, scan
from lra_spt.training.monitoring import trackers

MODEL = {'name': 'x', 'width': 4, 'depth': 1, 'mixer': {'name': 'none'}}
HYBRID = MODEL | {'depth': 2, 'mixer': {}, 'mixers': [{'name': 'none'}, {'name': 's4'}]}
STAGE = {'batch_size': 1, 'epochs': 1.0, 'optimizer': {'lr': 1e-3, 'weight_decay': 0.0}, 'schedule': {}}


@pytest.mark.parametrize(
  'cls, section, message',
  [
    (schema.ModelSpec, MODEL | {'depth': 0}, 'depth is 0, but it must be at least 1'),
    (schema.ModelSpec, MODEL | {'dropout': 1.0}, 'dropout is 1.0, but it must be at least 0 and below 1'),
    (schema.ModelSpec, MODEL | {'input_dropout': -0.1}, 'input_dropout is -0.1, but'),
    (schema.ModelSpec, MODEL | {'position': 'fourier'}, "position is 'fourier'; choose one of 'learned', "),
    (schema.ModelSpec, MODEL | {'norm': 'group'}, "norm is 'group'; choose"),
    (schema.ModelSpec, MODEL | {'activation': 'relu'}, "activation is 'relu'; choose one of 'gelu', 'silu'"),
    (schema.ModelSpec, MODEL | {'random_init': 'ssn'}, "random_init is 'ssn'; choose .* Did you mean ssm"),
    (schema.ModelSpec, MODEL | {'mixer': {}}, 'mixer has no name'),
    (schema.ModelSpec, MODEL | {'mixers': [{'name': 'none'}]}, 'mixers stands beside model.mixer; give one'),
    (schema.ModelSpec, HYBRID | {'depth': 3}, 'mixers has 2 mixers, which do not divide model.depth=3; set'),
    (schema.ModelSpec, HYBRID | {'mixers': [{'heads': 2}] * 2}, 'mixers.0 has no name; give model.mixers.0'),
    (schema.ModelSpec, HYBRID | {'mixers': {'0': {}, '2': {}}}, 'mixers has the keys 0, 2: number them'),
    (schema.FinetuneSpec, STAGE | {'head': 'cnn', 'pool': 'mean'}, "head is 'cnn'; choose"),
    (schema.FinetuneSpec, STAGE | {'head': 'mlp', 'pool': 'median'}, "pool is 'median'; choose"),
    (schema.StageSpec, STAGE | {'data_fraction': 0.0}, 'data_fraction is 0.0, .* above 0 and at most 1'),
    (schema.StageSpec, STAGE | {'schedule': {'milestones': (2, -1)}}, 'schedule.milestones is .*at least 0'),
    (schema.StageSpec, STAGE | {'schedule': {'warmup_steps': 2**31}}, 'schedule.warmup_steps is .* below 2'),
    (runtime.RuntimeSpec, {'scan': 'pallsa'}, "scan is 'pallsa'; choose .* Did you mean pallas"),
    (runtime.RuntimeSpec, {'remat': 'all'}, "remat is 'all'; choose one of '', 'none', "),
    (runtime.RuntimeSpec, {'precision': 'float8'}, "precision is 'float8'; choose"),
    (runtime.RuntimeSpec, {'placement': 'disk'}, "placement is 'disk'; choose one of '', 'host', 'device'"),
    (runtime.RuntimeSpec, {'mesh': {'sequence': 2}}, 'mesh has no key sequence: it takes data, fsdp, seq'),
    (runtime.RuntimeSpec, {'trackers': 'wandb,x'}, "trackers has 'x'; choose among wandb, mlflow"),
    (runtime.RuntimeSpec, {'data_dir': ' '}, 'data_dir is empty'),
  ],
)
def test_a_value_that_breaks_a_rule_is_named_with_its_key(cls, section, message):
  with pytest.raises(ConfigError, match=f'^section.{message}'):
    typed(cls, section, 'section')


def test_choices_are_those_that_are_implemented():
  assert set(runtime.ATTENTION) == set(attention.NAMES)
  assert set(runtime.SCANS) == set(scan.NAMES)
  assert set(runtime.CONVOLUTIONS) == set(fourier.NAMES)
  assert set(runtime.REMAT) == {'none', *execution._REMAT}
  assert set(schema.ACTIVATIONS) == set(layers.ACTIVATIONS)
  assert set(runtime.TRACKERS) == set(trackers.TRACKERS)
  for kind in schema.NORMS:
    layers.Norm(kind, 4, rngs=nnx.Rngs(0))
  for kind in schema.POOLS:
    pool(jax.numpy.zeros((1, 2, 3)), kind)


def test_every_key_has_a_meaning_and_a_default_that_its_own_rules_allow():
  keys = keys_of(schema.ConfigSpec)
  assert all(field.metadata['meaning'] for field in keys.values())
  assert typed(runtime.RuntimeSpec, {}, 'runtime') == runtime.RuntimeSpec()
  assert not {'schedule.rises', 'mixer'} & keys_of(schema.ModelSpec).keys()
