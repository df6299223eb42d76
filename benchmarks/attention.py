"""Attention on CPU: a Transformer's training step beside PyTorch, and attention to neighbouring blocks."""

import argparse
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from benchmarks.peers import torch_transformer
from benchmarks.peers.torch_transformer import CLASSES, VOCABULARY, Size
from lra_spt.ops.attention import BlockTable, Full, Neighbours, Window, attention
from lra_spt.ops.attention.patterns import visible_pairs

SIZES = (Size(2, 4096, 128, 4, 8, 512), Size(8, 1024, 128, 4, 8, 512), Size(50, 256, 64, 3, 4, 128))
SMALL = Size(2, 64, 32, 2, 2, 64)
CONTENDERS = ('blockwise', 'torch', 'xla')

WIDTH = 32  # of the head of `block_attention`
TIME_PER_PAIR, TIMES_FASTER, MEMORY_SHARE = 1.15, 1.4, 0.1  # targets of `block_attention`


def jax_step(size: Size, kind: str):
  """(function that makes a step and returns its loss, facts about it, peak bytes before it)."""
  batch, length, width, layers, heads, hidden = size

  def attend(q_BLHK, k_BLHK, v_BLHK):
    if kind == 'xla':
      return jax.nn.dot_product_attention(q_BLHK, k_BLHK, v_BLHK, implementation='xla')
    return attention(q_BLHK, k_BLHK, v_BLHK, pattern=Full(), implementation=kind)

  def norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

  def product(x_BLD, weight_DE):  # merges the leading axes, as layers of our models do on CPUs
    return (x_BLD.reshape(-1, x_BLD.shape[-1]) @ weight_DE).reshape(*x_BLD.shape[:2], -1)

  def loss(params, tokens_BL, label_B):
    x_BLD = params['embed'][tokens_BL]
    for layer in params['layers']:
      y_BLD = norm(x_BLD, layer['norm1'])
      q, k, v = (product(y_BLD, layer[name]).reshape(batch, length, heads, -1) for name in ('q', 'k', 'v'))
      x_BLD = x_BLD + product(attend(q, k, v).reshape(x_BLD.shape), layer['o'])
      hidden_BLE = jax.nn.gelu(product(norm(x_BLD, layer['norm2']), layer['up']))
      x_BLD = x_BLD + product(hidden_BLE, layer['down'])
    logits_BC = norm(x_BLD, params['norm']).mean(1) @ params['head']
    return optax.softmax_cross_entropy_with_integer_labels(logits_BC, label_B).mean()

  rng = np.random.default_rng(0)

  def weight(*shape):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

  def layer():
    square = {name: weight(width, width) for name in ('q', 'k', 'v', 'o')}
    norms = {'norm1': jnp.ones(width), 'norm2': jnp.ones(width)}
    return square | norms | {'up': weight(width, hidden), 'down': weight(hidden, width)}

  params = {
    'embed': weight(VOCABULARY, width),
    'layers': [layer() for _ in range(layers)],
    'norm': jnp.ones(width),
    'head': weight(width, CLASSES),
  }
  optimizer = optax.adamw(1e-3)

  def step(params, state, tokens_BL, label_B):
    value, gradients = jax.value_and_grad(loss)(params, tokens_BL, label_B)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  tokens_BL = jnp.asarray(rng.integers(VOCABULARY, size=(batch, length)), jnp.int32)
  label_B = jnp.asarray(rng.integers(CLASSES, size=batch), jnp.int32)
  state = params, optimizer.init(params)
  baseline = harness.peak_bytes()
  compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*state, tokens_BL, label_B).compile()

  def run():
    nonlocal state
    *state, value = compiled(*state, tokens_BL, label_B)
    return float(value)

  return run, harness.compiled_bytes(compiled), baseline


def serve(kind: str, size: Size) -> None:
  """Serves one contender, see `harness.serve`."""
  try:
    step = torch_transformer.step(size) if kind == 'torch' else jax_step(size, kind)
  except ImportError as error:
    print(json.dumps({'not_run': str(error)}), flush=True)
    return
  harness.serve(*step)


def measure(size: Size, rounds: int) -> dict[str, dict]:
  """{contender: the columns of its row}."""
  kinds = [kind for kind in CONTENDERS if kind != 'xla' or size.length <= 1024]
  rows, samples = harness.contest(
    lambda kind: harness.Worker('attention', '--serve', kind, *size), kinds, rounds
  )
  for kind, taken in samples.items():
    rows[kind] |= harness.milliseconds(taken) | {'peak_megabytes': round(taken[-1]['peak_bytes'] / 1e6)}
    if 'torch' in samples:
      rows[kind]['time_over_torch'] = harness.ratios(taken, samples['torch'])
  missing = {'not_run': 'needs more than 20 GB at this size'}
  return {kind: rows.get(kind, missing) for kind in CONTENDERS}


def run_attention(arguments):
  """Times a training step with attention beside PyTorch, and measures its memory.

  The step is forward, backward and AdamW in float32 of a plain pre-norm Transformer classifier with heads of
  16 dimensions. There are two sizes: 4 layers of width 128 with feed-forward layers of 512 and, as people
  train on laptops, 3 layers of width 64 with 128.

  Every contender is a process, and all take turns of about a second, so that a busy machine slows all of them
  alike. Ratios are medians over the turns, of wall time and of processor time, which a busy machine disturbs
  less. Peak memory is what a process adds after its imports and parameters, so it includes compilation.
  """
  parser = harness.parser(run_attention, 'attention_cpu.json')
  harness.add_quick(parser, rounds=9)
  parser.add_argument('--serve', nargs=1 + len(Size._fields), help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.serve:
    return serve(options.serve[0], Size(*map(int, options.serve[1:])))

  harness.cpu_only()
  sizes, rounds = ((SMALL,), 1) if options.quick else (SIZES, options.rounds)
  what = 'training step of a Transformer in float32 with AdamW'
  report = harness.report('attention', what, 'torch', quick=options.quick, rows=[])
  report['command'] += f' --rounds={rounds}'
  for size in sizes:
    for kind, row in measure(size, rounds).items():
      report['rows'].append(size._asdict() | {'attention': kind} | row)
      print(json.dumps(report['rows'][-1]), flush=True)
  harness.write(options.json, report)


class AllCut(Window):
  """A window that masks every tile."""

  def seen_by_all(self, q0, q1):
    return 0, 0


def block_cases(block, short, long):
  """{name: (pattern, length)}; the first three are those of the targets."""
  blocks = short // block
  near = tuple(tuple(range(max(0, i - 1), min(blocks, i + 2))) for i in range(blocks))
  causal = Neighbours(block, 1, 0, causal=True)
  return {
    'neighbours short': (Neighbours(block), short),
    'neighbours long': (Neighbours(block), long),
    'full short': (Full(), short),
    'all tiles cut short': (AllCut(short, short), short),
    'causal short': (causal, short),
    'causal long': (causal, long),
    'table short': (BlockTable(block, near), short),
  }


def program(pattern, length):
  """(function that runs forward and backward and waits, facts about it)."""
  rng = np.random.default_rng(0)
  arrays = [jnp.asarray(rng.normal(size=(1, length, 1, WIDTH)), jnp.float32) for _ in range(4)]

  def both(q, k, v, d_out):
    out, pull = jax.vjp(functools.partial(attention, pattern=pattern), q, k, v)
    return out, *pull(d_out)

  compiled = jax.jit(both).lower(*arrays).compile()
  known = {
    'length': length,
    'pattern': 'BlockTable' if isinstance(pattern, BlockTable) else str(pattern),
    'visible_pairs': visible_pairs(pattern, length, length),
    'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
  }
  return lambda: jax.block_until_ready(compiled(*arrays)), known


def summary(programs, samples):
  """(rows by program, targets with what was measured, other ratios)."""
  known = {name: row for name, (_, row) in programs.items()}
  pairs = {name: row['visible_pairs'] for name, row in known.items()}
  rows = []
  for name, taken in samples.items():
    row = {'case': name} | known[name] | harness.milliseconds(taken)
    row['processor_nanoseconds_per_pair'] = round(1e6 * row['processor_milliseconds'] / pairs[name], 3)
    rows.append(row)

  def compare(above, below, scale=1.0):
    return harness.ratios(samples[above], samples[below], scale)

  def per_pair(above, below):
    return compare(above, below, pairs[below] / pairs[above])

  short = known['neighbours short']
  growth, faster = per_pair('neighbours long', 'neighbours short'), compare('full short', 'neighbours short')
  share = short['temporary_bytes'] / (4 * short['length'] ** 2)
  targets = [
    {'target': f'time per visited pair, long over short, at most {TIME_PER_PAIR}', 'measured': growth,
     'met': max(growth.values()) <= TIME_PER_PAIR},
    {'target': f'at least {TIMES_FASTER} times faster than full attention', 'measured': faster,
     'met': min(faster.values()) >= TIMES_FASTER},
    {'target': f'temporary memory over one float32 matrix of scores, at most {MEMORY_SHARE}',
     'measured': round(share, 5), 'met': share <= MEMORY_SHARE},
  ]  # fmt: skip
  beside = {
    'time of a cut tile over a clear one': compare('all tiles cut short', 'full short'),
    'time per visited pair, causal over both directions': per_pair('causal short', 'neighbours short'),
    'time per visited pair, causal, long over short': per_pair('causal long', 'causal short'),
    'time of the table over the interval': compare('table short', 'neighbours short'),
  }
  return rows, targets, beside


def run_block_attention(arguments):
  """Tests that the cost of block attention grows with the visible pairs of query and key alone.

  One head of 32 dimensions, batch 1, float32, forward and backward; tokens see their own block of 4,096 and
  its two neighbours. The compiled programs take turns in one process, one timed run each, so that a busy
  machine slows all of them alike. Ratios are medians over the turns, of wall time and of processor time,
  which a busy machine disturbs less; a target is met when both meet it. `all tiles cut` is full attention
  that compares positions in every tile: the cost of a mask. `table` is the same layout of blocks, listed one
  by one.
  """
  parser = harness.parser(run_block_attention, 'attention_block_cpu.json')
  harness.add_quick(parser, rounds=9)
  options = parser.parse_args(arguments)
  harness.cpu_only()
  sizes, rounds = ((32, 128, 512), 1) if options.quick else ((4096, 16384, 65536), options.rounds)
  what = f'one head of {WIDTH} dimensions, batch 1, float32, forward and backward, blocks of {sizes[0]}'
  report = harness.report('block_attention', what, quick=options.quick, rounds=rounds)
  programs = {name: program(*case) for name, case in block_cases(*sizes).items()}
  samples = harness.turns({name: run for name, (run, _) in programs.items()}, rounds)
  rows, targets, beside = summary(programs, samples)
  for row in (*rows, *targets, beside):
    print(json.dumps(row))
  harness.write(options.json, report | {'targets': targets, 'beside': beside, 'rows': rows})
