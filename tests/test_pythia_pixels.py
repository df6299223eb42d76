"""Pythia on images: pixels are tokens, weights are published or random, and wrong options are refused."""

import numpy as np
import pytest
import safetensors.numpy

import lra_spt
from data_prep import builders
from lra_spt.data import tasks
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.models.neox import token_ids
from lra_spt.runs import experiment
from lra_spt.runs import plan as planning
from lra_spt.runs.build import resolve, stages_of

COUNTS = {'train': 40, 'test': 9}
GRAY = tasks.register_task(
  tasks.Task(
    name='tiny_pixels',
    dataset='tiny_pixels',
    inputs=tasks.Values(16, mean=(0.5,), std=(0.25,), grayscale=True),
    labels=tasks.Classes(10),
    splits='holdout',
  )
)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  """The folder with a set like that of Image: colours, but 16 pixels."""
  rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp('pixels')
  content = {
    file: (rng.integers(0, 256, (count, 16, 3)).astype(np.uint8), rng.integers(0, 10, count).tolist())
    for file, count in COUNTS.items()
  }
  source = builders.Source(
    description='random',
    citation='none',
    files={file: (lambda file=file: zip(*content[file], strict=True)) for file in COUNTS},
    counts=COUNTS,
    classes=10,
    shape=(16, 3),
    origin='random numbers',
    verified=False,
  )
  builders.prepare_set('tiny_pixels', folder, {'counts': COUNTS}, lambda work: source)
  return folder


@pytest.fixture(scope='module')
def weights_file(golden, tmp_path_factory):
  """(file of a tiny GPT-NeoX with the vocabulary of Pythia, its embedding)."""
  values = golden('gpt_neox_tiny')
  tensors = {key.removeprefix('param:'): values[key] for key in values if key.startswith('param:')}
  embedding = np.random.default_rng(0).normal(size=(50304, 32)).astype(np.float16)
  path = tmp_path_factory.mktemp('weights') / 'model.safetensors'
  safetensors.numpy.save_file(tensors | {'gpt_neox.embed_in.weight': embedding}, path)
  return path, embedding


@pytest.fixture
def load(repository, images):
  """load(argument, overrides) -> config of a tiny Pythia on these images."""

  def load(argument='task=image', **overrides):
    sizes = {'model.width': 32, 'model.depth': 2, 'model.feed_forward': 128, 'model.mixer.heads': 2}
    stage = {'batch_size': 16, 'max_steps': 2, 'evaluate_every': 1, 'schedule.warmup_steps': 1}
    few = {f'{name}.{key}': value for name in ('pretrain', 'finetune') for key, value in stage.items()}
    here = {'task': 'tiny_pixels', 'model.mixer.rotary_dimensions': 4, 'runtime.data_dir': str(images)}
    here |= {'runtime.devices': 1, 'runtime.check_mixer': False}
    return lra_spt.load_config(f'{repository}/configs/pythia.py:{argument}', sizes | few | here | overrides)

  return load


def test_a_run_starts_from_weights_of_pythia(load, weights_file, tmp_path):
  path, embedding = weights_file
  config = load(**{'model.weights': str(path)})
  planned = planning.plan(resolve(config), resumed=True)
  ours = planned.weights.params['encoder']['embed']['embedding']
  theirs = token_ids([*map(str, range(256)), '<mask>'])
  np.testing.assert_array_equal(ours, np.float32(embedding[theirs]))
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert (result['model'], result['task'], list(result['stages'])) == (
    'pythia_70m',
    'tiny_pixels',
    ['finetune'],
  )
  assert 0 <= result['metrics']['test']['accuracy'] <= 1


@pytest.mark.parametrize('task', ['pathfinder', pytest.param('image', marks=pytest.mark.slow)])
def test_pixels_are_predicted_before_they_are_classified(load, task, tmp_path):
  """Training starts from random values. The trained model is read again and predicts from stored pixels."""
  config = load(f'task={task},regime=causal')
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert list(result['stages']) == ['pretrain', 'finetune']
  assert result['stages']['pretrain']['metrics']['loss'] == pytest.approx(np.log(256), rel=0.1)
  run = lra_spt.load_run(tmp_path / 'run')
  assert run.params['encoder']['embed']['embedding'].shape == (257, 32)
  pixels_BL = np.random.default_rng(1).integers(0, 256, (3, 16)).astype(np.uint8)
  answers = run.predict(pixels_BL)
  assert answers.probabilities.shape == (3, 10)


def test_wrong_options_are_refused(load, weights_file, repository):
  # byte_tokens stays true if the command line changes the task, but only bytes can be tokens.
  for name in ('listops', 'scifar', 'speech_commands'):
    with pytest.raises(ConfigError, match=f'model.byte_tokens is true, .* those of {name} hold'):
      stages_of(resolve(load(task=name)))
  as_numbers = load(**{'model.byte_tokens': False, 'model.weights': str(weights_file[0])})
  with pytest.raises(CheckpointError, match=r'the task has none; .*bytes as tokens \(model.byte_tokens\)'):
    planning.plan(resolve(as_numbers), resumed=True)
  with pytest.raises(ConfigError, match='task=pathx is unknown: choose one of text, listops'):
    lra_spt.load_config(f'{repository}/configs/pythia.py:task=pathx')
