"""Speed and memory of a training step with attention, side by side with PyTorch.

  python -m benchmarks.attention [--json PATH] [--rounds N] [--quick]

The step is forward, backward and AdamW in float32 of a plain pre-norm Transformer classifier: 4 layers,
width 128, 8 heads of 16 dimensions, feed-forward 512. Every contender is a process of its own. They stay
alive and take turns, one timed step each, so that a busy machine slows all of them alike; ratios are taken
round by round, and their median is reported: of wall time, and of processor time, which a busy machine
disturbs less. Peak memory is what a process adds after its imports and parameters, so with compilation.
--quick: toy sizes, one round. It shows that the command works, and measures nothing.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from benchmarks.peers import torch_transformer
from benchmarks.peers.torch_transformer import CLASSES, HEADS, HIDDEN, LAYERS, VOCABULARY, WIDTH
from lra_spt.ops.attention import Full, attention

SIZES = ((2, 4096), (8, 1024))  # batch, length
CONTENDERS = ('blockwise', 'torch', 'xla')


def jax_step(batch, length, kind):
  """(a function that makes a step and returns its loss, what is known about it, peak bytes before it)."""

  def attend(q_BLHK, k_BLHK, v_BLHK):
    if kind == 'xla':
      return jax.nn.dot_product_attention(q_BLHK, k_BLHK, v_BLHK, implementation='xla')
    return attention(q_BLHK, k_BLHK, v_BLHK, pattern=Full(), implementation=kind)

  def norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

  def loss(params, tokens_BL, label_B):
    x_BLD = params['embed'][tokens_BL]
    for layer in params['layers']:
      y_BLD = norm(x_BLD, layer['norm1'])
      q, k, v = ((y_BLD @ layer[name]).reshape(batch, length, HEADS, -1) for name in ('q', 'k', 'v'))
      x_BLD = x_BLD + attend(q, k, v).reshape(x_BLD.shape) @ layer['o']
      x_BLD = x_BLD + jax.nn.gelu(norm(x_BLD, layer['norm2']) @ layer['up']) @ layer['down']
    logits_BC = norm(x_BLD, params['norm']).mean(1) @ params['head']
    return optax.softmax_cross_entropy_with_integer_labels(logits_BC, label_B).mean()

  rng = np.random.default_rng(0)

  def weight(*shape):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

  def layer():
    square = {name: weight(WIDTH, WIDTH) for name in ('q', 'k', 'v', 'o')}
    norms = {'norm1': jnp.ones(WIDTH), 'norm2': jnp.ones(WIDTH)}
    return square | norms | {'up': weight(WIDTH, HIDDEN), 'down': weight(HIDDEN, WIDTH)}

  params = {
    'embed': weight(VOCABULARY, WIDTH),
    'layers': [layer() for _ in range(LAYERS)],
    'norm': jnp.ones(WIDTH),
    'head': weight(WIDTH, CLASSES),
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


def serve(kind, batch, length):
  """One contender, see harness.serve."""
  if kind != 'torch':
    return harness.serve(*jax_step(batch, length, kind))
  try:
    run, known, baseline = torch_transformer.step(batch, length)
  except ImportError as error:
    print(json.dumps({'not_run': str(error)}), flush=True)
    return None
  return harness.serve(run, known, baseline)


def measure(batch, length, rounds):
  """{contender: its row}; all of them alive together, one step each per round."""
  rows, workers = {}, {}
  try:
    for kind in CONTENDERS:  # they compile one after the other
      if kind == 'xla' and length > 1024:
        rows[kind] = {'not_run': 'needs more than 20 GB at this size'}
        continue
      worker = harness.Worker('attention', '--serve', kind, batch, length)
      workers[kind], rows[kind] = worker, worker.answer()
    running = {kind: worker for kind, worker in workers.items() if 'not_run' not in rows[kind]}
    samples = harness.workers_in_turns(running, rounds)
  finally:
    for worker in workers.values():
      worker.close()
  for kind, taken in samples.items():
    rows[kind] |= harness.milliseconds(taken) | {'peak_megabytes': round(taken[-1]['peak_bytes'] / 1e6)}
    if 'torch' in samples:
      rows[kind]['time_over_torch'] = harness.ratios(taken, samples['torch'])
  return rows


def main(arguments=None):
  parser = harness.parser('attention', __doc__, 'attention_cpu.json')
  parser.add_argument('--rounds', type=int, default=9, help='timed steps of each contender')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=3, metavar=('KIND', 'BATCH', 'LENGTH'), help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.serve:
    kind, batch, length = options.serve
    return serve(kind, int(batch), int(length))

  harness.cpu_only()
  sizes, rounds = (((2, 64),), 1) if options.quick else (SIZES, options.rounds)
  what = f'training step, {LAYERS} layers of width {WIDTH}, {HEADS} heads, feed-forward {HIDDEN}, AdamW'
  report = harness.report('attention', what, 'torch', quick=options.quick, results=[])
  columns = '{:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>10} {:>9} {:>9}'
  titles = ('batch', 'length', 'attention', 'ms/step', 'fastest', 'ratio', 'cpu ratio', 'peak MB', 'temp MB')
  print(columns.format(*titles))
  for batch, length in sizes:
    for kind, row in measure(batch, length, rounds).items():
      report['results'].append({'batch': batch, 'length': length, 'attention': kind} | row)
      if 'not_run' in row:
        print(columns.format(batch, length, kind, 'not run:', row['not_run'], *[''] * 4).rstrip())
        continue
      over = row.get('time_over_torch', {})
      shown = [
        row['milliseconds'],
        row['fastest_milliseconds'],
        over.get('wall', ''),
        over.get('processor', ''),
      ]
      shown += [row['peak_megabytes'], row.get('temporary_megabytes', '')]
      print(columns.format(batch, length, kind, *shown), flush=True)
  harness.write(options.json, report)
  print(f'written to {options.json}; ratios are to torch, medians of {rounds} rounds')


if __name__ == '__main__':
  main()
