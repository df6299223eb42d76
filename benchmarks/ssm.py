"""State-space models compared with plain implementations: time and memory of a step, and parts of a layer.

Other benchmarks measure the same step, `training_step`, with other mixers.
"""

import argparse
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
# {contender: contenders that it is compared with}.
COMPARED = {
  's4': ('s4 plain', 's4 products', 's4 torch'), 's4 plain': (), 's4 products': (), 's4 torch': (),
  's4d': ('s4 plain',), 'dlr': ('s4 plain',), 's5 64': ('s5 64 peer',), 's5 64 peer': (),
  's5 256': ('s5 256 peer',), 's5 256 peer': (), 'lru': ('s5 256',)}  # fmt: skip
# Options of our mixer, or two functions of a peer: init(key, width), layer(params, x_BLD) -> y_BLD.
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
  """(parameters, function (parameters, tokens_BL) -> logits_BC, facts) of our encoder with a mixer."""
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

  def logits(params, tokens_BL):  # a copy, since modules write to their state
    return nnx.merge(graphdef, params, jax.tree.map(lambda x: x, rest))(tokens_BL)

  return params, logits, known


def peer_model(init, layer, size):
  """(parameters, function (parameters, tokens_BL) -> logits_BC) of an encoder of a peer's layers."""
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
  """(function that runs one or `count` steps and returns the last loss, facts, peak bytes before compiling).

  Args:
    kind: a contender, or the options of our mixer.
    size: a Size.
    causal: the causal form.
    members: number of runs of this size in one program, as with `runtime.members`.
    **execution: arguments of `ExecutionSpec`, for our mixers.
  """
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
    every = jax.jit(
      lambda *of: population.each(lambda _, *each: step(*each))(None, *of), donate_argnums=(0, 1)
    )
    compiled = every.lower(*state, *data).compile()

  def run(count=1):
    nonlocal state
    for _ in range(count):  # dispatched without waiting
      *state, value = compiled(*state, *data)
    return float(value.mean())

  return run, known | harness.compiled_bytes(compiled), baseline


def serve(kind, *size):
  """Serves one contender, see `harness.serve`."""
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


def contest(kinds, size, rounds):
  """Yields a row per contender."""
  hello, samples = harness.contest(lambda kind: harness.Worker('ssm', '--serve', kind, *size), kinds, rounds)
  for kind in kinds:
    row = {'contender': kind} | Size(*size)._asdict() | hello[kind]
    if kind in samples:
      taken = samples[kind]
      row |= harness.milliseconds(taken) | {'peak_megabytes': round(taken[-1]['peak_bytes'] / 1e6)}
      others = [other for other in COMPARED[kind] if other in samples]
      row['times_faster_than'] = {other: harness.ratios(samples[other], taken) for other in others}
    yield row


def steps(sizes, rounds):
  """Yields a row per size and contender."""
  for size in sizes['steps']:
    yield from contest(sizes['contenders'], size, rounds)


def memory(sizes, rounds):
  """Yields the memory of DLR's kernel with its gradient, which does not run, and of a long step of S4."""
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
  yield from contest(['s4'], sizes['long'], 1)


def layer_rows(sizes, rounds):
  """Yields times of one layer, forward and backward: its kernel, convolution and output, and the whole."""
  for size in map(Size._make, sizes['layer']):
    runs = {}
    for kind in sizes['taken apart']:
      parts = (parts_of if isinstance(CONTENDERS[kind], dict) else parts_of_plain)(kind, size)
      runs |= {(kind, part): run for part, run in parts.items()}
    for (kind, part), taken in harness.turns(runs, rounds).items():
      yield {'contender': kind, 'part': part} | size._asdict() | harness.milliseconds(taken)


def forward_backward(function, *arguments):
  """A function without arguments that runs `function` and the gradients of all its arguments."""

  def both(arguments):
    out, pull = jax.vjp(function, *arguments)
    return out, pull(out)  # the gradient of half the sum of squares

  with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):  # peers rely on both
    compiled = jax.jit(both).lower(arguments).compile()
  return lambda: jax.block_until_ready(compiled(arguments))


def parts_of(kind, size):
  """{part: function that runs it} of our mixer; a long convolution has three parts beside the whole."""
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

  parts = {'whole': run(mixer, lambda mixer, x_BLD: mixer(x_BLD), x_BLD)}
  if isinstance(mixer, LongConvolution):
    parts['kernel'] = run(mixer.kernel, lambda kernel: kernel(size.length))
    parts['convolution'] = forward_backward(fft_conv, x_BLD, mixer.kernel(size.length))
    parts['output'] = run(mixer.output, lambda output, x_BLD: output(x_BLD), x_BLD)
  return parts


def parts_of_plain(kind, size):
  """{part: function that runs it} of the plain S4."""
  init, layer = CONTENDERS[kind]
  params = init(jax.random.key(0), size.width)
  x_BLD = jax.random.normal(jax.random.key(0), (size.batch, size.length, size.width))
  kernel = functools.partial(s4_plain.plain_kernel, length=size.length, products=kind == 's4 products')
  return {'whole': forward_backward(layer, params, x_BLD), 'kernel': forward_backward(kernel, params)}


def layer(sizes, rounds):
  """Yields the rows of `layer_rows`, from a process whose arrays lie in huge pages as in training."""
  yield from harness.Worker('ssm', '--serve_layer', json.dumps(sizes), rounds).answers()


PARTS = {part.__name__: part for part in (steps, memory, layer)}
FULL = {
  'steps': ((8, 1024, 128, 4), (2, 4096, 128, 4)),
  'dlr kernel': {'states': 1024, 'width': 128, 'length': 16384},
  'long': (1, 65536, 256, 6),
  'layer': ((8, 1024, 128, 1), (2, 4096, 128, 1)),
  'taken apart': ('s4', 's4d', 'dlr', 's5 64', 's5 256', 'lru', 's4 plain', 's4 products'),
}
QUICK = {
  'steps': ((2, 32, 8, 2),),
  'dlr kernel': {'states': 16, 'width': 8, 'length': 64},
  'long': (1, 64, 8, 2),
  'layer': ((2, 32, 8, 1),),
  'taken apart': ('s4', 's4 plain'),
}


def run_ssm(arguments):
  """Times state-space models beside plain implementations, and measures their memory.

    steps    a training step (forward, backward, AdamW, float32) of pre-norm encoders with LayerNorm: 4 layers
             of width 128, both directions, no dropout, a linear head. Ours are built as in training; the
             peers in benchmarks/peers are plain functions with the same surroundings. Every contender is a
             process, and all take turns, so that a busy machine slows all of them alike. Ratios are medians
             over the turns, of wall time and of processor time. Peak memory is what a process adds after its
             parameters, so it includes compilation.
    memory   what the compiler allocates for DLR's kernel with its gradient at length 16,384, and for the step
             of S4 at length 65,536 (batch 1, width 256, 6 layers), which also runs.
    layer    the parts of one layer, forward and backward.

  's4 plain' sums over states as in the formula; 's4 products' does so with matrix products; 's4 torch' (if
  PyTorch is installed) is organised like the authors' PyTorch layer without its extension.
  """
  parser = harness.parser(run_ssm, 'ssm_cpu.json')
  harness.add_names(parser, '--parts', PARTS)
  harness.add_names(parser, '--contenders', COMPARED)
  harness.add_quick(parser, rounds=9)
  parser.add_argument('--serve', nargs=5, help=argparse.SUPPRESS)
  parser.add_argument('--serve_layer', nargs=2, help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.serve:
    serve(*options.serve)
    return None
  if options.serve_layer:
    sizes, rounds = map(json.loads, options.serve_layer)
    for row in layer_rows(sizes, rounds):
      print(json.dumps(row), flush=True)
    return None

  harness.cpu_only()
  sizes, rounds = (QUICK, 1) if options.quick else (FULL, options.rounds)
  what = 'state-space models beside plain implementations'
  report = harness.report('ssm', what, 'torch', quick=options.quick)
  report['command'] += f' --rounds={rounds} --parts={",".join(options.parts)}'
  for name in options.parts:
    report[name] = []
    for row in PARTS[name](sizes | {'contenders': options.contenders}, rounds):
      report[name].append(row)
      print(json.dumps(row), flush=True)
      harness.write(options.json, report)
