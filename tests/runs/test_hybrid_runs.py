"""Runs whose blocks have different mixers are trained, resumed, loaded and exported like other runs."""

import jax
import numpy as np
import pytest

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.runs import build, kernels
from lra_spt.training import state
from lra_spt.training.checkpoints import weights

SHORT = {
  f'{stage}.{key}': value
  for stage in ('pretrain', 'finetune')
  for key, value in {'max_steps': 4, 'evaluate_every': 2}.items()
}


@pytest.fixture(scope='module')
def load(repository, tiny_data):
  def load(argument, **overrides):
    overrides = SHORT | {'runtime.data_dir': str(tiny_data), 'runtime.devices': 1} | overrides
    return loading.load(f'{repository}/tests/tiny_config.py:{argument}', overrides)

  return load


@pytest.fixture(scope='module')
def workdir(load, tmp_path_factory):
  folder = tmp_path_factory.mktemp('hybrid') / 'run'
  lra_spt.train(load('model=s4-attention,regime=masked'), folder, announce=lambda line: None)
  return folder


def test_a_run_is_loaded_and_exported(workdir, load, tmp_path, capsys):
  run = lra_spt.load_run(workdir)
  blocks = run.params['encoder']['blocks']
  assert (sorted(blocks), 'query' in blocks[1]['mixer']) == ([0, 1], True)
  file = tmp_path / 'encoder.safetensors'
  assert cli.main(['export', f'--workdir={workdir}', '--format=safetensors', f'--output={file}']) == 0
  spec = build.resolve(load('model=s4-attention')).model
  fresh = {'params': run.params, 'stats': run.stats}
  started = weights.read(file, spec).start(fresh)
  np.testing.assert_array_equal(
    started['params']['encoder']['blocks'][1]['mixer']['query']['kernel'],
    blocks[1]['mixer']['query']['kernel'],
  )
  with pytest.raises(CheckpointError, match=r'model.mixers.1.heads=2 instead of 4'):
    weights.read(file, build.resolve(load('model=s4-attention', **{'model.mixers.1.heads': 4})).model)
  with pytest.raises(CheckpointError, match=r'model.mixer.name=s4-attention instead of attention-s4'):
    weights.read(file, build.resolve(load('model=attention-s4')).model)


def test_patterns_choose_places(load):
  frozen = build.build(
    build.resolve(load('model=s4-attention', **{'finetune.freeze': 'blocks/0/*'})), 'finetune'
  )
  names = state.leaf_names(frozen.model.params)
  sizes = [leaf.size for leaf in jax.tree.leaves(frozen.model.params)]
  first = [size for name, size in zip(names, sizes, strict=True) if name.startswith('encoder/blocks/0/')]
  assert frozen.model.frozen_count == sum(first) > 0


def test_layers_without_kernels_or_weights_are_left_out(workdir, capsys):
  actual = kernels.compute(workdir)
  assert actual.shown == (1,)
  assert np.isfinite(actual.learned).all(1).tolist() == [True, False]
  with pytest.raises(
    ConfigError, match='--layers names layer 2, whose mixer in .* has no convolution kernel'
  ):
    kernels.compute(workdir, layers=(1, 2))
  inside = lra_spt.look_inside(workdir, examples=2)
  for curves in inside.attention.values():
    assert np.isfinite(curves).any((1, 2)).tolist() == [False, True]
  for curves in inside.kernels.values():
    assert np.isfinite(curves).all(1).tolist() == [True, False]
  assert cli.main(['inside', f'--workdir={workdir}', '--examples=2']) == 0
  assert 'mean distance of attention, by layer: none, ' in capsys.readouterr().out
  assert cli.main(['report', f'--workdir={workdir.parent}']) == 0
  page = (workdir.parent / 'report.html').read_text()
  for heading, there in (('Attention, layer', 2), ('Kernel, layer', 1)):
    assert [f'{heading} {layer}' in page for layer in (1, 2)] == [layer == there for layer in (1, 2)]
  assert 's4-attention' in page


@pytest.mark.slow
def test_a_killed_run_goes_on_also_on_other_devices(train, trajectory, tmp_path):
  flags, options = ['--config.model.depth=4'], {'argument': 'model=s4-attention,regime=masked'}
  train(tmp_path / 'whole', *flags, **options)
  for name, moment, devices in (('same', 'logged:finetune:11', 2), ('other', 'logged:pretrain:11', 4)):
    train(tmp_path / name, *flags, killed_at=moment, **options)
    train(tmp_path / name, *flags, devices=devices, **options)
  whole, same, other = (trajectory(tmp_path / name) for name in ('whole', 'same', 'other'))
  assert same == whole
  losses = [[line['loss'] for lines in run.values() for line in lines] for run in (whole, other)]
  np.testing.assert_allclose(*losses, rtol=1e-3)
