"""Tables of how fast things are, each from the content of a result file; see docs/figures.py."""

from docs.costs import head, paragraph, source

# Times faster than the peer, by contender, peer and length; of LRU: than S5 of as many states.
TARGETS = {
  ('s4', 's4 torch', 1024): 20,
  ('s4', 's4 torch', 4096): 35,
  ('s5 64', 's5 64 peer', 1024): 2.5,
  ('s5 64', 's5 64 peer', 4096): 2.5,
  ('s5 256', 's5 256 peer', 1024): 4,
  ('s5 256', 's5 256 peer', 4096): 4,
  ('lru', 's5 256', 1024): 0.67,
  ('lru', 's5 256', 4096): 0.67,
}
ATTENTION_TARGET = 0.9  # of PyTorch's time


def _table(names, rows) -> list[str]:
  return [*head(names), *(f'| {" | ".join(row)} |' for row in rows)]


def _seconds(row: dict) -> str:
  return (
    f'{row["milliseconds"] / 1e3:.2f} s' if row['milliseconds'] >= 1000 else f'{row["milliseconds"]:.0f} ms'
  )


def _cost(row: dict) -> str:
  """Time and the memory that the process added."""
  if 'not_run' in row:
    return 'not run'
  return f'{_seconds(row)}, {row["peak_megabytes"] / 1e3:.1f} GB'


def _size(row: dict) -> str:
  return f'{row["batch"]} x {row["length"]:,}'


def _targets(reached: dict[str, float]) -> list[str]:
  """Which targets are met, and by how much others are missed. reached: {name: times of its target}."""
  met = [name for name, times in reached.items() if times >= 1]
  missed = [f'{name} by {100 * (1 - times):.0f} %' for name, times in reached.items() if times < 1]
  parts = [f'{word}: {", ".join(names)}.' for word, names in (('Met', met), ('Missed', missed)) if names]
  return ['', *paragraph(f'Targets. {" ".join(parts)}')] if parts else []


def attention_reached(found: dict) -> dict[str, float]:
  """{size: times of its target that our speed is}."""
  return {
    _size(row): ATTENTION_TARGET / row['time_over_torch']['wall']
    for row in found['rows']
    if row['attention'] == 'blockwise' and row.get('time_over_torch')
  }


def attention(found: dict) -> list[str]:
  sizes = {}
  for row in found['rows']:
    sizes.setdefault((row['batch'], row['length']), {})[row['attention']] = row
  rows = []
  for kinds in sizes.values():
    ours = kinds['blockwise']
    model = f'{ours["layers"]} of width {ours["width"]}'
    ratio = 'not run'
    if over := ours.get('time_over_torch'):
      ratio = f'{over["wall"]:.2f} / {over["processor"]:.2f} (target {ATTENTION_TARGET})'
    rows.append([_size(ours), model, *(_cost(kinds[kind]) for kind in ('blockwise', 'torch', 'xla')), ratio])
  names = 'batch', 'layers', 'ours', 'PyTorch', 'attention of `jax.nn`', 'ours over PyTorch, wall / cpu'
  return [*_table(names, rows), *_targets(attention_reached(found)), '', *source(found)]


def block_attention(found: dict) -> list[str]:
  rows = [
    [
      row['case'],
      f'{row["length"]:,}',
      _seconds(row),
      f'{row["processor_nanoseconds_per_pair"]:.1f}',
      f'{row["temporary_bytes"] / 1e6:,.0f}',
    ]
    for row in found['rows']
  ]
  names = 'pattern', 'tokens', 'forward and backward', 'processor ns a visible pair', 'MB'
  aims = []
  for target in found['targets']:
    measured = target['measured']
    value = measured['wall'] if isinstance(measured, dict) else measured
    aims.append(f'* Target: {target["target"]}: {value:.3g}, {"met" if target["met"] else "missed"}.')
  return [*_table(names, rows), '', *aims, '', *source(found)]


def generator(found: dict) -> list[str]:
  rows = []
  for size, row in found['resolutions'].items():
    times = sorted(set(row.get('times_faster', [])))
    seconds = sorted(set(row.get('official_seconds_per_image', [])))
    official = ' to '.join(f'{value:g}' for value in seconds) + ' s' if seconds else 'not known'
    faster = ' to '.join(map(str, times)) + f' x (target {row["target_times_faster"]})' if times else ''
    rows.append([f'{size} x {size}', f'{row["milliseconds_per_image"]:.2g} ms', official, faster])
  return [*_table(('pixels', 'an image on one core', 'official code', 'faster'), rows), '', *source(found)]


def data(found: dict) -> list[str]:
  rows = []
  for row in found['rows']:
    aim = f' (target {row["target"]:,})' if row['target'] else ''
    cells = [f'`{row["set"]}`', f'{row["first_pass"]:,}{aim}', f'{row["from_memory"]:,}']
    rows.append([*cells, f'{row["tfds_and_grain"]:,}', f'{row["ratio"]:.1f} x'])
  names = 'examples', 'a second, first pass', 'later passes, from memory', 'TFDS and Grain', 'faster'
  return [*_table(names, rows), '', *source(found)]


def ssm_reached(found: dict) -> dict[str, float]:
  """{contender and size: times of its target that its speed is}."""
  reached = {}
  for row in found['steps']:
    for other, ratio in row.get('times_faster_than', {}).items():
      if aim := TARGETS.get((row['contender'], other, row['length'])):
        reached[f'`{row["contender"]}` at {_size(row)}'] = ratio['wall'] / aim
  return reached


def ssm(found: dict) -> list[str]:
  rows = []
  for row in found['steps']:
    beside = []
    for other, ratio in row.get('times_faster_than', {}).items():
      aim = TARGETS.get((row['contender'], other, row['length']))
      beside.append(f'{ratio["wall"]:.2g} x {other}' + (f' (target {aim:g})' if aim else ''))
    rows.append([f'`{row["contender"]}`', _size(row), _cost(row), ', '.join(beside)])
  names = 'step of', 'batch', 'cost', 'speed, beside others'
  return [*_table(names, rows), *_targets(ssm_reached(found)), '', *source(found)]


def huge_pages(found: dict) -> list[str]:
  rows = [
    [
      f'`{row["contender"]}`',
      *(_cost(row[kind]) for kind in ('small', 'huge')),
      f'{row["times_faster"]["wall"]:.2f} x',
    ]
    for row in found['rows']
  ]
  return [*_table(('step of', 'pages of 4 KiB', 'huge pages', 'faster'), rows), '', *source(found)]


def slopes(found: dict) -> list[str]:
  axes = list(dict.fromkeys(row['axis'] for row in found['rows']))
  by = {(row['mixer'], row['axis']): row for row in found['rows']}
  rows, above = [], []
  for mixer in dict.fromkeys(row['mixer'] for row in found['rows']):
    cells = [f'`{mixer}`']
    for axis in axes:
      row = by.get((mixer, axis), {'not_run': 'not run'})
      if 'not_run' in row:
        cells.append('not run')
        continue
      time, memory, theory = (
        row['slopes'][key] for key in ('milliseconds', 'temporary_megabytes', 'gigaflops')
      )
      cells.append(' / '.join('-' if value is None else f'{value:.2f}' for value in (time, memory, theory)))
      for name, value in (('time', time), ('memory', memory)):
        if value is not None and theory is not None and value > theory + found['allowed']:
          above.append(f'{name} of `{mixer}` against {axis}, {value:.2f} for {theory:.2f}')
    rows.append(cells)
  told = f'Above theory + {found["allowed"]}: {"; ".join(above)}.' if above else 'None is above theory + 0.1.'
  return [*_table(('mixer', *axes), rows), '', *paragraph(told), '', *source(found)]


def slopes_again(found: dict, mixer: str = 'dlr', runs: int = 4) -> list[str]:
  """A few rows of `slopes` that were measured once more, and how long some runs of a mixer take together."""
  (axis,) = {row['axis'] for row in found['rows']}
  slopes = [f'`{row["mixer"]}` {row["slopes"]["milliseconds"]:.2f}' for row in found['rows']]
  (row,) = [row for row in found['rows'] if row['mixer'] == mixer]
  times = dict(zip(row['sizes'], row['milliseconds'], strict=True))
  return paragraph(
    f'Measured again, time against {axis}: {", ".join(slopes)}. {runs} runs of `{mixer}` take '
    f'{times[runs] / times[1]:.1f} times as long as one ({found["date"]}, commit '
    f'{found["commit"]}; `benchmarks/results/slopes_again.json`).'
  )


def slow_tests(found: dict) -> list[str]:
  passed = sum(one['outcome'] == 'passed' for one in found['tests'])
  minutes = sum(one['seconds'] for one in found['tests']) / 60
  return paragraph(
    f'Last run all at once on {found["date"]}: {passed} of {len(found["tests"])} passed in {minutes:.0f} '
    f'minutes ({found["hardware"]["cpu_count"]} CPU cores, jax {found["versions"]["jax"]}, commit '
    f'{found["commit"]}; `python -m benchmarks slow_tests`).'
  )


def members(found: dict) -> list[str]:
  rows = []
  for row in found['rows']:
    cells = [f'`{row["case"]}`', str(row['members'])]
    for kind in ('alone', 'together', 'vectorised'):
      part = row[kind]
      faster = f', {part["times_faster"]["processor"]:.2f} x' if kind != 'alone' else ''
      cells.append(f'{_seconds(part)}, {part["temporary_megabytes"]:,.0f} MB{faster}')
    rows.append(cells)
  names = 'LRA-mini', 'runs', 'one by one', 'as one program', 'the same, stacked'
  told = 'Time of a step of all runs and memory for intermediate values; speed by processor time.'
  return [*_table(names, rows), '', told, '', *source(found)]
