"""Tables of what is counted, or measured but for time: errors of kernels, what studies take, sizes of sets;
docs/figures.py puts them on pages."""

import collections
import math

from data_prep import catalogue
from docs.costs import commits, hardware, head, listed, paragraph, source
from lra_spt import config
from lra_spt.data import splits
from lra_spt.data.tasks import get_task

KERNELS = {  # file in lra_spt/ops: what it computes
  'cauchy': 'S4 (`ops/cauchy.py`)',
  'vandermonde': 'DLR, S4D (`ops/vandermonde.py`)',
  'fft_conv': "convolution (`ops/fft_conv.py`), FFT and TPU's route",
  'scan': 'scan (`ops/scan.py`)',
  'scan_pallas': 'scan in Pallas (`ops/scan_pallas.py`), interpreted',
}


def _power(value: float) -> str:
  """1.2e-7, 2e-5."""
  digits, _, exponent = f'{value:.1e}'.partition('e')
  return f'{digits.removesuffix(".0")}e{int(exponent)}'


def _error(value: float) -> str:
  return f'{value:.1e}'.replace('e-0', 'e-')


def numerics(found: dict) -> list[str]:
  lengths = sorted({row['positions'] for row in found['rows']})
  both, bounds = ' / '.join(f'{length:,}' for length in lengths), {}
  lines = head(('kernel', *(f'{what}, {both}' for what in ('values', 'gradients'))))
  for kernel, name in KERNELS.items():
    rows = {length: _rows(found, kernel, length) for length in lengths}
    cells = [
      ' / '.join(_error(max(row[what] for row in rows[length])) for length in lengths)
      for what in ('values', 'gradients')
    ]
    lines.append(f'| {name} | {" | ".join(cells)} |')
    for length in lengths:
      (bound,) = {tuple(row['bounds']) for row in rows[length]}
      bounds.setdefault(length, {}).setdefault(bound, []).append(name.split(' (')[0])
  told = ', '.join(f'at {length:,} {_bounds(of)}' for length, of in bounds.items())
  return [
    *lines,
    '',
    *paragraph(f'The worst of {len(found["rows"])} cases. Bounds of values and gradients: {told}.'),
    '',
    *source(found),
  ]


def _rows(found, kernel, length):
  return [row for row in found['rows'] if (row['kernel'], row['positions']) == (kernel, length)]


def _bounds(of: dict[tuple, list[str]]) -> str:
  """Those that most kernels have, and others with their kernels."""
  (usual, _), *others = sorted(of.items(), key=lambda item: -len(item[1]))

  def pair(bound):
    return ' and '.join(map(_power, bound))

  rest = '; '.join(f'{listed(names)}: {pair(bound)}' for bound, names in others)
  return pair(usual) + (f' ({rest})' if rest else '')


STUDIES = {  # of configs/studies: what it is
  'table1': 'LRA-size Transformers and seven efficient ones',
  'table2': 'rotary Transformers, S4, SPADE, MEGA, Pythia',
  'table3': 'Speech Commands, sCIFAR, BIDMC',
  'table7': 'structured and random initialisation (and Figure 2)',
  'table8': 'fixed epochs, shared between the stages',
  'table9': 'Image over model sizes',
  'figure1': 'Transformers and S4, before and after',
  'figure3': 'parts of the training data',
  'figure4': 'kernels of S4',
  'figure5': 'training accuracy over steps',
  'grid': 'search of C.1, here rotary Transformer on Image',
}


def studies(found: dict) -> list[str]:
  rows = {row['study']: row for row in found['rows']}
  lines = head(('file', 'what it is', 'runs', 'operations, at most', 'days at 100 TFLOP/s'))
  lines += [
    f'| `{name}.py` | {what} | {rows[name]["runs"]} | {exa(rows[name]["operations"])} EFLOP | '
    f'{rows[name]["operations"] / 1e14 / 86400:.2g} |'
    for name, what in STUDIES.items()
  ]
  counted = f'Counted, not run: {hardware(found)}{commits(found)}; `{found["command"]}`.'
  return [*lines, '', *paragraph(counted)]


def exa(operations: int) -> str:
  """Three digits."""
  exa = operations / 1e18
  return f'{exa:.{max(0, 2 - math.floor(math.log10(exa)))}f}'


SMALL = {  # set and task of LRA-mini: what it is
  'listops_mini': 'expressions of 16 to 126 tokens, generated',
  'image_mini': 'CIFAR-10 in gray, area averages of 12 x 12',
  'text_mini': 'first 255 characters of IMDb reviews',
  'pathfinder_mini': '16 x 16, own generator',
  'pulse_mini': 'heart rate from 8.192 s of PPG and ECG (BIDMC), 31.25 Hz',
}


def small_sets() -> list[str]:
  """Of the catalogue, the tasks and their configs."""
  lines = head(('set and task', 'positions', 'train, validation, test', 'what it is'))
  for name, what in SMALL.items():
    short = name.removesuffix('_mini')
    part = config.load(f'configs/mini/{short}.py:model=s4,regime=masked').finetune.data_fraction
    train, *rest = _sizes(get_task(name))
    used = f' (used: {int(part * train):,})' if part < 1 else ''
    counts = ', '.join([f'{train:,}{used}', *(f'{count:,}' for count in rest)])
    lines.append(f'| `{name}` | {get_task(name).length:,} | {counts} | {what} |')
  return lines


def _sizes(task) -> list[int]:
  """Training, validation and test examples. The groups of BIDMC are patients, of whom some have several of
  its recordings; these are equally long and no window of a heart rate lacks its label."""
  counts, groups = dict(catalogue.SETS[task.dataset].counts), []
  if task.splits == 'grouped':
    from data_prep.sources import bidmc

    recordings = collections.Counter(map(bidmc.patient, bidmc.NUMBERS))
    groups = [counts['train'] // len(bidmc.NUMBERS) * number for number in recordings.values()]
  parts = splits.split_positions(task.splits, {'counts': counts, 'groups': {'train': groups}})
  return [len(parts[name][1]) for name in splits.SPLITS]
