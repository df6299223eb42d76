"""Configs of long inputs and large models: PathX, texts and Pythia."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from configs import rows
from lra_spt.config import loading
from lra_spt.data import tasks
from lra_spt.models import ExecutionSpec
from lra_spt.runs.build import build, resolve
from tests.config.choices import FORMS, load

LONG = [
  ('pathx', 128, 4096, 'paper'),
  ('pathx', 64, 1024, 'ours'),
  ('pathx', 256, 8192, 'ours'),
  ('speech_commands', 0, 4000, 'paper'),
]


def load_long(task, resolution, model, regime):
  choice = f'resolution={resolution},' if resolution else ''
  return loading.load(f'configs/{task}.py:{choice}model={model},regime={regime}')


@pytest.mark.parametrize('task, resolution, block, origin', LONG)
def test_long_tasks_attend_to_neighbouring_blocks_and_recompute(task, resolution, block, origin):
  for model, (regime, _) in itertools.product(rows.TRANSFORMERS, FORMS):
    config = load_long(task, resolution, model, regime)
    mixer, origins = config.model.mixer, config.origins
    assert (mixer.block, mixer.back, mixer.forward) == (block, 1, 1)
    assert {origins.model.mixer[key] for key in ('block', 'back', 'forward')} == {origin}
    assert config.runtime.remat == ('' if resolution == 64 else 'mixers')
    assert origins.runtime.remat == 'ours'


def test_path_256_has_the_papers_s4():
  finetuning = {'masked': (1e-3, 64), 'scratch': (1e-4, 16)}  # C.1.2
  for regime, expected in finetuning.items():
    config = load_long('pathx', 256, 's4', regime)
    stage, origins = config.finetune, config.origins.finetune
    assert (stage.optimizer.lr, stage.batch_size, stage.pool) == (*expected, 'max')
    assert {origins.optimizer.lr, origins.batch_size, origins.pool} == {'paper'}
    assert (config.pretrain.optimizer.lr, config.pretrain.batch_size) == (1e-3, 8)
    assert config.model.to_dict() == load('pathx', 's4', regime).model.to_dict()


@pytest.mark.parametrize('resolution', [64, 256])
def test_other_resolutions_of_pathx_build(resolution):
  for model in rows.MODELS:
    if model.endswith('_random'):
      continue
    for regime, stage in (('masked', 'pretrain'), ('causal', 'finetune')):
      built = build(resolve(load_long('pathx', resolution, model, regime)), stage)
      assert built.task.length == resolution**2
    if model in rows.TRANSFORMERS:
      inputs = jax.ShapeDtypeStruct((1, resolution**2, 1), jnp.float32)
      outputs = jax.eval_shape(lambda x, make=built.model.make_model: make(nnx.Rngs(0))(x), inputs)
      assert outputs.shape == (1, 2)


def test_how_to_compute_reaches_the_model_and_is_no_part_of_the_run():
  plain = loading.load('configs/pathx.py')
  overrides = {'runtime.attention': 'reference', 'runtime.remat': 'dots'}
  config = loading.load('configs/pathx.py', overrides)
  assert loading.identity(config) == loading.identity(plain)
  model = nnx.eval_shape(lambda: build(resolve(config), 'pretrain').model.make_model(nnx.Rngs(0)))
  assert model.encoder.execution == ExecutionSpec(remat='dots', attention='reference')
  assert model.encoder.blocks.mixer.implementation == 'reference'
  with pytest.raises(ValueError, match="runtime.remat is 'some'; choose"):
    build(resolve(loading.load('configs/pathx.py', {'runtime.remat': 'some'})), 'pretrain')
  with pytest.raises(ValueError, match="runtime.scan_layers is 'true'; choose"):
    build(resolve(loading.load('configs/pathx.py', {'runtime.scan_layers': 'true'})), 'pretrain')


def test_identity_head_is_of_the_paper_protocol_and_of_tasks_that_say_so():
  """Published code denoises Text and Retrieval without an output projection; other tasks keep theirs."""
  listops = tasks.get_task('listops')
  published = tasks.Published(identity_head=True)
  tasks.register_task(dataclasses.replace(listops, name='identity_head', published=published))

  def head(task, protocol):
    config = loading.load(f'configs/listops.py:protocol={protocol}', {'task': task})
    return build(resolve(config), 'pretrain').model.params.get('head', {})

  assert not head('identity_head', 'paper')
  assert head('identity_head', 'clean')
  assert head('listops', 'paper')


def test_text_has_two_lengths():
  long, short = (loading.load(f'configs/text.py:length={length}') for length in (4096, 2048))
  assert (long.task, short.task) == ('text', 'text_2048')
  assert loading.difference(long, short) == "task: 'text' -> 'text_2048'"
  assert [tasks.get_task(config.task).length for config in (long, short)] == [4096, 2048]
  assert build(resolve(short), 'pretrain').model.params['head']['out']['kernel'].shape == (512, 130)


@pytest.mark.parametrize('task, splits', [('text', ('holdout', 'reused')), ('retrieval', ('files', 'files'))])
def test_texts_are_pretrained_and_split_as_published_under_the_paper_protocol_only(task, splits):
  built = {
    name: build(resolve(loading.load(f'configs/{task}.py:protocol={name}')), 'pretrain')
    for name in ('clean', 'paper')
  }
  assert tuple(part.task.splits for part in built.values()) == splits
  assert built['clean'].model.params['head']
  assert not built['paper'].model.params.get('head', {})
  paper = build(resolve(loading.load('configs/listops.py:protocol=paper')), 'pretrain')
  assert paper.task == tasks.get_task('listops')


@pytest.mark.parametrize('task', ['text', 'listops', 'retrieval', 'image', 'pathfinder'])
def test_pythia_has_its_published_size_and_training(task):
  config = loading.load(f'configs/pythia.py:task={task}')
  params = build(resolve(config), 'finetune').model.params
  size = lambda tree: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))  # noqa: E731
  assert size(params['encoder']['blocks']) == 18_914_304
  assert size(params['encoder']['norm']) == 1024
  assert params['encoder']['embed']['embedding'].shape == (tasks.get_task(task).vocabulary or 257, 512)
  rates = {'text': (5e-4, 16), 'listops': (5e-5, 64), 'retrieval': (1e-4, 256)}  # Table 5
  rates |= {'image': (7e-5, 64), 'pathfinder': (1e-4, 1024)}
  assert (config.finetune.optimizer.lr, config.finetune.batch_size) == rates[task]
  assert (config.finetune.optimizer.weight_decay, config.model.dropout) == (0.0, 0.0)
  assert config.finetune.head == ('match' if task == 'retrieval' else 'linear')
  assert (config.regime, config.causal, config.model.name) == ('scratch', True, 'pythia_70m')
  assert (config.finetune.max_seconds, config.origins.finetune.max_seconds) == (2 * 86_400.0, 'paper')  # C.1
  assert config.origins.finetune.optimizer.lr == 'paper'
  causal = loading.load(f'configs/pythia.py:task={task},regime=causal')
  assert causal.origins.finetune.optimizer.lr == 'ours'
  assert loading.digest(causal.model) == loading.digest(config.model)
  assert ('byte_tokens' in config.model) == (task in ('image', 'pathfinder'))  # else runs made before differ
