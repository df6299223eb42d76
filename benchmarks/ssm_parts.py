"""What the processes of ssm.py run: training steps of our models and of plain ones, and parts of a layer."""

import collections
import contextlib
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import harness
from benchmarks.peers import s4_plain, s4_torch, s5_peer
from lra_spt.config.protocol import CLEAN
from lra_spt.distributed import sharding
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, Model, ModelSpec, make_mixer
from lra_spt.models.ssm import LongConvolution
from lra_spt.ops.fft_conv import fft_conv
from lra_spt.ops.vandermonde import vandermonde
from lra_spt.training import population

VOCABULARY, CLASSES = 256, 10
Size = collections.namedtuple('Size', 'batch length width layers')
# What a contender is compared with.
COMPARED = {
  's4': ('s4 plain', 's4 products', 's4 torch'), 's4 plain': (), 's4 products': (), 's4 torch': (),
  's4d': ('s4 plain',), 'dlr': ('s4 plain',), 's5 64': ('s5 64 peer',), 's5 64 peer': (),
  's5 256': ('s5 256 peer',), 's5 256 peer': (), 'lru': ('s5 256',)}  # fmt: skip
# The options of our mixer; or of a peer: init(key, width), layer(params, x_BLD) -> y_BLD.
CONTENDERS = {
  's4': {'name': 's4', 'state_size': 64},
  's4 plain': (functools.partial(s4_plain.init_plain, states=64), s4_plain.plain_layer),
  's4 products': (
    functools.partial(s4_plain.init_plain, states=64),
    functools.partial(s4_plain.plain_layer, products=True),
  ),
  's4d': {'name': 's4d', 'state_size': 64},
  'dlr': {'name': 'dlr', 'state_size': 1024},
  'lru': {'name': 'lru', 'state_size': 256},
}
for _states in (64, 256):
  CONTENDERS[f's5 {_states}'] = {'name': 's5', 'state_size': _states, 'blocks': 1}
  CONTENDERS[f's5 {_states} peer'] = (
    functools.partial(s5_peer.init_peer, states=_states),
    jax.vmap(s5_peer.peer_layer, (None, 0)),
  )


def our_model(options, size, execution=ExecutionSpec(), causal=False):  # noqa: B008
  """(parameters, function (parameters, tokens_BL) -> logits_BC, what is known of it) of the encoder with this
  mixer."""
  model = Model(
    ModelSpec(name=options['name'], width=size.width, depth=size.layers, mixer=options),
    InputSpec(size.length, vocabulary=VOCABULARY),
    HeadSpec('linear', CLASSES),
    causal=causal,
    protocol=CLEAN,
    execution=execution,
    rngs=nnx.Rngs(0),
  )
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)
  known = {
    'parameters': sum(x.size for x in jax.tree.leaves(params)),
    'gigaflops': round(3e-9 * size.batch * model.flops(size.length), 3),
  }

  def logits(params, tokens_BL):  # what a model notes beside its parameters belongs to the trace
    return nnx.merge(graphdef, params, jax.tree.map(lambda x: x, rest))(tokens_BL)

  return params, logits, known


def peer_model(init, layer, size):
  """Likewise, of a peer's functions."""
  keys = jax.random.split(jax.random.key(0), size.layers + 2)

  def norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale + bias

  def logits(params, tokens_BL):
    x_BLD = params['embed'][tokens_BL]
    for one in params['layers']:
      x_BLD = x_BLD + layer(one['mixer'], norm(x_BLD, *one['norm']))
    return norm(x_BLD, *params['norm']).mean(1) @ params['head'] + params['head_bias']

  params = {
    'embed': jax.random.normal(keys[0], (VOCABULARY, size.width)),
    'layers': [{'norm': _norm_params(size.width), 'mixer': init(key, size.width)} for key in keys[2:]],
    'norm': _norm_params(size.width),
    'head': jax.random.normal(keys[1], (size.width, CLASSES)) / size.width**0.5,
    'head_bias': jnp.zeros(CLASSES),
  }
  return params, logits


def _norm_params(width):
  return jnp.ones(width), jnp.zeros(width)


def training_step(kind, size, causal=False, members=1, **execution):
  """(a function that runs one or `count` steps and returns the last loss, what is known of the step, peak
  bytes before compiling); kind: a contender, or the options of our mixer; execution: of ours, see
  `ExecutionSpec`; members: as many runs of the size in one program, as with `runtime.members`."""
  what = kind if isinstance(kind, dict) else CONTENDERS[kind]
  ours = isinstance(what, dict)
  params, logits, known = (
    our_model(what, size, ExecutionSpec(**execution), causal) if ours else (*peer_model(*what, size), {})
  )
  optimizer = optax.adamw(1e-3)

  def step(params, state, tokens_BL, label_B):
    def loss(params):
      return optax.softmax_cross_entropy_with_integer_labels(logits(params, tokens_BL), label_B).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  rng = np.random.default_rng(0)
  tokens_BL = jnp.asarray(rng.integers(VOCABULARY, size=(size.batch, size.length)), jnp.int32)
  label_B = jnp.asarray(rng.integers(CLASSES, size=size.batch), jnp.int32)
  state, data = (params, optimizer.init(params)), (tokens_BL, label_B)
  if members > 1:
    state, data = jax.tree.map(lambda x: jnp.stack([x] * members), (state, data))
    known['gigaflops'] *= members
  baseline = harness.peak_bytes()
  with contextlib.ExitStack() as settings:
    settings.enter_context(jax.numpy_dtype_promotion('standard'))  # peers rely on both
    settings.enter_context(jax.numpy_rank_promotion('allow'))
    if members > 1:
      mesh = sharding.make_mesh(devices=jax.devices()[:1], members=members)
      settings.enter_context(jax.set_mesh(mesh))
    every = jax.jit(lambda *of: population.each(lambda _, *own: step(*own))(None, *of), donate_argnums=(0, 1))
    compiled = every.lower(*state, *data).compile()

  def run(count=1):
    nonlocal state
    for _ in range(count):  # in flight together
      *state, value = compiled(*state, *data)
    return float(value.mean())

  return run, known | harness.compiled_bytes(compiled), baseline


def serve_part(part, sizes, rounds):
  """The rows of a part on standard output."""
  for row in PARTS[part](json.loads(sizes), int(rounds)):
    print(json.dumps(row), flush=True)


def serve(kind, *size):
  """One contender, see harness.serve."""
  size = Size(*map(int, size))
  if kind != 's4 torch':
    return harness.serve(*training_step(kind, size))
  init, _ = CONTENDERS['s4 plain']
  keys = jax.random.split(jax.random.key(0), size.layers)
  initial = [jax.tree.map(np.asarray, init(key, size.width)) for key in keys]
  try:
    step = s4_torch.step(size, initial)
  except ImportError as error:
    print(json.dumps(harness.not_run(error)), flush=True)
    return None
  return harness.serve(*step)


def dlr_kernel(sizes, rounds):
  """Memory of DLR's kernel and its gradient; nothing runs."""
  del rounds
  size = sizes['dlr kernel']

  def both(c_SDN, exponent_N, d_kernel_SDL):
    make = functools.partial(vandermonde, length=size['length'])
    kernel_SDL, pull = jax.vjp(make, c_SDN, exponent_N)
    return kernel_SDL, pull(d_kernel_SDL)

  shapes = (
    jax.ShapeDtypeStruct((2, size['width'], size['states']), jnp.complex64),
    jax.ShapeDtypeStruct((size['states'],), jnp.complex64),
    jax.ShapeDtypeStruct((2, size['width'], size['length']), jnp.float32),
  )
  yield {'contender': 'dlr kernel'} | size | harness.compiled_bytes(jax.jit(both).lower(*shapes).compile())


def layer(sizes, rounds):
  """One layer, forward and backward: its kernel, its convolution, its output, and the whole."""
  for size in map(Size._make, sizes['layer']):
    runs = {}
    for kind in sizes['taken apart']:
      parts = (parts_of if isinstance(CONTENDERS[kind], dict) else parts_of_plain)(kind, size)
      runs |= {(kind, part): run for part, run in parts.items()}
    for (kind, part), taken in harness.turns(runs, rounds).items():
      yield {'contender': kind, 'part': part} | size._asdict() | harness.milliseconds(taken)


def forward_backward(function, *arguments):
  """A function that runs `function` and its gradients for all arguments."""

  def both(arguments):
    out, pull = jax.vjp(function, *arguments)
    return out, pull(out)  # the gradient of half the sum of squares

  with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):  # peers rely on both
    compiled = jax.jit(both).lower(arguments).compile()
  return lambda: jax.block_until_ready(compiled(arguments))


def parts_of(kind, size):
  """{part: function that runs it} of our mixer; a long convolution has three parts."""
  options = dict(CONTENDERS[kind])
  mixer = make_mixer(
    options.pop('name'),
    size.width,
    options=options,
    length=size.length,
    causal=False,
    protocol=CLEAN,
    rngs=nnx.Rngs(0),
  )
  x_BLD = jax.random.normal(jax.random.key(0), (size.batch, size.length, size.width))

  def run(module, call, *arguments):
    graphdef, params = nnx.split(module)
    return forward_backward(lambda params, *xs: call(nnx.merge(graphdef, params), *xs), params, *arguments)

  found = {'whole': run(mixer, lambda mixer, x_BLD: mixer(x_BLD), x_BLD)}
  if isinstance(mixer, LongConvolution):
    found['kernel'] = run(mixer.kernel, lambda kernel: kernel(size.length))
    found['convolution'] = forward_backward(fft_conv, x_BLD, mixer.kernel(size.length))
    found['output'] = run(mixer.output, lambda output, x_BLD: output(x_BLD), x_BLD)
  return found


def parts_of_plain(kind, size):
  """Likewise, of the plain S4."""
  init, layer = CONTENDERS[kind]
  params = init(jax.random.key(0), size.width)
  x_BLD = jax.random.normal(jax.random.key(0), (size.batch, size.length, size.width))
  kernel = functools.partial(s4_plain.plain_kernel, length=size.length, products=kind == 's4 products')
  return {'whole': forward_backward(layer, params, x_BLD), 'kernel': forward_backward(kernel, params)}


PARTS = {part.__name__: part for part in (dlr_kernel, layer)}
