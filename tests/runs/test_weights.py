"""Encoders are exported as safetensors, and other runs start from them bit for bit. Errors name bad files."""

import dataclasses
import json
import pathlib
import re
import shutil
import zipfile

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.models import ModelSpec
from lra_spt.report.runs import run_folder
from lra_spt.runs import experiment
from lra_spt.runs import plan as planning
from lra_spt.runs.build import resolve, stages_of
from lra_spt.training.checkpoints import weights


@pytest.fixture(scope='module')
def load(repository, tiny_data):
  def load(regime='masked', **overrides):
    overrides = {'runtime.data_dir': str(tiny_data), 'runtime.check_mixer': False} | overrides
    return lra_spt.load_config(f'{repository}/tests/tiny_config.py:regime={regime}', overrides)

  return load


@pytest.fixture(scope='module')
def exported(undisturbed, load, tmp_path_factory):
  """{stage: file} of a run."""
  load()  # registers the task
  actual = {}
  for stage in ('pretrain', 'finetune'):
    actual[stage] = tmp_path_factory.mktemp('weights') / f'{stage}.safetensors'
    flags = ['--format=safetensors', f'--stage={stage}', f'--output={actual[stage]}']
    assert cli.main(['export', f'--workdir={undisturbed}', *flags]) == 0
  return actual


def first_state(config):
  """Parameters that the first stage of a run starts from."""
  name, built = next(iter(stages_of(resolve(config)).items()))
  read = weights.read(config.model.weights, resolve(config).model)
  fresh = {'params': built.model.params, 'stats': built.model.stats}
  fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), fresh)
  return name, read.start(jax.tree.map(jax.numpy.asarray, fresh))['params']['encoder']


@pytest.mark.parametrize('stage', ['pretrain', 'finetune'])
@pytest.mark.parametrize('regime', ['masked', 'scratch'])
def test_an_encoder_comes_back_bit_for_bit(exported, undisturbed, load, stage, regime):
  run = lra_spt.load_run(undisturbed, stage)
  name, actual = first_state(load(regime, **{'model.weights': str(exported[stage])}))
  assert name == ('pretrain' if regime == 'masked' else 'finetune')
  jax.tree.map(np.testing.assert_array_equal, actual, run.params['encoder'])
  with safetensors.safe_open(exported[stage], 'numpy') as file:
    about = file.metadata()
  assert (about['task'], about['stage'], about['step']) == (run.config.task, stage, str(run.step))
  assert about['flag'] == 'false'  # tokens need no flag of hidden values
  assert json.loads(about['model'])['width'] == run.config.model.width


def test_a_submission_has_the_encoder_of_every_run(exported, undisturbed, tmp_path, capsys):
  out = tmp_path / 's.zip'
  assert cli.main(['submit', f'--workdir={undisturbed}', f'--out={out}', '--weights']) == 0
  assert 'tiny_listops, transformer' in capsys.readouterr().out
  with zipfile.ZipFile(out) as packed:
    tensors = safetensors.numpy.load(packed.read('encoder.safetensors'))
  jax.tree.map(np.testing.assert_array_equal, tensors, safetensors.numpy.load_file(exported['finetune']))


def test_weights_that_are_not_finite_are_named(exported, load, tmp_path):
  with safetensors.safe_open(exported['finetune'], 'numpy') as file:
    about = file.metadata()
  tensors = safetensors.numpy.load_file(exported['finetune'])
  tensors['params.encoder.blocks.mixer.key.kernel'][0, 0] = np.inf
  safetensors.numpy.save_file(tensors, path := tmp_path / 'broken.safetensors', metadata=about)
  with pytest.raises(
    CheckpointError, match=f'{path} has a number that is not finite in encoder/blocks/mixer/key'
  ):
    first_state(load('scratch', **{'model.weights': str(path)}))


@pytest.mark.parametrize(
  'key, value, message',
  [
    ('model.mixer.heads', 4, 'model.mixer.heads=2 instead of 4'),
    ('model.activation', 'silu', 'model.activation=gelu instead of silu'),
    ('model.prenorm', False, 'model.prenorm=True instead of False'),
    ('model.mixer.rotary', True, 'model.mixer.rotary=False instead of True'),
  ],
)
def test_parameters_that_would_mean_something_else_are_refused(exported, load, key, value, message):
  config = load('scratch', **{'model.weights': str(exported['finetune'])})
  at, name = (config.model.mixer if 'mixer' in key else config.model), key.rpartition('.')[2]
  with config.unlocked(), at.unlocked():
    at[name] = value
  with pytest.raises(CheckpointError, match=re.escape(message)):
    first_state(config)


def test_options_of_initialisation_and_learning_rate_do_not_make_another_model(tmp_path):
  model = {
    'mixer': {'name': 's5', 'state_size': 8, 'blocks': 2, 'ssm_lr': 0.1, 'dt_min': 0.1},
    'norm': 'batch',
  }
  theirs = weights._of_header({'model': json.dumps(model)})
  here = {'name': 's5', 'state_size': 8, 'blocks': 2, 'ssm_lr': 0.01, 'b_group': 'stage', 'scan': ''}
  spec = ModelSpec(name='s5', width=4, depth=1, mixer=here, norm='batch')
  weights._check('file', theirs, spec)
  with pytest.raises(CheckpointError, match='model.mixer.gate=half_glu1 instead of full_glu'):
    weights._check('file', theirs, dataclasses.replace(spec, mixer=here | {'gate': 'full_glu'}))
  with pytest.raises(CheckpointError, match='model.norm=batch instead of layer'):
    weights._check('file', theirs, dataclasses.replace(spec, norm='layer'))
  assert weights._of_header({'model': '[1'}) == weights._of_header({'model': '[1]'}) == {}


def test_a_run_starts_from_a_file_wherever_it_lies(exported, undisturbed, load, tmp_path):
  """It is another run than one from random weights. Its config has the checksum of the file, not its path."""
  overrides = {
    'model.weights': str(exported['finetune']),
    'finetune.max_steps': 2,
    'finetune.evaluate_every': 1,
  }
  config = load('scratch', **overrides)
  plain = load('scratch', **(overrides | {'model.weights': ''}))
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  stored = run_folder.read_config(tmp_path / 'run')
  assert stored['model']['weights'].startswith('sha256:')
  assert result['config']['model']['weights'] == stored['model']['weights']
  without = experiment.run(plain, tmp_path / 'plain', announce=lambda line: None)
  assert 'weights' not in run_folder.read_config(tmp_path / 'plain')['model']
  assert result['stages']['finetune']['folder'] != without['stages']['finetune']['folder']
  assert result['stages']['finetune']['metrics'] != without['stages']['finetune']['metrics']
  moved = pathlib.Path(shutil.copy(exported['finetune'], tmp_path / 'moved.safetensors'))
  again = load('scratch', **(overrides | {'model.weights': str(moved)}))
  assert experiment.run(again, tmp_path / 'run', announce=lambda line: None) == result
  # The file is read when a run begins, so it may be deleted then.
  gone = lambda line: moved.unlink(missing_ok=True)  # noqa: E731
  assert experiment.run(again, tmp_path / 'third', announce=gone)['config'] == result['config']
  assert not moved.exists()
  with pytest.raises(ConfigError, match='belongs to another config'):
    experiment.run(plain, tmp_path / 'run', announce=lambda line: None)
  run = lra_spt.load_run(tmp_path / 'run')
  assert run.config.model.weights == stored['model']['weights']


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float64'])
def test_every_precision_of_a_file_becomes_float32(load, tmp_path, dtype):
  kernel = np.arange(6).reshape(3, 2).astype(jax.numpy.dtype(dtype))
  tensors = {'params.encoder.embed.kernel': kernel}
  safetensors.numpy.save_file(tensors, tmp_path / 'file', {'format': 'lra_spt'})
  (read,) = jax.tree.leaves(weights.read(tmp_path / 'file', resolve(load()).model).params)
  assert read.dtype == np.float32
  np.testing.assert_array_equal(read, np.float32(kernel))


def test_the_flag_of_hidden_values_is_left_out(load, tmp_path):
  """In masked pretraining on values, the embedding has one row more than in finetuning: that of the flag."""
  kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
  weights.write(tmp_path / 'file', {'encoder': {'embed': {'kernel': kernel}}}, {}, {'flag': True})
  read = weights.read(tmp_path / 'file', resolve(load()).model)
  for rows in (2, 3):
    fresh = {'params': {'encoder': {'embed': {'kernel': jax.numpy.zeros((rows, 2))}}}, 'stats': {}}
    np.testing.assert_array_equal(read.start(fresh)['params']['encoder']['embed']['kernel'], kernel[:rows])


@pytest.mark.parametrize('about', [{}, {'stage': 'pretrain', 'flag': False}])
def test_a_channel_is_not_left_out(load, tmp_path, about):
  weights.write(tmp_path / 'file', {'encoder': {'embed': {'kernel': np.ones((3, 2))}}}, {}, about)
  read = weights.read(tmp_path / 'file', resolve(load()).model)
  fresh = {'params': {'encoder': {'embed': {'kernel': jax.numpy.zeros((2, 2))}}}, 'stats': {}}
  with pytest.raises(
    CheckpointError, match=r'does not fit .*embed/kernel is float32 \[3, 2\] .* \[2, 2\] in'
  ):
    read.start(fresh)


def test_the_flag_cannot_be_made_up(load, tmp_path):
  weights.write(tmp_path / 'file', {'encoder': {'embed': {'kernel': np.ones((1, 2))}}}, {}, {})
  read = weights.read(tmp_path / 'file', resolve(load()).model)
  fresh = {'params': {'encoder': {'embed': {'kernel': jax.numpy.zeros((2, 2))}}}, 'stats': {}}
  with pytest.raises(CheckpointError, match='no row for the flag of hidden positions, .* --stage=pretrain'):
    read.start(fresh)


def test_arrays_keep_what_they_are(load, tmp_path):
  tree = {'embed': {'kernel': np.ones((2, 2), np.float32)}, 'count': np.int32(3), 'scale': np.float32(0.5)}
  weights.write(tmp_path / 'file', {'encoder': tree}, {}, {})
  actual = weights.read(tmp_path / 'file', resolve(load()).model).params['encoder']
  for name in ('count', 'scale'):
    np.testing.assert_array_equal(actual[name], tree[name], strict=True)
  with pytest.raises(ConfigError, match=r'params\.encoder\.a is complex'):
    weights.write(tmp_path / 'other', {'encoder': {'a': np.ones(2, np.complex64)}}, {}, {})


def plan(config):
  return planning.plan(resolve(config), resumed=True)


def test_what_does_not_fit_is_named_before_anything_is_written(exported, load, tmp_path):
  tensors = safetensors.numpy.load_file(exported['finetune'])

  def refused(message, change, kind=CheckpointError):
    path = tmp_path / 'changed.safetensors'
    if isinstance(change, bytes):
      path.write_bytes(change)
    else:
      arrays = {name: array for name, array in (tensors | change).items() if array is not None}
      safetensors.numpy.save_file(arrays, path)
    with pytest.raises(kind, match=message):
      plan(load('scratch', **{'model.weights': str(path)}))

  name = next(name for name in tensors if name.endswith('mixer.query.kernel'))
  path = name.removeprefix('params.').replace('.', '/')
  refused(f'changed.safetensors does not fit .*has no params/{path}', {name: None})
  refused(f'does not fit .*has params/{path}s', {f'{name}s': np.ones(2)})
  refused(f'does not fit .*params/{path} is', {name: np.ones((1, 2, 3), np.float32)})
  refused('holds a tensor head.kernel, which belongs neither', {'head.kernel': np.ones(2)})
  refused('holds no embedding', dict.fromkeys([n for n in tensors if '.embed.' in n]))
  refused('is not a complete safetensors file', exported['finetune'].read_bytes()[:-9], ValueError)
  refused('is not a complete safetensors file', b'nothing', ValueError)
  with pytest.raises(ValueError, match='absent.safetensors, but there is no such file'):
    plan(load('scratch', **{'model.weights': str(tmp_path / 'absent.safetensors')}))


def test_an_encoder_is_not_printed(undisturbed, capsys):
  assert cli.main(['export', f'--workdir={undisturbed}', '--format=safetensors']) == 2
  assert 'name a file with --output=FILE' in capsys.readouterr().err


@pytest.fixture
def pythia(golden, load, repository, tiny_data, tmp_path):
  """pythia(rows) -> (config of a tiny Pythia on tiny_listops, the embedding of `rows` tokens in its file)."""
  load()  # registers the task

  def make(rows):
    values = golden('gpt_neox_tiny')
    tensors = {key.removeprefix('param:'): values[key] for key in values if key.startswith('param:')}
    embedding = np.random.default_rng(0).normal(size=(rows, 32)).astype(np.float16)
    path = tmp_path / f'{rows}.safetensors'
    safetensors.numpy.save_file(tensors | {'gpt_neox.embed_in.weight': embedding}, path)
    sizes = {'model.width': 32, 'model.depth': 2, 'model.feed_forward': 128, 'model.mixer.heads': 2}
    stage = {'batch_size': 16, 'max_steps': 2, 'evaluate_every': 1, 'schedule.warmup_steps': 1}
    overrides = sizes | {f'finetune.{key}': value for key, value in stage.items()}
    overrides |= {'task': 'tiny_listops', 'model.mixer.rotary_dimensions': 4, 'model.weights': str(path)}
    overrides |= {'runtime.data_dir': str(tiny_data), 'runtime.devices': 1, 'runtime.check_mixer': False}
    return lra_spt.load_config(f'{repository}/configs/pythia.py:task=listops', overrides), embedding

  return make


def test_a_run_starts_from_weights_of_pythia(pythia, tmp_path):
  config, embedding = pythia(50278)
  planned = plan(config)
  names = planned.data['train'].metadata['vocabulary']
  ours = planned.weights.params['encoder']['embed']['embedding']
  for name, theirs in (('5', 22), ('X', 57), ('[MAX', 34), ('[MIN', 37), ('<pad>', 1), ('<mask>', 50277)):
    np.testing.assert_array_equal(ours[names.index(name)], np.float32(embedding[theirs]), err_msg=name)
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert (result['model'], result['causal'], list(result['stages'])) == ('pythia_70m', True, ['finetune'])
  assert 0 <= result['metrics']['test']['accuracy'] <= 1


def test_embeddings_of_other_tokens_are_named(pythia):
  config, _ = pythia(50277)
  with pytest.raises(CheckpointError, match='holds embeddings of 50,277 tokens, but id 50,277 is asked for'):
    plan(config)
  with pytest.raises(CheckpointError, match='holds embeddings of text tokens, but the task has none'):
    weights.read(config.model.weights, resolve(config).model)
  with pytest.raises(
    CheckpointError, match="of the set the token 'word' is not a character, operator or byte;"
  ):
    weights.read(config.model.weights, resolve(config).model, ['<mask>', '255', 'word'])
