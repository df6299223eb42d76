"""PathX at its real length through `lra-spt train`, and the smaller rung of the same ladder."""

import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_prep.pathfinder.generated import prepare_pathfinder
from lra_spt import config as config_lib
from lra_spt import parallel
from lra_spt.build import build_stage
from lra_spt.training import state as states
from lra_spt.training.step import StepProgram, train_steps

NARROW = {'model.width': 16, 'model.depth': 2, 'model.feed_forward': 16, 'model.mixer.heads': 2}


@pytest.mark.parametrize('stage', ['pretrain', 'finetune'])
def test_a_step_of_path_64(stage, fast_compiles):
  """A narrow model learns from one image of 4,096 pixels in blocks of 1,024, and from nothing else."""
  config = config_lib.load('configs/pathx.py:resolution=64,model=transformer_rotary,regime=masked', NARROW)
  built = build_stage(config, stage)
  mesh = parallel.make_mesh(devices=jax.devices()[:1])
  pixels = np.random.default_rng(0).integers(0, 256, (1, 1, 64 * 64)).astype(np.uint8)
  batches = {
    'inputs': pixels,
    'lengths': np.full((1, 1), 64 * 64, np.int32),
    'label': np.ones((1, 1), np.int32),
    'weight': np.ones((1, 1), np.float32),
    'index': np.zeros((1, 1), np.int32),
  }
  with jax.set_mesh(mesh):
    optimizer, mode = built.spec.optimizer, built.objective.selection[1]
    state = states.create(built.model, optimizer, mode, jax.random.key(0), mesh)
    program = StepProgram(built.model, built.objective, optimizer, built.spec.schedule, steps_per_epoch=1.0)
    state, records = train_steps(program)(state, batches, jnp.int32(1), jax.random.key(1))
  chance = math.log(256 if stage == 'pretrain' else 2)
  assert abs(float(records['loss'][0]) - chance) < 0.5 * chance
  assert 0 < float(records['gradient_norm'][0]) < 100
  assert int(state['control']['failed_step']) == -1


@pytest.mark.slow
def test_pathx_trains_at_its_real_length(tmp_path, repository):
  """The Transformer of Table 4 on generated images, 16 + 4 steps of one; minutes on two cores."""
  prepare_pathfinder(tmp_path / 'data', resolution=128, examples=24)
  overrides = {
    'pretrain.batch_size': 1,
    'pretrain.max_steps': 16,
    'pretrain.evaluate_every': 16,
    'pretrain.schedule.warmup_steps': 2,  # 5,000 would leave the learning rate at 0
    'finetune.batch_size': 1,
    'finetune.max_steps': 4,
    'finetune.evaluate_every': 4,
    'finetune.schedule.warmup_steps': 2,
    'runtime.data_dir': tmp_path / 'data',
    'runtime.steps_per_dispatch': 1,
    'runtime.log_every': 1,
    'runtime.tensorboard': 'false',
  }
  command = [sys.executable, '-m', 'lra_spt.cli', 'train', '--config=configs/pathx.py:regime=masked']
  flags = [f'--config.{key}={value}' for key, value in overrides.items()]
  command += [f'--workdir={tmp_path / "run"}', *flags]
  one_device = os.environ | {'XLA_FLAGS': ''}
  subprocess.run(command, env=one_device, cwd=repository, check=True, timeout=3000)
  result = json.loads((tmp_path / 'run' / 'result.json').read_text())
  assert (result['task'], result['model'], result['regime']) == ('pathx', 'transformer', 'masked')
  assert [result['stages'][stage]['steps'] for stage in ('pretrain', 'finetune')] == [16, 4]
  assert result['config']['model']['mixer']['block'] == 4096
  assert result['runtime']['remat'] == 'mixers'
  for stage, steps in (('pretrain', 16), ('finetune', 4)):
    lines = (tmp_path / 'run' / result['stages'][stage]['folder'] / 'metrics.jsonl').read_text().splitlines()
    losses = [line['loss'] for line in map(json.loads, lines) if 'gradient_norm' in line]
    assert len(losses) == steps
    assert np.isfinite(losses).all()
    if stage == 'pretrain':
      assert np.mean(losses[8:]) < 0.8 * np.mean(losses[:8])
  assert 0 <= result['metrics']['test']['accuracy'] <= 1
