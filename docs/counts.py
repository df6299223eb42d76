"""Tables of what is counted, or measured but for time: errors of kernels, what studies take, sizes of sets;
docs/figures.py puts them on pages."""

import collections
import math

from configs.mini import recipe
from configs.studies import mini_table
from data_prep import catalogue
from docs.costs import commits, hardware, head, listed, paragraph, source
from docs.told import NUMBERS
from lra_spt.config import loading
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
    part = loading.load(f'configs/mini/{short}.py:model=s4,regime=masked').finetune.data_fraction
    train, *rest = _sizes(get_task(name))
    used = f' (used: {int(part * train):,})' if part < 1 else ''
    counts = ', '.join([f'{train:,}{used}', *(f'{count:,}' for count in rest)])
    lines.append(f'| `{name}` | {get_task(name).length:,} | {counts} | {what} |')
  return lines


def mini_protocol(table: dict) -> list[str]:
  """Sizes, steps, rates and seeds of the table of LRA-mini, from its configs; table: its result file, for the
  numbers of parameters."""
  lines = head(('part', 'what it is'))
  for task in mini_table.TASKS:
    name = f'{task}_mini'
    train, _, test = _sizes(get_task(name))
    used = round(train * loading.load(f'configs/mini/{task}.py:model=s4').finetune.data_fraction)
    lines.append(f'| `{name}` | {used:,} examples for training, {test:,} for the test: {SMALL[name]} |')
  depths = {}
  for model, name in mini_table.ALL.items():
    depths.setdefault(loading.load(f'configs/mini/text.py:model={model}').model.depth, []).append(name)
  of_depth = '; '.join(f'{listed(names)} {depth}' for depth, names in depths.items())
  sizes = [cell['parameters'] / 1000 for cell in table['cells']]
  width, pretrain_rate, patience = recipe.WIDTH, _power(recipe.PRETRAIN_RATE), NUMBERS[recipe.PATIENCE]
  steps = recipe.PRETRAIN_STEPS, recipe.FINETUNE_STEPS, mini_table.BOTH['finetune.max_steps']
  rates = ' or '.join(map(_power, mini_table.RATES))
  parts = {
    'layers': f'{of_depth}; all {width} wide, {min(sizes):.0f} to {max(sizes):.0f} thousand parameters',
    'masked': f'{steps[0]:,} steps (batches of {recipe.BATCH}, learning rate {pretrain_rate} for all, not '
    f'searched), then at most {steps[1]:,} steps of finetuning',
    'scratch': f'at most {steps[2]:,} steps, as many as both stages (operations: last column of the gains)',
    'stopping': f'validation every {recipe.EVERY} steps; {patience} without improvement stop a run '
    f'(finetuning has {NUMBERS[steps[1] // recipe.EVERY]} in all)',
    'learning rate': f'{rates}, by validation, mean of seeds 0 and 1; per model, task and arm',
    'test': f'seeds {listed(list(map(str, mini_table.SEEDS)))}, all of them',
  }
  return [*lines, *(f'| {part} | {what} |' for part, what in parts.items())]


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
