"""How far a model reads: gradients against the formula, weights against the mixer's output, whole runs."""

import importlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.config import protocol as protocols
from lra_spt.errors import CheckpointError, ConfigError, MissingFile, NonFiniteError
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, Model, ModelSpec, make_mixer, register_mixer
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.inside import read_inside
from lra_spt.runs import experiment, inside

L, D, SIDE = 24, 8, 2


@register_mixer('moving_average')
class MovingAverage(nnx.Module):
  """y_t = mean of x_s over |t - s| <= SIDE."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal
    self.skip = nnx.Param(jnp.zeros(width))

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    padded = jnp.pad(x_BLD, ((0, 0), (SIDE, SIDE), (0, 0)))
    return sum(padded[:, i : i + x_BLD.shape[1]] for i in range(2 * SIDE + 1)) / (2 * SIDE + 1)


def model_of(mixer='attention', *, tokens=False, causal=False, options=None, **sizes):
  sizes = {'width': D, 'depth': 2, 'feed_forward': 12, 'position': 'sinusoidal', 'norm': 'layer'} | sizes
  mixer = {'name': mixer} | ({'heads': 2} if mixer == 'attention' else {}) | (options or {})
  return Model(
    ModelSpec(name='test', mixer=mixer, **sizes),
    InputSpec(L, vocabulary=5) if tokens else InputSpec(L, channels=3),
    HeadSpec('tokens', 3),
    causal=causal,
    protocol=protocols.get_protocol('clean'),
    execution=ExecutionSpec(scan_layers='always'),
    rngs=nnx.Rngs(0),
  )


def values(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('tokens', [False, True])
def test_the_field_of_a_moving_average_is_that_of_the_formula(tokens):
  """The model is linear: before training, BatchNorm divides by the constant sqrt(1 + 1e-5) in evaluation."""
  sizes = {'norm': 'batch', 'prenorm': True, 'feed_forward': 0, 'position': 'none'}
  model = model_of('moving_average', tokens=tokens, **sizes)
  layer = np.zeros(4 * SIDE + 1)
  layer[SIDE : 3 * SIDE + 1] = 1 / np.sqrt(1 + 1e-5) / (2 * SIDE + 1)
  layer[2 * SIDE] += 1
  two = np.convolve(layer, layer, 'same')
  expected = np.zeros(L)
  np.add.at(expected, np.abs(np.arange(-2 * SIDE, 2 * SIDE + 1)), two / two.sum())
  if tokens:
    inputs, lengths, channels = jnp.ones((2, L), jnp.int32), np.array([L, 11], np.int32), 0
  else:  # the third channel is a flag, which does not count
    inputs, lengths, channels = jnp.asarray(values(2, L, 3)), None, 2
  actual = inside._field(model, inputs, lengths, channels, '')
  np.testing.assert_allclose(actual, expected, atol=1e-6)
  np.testing.assert_allclose(actual.sum(), 1)
  model.encoder.blocks.mixer_norm.norm.scale[...] *= np.nan
  with pytest.raises(NonFiniteError, match='the gradient of the initial model is nan in all'):
    inside._field(model, inputs, lengths, channels, 'initial')


def test_a_causal_model_reads_nothing_later():
  gradients = []
  for causal in (True, False):
    graphdef, arrays = nnx.split(model_of(causal=causal).encoder)
    call = jnp.asarray(values(1, L, 3)), None, jnp.int32(9)
    gradients.append(np.asarray(inside._gradient(arrays, *call, graphdef=graphdef, channels=None)))
  assert not gradients[0][10:].any()
  assert all((gradient[:10] > 0).all() for gradient in gradients)
  assert (gradients[1][10:] > 0).all()


BLOCKS = [
  {},
  {'prenorm': True, 'parallel_residual': True},
  {'mixer': 'mega', 'norm': 'batch', 'prenorm': True, 'feed_forward': 0},
]


@pytest.mark.parametrize('options', BLOCKS)
def test_walking_the_blocks_computes_the_encoder_and_sums_its_weights(options):
  model, lengths = model_of(**options), np.array([17], np.int32)
  encoder = model.encoder
  inputs = values(1, L, 3)
  graphdef, arrays = nnx.split(encoder)
  x_BLD = encoder.embedded(jnp.asarray(inputs))
  for layer in range(2):
    block = encoder.layer(layer)
    read = block.mixer_norm(x_BLD) if block.prenorm else x_BLD
    weights_HLL = np.float64(block.mixer.attention_weights(read, lengths_B=lengths)[0])[:, :17]
    np.testing.assert_allclose(weights_HLL.sum(-1), 1, atol=1e-6)
    assert not weights_HLL[:, :, 17:].any()
    distance = np.abs(np.arange(17)[:, None] - np.arange(L)[None])
    x_BLD, sums = inside.attended(arrays, x_BLD, layer, lengths, graphdef=graphdef)
    for d in range(L):
      pairs = (distance == d) & (np.arange(L)[None] < 17)
      expected = (
        weights_HLL[:, pairs].sum(-1),
        [pairs.sum() / 17] * len(sums[0]),
        [pairs.sum()] * len(sums[0]),
      )
      np.testing.assert_allclose(sums[:, :, d], expected, atol=1e-5)
  if encoder.has_norm:
    x_BLD = encoder.norm(x_BLD)
  whole = encoder(jnp.asarray(inputs), lengths_B=lengths)
  np.testing.assert_allclose(x_BLD[0, :17], whole[0, :17], atol=1e-5)


def test_queries_of_zero_attend_uniformly():
  model = model_of(causal=True)
  for name in ('query', 'key'):
    linear = getattr(model.encoder.blocks.mixer, name)
    linear.kernel[...] *= 0
    linear.bias[...] *= 0
  actual, left_out = inside._weights_or_none(model, jnp.asarray(values(2, L, 3)), None, '')
  assert not left_out
  assert actual['attention'].shape == (2, 2, L)
  np.testing.assert_allclose(actual['attention'], np.broadcast_to(actual['uniform'], (2, 2, L)), rtol=1e-5)
  # L - d queries have a key at distance d before them; query t divides its weight among t + 1 keys.
  expected = [np.mean(1 / np.arange(d + 1, L + 1)) for d in range(L)]
  np.testing.assert_allclose(actual['uniform'], expected, rtol=1e-5)
  mean = np.mean([np.arange(t + 1).mean() for t in range(L)])
  np.testing.assert_allclose(actual['spans'], mean, rtol=1e-5)
  np.testing.assert_allclose(actual['uniform_span'], mean, rtol=1e-5)


MIXERS = {
  'attention': {'heads': 2, 'rotary': True, 'block': 5},
  'local': {'heads': 2, 'block': 5, 'neighbours': 1},
  'longformer': {'heads': 2, 'window': 6},
  'bigbird': {'heads': 2, 'block': 4, 'random_blocks': 1},
  'spade': {'heads': 2, 'radius': 6, 'state_size': 4},
  'mega': {'z': 4, 'h': 2, 'chunk': 6},
}


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('name', MIXERS)
def test_the_weights_of_a_mixer_give_the_output_of_its_attention(name, causal, monkeypatch):
  mixer = make_mixer(
    name,
    D,
    options=MIXERS[name],
    length=L,
    causal=causal,
    protocol=protocols.get_protocol('clean'),
    rngs=nnx.Rngs(0),
  )
  x_BLD, lengths = jnp.asarray(4 * values(2, L, D)), np.array([L, 13], np.int32)
  module, calls = importlib.import_module(f'lra_spt.models.mixers.{name}'), []
  attend = module.sharded_attention

  def recording(q, k, v, **options):
    calls.append((v, attend(q, k, v, **options)))
    return calls[-1][1]

  monkeypatch.setattr(module, 'sharded_attention', recording)

  @jax.jit
  def computed(x_BLD):
    mixer(x_BLD, lengths_B=lengths)
    return mixer.attention_weights(x_BLD, lengths_B=lengths), *calls[-1]

  weights, v_BLHK, y_BLHK = computed(x_BLD)
  np.testing.assert_allclose(np.einsum('bhlm,bmhk->blhk', weights, v_BLHK), y_BLHK, atol=2e-5)
  assert not np.asarray(weights)[1, :, :, 13:].any()
  if causal:
    assert not np.triu(np.asarray(weights), 1).any()


FORMS = {
  'local': {'heads': 2, 'block': 5},
  'bigbird': {'heads': 2, 'block': 4},
  'longformer': {'heads': 2, 'window': 6, 'global_tokens': 2},
  'mega': {'z': 4, 'h': 2, 'function': 'laplace'},
}


@pytest.mark.parametrize('name', FORMS)
def test_forms_without_softmax_weights_have_none(name):
  protocol = protocols.get_protocol('paper' if name in ('local', 'bigbird') else 'clean')
  common = {'length': L, 'causal': False, 'protocol': protocol, 'rngs': nnx.Rngs(0)}
  assert make_mixer(name, D, options=FORMS[name], **common).attention_weights(values(1, L, D)) is None


def test_weights_that_need_too_much_memory_or_have_another_shape(monkeypatch):
  model = model_of()
  monkeypatch.setattr(inside, 'MOST_WEIGHTS', 2 * L * L - 1)
  actual, left_out = inside._weights_or_none(model, jnp.asarray(values(1, L, 3)), None, '')
  assert not actual
  assert left_out.startswith('Attention weights are left out: one layer has 1,152 of them per example')
  wrong = lambda self, x_BLD, *, lengths_B: x_BLD  # noqa: E731
  monkeypatch.setattr(type(model.encoder.blocks.mixer), 'attention_weights', wrong)
  with pytest.raises(ConfigError, match=r'returns the shape \(1, 24, 8\) .* return \[B, H, L, L\], or None'):
    inside._weights_or_none(model, jnp.asarray(values(1, L, 3)), None, '')


@pytest.fixture(scope='module')
def scratch(tiny_data, repository, tmp_path_factory):
  """A run from scratch of the model, seed and data of `undisturbed`."""
  folder = tmp_path_factory.mktemp('scratch')
  overrides = {'runtime.data_dir': str(tiny_data), 'runtime.devices': 1, 'finetune.epochs': 1}
  config = loading.load(f'{repository}/tests/tiny_config.py:regime=scratch', overrides)
  experiment.run(config, folder, announce=lambda _: None)
  return folder


def test_a_run_and_its_run_from_scratch(undisturbed, scratch, tmp_path, capsys, file_contents):
  before = file_contents(undisturbed)
  run = shutil.copytree(undisturbed, tmp_path / 'run')
  flags = [f'--scratch={scratch}', '--examples=3']
  assert cli.main(['inside', f'--workdir={run}', *flags]) == 0
  printed = capsys.readouterr().out
  assert 'after self-pretraining: 90 % of the gradient within' in printed
  actual = read_inside(run / run_folder.INSIDE)
  states = ['initial', 'pretrained', 'finetuned', 'scratch']
  assert list(actual.field) == list(actual.attention) == list(actual.spans) == states
  assert actual.steps == {
    'initial': 0,
    'pretrained': lra_spt.load_run(undisturbed, 'pretrain').step,
    'finetuned': lra_spt.load_run(undisturbed).step,
    'scratch': lra_spt.load_run(scratch).step,
  }
  assert actual.examples == 3
  assert actual.kernels == {}
  for field in actual.field.values():
    np.testing.assert_allclose(field.sum(), 1, atol=1e-4)
  curves = [*actual.field.values()]
  assert not any(np.allclose(a, b, rtol=1e-3) for a, b in zip(curves, curves[1:], strict=False))
  assert actual.attention['initial'].shape == (2, 2, 24)
  assert file_contents(undisturbed) == before
  assert cli.main(['report', f'--workdir={run}']) == 0
  assert 'Looking inside' in (run / 'report.html').read_text()
  (stage,) = run.glob('pretrain-*')
  shutil.rmtree(stage / 'checkpoints' / 'best')
  again = lra_spt.look_inside(run, examples=1)
  assert list(again.field) == ['initial', 'finetuned']


def test_runs_that_cannot_be_looked_into(undisturbed, scratch, tmp_path):
  assert list(lra_spt.look_inside(scratch, examples=1).field) == ['initial', 'scratch']
  with pytest.raises(ConfigError, match='is itself a run from scratch; give a run with pretraining'):
    lra_spt.look_inside(scratch, scratch)
  with pytest.raises(ConfigError, match='is not a run from scratch; give one as scratch'):
    lra_spt.look_inside(undisturbed, undisturbed)
  with pytest.raises(ConfigError, match='examples is 0; choose at least 1'):
    lra_spt.look_inside(scratch, examples=0)
  with pytest.raises(MissingFile, match='holds no run'):
    lra_spt.look_inside(tmp_path)
  recorded = shutil.copytree(scratch, tmp_path / 'recorded')
  (recorded / 'config.json').unlink()
  result = run_folder.read_result(recorded) | {'recorded': {'seconds': 1.0}}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_folder, 'read_result', lambda folder: result)
    with pytest.raises(MissingFile, match='recorded from elsewhere, without a model; load another run'):
      lra_spt.look_inside(recorded)
  other = shutil.copytree(scratch, tmp_path / 'other')
  config = ConfigDict(run_folder.read_config(other))
  config.seed = 7
  (other / 'config.json').write_text(config.to_json())
  with pytest.raises(ConfigError, match='has seed 7, but .* has 0; give a run from scratch of the same task'):
    lra_spt.look_inside(undisturbed, other)
  empty = shutil.copytree(scratch, tmp_path / 'empty')
  for stage in empty.glob('finetune-*'):
    shutil.rmtree(stage)
  with pytest.raises(CheckpointError, match='has no finetune stage of its own yet; train it'):
    lra_spt.look_inside(empty)
