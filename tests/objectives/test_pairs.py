"""Pairs of documents from the stored set to the result of a run: one encoder, two rows per example."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from data_prep import builders
from lra_spt import objectives
from lra_spt.config import loading
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.models.heads import Head, HeadSpec
from lra_spt.runs import experiment

LENGTH, VOCABULARY = 12, 9
TASK = tasks.register_task(
  dataclasses.replace(
    tasks.get_task('retrieval').with_inputs(length=LENGTH, vocabulary=VOCABULARY),
    name='tiny_pairs', dataset='tiny_pairs',
  )
)  # fmt: skip


@pytest.fixture(scope='module')
def content():
  """{file: [((first, second), label)]}. The label is 1 if both documents begin with the same token."""
  rng = np.random.default_rng(0)
  files = {}
  for file, count in (('train', 64), ('validation', 16), ('test', 24)):
    files[file] = []
    for _ in range(count):
      pair = [rng.integers(4, VOCABULARY, rng.integers(1, LENGTH + 1)).astype(np.uint8) for _ in range(2)]
      files[file].append((tuple(pair), int(pair[0][0] == pair[1][0])))
  return files


@pytest.fixture(scope='module')
def data_dir(content, tmp_path_factory):
  folder = tmp_path_factory.mktemp('pairs')
  source = builders.Source(
    description='random', citation='none', classes=2, shape=None, documents=2, origin='random',
    verified=False, files={file: (lambda file=file: iter(content[file])) for file in content},
    counts={file: len(rows) for file, rows in content.items()},
    extra={'vocabulary': list('abcdefghi')},
  )  # fmt: skip
  builders.prepare_set('tiny_pairs', folder, {}, lambda work: source)
  return folder


@pytest.fixture(scope='module')
def batch(data_dir):
  return examples_lib.open_split(TASK, 'test', data_dir).gather(np.arange(24))


def test_pairs_come_back_padded(content, data_dir):
  examples = examples_lib.open_split(TASK, 'train', data_dir)
  batch = examples.gather([5, 0, 63])
  shapes = {name: (part.shape, part.dtype) for name, part in TASK.batch(3).items()}
  assert {name: (values.shape, values.dtype) for name, values in batch.items()} == shapes
  assert batch['inputs'].shape == (3, 2, LENGTH)
  for row, position in enumerate([5, 0, 63]):
    pair, label = content['train'][position]
    assert batch['label'][row] == label
    for k, document in enumerate(pair):
      assert batch['lengths'][row, k] == len(document)
      assert np.array_equal(batch['inputs'][row, k, : len(document)], document)
      assert (batch['inputs'][row, k, len(document) :] == TASK.inputs.pad_id).all()


def test_documents_become_neighbouring_rows(batch):
  prepared = objectives.Classification(TASK, head_kind='match').prepare(batch, None)
  assert np.array_equal(prepared.inputs[0::2], batch['inputs'][:, 0])
  assert np.array_equal(prepared.inputs[1::2], batch['inputs'][:, 1])
  assert np.array_equal(prepared.lengths_B, batch['lengths'].ravel())
  assert np.array_equal(prepared.targets, batch['label'])
  assert prepared.weights.shape == (24,)


def test_each_document_has_a_separate_mask_that_follows_its_example(batch):
  same = batch | {'inputs': np.full_like(batch['inputs'], 5), 'lengths': np.full((24, 2), LENGTH, np.int32)}
  objective = objectives.MaskedDenoising(TASK, mask_rate=0.5)
  keys = jax.random.split(jax.random.key(0), 24)
  hidden = np.asarray(objective.prepare(same, keys).inputs) == TASK.inputs.mask_id
  assert 0.4 < hidden.mean() < 0.6
  assert len({row.tobytes() for row in hidden}) > 40  # of 48; 24 if the documents of a pair shared them
  few = {name: values[[7, 3]] for name, values in same.items()}
  assert np.array_equal(
    np.asarray(objective.prepare(few, keys[jnp.array([7, 3])]).inputs) == TASK.inputs.mask_id,
    hidden[[14, 15, 6, 7]],
  )


@pytest.mark.parametrize(
  'objective', [objectives.MaskedDenoising(TASK, mask_rate=0.5), objectives.CausalDenoising(TASK)]
)
def test_denoising_counts_no_padding_and_no_row_of_weight_zero(batch, objective):
  weight = np.ones(24, np.float32)
  weight[4] = 0
  keys = jax.random.split(jax.random.key(0), 24)
  prepared = objective.prepare(batch | {'weight': weight}, keys)
  counted = np.asarray(prepared.weights) == 1
  assert counted.shape == (48, LENGTH)
  assert not counted[8:10].any()
  assert not counted[np.arange(LENGTH)[None] >= batch['lengths'].reshape(-1, 1)].any()
  assert counted.any(axis=1).mean() > 0.7


def test_matching_head_is_its_formula():
  head = Head(HeadSpec('match', 2, 'mean'), 5, rngs=nnx.Rngs(0))
  h_BLD = np.random.default_rng(0).normal(size=(6, 4, 5)).astype(np.float32)
  lengths = np.array([4, 2, 1, 3, 4, 4], np.int32)
  pooled = np.stack([row[:n].mean(0) for row, n in zip(h_BLD.astype(np.float64), lengths, strict=True)])
  first, second = pooled[[0, 2, 4]], pooled[[1, 3, 5]]
  features = np.concatenate([first, second, first - second, first * second], axis=1)
  hidden = features @ np.float64(head.hidden.kernel[...]) + np.float64(head.hidden.bias[...])
  hidden = hidden * 0.5 * (1 + scipy.special.erf(hidden / np.sqrt(2)))
  expected = hidden @ np.float64(head.out.kernel[...]) + np.float64(head.out.bias[...])
  np.testing.assert_allclose(head(h_BLD, lengths_B=lengths), expected, rtol=1e-5, atol=1e-6)


def test_heads_and_tasks_must_go_together():
  with pytest.raises(ValueError, match="finetune.head is 'linear', but an example of tiny_pairs is a pair"):
    objectives.Classification(TASK, head_kind='linear')
  with pytest.raises(ValueError, match="finetune.head is 'match', but an example of listops is one sequence"):
    objectives.Classification(tasks.get_task('listops'), head_kind='match')


@pytest.fixture(scope='module')
def results(data_dir, repository, tmp_path_factory):
  """The results of a masked run on one device and on all eight."""
  runs = {}
  for devices in (1, 8):
    overrides = {
      'finetune.head': 'match', 'runtime.data_dir': str(data_dir), 'runtime.devices': devices,
      'pretrain.epochs': 2.0, 'finetune.epochs': 2.0, 'task': 'tiny_pairs', 'runtime.checkpoint_every': 0,
    }  # fmt: skip
    config = loading.load(f'{repository}/tests/tiny_config.py:regime=masked', overrides)
    workdir = tmp_path_factory.mktemp('run') / str(devices)
    runs[devices] = experiment.run(config, workdir, announce=lambda line: None), workdir
  return runs


def test_a_run_on_pairs_is_the_same_on_any_devices(results, content):
  (one, workdir), (eight, _) = results[1], results[8]
  for split in ('validation', 'test'):
    for name, value in one['metrics'][split].items():
      np.testing.assert_allclose(eight['metrics'][split][name], value, rtol=1e-5, err_msg=name)
  for stage in ('pretrain', 'finetune'):
    np.testing.assert_allclose(
      eight['stages'][stage]['metrics']['loss'], one['stages'][stage]['metrics']['loss'], rtol=1e-5
    )
  predictions = np.load(workdir / 'predictions.npz')
  assert predictions['label'].tolist() == [label for _, label in content['test']]
  assert json.loads((workdir / 'result.json').read_text())['data'] == {'source': 'random', 'verified': False}
  # A document needs four projections, a feed-forward layer and attention in each of 2 blocks, a pair a head
  # of 4D x D + D x 2 weights.
  document = 2 * LENGTH * 2 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 4 * 16 * LENGTH**2
  pair = 2 * document + 2 * (4 * 16 * 16 + 16 * 2)
  assert one['stages']['finetune']['flops_per_step'] == 3 * 16 * pair
