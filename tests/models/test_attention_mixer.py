"""The attention mixer: numbers of the published code, NumPy, visible positions, implementations, cost."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol as protocols
from lra_spt.models import ExecutionSpec, InputSpec, make_mixer
from lra_spt.models.mixers import attention as attention_module
from lra_spt.ops.attention import Causal, Full, Neighbours

B, L, D, H = 2, 22, 8, 2
LENGTHS = np.array([22, 15], np.int32)


def mixer(causal=False, attention=None, **options):
  return make_mixer(
    'attention',
    D,
    options={'heads': H} | options,
    offered={} if attention is None else {'attention': attention},
    length=L,
    causal=causal,
    protocol=protocols.get_protocol('clean'),
    rngs=nnx.Rngs(0),
  )


def inputs():
  return np.random.default_rng(1).normal(size=(B, L, D)).astype(np.float32)


def seen(q, k, causal, block, back, forward):
  """True where position q attends to k, by the definition of the paper's section 3.2."""
  if block and not -back <= k // block - q // block <= (0 if causal else forward):
    return False
  return k <= q or not causal


def expected(module, x_BLD, lengths, rotary=False, **visibility):
  """The output of the mixer in float64, one query at a time."""
  state = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(module)))
  q, k, v = (
    (np.float64(x_BLD) @ state[name]['kernel'] + state[name]['bias']).reshape(B, L, H, D // H)
    for name in ('query', 'key', 'value')
  )
  if rotary:
    angles = np.arange(L)[:, None] * 10000.0 ** (-np.arange(0, D // H, 2) / (D // H))
    turn = np.exp(1j * angles)[None, :, None]
    q, k = (
      (((x[..., ::2] + 1j * x[..., 1::2]) * turn)[..., None]).view(np.float64).reshape(x.shape)
      for x in (q, k)
    )
  y = np.zeros((B, L, H, D // H))
  for b, t, h in itertools.product(range(B), range(L), range(H)):
    keys = [s for s in range(lengths[b]) if seen(t, s, **visibility)]
    if keys:
      scores = k[b, keys, h] @ q[b, t, h] / np.sqrt(D // H)
      weights = np.exp(scores - scores.max())
      y[b, t, h] = weights @ v[b, keys, h] / weights.sum()
  return y.reshape(B, L, D) @ state['out']['kernel'] + state['out']['bias']


def named(published):
  """The published parameters in our layout: queries, keys, values and output are linears 0 to 3."""
  return {
    f'{name}/{ours}': published[f'linears.{i}.{theirs}'].T
    for i, name in enumerate(('query', 'key', 'value', 'out'))
    for ours, theirs in (('kernel', 'weight'), ('bias', 'bias'))
  }


@pytest.mark.parametrize(
  'name, options',
  [
    ('bi', {}),
    ('causal', {}),
    ('rotary_bi', {'rotary': True}),
    ('rotary_causal', {'rotary': True}),
    ('local_bi', {'rotary': True, 'block': 5}),
    ('local_causal', {'rotary': True, 'block': 5}),
    ('local_back2', {'block': 4, 'back': 2}),
  ],
)
def test_agrees_with_the_published_code(golden, golden_errors, name, options):
  values = golden(f'attention_{name}')
  errors = golden_errors(mixer('causal' in name, **options), values, named)
  assert errors.pop('y') < 2e-6
  if not options.get('rotary'):  # a bias of all keys changes no weight: its gradient is 0 except for rounding
    noise = np.abs(values['grad:linears.1.bias']).max()
    assert errors.pop('key/bias') * noise < 5e-6 * np.abs(values['grad:linears.0.bias']).max()
  assert max(errors.values()) < 5e-6, errors


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('block, back, forward', [(0, 1, 1), (4, 1, 1), (5, 2, 0), (8, 0, 1), (100, 1, 1)])
def test_a_position_sees_its_block_and_the_neighbours(causal, block, back, forward):
  rotary = block == 4
  module = mixer(causal, block=block, back=back, forward=forward, rotary=rotary)
  y_BLD = nnx.jit(lambda module, x: module(x, lengths_B=jnp.asarray(LENGTHS)))(module, inputs())
  reference = expected(
    module, inputs(), LENGTHS, rotary, causal=causal, block=block, back=back, forward=forward
  )
  np.testing.assert_allclose(y_BLD, reference, rtol=2e-5, atol=2e-5)


def test_blocks_are_off_by_default_and_causal_mixers_never_look_forward():
  assert (mixer().pattern, mixer(causal=True).pattern) == (Full(), Causal())
  assert mixer(block=6).pattern == Neighbours(6, back=1, forward=1)
  assert mixer(causal=True, block=6).pattern == Neighbours(6, back=1, forward=0, causal=True)


@pytest.mark.parametrize('causal, block', [(False, 0), (True, 0), (False, 5), (True, 5)])
def test_flops_are_those_of_the_visible_pairs(causal, block):
  pairs = sum(seen(q, k, causal, block, 1, 1) for q, k in itertools.product(range(L), range(L)))
  assert mixer(causal, block=block).flops(L) == 4 * D * pairs


def test_the_implementation_is_chosen_at_run_time(make_model, monkeypatch):
  used = []
  real = attention_module.sharded_attention

  def spy(*arrays, implementation, **options):
    used.append(implementation)
    return real(*arrays, implementation=implementation, **options)

  monkeypatch.setattr(attention_module, 'sharded_attention', spy)
  x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 7, 2)).astype(np.float32))
  models = [make_model(depth=1, execution=ExecutionSpec(attention=name)) for name in ('', 'reference')]
  by_platform, reference = (nnx.jit(lambda model: model(x))(model) for model in models)
  assert used == [None, 'reference']
  np.testing.assert_allclose(by_platform, reference, rtol=2e-5, atol=2e-5)
  assert models[0].flops(7) == models[1].flops(7)


def test_the_implementation_of_attention_goes_only_to_mixers_that_attend(make_model):
  mixer = {'name': 's5', 'state_size': 4, 'blocks': 1}
  model = make_model(mixer=mixer, execution=ExecutionSpec(attention='reference'))
  assert not hasattr(model.encoder.blocks.mixer, 'implementation')


@pytest.fixture(scope='module')
def gradient_by_remat(make_model):
  """{remat: (jaxpr, bytes of temporary memory)} of the gradient of a long model with local attention."""
  results = {}
  for remat in ('', 'elementwise', 'dots', 'mixers', 'blocks'):
    model = make_model(
      width=32,
      depth=4,
      feed_forward=128,
      mixer={'name': 'attention', 'heads': 2, 'block': 128},
      inputs=InputSpec(length=1024, channels=2),
      execution=ExecutionSpec(scan_layers='always', remat=remat),
    )
    graphdef, params = nnx.split(model, nnx.Param)
    gradient = jax.grad(
      lambda params, graphdef=graphdef: jnp.sum(nnx.merge(graphdef, params)(jnp.ones((4, 1024, 2))) ** 2)
    )
    traced = jax.jit(gradient).trace(params)
    memory = traced.lower().compile().memory_analysis().temp_size_in_bytes
    results[remat] = str(traced.jaxpr), memory
  return results


def test_remat_of_mixers_does_not_repeat_the_forward_pass_of_attention(gradient_by_remat):
  """Only the forward pass of attention takes maxima of scores."""
  maxima = {remat: jaxpr.count('reduce_max') for remat, (jaxpr, _) in gradient_by_remat.items()}
  assert maxima['mixers'] == maxima[''] > 0
  assert maxima['blocks'] == maxima['dots'] == 2 * maxima['']


@pytest.mark.parametrize('kernel', ['triton', 'splash'])
def test_remat_of_mixers_saves_the_results_of_kernels(make_model, kernel):
  calls = {}
  for remat in ('', 'mixers', 'blocks'):
    model = make_model(
      width=64,
      depth=1,
      mixer={'name': 'attention', 'heads': 1, 'block': 128},
      inputs=InputSpec(length=640, channels=2),
      execution=ExecutionSpec(remat=remat, attention=kernel),
    )
    graphdef, params = nnx.split(model, nnx.Param)

    def loss(params, graphdef=graphdef):
      return jnp.sum(nnx.merge(graphdef, params)(jnp.ones((1, 640, 2))) ** 2)

    # XLA, not jax, drops calls whose results are not used. An interpreted kernel consists of loops.
    calls[remat] = jax.jit(jax.grad(loss)).lower(params).compile().as_text().count(' while(')
  assert calls['mixers'] == calls[''] > 0
  assert calls['blocks'] > calls['']


def test_remat_takes_less_memory_the_more_it_recomputes(gradient_by_remat):
  everything, elementwise, dots, mixers, blocks = (
    gradient_by_remat[remat][1] for remat in ('', 'elementwise', 'dots', 'mixers', 'blocks')
  )
  assert 0 < blocks < mixers < dots < everything
  assert elementwise < everything
  assert mixers < everything / 2
