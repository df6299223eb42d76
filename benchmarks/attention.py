"""Speed and memory of a training step with attention, side by side with PyTorch.

  python benchmarks/attention.py [--json PATH] [--rounds N]

The step is forward, backward and AdamW in float32 of a plain pre-norm Transformer classifier: 4 layers,
width 128, 8 heads of 16 dimensions, feed-forward 512. Every contender is a process of its own. They stay
alive and take turns, one timed step each, so that a busy machine slows all of them alike; ratios are taken
round by round, and their median is reported: of wall time, and of processor time, which a busy machine
disturbs less. Peak memory is what a process adds after its imports and parameters, so with compilation.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, CLASSES = 4, 128, 8, 512, 256, 10
SIZES = ((2, 4096), (8, 1024))  # batch, length
CONTENDERS = ('blockwise', 'torch', 'xla')
RESULTS = pathlib.Path(__file__).parent / 'results'


def jax_step(batch, length, kind):
  """A function that runs one step and waits for it, and what the compiler says about memory."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  import optax

  from lra_spt.ops.attention import Full, attention

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
  baseline = peak_bytes()
  compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*state, tokens_BL, label_B).compile()

  def run():
    nonlocal state
    *state, value = compiled(*state, tokens_BL, label_B)
    return float(value)

  return run, baseline, compiled.memory_analysis().temp_size_in_bytes, {'jax': jax.__version__}


def torch_step(batch, length):
  """The same step in PyTorch, with its fused attention."""
  import torch
  from torch import nn

  class Layer(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
      self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
      self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
      y = self.norm1(x)
      q, k, v = (f(y).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
      out = nn.functional.scaled_dot_product_attention(q, k, v)
      x = x + self.o(out.transpose(1, 2).reshape(x.shape))
      return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate='tanh'))

  class Classifier(nn.Module):
    def __init__(self):
      super().__init__()
      self.embed = nn.Embedding(VOCABULARY, WIDTH)
      self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
      self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens):
      return self.head(self.norm(self.layers(self.embed(tokens))).mean(1))

  model = Classifier()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
  tokens, label = torch.randint(VOCABULARY, (batch, length)), torch.randint(CLASSES, (batch,))
  baseline = peak_bytes()

  def run():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens), label)
    loss.backward()
    optimizer.step()
    return loss.item()

  return run, baseline, None, {'torch': torch.__version__, 'torch threads': torch.get_num_threads()}


def peak_bytes():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(kind, batch, length):
  """One contender: a warm-up step, then one timed step for every line on standard input."""
  try:
    made = torch_step(batch, length) if kind == 'torch' else jax_step(batch, length, kind)
  except ImportError as error:
    print(json.dumps({'not_run': str(error)}), flush=True)
    return
  run, baseline, temporary, versions = made
  run()
  print(json.dumps({'temporary_bytes': temporary, 'versions': versions}), flush=True)
  for _ in sys.stdin:
    wall, processor = time.perf_counter(), time.process_time()
    loss = run()
    times = {'seconds': time.perf_counter() - wall, 'processor_seconds': time.process_time() - processor}
    print(json.dumps(times | {'loss': loss, 'peak_bytes': peak_bytes() - baseline}), flush=True)


def measure(batch, length, rounds):
  """Results by contender; all of them alive together, one step each per round."""
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(pathlib.Path(__file__).parent.parent)}
  workers, results = {}, {}
  for kind in CONTENDERS:
    if kind == 'xla' and length > 1024:
      results[kind] = {'not_run': 'needs more than 20 GB at this size'}
      continue
    command = [sys.executable, __file__, '--serve', kind, str(batch), str(length)]
    worker = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
    )
    results[kind] = json.loads(worker.stdout.readline())
    if 'not_run' not in results[kind]:
      workers[kind] = worker
  samples = {kind: [] for kind in workers}
  for turn in range(rounds):
    for kind, worker in workers.items():
      if kind == 'xla' and turn >= 2:
        continue  # seconds per step, and far from the others: two are enough
      worker.stdin.write('\n')
      samples[kind].append(json.loads(worker.stdout.readline()))
  for kind, worker in workers.items():
    worker.stdin.close()
    worker.wait()
    results[kind] |= summary(samples[kind], samples.get('torch'))
  return results


def summary(samples, baseline):
  """Medians over rounds; ratios to the baseline are taken round by round."""

  def median(key):
    return statistics.median(sample[key] for sample in samples)

  out = {
    'milliseconds': round(1e3 * median('seconds'), 1),
    'fastest_milliseconds': round(1e3 * min(sample['seconds'] for sample in samples), 1),
    'processor_milliseconds': round(1e3 * median('processor_seconds'), 1),
    'peak_megabytes': round(samples[-1]['peak_bytes'] / 1e6),
    'rounds': len(samples),
  }
  if baseline:
    for name, key in (('ratio', 'seconds'), ('processor_ratio', 'processor_seconds')):
      pairs = zip(samples, baseline, strict=False)
      out[f'{name}_to_torch'] = round(statistics.median(a[key] / b[key] for a, b in pairs), 3)
  return out


def hardware():
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    model = next(line.split(':')[1].strip() for line in lines if line.startswith('model name'))
  except (OSError, StopIteration):
    model = platform.processor()
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
  return {'cpu': model, 'cores': os.cpu_count(), 'memory_gib': round(memory, 1)}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', type=pathlib.Path, default=RESULTS / 'attention_cpu.json', help='output')
  parser.add_argument('--rounds', type=int, default=9, help='timed steps of each contender')
  parser.add_argument('--serve', nargs=3, metavar=('KIND', 'BATCH', 'LENGTH'), help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.serve:
    kind, batch, length = arguments.serve
    return serve(kind, int(batch), int(length))

  report = {
    'what': f'training step, {LAYERS} layers of width {WIDTH}, {HEADS} heads, feed-forward {HIDDEN}, AdamW',
    'date': datetime.date.today().isoformat(),
    'hardware': hardware(),
    'versions': {'python': platform.python_version()},
    'load_average_before': os.getloadavg()[0],
    'results': [],
  }
  columns = '{:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>10} {:>9} {:>9}'
  titles = ('batch', 'length', 'attention', 'ms/step', 'fastest', 'ratio', 'cpu ratio', 'peak MB', 'temp MB')
  print(columns.format(*titles))
  for batch, length in SIZES:
    for kind, result in measure(batch, length, arguments.rounds).items():
      report['versions'] |= result.pop('versions', {})
      report['results'].append({'batch': batch, 'length': length, 'attention': kind} | result)
      if 'not_run' in result:
        print(columns.format(batch, length, kind, 'not run:', result['not_run'], *[''] * 4).rstrip())
        continue
      temporary = result['temporary_bytes']
      shown = [result[key] for key in ('milliseconds', 'fastest_milliseconds')]
      shown += [result.get(key, '') for key in ('ratio_to_torch', 'processor_ratio_to_torch')]
      shown += [result['peak_megabytes'], '' if temporary is None else round(temporary / 1e6)]
      print(columns.format(batch, length, kind, *shown), flush=True)
  report['load_average_after'] = os.getloadavg()[0]
  arguments.json.parent.mkdir(parents=True, exist_ok=True)
  arguments.json.write_text(json.dumps(report, indent=2) + '\n')
  print(f'written to {arguments.json}; ratios are to torch, medians of {arguments.rounds} rounds')


if __name__ == '__main__':
  main()
