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
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.build import build, resolve
from lra_spt.training.step import StepProgram, train_steps

NARROW = {'model.width': 16, 'model.depth': 2, 'model.feed_forward': 16, 'model.mixer.heads': 2}
QUICK = {'schedule.warmup_steps': 0, 'optimizer.lr': 3e-2}
STEPS = 3


@pytest.mark.parametrize('stage', ['pretrain', pytest.param('finetune', marks=pytest.mark.slow)])
def test_path_64_learns_an_image(stage):
  """A narrow model starts at chance and learns one image of 4,096 pixels, with blocks of 1,024. Pretraining
  learns the levels of the pixels, two of 256 equally often; finetuning learns the class."""
  quick = {f'{stage}.{key}': value for key, value in QUICK.items()}
  spec = 'configs/pathx.py:resolution=64,model=transformer_rotary,regime=masked'
  built = build(resolve(loading.load(spec, NARROW | quick)), stage)
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  pixels = np.random.default_rng(0).choice([0, 255], 64 * 64).astype(np.uint8)
  batch = {
    'inputs': pixels[None],
    'lengths': np.full(1, 64 * 64, np.int32),
    'label': np.ones(1, np.int32),
    'weight': np.ones(1, np.float32),
    'index': np.zeros(1, np.int32),
  }
  batches = {name: np.stack([values] * STEPS) for name, values in batch.items()}
  with jax.set_mesh(mesh):
    schedule = built.spec.schedule.resolved(STEPS)
    program = StepProgram(built.model, built.objective, built.spec.optimizer, schedule, steps_per_epoch=1.0)
    state = built.fresh_state(mesh)
    state, records = train_steps(program)(state, batches, jnp.int32(STEPS), jax.random.key(1))
  losses, chance = np.asarray(records['loss']), math.log(256 if stage == 'pretrain' else 2)
  np.testing.assert_allclose(losses[0], chance, rtol=0.1 if stage == 'pretrain' else 0.3)
  assert losses[-1] < 0.7 * losses[0]
  assert int(state['control']['failed_step']) == -1


@pytest.mark.slow
def test_pathx_trains_at_its_real_length(tmp_path, repository):
  """The Transformer of Table 4 trains 16 + 4 steps of one generated image. It takes minutes on two cores."""
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
  command = [sys.executable, '-m', 'lra_spt', 'train', '--config=configs/pathx.py:regime=masked']
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
