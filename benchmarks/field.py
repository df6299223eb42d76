"""The cost of a training step of every mixer, beside attention, by other implementations, and at other sizes.

Each model is an encoder without feed-forward layers (pre-norm LayerNorm, tokens in, mean pooling, 10
classes). The mixer has the options of its default row. A step is forward, backward and AdamW in float32.
"""

import argparse
import functools
import json
import statistics

import jax
import numpy as np
from flax import nnx

from benchmarks import harness, ssm
from benchmarks.peers import mamba2_torch, mega_torch, torch_transformer
from benchmarks.ssm import Size
from lra_spt.config import mixers
from lra_spt.config.protocol import CLEAN
from lra_spt.errors import UserError
from lra_spt.models import make_mixer
from lra_spt.ops import attention, delta_rule, linear_attention, log_linear_attention, path_attention

WIDTH, LAYERS = 128, 2
SIZES = ('8x1024', '2x4096', '1x16384')
REFERENCE = 'attention'
OPTIONS = {'attention': {'heads': 4}}  # the default row leaves this number to the task's Transformer
SMALL = Size(2, 64, 16, 2)
PEERS = {'mamba2 torch': 'mamba2', 'mega torch': 'mega'}

SCORES = ('attention=reference',)
CONVOLUTIONS = ('convolution=matmul',)
SCANS = ('scan=associative', 'scan=chunked')
CHUNKS = ('chunk=16', 'chunk=64', 'chunk=256')
WHOLE = 'chunk=length'
DELTA_RULES = ('deltanet', 'gated_deltanet', 'kda', 'gated_deltaproduct', 'gated_deltanet2', 'rwkv7')
WAYS = {
  **dict.fromkeys(('attention', 'local', 'longformer', 'bigbird', 'forgetting_attention'), SCORES),
  **dict.fromkeys(('spade', 'mega'), (*SCORES, *CONVOLUTIONS)),
  **dict.fromkeys(('s4', 's4d', 's4d_dfout', 'dlr', 'dss', 'sgconv', 'longconv', 'hyena'), CONVOLUTIONS),
  **dict.fromkeys(('s5', 'lru', 'linoss', 'rglru', 'mingru', 'min_lstm', 'hgrn2', 'mamba', 'b2s6'), SCANS),
  **dict.fromkeys(('linear_transformer', 'performer', 'mamba2', 'mlstm'), (*CHUNKS, WHOLE)),
  **dict.fromkeys(('retnet', 'gla', 'mamba3', 'log_linear_mamba2', 'mesanet'), CHUNKS),
  **dict.fromkeys(DELTA_RULES, CHUNKS[:2]),
  'path_attention': CHUNKS,
}
SLOW = [('s5', SCANS[0]), ('lru', SCANS[0]), ('mamba2', WHOLE), ('mlstm', WHOLE)]
LONGEST_SCORES = 4096  # stored scores of 16,384 positions do not fit into the memory of a small machine
CAUSAL = ('linear_transformer', 'performer')  # the bidirectional form is one product over all positions

POWERS = (1, 2, 4, 8, 16, 32, 64)
AXES = {  # (size, members) along each
  'length': [(Size(1, 1024 * n, 32, 1), 1) for n in POWERS],
  'batch': [(Size(n, 1024, 32, 1), 1) for n in POWERS],
  'width': [(Size(2, 1024, 64 * n, 1), 1) for n in POWERS[:4]],
  'members': [(Size(2, 1024, 32, 1), n) for n in POWERS[:4]],
}
ALLOWED = 0.1  # allowed excess over the slope of the operations
COLUMNS = ('milliseconds', 'temporary_megabytes', 'gigaflops')

PAGED = {'attention': {'name': 'attention', 'heads': 8}}  # mixers of `huge_pages`
PAGED |= {name: ssm.CONTENDERS[name] for name in ('s4', 's5 64', 'lru')}
PAGED_SIZE, PAGED_SMALL = Size(8, 1024, 128, 4), Size(2, 32, 16, 1)


def options(name: str) -> dict:
  """The options of a mixer as a config sets them that has no row for its task."""
  row = mixers.rows()[name]
  mixer = {key.removeprefix('model.mixer.'): row[key] for key in row if key.startswith('model.mixer.')}
  return {'name': name} | OPTIONS.get(name, {}) | mixer


def arrays(mixer: nnx.Module) -> dict[str, np.ndarray]:
  """{path of a parameter, joined by _: its values}, the layout of peers."""
  leaves = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  return {'_'.join(path): np.asarray(leaf[...]) for path, leaf in leaves}


def peer_step(name: str, size: Size, causal: bool):
  """The step of a peer, see `torch_transformer.step`. Raises ImportError without PyTorch."""
  ours = options(PEERS[name])
  blocks = {
    'mamba2 torch': mamba2_torch.block,
    'mega torch': functools.partial(mega_torch.block, truncation=ours.get('truncation', 0)),
  }
  of = {'length': size.length, 'causal': causal, 'protocol': CLEAN}
  of['options'] = {key: ours[key] for key in ours if key != 'name'}
  layers = [make_mixer(ours['name'], size.width, rngs=nnx.Rngs(i), **of) for i in range(size.layers)]
  return torch_transformer.prenorm(blocks[name], list(map(arrays, layers)), size)


def size_of(text: str, quick: bool) -> Size:
  """'8x1024' -> 8 sequences of 1,024 positions."""
  batch, length = map(int, text.split('x'))
  return SMALL if quick else Size(batch, length, WIDTH, LAYERS)


def measured(name: str, size: Size, causal: bool, reference, other: str, rounds: int) -> dict:
  """The columns of a row of `field`: a mixer takes turns with the running reference, named `other`."""
  worker = harness.Worker('field', '--serve', name, int(causal), *size)
  try:
    row = worker.answer()
    if 'not_run' in row:
      return row
    samples = harness.workers_in_turns({'it': worker, 'other': reference}, rounds)
  finally:
    worker.close()
  row |= harness.milliseconds(samples['it'])
  row.pop('first_loss')
  return row | {f'times_of_{other}': harness.ratios(samples['it'], samples['other'])}


def serve(name: str, causal: str, *size: str) -> None:
  """Serves one mixer at one size."""
  size, causal = Size(*map(int, size)), bool(int(causal))
  try:
    if name in PEERS:
      step = peer_step(name, size, causal)
    else:
      step = ssm.training_step(options(name), size, causal=causal)
  except (ImportError, UserError) as error:  # the mixer lacks this length or form
    print(json.dumps(harness.not_run(error)), flush=True)
    return
  harness.serve(*step)


def run_field(arguments):
  """Measures the cost of a training step of every mixer at equal width and depth, side by side.

  Every mixer, 2 layers of width 128, is a process that takes turns with one of full attention: its times are
  also given as multiples of that one's, turn by turn, which a busy machine disturbs least. If PyTorch is
  installed, `mamba2 torch` and `mega torch` (benchmarks/peers) take turns with our mixer instead, and start
  with its parameters. Megabytes are what the compiled step needs in addition to parameters and optimizer.
  FLOPs are those of a step by formula (as counted by lra-spt train).
  """
  parser = harness.parser(run_field, 'field_cpu.json')
  harness.add_names(parser, '--mixers', [*mixers.rows(), *PEERS])
  harness.add_names(parser, '--sizes', SIZES)
  parser.add_argument('--causal', action='store_true', help='the causal forms')
  harness.add_quick(parser, rounds=5)
  harness.add_resume(parser)
  parser.add_argument('--serve', nargs=6, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.serve:
    return serve(*given.serve)

  harness.cpu_only()
  what = 'a training step of every mixer at equal width and depth'
  report = harness.report('field', what, 'torch', quick=given.quick, causal=given.causal)
  report['command'] += f' --sizes={",".join(given.sizes)}'
  references = {}  # the running reference of a size

  def measure(mixer, size):
    other = PEERS.get(mixer, REFERENCE)
    if (size, other) not in references:
      stop()
      references[size, other] = harness.Worker('field', '--serve', other, int(given.causal), *sized(size))
      references[size, other].answer()
    rounds = 1 if given.quick else given.rounds
    return measured(mixer, sized(size), given.causal, references[size, other], other, rounds)

  def sized(text):
    return size_of(text, given.quick)

  def stop():
    while references:
      references.popitem()[1].close()

  cases = [{'mixer': mixer, 'size': size} for size in given.sizes for mixer in given.mixers]
  try:
    harness.fill(given, report, cases, measure)
  finally:
    stop()


def set_chunk(positions: int) -> None:
  """Makes all operations of this process that read in chunks take chunks of this size."""
  for operation in (linear_attention, delta_rule, log_linear_attention):
    operation.chunk_size = lambda keys, values: positions
  delta_rule.LARGEST_CHUNK = path_attention.CHUNK = positions


def serve_way(name: str, way: str, *size: str) -> None:
  """Serves one mixer at one size, in one way."""
  size = Size(*map(int, size))
  what, _, value = way.partition('=')
  if what == 'chunk':
    set_chunk(size.length if value == 'length' else int(value))
  if name == 'forgetting_attention' and what == 'attention':
    attention._DECAYING = (value,)  # this mixer has no option for it
  execution = {} if what in ('ours', 'chunk') else {what: value}
  harness.serve(*ssm.training_step(options(name), size, causal=name in CAUSAL, **execution))


def others(name: str, length: int) -> list[str]:
  """The ways to compute a mixer other than ours that are measured at a length."""
  ways = [way for way in WAYS[name] if length <= 1024 or (name, way) not in SLOW]
  return [way for way in ways if length <= LONGEST_SCORES or way not in SCORES]


def compared(name: str, size: Size, rounds: int) -> dict:
  """The columns of a row of `ways`: {way: its cost and its time over ours}."""
  ways = ('ours', *others(name, size.length))
  hello, samples = harness.contest(
    lambda way: harness.Worker('ways', '--serve', name, way, *size), ways, rounds
  )
  costs = {
    way: harness.milliseconds(samples[way])
    | {'temporary_megabytes': hello[way]['temporary_megabytes']}
    | {'times_of_ours': harness.ratios(samples[way], samples['ours'])}
    for way in ways
  }
  least = {key: min(each['times_of_ours'][key] for each in costs.values()) for key in ('wall', 'processor')}
  return {
    'causal': name in CAUSAL,
    'ways': costs,
    'times_of_cheapest': {key: round(1 / value, 3) for key, value in least.items()},
  }


def run_ways(arguments):
  """Measures the cost of the same mathematics by other implementations.

  Models, sizes and steps are those of `field`. `ours` is the default on a CPU. It takes turns with the
  following, each a process: attention with its scores stored (`attention=reference`, up to 4,096 positions),
  convolutions by matrix products instead of an FFT (`convolution=matmul`), recurrences as a tree or in chunks
  (`scan=associative`, `scan=chunked`), and linear attention, delta rules and PaTH in chunks of other sizes
  (`chunk=N`), of which one as long as the sequence stores all weights (`chunk=length`). Mixers that are not
  listed have only one way. Ways that took more than five times ours at 8x1024 are left out of longer
  sequences, where they take minutes per step.
  """
  parser = harness.parser(run_ways, 'ways.json')
  harness.add_names(parser, '--mixers', WAYS)
  harness.add_names(parser, '--sizes', SIZES, SIZES[:2])
  harness.add_quick(parser, rounds=2)
  harness.add_resume(parser)
  parser.add_argument('--serve', nargs=6, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.serve:
    return serve_way(*given.serve)

  harness.cpu_only()
  report = harness.report('ways', 'the same mathematics by other implementations', quick=given.quick)
  report['command'] += f' --sizes={",".join(given.sizes)}'
  cases = [
    {'mixer': name, 'size': text}
    for text in given.sizes
    for name in given.mixers
    if others(name, size_of(text, quick=False).length)
  ]

  def measure(mixer, size):
    return compared(mixer, size_of(size, given.quick), 1 if given.quick else given.rounds)

  harness.fill(given, report, cases, measure)


def paged(kind: str, size: Size, rounds: int) -> dict:
  """The columns of a row of `huge_pages`."""

  def start(name):
    return harness.Worker('huge_pages', '--serve', kind, *size, pages=name == 'huge')

  _, samples = harness.contest(start, ('huge', 'small'), rounds)
  rows = {
    name: harness.milliseconds(taken) | {'peak_megabytes': round(taken[-1]['peak_bytes'] / 1e6)}
    for name, taken in samples.items()
  }
  return rows | {'times_faster': harness.ratios(samples['small'], samples['huge'])}


def run_huge_pages(arguments):
  """Measures the gain of a training step from huge pages, in which `lra-spt` trains on Linux.

  The steps are those of `ssm`, 8 x 1,024, 4 layers of width 128, and the same with full attention. Each runs
  in two processes, one with the setting of lra_spt/cli/huge_pages.py and one without. They take turns of
  about a second, like a dispatch of many steps in training.
  """
  parser = harness.parser(run_huge_pages, 'huge_pages.json')
  harness.add_names(parser, '--contenders', PAGED)
  harness.add_quick(parser, rounds=7)
  harness.add_resume(parser)
  parser.add_argument('--serve', nargs=5, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.serve:
    kind, *size = given.serve
    return harness.serve(*ssm.training_step(PAGED[kind], Size(*map(int, size))))
  harness.cpu_only()
  size, rounds = (PAGED_SMALL, 1) if given.quick else (PAGED_SIZE, given.rounds)
  what = 'a training step with and without huge pages'
  report = harness.report('huge_pages', what, quick=given.quick, size=size._asdict())
  cases = [{'contender': kind} for kind in given.contenders]
  harness.fill(given, report, cases, lambda contender: paged(contender, size, rounds))


def slope(sizes, values) -> float | None:
  """The slope of log(value) over log(size) by least squares; None for fewer than three values."""
  pairs = [(size, value) for size, value in zip(sizes, values, strict=True) if value]
  if len(pairs) < 3:
    return None
  return round(float(np.polyfit(*np.log(np.array(pairs, np.float64)).T, 1)[0]), 2)


def point(mixer: str, size: Size, members: int, run: bool) -> dict[str, float | None]:
  """The COLUMNS of a step of one size; without `run` it has no time."""
  step, known, _ = ssm.training_step(options(mixer), size, members=members)
  columns = {name: known.get(name) for name in COLUMNS}
  if run:
    seconds = statistics.median(sample['seconds'] for sample in harness.sampled(step, sampling=0.3))
    columns['milliseconds'] = round(1e3 * seconds, 2)
  jax.clear_caches()
  return columns


def growth(mixer: str, axis: str, longest: float = 5.0) -> dict:
  """The columns of a row of `slopes`: COLUMNS by size, and their slopes."""
  points, run = [], True
  for size, members in AXES[axis]:
    try:
      points.append(point(mixer, size, members, run))
    except UserError as error:  # the mixer lacks this length
      return harness.not_run(error)
    run = bool(points[-1]['milliseconds']) and points[-1]['milliseconds'] < 1e3 * longest
  numbers = [members if axis == 'members' else getattr(size, axis) for size, members in AXES[axis]]
  columns = {name: [one[name] for one in points] for name in COLUMNS}
  return {'sizes': numbers} | columns | {'slopes': {name: slope(numbers, columns[name]) for name in COLUMNS}}


def run_slopes(arguments):
  """Measures how time and memory of a step of every mixer grow with length, batch, width and members.

  One layer. Along an axis everything else stays fixed: one sequence of width 32 from 1,024 to 65,536
  positions; 1 to 64 sequences of 1,024; widths 64 to 512 of 2 sequences of 1,024; 1 to 8 runs of 2 such
  sequences of width 32 as one program (`runtime.members`).

  A slope is that of log(measured value) over log(size) by least squares. It is compared with the slope of the
  step's operations by formula, which is 2 for full attention at great lengths and 1 for most others: more
  than 0.1 above it means that something else grows. Memory is what the compiler asks for in addition to
  parameters and optimizer. If a size takes more than --longest seconds per step, larger ones do not run;
  their memory still counts.
  """
  parser = harness.parser(run_slopes, 'slopes.json')
  harness.add_names(parser, '--mixers', mixers.rows())
  harness.add_names(parser, '--axes', AXES)
  parser.add_argument('--longest', type=float, default=5.0, help='seconds of a step (%(default)s)')
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('slopes', 'growth of time and memory with size', allowed=ALLOWED)
  cases = [{'mixer': mixer, 'axis': axis} for axis in given.axes for mixer in given.mixers]
  harness.fill(given, report, cases, functools.partial(growth, longest=given.longest))
