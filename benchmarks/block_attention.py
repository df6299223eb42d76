"""Block attention on CPU: time by visited pair of query and key, speed beside full attention, memory.

  python -m benchmarks block_attention [--json PATH] [--rounds N] [--quick]

One head of 32 dimensions, batch 1, float32, forward and backward; tokens see their own block of 4,096 and its
two neighbours. The compiled programs take turns in one process, one timed run each, so that a busy machine
slows all of them alike. Ratios are taken round by round, and their medians are reported, of wall time and of
processor time, which a busy machine disturbs less; a target is met when both agree. `all tiles cut` is full
attention that compares positions in every tile: the cost of a mask. `table` is the same layout of blocks,
listed one by one.
--quick: toy sizes, one round. It shows that the command works, and measures nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from lra_spt.ops.attention import BlockTable, Full, Neighbours, Window, attention
from lra_spt.ops.attention.patterns import visible_pairs

WIDTH = 32
TIME_PER_PAIR, TIMES_FASTER, MEMORY_SHARE = 1.15, 1.4, 0.1  # what is asked of the ratios below


class AllCut(Window):
  """A window that lets no tile go without a mask."""

  def seen_by_all(self, q0, q1):
    return 0, 0


def cases(block, short, long):
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
  """(a function that runs forward and backward and waits, what is known about it before it ran)."""
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
  """(rows by program, targets and what was measured, other ratios)."""
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


def main(arguments=None):
  parser = harness.parser('block_attention', __doc__, 'attention_block_cpu.json')
  parser.add_argument('--rounds', type=int, default=9, help='timed runs of each program')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  sizes, rounds = ((32, 128, 512), 1) if options.quick else ((4096, 16384, 65536), options.rounds)
  what = f'one head of {WIDTH} dimensions, batch 1, float32, forward and backward, blocks of {sizes[0]}'
  report = harness.report('block_attention', what, quick=options.quick, rounds=rounds)
  programs = {name: program(*case) for name, case in cases(*sizes).items()}
  samples = harness.turns({name: run for name, (run, _) in programs.items()}, rounds)
  rows, targets, beside = summary(programs, samples)
  for row in rows:
    line = '{case:>20} {length:>7} {milliseconds:>9.1f} ms {processor_nanoseconds_per_pair:>7} ns a pair'
    print(line.format(**row))
  for row in targets:
    print(f'{"met" if row["met"] else "missed"}: {row["target"]}: {row["measured"]}')
  for name, measured in beside.items():
    print(f'{name}: {measured}')
  harness.write(options.json, report | {'targets': targets, 'beside': beside, 'rows': rows})
  print(f'written to {options.json}')


if __name__ == '__main__':
  main()
