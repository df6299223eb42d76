"""Speed and memory of a training step with attention, side by side with PyTorch.

  python -m benchmarks attention [--json PATH] [--rounds N] [--quick]

The step is forward, backward and AdamW in float32 of a plain pre-norm Transformer classifier with heads of
16 dimensions. There are two sizes: 4 layers of width 128 with feed-forward layers of 512 and, as people train
on laptops, 3 layers of width 64 with 128.

Every contender is a process of its own. They stay alive and take turns of about a second, so that a busy
machine slows all of them alike. Ratios are taken round by round, and their medians are reported, of wall time
and of processor time, which a busy machine disturbs less. Peak memory is what a process adds after its
imports and parameters, so it includes compilation.
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
from benchmarks.peers.torch_transformer import CLASSES, VOCABULARY, Size
from lra_spt.ops.attention import Full, attention

SIZES = (Size(2, 4096, 128, 4, 8, 512), Size(8, 1024, 128, 4, 8, 512), Size(50, 256, 64, 3, 4, 128))
SMALL = Size(2, 64, 32, 2, 2, 64)
CONTENDERS = ('blockwise', 'torch', 'xla')


def jax_step(size: Size, kind: str):
  """(a function that makes a step and returns its loss, what is known about it, peak bytes before it)."""
  batch, length, width, layers, heads, hidden = size

  def attend(q_BLHK, k_BLHK, v_BLHK):
    if kind == 'xla':
      return jax.nn.dot_product_attention(q_BLHK, k_BLHK, v_BLHK, implementation='xla')
    return attention(q_BLHK, k_BLHK, v_BLHK, pattern=Full(), implementation=kind)

  def norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

  def product(x_BLD, weight_DE):  # over all leading axes at once, as the layers of our models do on CPUs
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


def serve(kind: str, size: Size):
  """One contender, see harness.serve."""
  if kind != 'torch':
    return harness.serve(*jax_step(size, kind))
  try:
    run, known, baseline = torch_transformer.step(size)
  except ImportError as error:
    print(json.dumps({'not_run': str(error)}), flush=True)
    return None
  return harness.serve(run, known, baseline)


def measure(size: Size, rounds: int):
  """{contender: its row}; all of them alive together, a turn each per round."""
  rows, workers = {}, {}
  try:
    for kind in CONTENDERS:  # they compile one after the other
      if kind == 'xla' and size.length > 1024:
        rows[kind] = {'not_run': 'needs more than 20 GB at this size'}
        continue
      worker = harness.Worker('attention', '--serve', kind, *size)
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
  parser.add_argument('--rounds', type=int, default=9, help='turns of each contender')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=1 + len(Size._fields), help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.serve:
    return serve(options.serve[0], Size(*map(int, options.serve[1:])))

  harness.cpu_only()
  sizes, rounds = ((SMALL,), 1) if options.quick else (SIZES, options.rounds)
  what = 'training step of a Transformer in float32 with AdamW'
  report = harness.report('attention', what, 'torch', quick=options.quick, rows=[])
  report['command'] += f' --rounds={rounds}'
  columns = '{:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>10} {:>9} {:>9}'
  titles = ('batch', 'length', 'attention', 'ms/step', 'fastest', 'ratio', 'cpu ratio', 'peak MB', 'temp MB')
  print(columns.format(*titles))
  for size in sizes:
    for kind, row in measure(size, rounds).items():
      report['rows'].append(size._asdict() | {'attention': kind} | row)
      if 'not_run' in row:
        print(columns.format(size.batch, size.length, kind, 'not run:', row['not_run'], *[''] * 4).rstrip())
        continue
      over = row.get('time_over_torch', {})
      shown = [
        row['milliseconds'],
        row['fastest_milliseconds'],
        over.get('wall', ''),
        over.get('processor', ''),
      ]
      shown += [row['peak_megabytes'], row.get('temporary_megabytes', '')]
      print(columns.format(size.batch, size.length, kind, *shown), flush=True)
  harness.write(options.json, report)
  print(f'written to {options.json}; ratios are to torch, medians of {rounds} rounds')


if __name__ == '__main__':
  main()
