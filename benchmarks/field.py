"""What a training step of every mixer costs at equal width and depth, side by side.

  python -m benchmarks field [--json PATH] [--rounds N] [--mixers NAME,...] [--sizes 8x1024,2x4096] [--causal]

Each model is an encoder of 2 layers of width 128 without feed-forward layers (pre-norm LayerNorm, tokens in,
mean pooling, 10 classes); the mixer has the options of its default row. A step is forward, backward and AdamW
in float32. Every mixer is a process of its own, which takes turns with one of full attention: its times are
also given as multiples of that one's, turn by turn, which a busy machine disturbs least. If PyTorch is
installed, `mamba2 torch` and `mega torch` (benchmarks/peers) take turns with our mixer instead, and start
with its parameters. Megabytes are what the compiled step needs in addition to parameters and optimizer. FLOPs
are those of a step by formula (as counted by lra-spt train).

Measured cases stay in the file; --resume continues from them. --quick: toy sizes, one round; it shows that
the command works, and measures nothing.
"""

import argparse
import functools
import json

import numpy as np
from flax import nnx

from benchmarks import harness, ssm_parts
from benchmarks.peers import mamba2_torch, mega_torch, torch_transformer
from benchmarks.ssm_parts import Size
from lra_spt.config import mixers as mixer_rows
from lra_spt.config.protocol import CLEAN
from lra_spt.errors import UserError
from lra_spt.models import make_mixer

WIDTH, LAYERS = 128, 2
SIZES = ('8x1024', '2x4096', '1x16384')
REFERENCE = 'attention'
# Where the default row leaves a number to the task's Transformer.
OPTIONS = {'attention': {'heads': 4}}
SMALL = Size(2, 64, 16, 2)
PEERS = {'mamba2 torch': 'mamba2', 'mega torch': 'mega'}


def options(name: str) -> dict:
  """Of a mixer, as a config without a row of its own for the task sets them."""
  row = mixer_rows.rows()[name]
  mixer = {key.removeprefix('model.mixer.'): row[key] for key in row if key.startswith('model.mixer.')}
  return {'name': name} | OPTIONS.get(name, {}) | mixer


def arrays(mixer: nnx.Module) -> dict[str, np.ndarray]:
  """{path of a parameter, joined by _: its values}, as peers take them."""
  leaves = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  return {'_'.join(path): np.asarray(leaf[...]) for path, leaf in leaves}


def peer_step(name: str, size: Size, causal: bool):
  """See `torch_transformer.step`; ImportError without PyTorch."""
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
  """The columns of a row: of a mixer that takes turns with the reference, whose name is `other`, or why it
  cannot run."""
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
  """A worker: one mixer at one size."""
  size, causal = Size(*map(int, size)), bool(int(causal))
  try:
    if name in PEERS:
      step = peer_step(name, size, causal)
    else:
      step = ssm_parts.training_step(options(name), size, causal=causal)
  except (ImportError, UserError) as error:  # of a length or a form that it does not have
    print(json.dumps(harness.not_run(error)), flush=True)
    return
  harness.serve(*step)


def main(arguments=None):
  parser = harness.parser('field', __doc__, 'field_cpu.json')
  parser.add_argument('--rounds', type=int, default=5, help='turns of each mixer')
  parser.add_argument('--mixers', help='some of them, separated by commas; default: all')
  parser.add_argument('--sizes', default=','.join(SIZES), help='batch x length, separated by commas')
  parser.add_argument('--causal', action='store_true', help='the causal forms')
  parser.add_argument('--resume', action='store_true', help='keep the rows that --json has already')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=6, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.serve:
    return serve(*given.serve)

  known = [*mixer_rows.rows(), *PEERS]
  mixers = harness.chosen(parser, 'mixer', given.mixers or ','.join(known), known)
  sizes = harness.chosen(parser, 'size', given.sizes, SIZES)
  harness.cpu_only()
  report = harness.report(
    'field', __doc__.splitlines()[0], 'torch', quick=given.quick, causal=given.causal, rows=[]
  )
  report['command'] += f' --sizes={given.sizes}'
  report['rows'] += harness.kept_rows(given, report)
  done = {(row['mixer'], row['size']) for row in report['rows']}
  for text in sizes:
    missing = [name for name in mixers if (name, text) not in done]
    for other in dict.fromkeys(PEERS.get(name, REFERENCE) for name in missing):
      size = size_of(text, given.quick)
      reference = harness.Worker('field', '--serve', other, int(given.causal), *size)
      reference.answer()
      try:
        for name in (name for name in missing if PEERS.get(name, REFERENCE) == other):
          rounds = 1 if given.quick else given.rounds
          row = measured(name, size, given.causal, reference, other, rounds)
          report['rows'].append({'mixer': name, 'size': text} | row)
          print(json.dumps(report['rows'][-1]), flush=True)
          harness.write(given.json, report)
      finally:
        reference.close()
  print(f'written to {given.json}')


if __name__ == '__main__':
  main()
