"""Makes tables of measured time and memory."""

import math

from benchmarks.tables.markdown import percent, table


def _seconds(row: dict) -> str:
  milliseconds = row['milliseconds']
  return f'{milliseconds / 1e3:.2f} s' if milliseconds >= 1000 else f'{milliseconds:.0f} ms'


def _cost(row: dict) -> str:
  """Formats the time of a step, the cores that it used and the memory that its process added."""
  if 'not_run' in row:
    return 'not run'
  return f'{_seconds(row)}, {_cores(row)} cores, {row["peak_megabytes"] / 1e3:.1f} GB'


def _cores(row: dict) -> str:
  """The mean number of cores in use."""
  return f'{row["processor_milliseconds"] / row["milliseconds"]:.1f}'


def _size(row: dict) -> str:
  return f'{row["batch"]} x {row["length"]:,}'


def demo(result: dict) -> list[str]:
  arms = {
    'scratch': ('from scratch', '400'),
    'scratch, compute-tied': ('from scratch, compute-tied', '900'),
    'masked self-pretraining': ('masked self-pretraining, then finetuning', '500 + 400'),
    'scratch, causal form': ('from scratch, causal form', '400'),
    'causal self-pretraining': ('causal self-pretraining, then finetuning', '500 + 400'),
  }
  rows = []
  for arm, (name, steps) in arms.items():
    score = result['accuracy'][arm]
    accuracy = f'{percent(score["estimate"])} %'
    shown = f'**{accuracy}**' if 'self-pretraining' in arm else accuracy
    rows.append((name, steps, shown, f'{percent(score["low"])} to {percent(score["high"])} %'))
  return table(('training (4,000 images)', 'steps', 'test accuracy', '95 % interval'), rows)


def attention(result: dict) -> list[str]:
  sizes = {}
  for row in result['rows']:
    sizes.setdefault((row['batch'], row['length']), {})[row['attention']] = row
  rows = []
  for kinds in sizes.values():
    ours = kinds['blockwise']
    over = ours.get('time_over_torch')
    ratio = f'{over["wall"]:.2f} / {over["processor"]:.2f} (target 0.9)' if over else 'not run'
    costs = [_cost(kinds[kind]) for kind in ('blockwise', 'torch', 'xla')]
    rows.append((_size(ours), f'{ours["layers"]} of width {ours["width"]}', *costs, ratio))
  names = 'batch', 'layers', 'ours', 'PyTorch', 'attention of `jax.nn`', 'ours over PyTorch, wall / cpu'
  return table(names, rows)


def block_attention(result: dict) -> list[str]:
  names = 'pattern', 'tokens', 'forward and backward', 'cores used', 'processor ns a visible pair', 'MB'
  rows = []
  for row in result['rows']:
    pairs = f'{row["processor_nanoseconds_per_pair"]:.1f}'
    rows.append(
      (
        row['case'],
        f'{row["length"]:,}',
        _seconds(row),
        _cores(row),
        pairs,
        f'{row["temporary_bytes"] / 1e6:,.0f}',
      )
    )
  return table(names, rows)


def generator(result: dict) -> list[str]:
  rows = []
  for size, row in result['resolutions'].items():
    times = sorted(set(row.get('times_faster', [])))
    seconds = sorted(set(row.get('official_seconds_per_image', [])))
    official = ' to '.join(f'{value:g}' for value in seconds) + ' s' if seconds else 'not known'
    faster = ' to '.join(map(str, times)) + f' x (target {row["target_times_faster"]})' if times else ''
    rows.append((f'{size} x {size}', f'{row["milliseconds_per_image"]:.2g} ms', official, faster))
  return table(('pixels', 'an image on one core', 'official code', 'faster'), rows)


def data(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    aim = f' (target {row["target"]:,})' if row['target'] else ''
    speeds = f'{row["first_pass"]:,}{aim}', f'{row["from_memory"]:,}', f'{row["tfds_and_grain"]:,}'
    rows.append((f'`{row["set"]}`', *speeds, f'{row["ratio"]:.1f} x'))
  names = 'examples', 'a second, first pass', 'later passes, from memory', 'TFDS and Grain', 'faster'
  return table(names, rows)


SSM_TARGETS = {  # times as fast as the other, by contender, other and length; of LRU: as S5 of as many states
  ('s4', 's4 torch', 1024): 20,
  ('s4', 's4 torch', 4096): 35,
  ('s5 64', 's5 64 peer', 1024): 2.5,
  ('s5 64', 's5 64 peer', 4096): 2.5,
  ('s5 256', 's5 256 peer', 1024): 4,
  ('s5 256', 's5 256 peer', 4096): 4,
  ('lru', 's5 256', 1024): 0.67,
  ('lru', 's5 256', 4096): 0.67,
}


def ssm(result: dict) -> list[str]:
  """Shows a contender a row; where it has ratios, one for each size."""
  sizes = list(dict.fromkeys(map(_size, result['steps'])))
  by = {(row['contender'], _size(row)): row for row in result['steps']}
  rows = []
  for contender in dict.fromkeys(row['contender'] for row in result['steps']):
    of = [by[contender, size] for size in sizes]
    beside = []
    for other in of[0].get('times_faster_than', {}):
      ratios = ' and '.join(f'{row["times_faster_than"][other]["wall"]:.2g}' for row in of)
      aims = [SSM_TARGETS.get((contender, other, row['length'])) for row in of]
      aim = f' (target {" and ".join(f"{aim:g}" for aim in dict.fromkeys(aims))})' if any(aims) else ''
      beside.append(f'{ratios} x {other}{aim}')
    rows.append((f'`{contender}`', *map(_cost, of), ', '.join(beside)))
  return table(('step of', *sizes, 'speed, beside others'), rows)


def huge_pages(result: dict) -> list[str]:
  rows = [
    (
      f'`{row["contender"]}`',
      _cost(row['small']),
      _cost(row['huge']),
      f'{row["times_faster"]["wall"]:.2f} x',
    )
    for row in result['rows']
  ]
  return table(('step of', 'pages of 4 KiB', 'huge pages', 'faster'), rows)


def slopes(result: dict) -> list[str]:
  axes = list(dict.fromkeys(row['axis'] for row in result['rows']))
  by = {(row['mixer'], row['axis']): row for row in result['rows']}
  rows = []
  for mixer in dict.fromkeys(row['mixer'] for row in result['rows']):
    cells = []
    for axis in axes:
      slope = by.get((mixer, axis), {}).get('slopes')
      keys = ('milliseconds', 'temporary_megabytes', 'gigaflops') if slope else ()
      values = ['-' if slope[key] is None else f'{slope[key]:.2f}' for key in keys]
      cells.append(' / '.join(values) or 'not run')
    rows.append((f'`{mixer}`', *cells))
  return table(('mixer', *axes), rows)


def members(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    cells = []
    for kind in ('alone', 'together', 'vectorised'):
      part = row[kind]
      faster = f', {part["times_faster"]["processor"]:.2f} x' if kind != 'alone' else ''
      cells.append(f'{_seconds(part)}, {part["temporary_megabytes"]:,.0f} MB{faster}')
    rows.append((f'`{row["case"]}`', row['members'], *cells))
  return table(('LRA-mini', 'runs', 'one by one', 'as one program', 'the same, stacked'), rows)


def first_step(result: dict) -> list[str]:
  kinds = result['cache']
  parts = next(iter(kinds.values()))['parts']
  rows = [(part, *(f'{kind["parts"][part]:.1f}' for kind in kinds.values())) for part in parts]
  sums = [f'**{kind["seconds"]:.1f}** (target {kind["target_seconds"]:.0f})' for kind in kinds.values()]
  return table(('part', *(f'{kind} compile cache, s' for kind in kinds)), [*rows, ('in all', *sums)])


def epoch(result: dict) -> list[str]:
  """Shows the small tasks; at the sizes of the paper an epoch on a CPU is not for use."""
  rows = []
  for row in (row for row in result['rows'] if row['case'].startswith('mini/')):
    shares = [f'{100 * row["shares"][part]:.2g} %' for part in ('evaluation', 'saving')]
    times = f'{row["epoch_seconds"]:,.0f}', *shares, f'{row["seconds"]["saving"]:.2f}'
    rows.append((f'`{row["case"]}`', *times))
  return table(('config', 'epoch, s', 'evaluation', 'saving', 'a save, s'), rows)


def saves(result: dict) -> list[str]:
  def milliseconds(part, *names):
    ours, *others = (f'{part[name]["milliseconds"]:,.0f}' for name in names)
    return ours + ''.join(f' ({other})' for other in others)

  rows = []
  for row in (row for row in result['rows'] if row['case'].startswith('image')):  # those of PathX are alike
    devices = '1 device' if row['devices'] == 1 else f'{row["devices"]} devices'
    on = devices if row['processes'] == 1 else f'{row["processes"]} processes'
    both = 'foreground', 'defaults'
    times = milliseconds(row['first'], *both), milliseconds(row, *both)
    others = milliseconds(row, 'background'), milliseconds(row, 'written')
    rows.append((f'`{row["case"]}`', on, f'{row["megabytes"]:.1f}', *times, *others))
  times = 'first save (by default)', 'foreground (by default)', 'background', 'written after'
  return table(('state of', 'on', 'MB', *(f'{name}, ms' for name in times)), rows)


def field(result: dict, ways: dict) -> list[str]:
  """The table of `field`; its last column is from the result of `ways`."""
  over_cheapest = {}
  for row in ways['rows']:
    over_cheapest.setdefault(row['mixer'], []).append(row['times_of_cheapest']['wall'])
  ours = [row for row in result['rows'] if ' ' not in row['mixer']]  # others are peers in PyTorch
  sizes = list(dict.fromkeys(row['size'] for row in ours))
  by = {(row['mixer'], row['size']): row for row in ours}

  def slowness(name):
    last = by.get((name, sizes[-1]), {})
    return last['times_of_attention']['wall'] if 'times_of_attention' in last else math.inf

  rows = []
  for name in sorted({row['mixer'] for row in ours}, key=lambda name: (slowness(name), name)):
    cells, parameters = [], ''
    for size in sizes:
      row = by.get((name, size), {'not_run': ''})
      parameters = parameters or (f'{row["parameters"]:,}' if 'parameters' in row else '')
      if 'not_run' in row:
        cells += ['not run', '', '']
      else:
        ratio, megabytes = row['times_of_attention']['wall'], row['temporary_megabytes']
        cells += [f'{ratio:.2f}', _cores(row), f'{megabytes:,.0f}']
    most = f'{max(over_cheapest[name]):.2f}' if name in over_cheapest else ''
    rows.append((f'`{name}`', parameters, *cells, most))
  names = [name for size in sizes for name in (f'{size.replace("x", " x ")}: time', 'cores', 'MB')]
  return table(('mixer', 'parameters', *names, 'over the cheapest way'), rows)


def gpu_attention(result: dict) -> list[str]:
  names = {'cudnn': 'cuDNN', 'torch': 'PyTorch', 'tokamax': 'tokamax', 'mosaic': 'ours, Mosaic'}
  names |= {'triton': 'ours, Triton', 'blockwise': 'ours, plain XLA'}
  cases = _cases(result, 'attention')
  routes = [route for route in names if any(f' {route} ' in case for case in cases)]
  neighbours = 'blocks of 4,096 and their neighbours'
  calls = ('every key image', 'every key'), ('every key pathx', 'every key')
  calls += ('blocks pathx', neighbours), ('blocks pathx narrow', neighbours)
  rows = []
  for call, name in calls:
    for dtype in ('bfloat16', 'float32'):
      times = [cases.get(f'{call} {route} {dtype}', {'not_run': ''}) for route in routes]
      sizes = cases[f'{call} triton {dtype}']['shape_BLHK']
      shown = ['' if 'not_run' in row else f'{row["milliseconds"]:.3g} ms' for row in times]
      rows.append((name, ' x '.join(f'{size:,}' for size in sizes), dtype, *shown))
  head = 'attention to', 'batch x length x heads x width', 'numbers', *(names[route] for route in routes)
  return table(head, rows)


def gpu_steps(result: dict) -> list[str]:
  step = 'step image transformer_rotary bfloat16 8 per dispatch'
  ways = {
    '': 'layers one after the other (the default)',
    ', layers in a loop': 'layers in a loop',
    ', layers in a loop, attention by cudnn': 'the same, attention by cuDNN',
    ', layers in a loop, all but products again': 'the same, all but matrix products computed again',
    ', layers in a loop, elementwise again': 'the same, elementwise operations computed again',
  }
  cases = _cases(result, 'steps')
  rows = []
  for way, name in ways.items():
    row = cases[step + way]
    speeds = f'{row["examples_per_second"]:,.0f}', f'{row["teraflops_per_second"]:.0f}'
    ratio = f'{row["milliseconds"] / cases[step]["milliseconds"]:.2f}'
    rows.append((name, f'{row["milliseconds"]:.3g} ms', *speeds, ratio))
  what = 'a step of 64 images, rotary Transformer, bfloat16'
  return table((what, 'time', 'images/s', 'TFLOP/s', 'over the default'), rows)


def _cases(result: dict, part: str) -> dict[str, dict]:
  return {row['case']: row for row in result['parts'][part]['rows']}
