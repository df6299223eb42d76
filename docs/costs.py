"""Tables of what things cost, each from the content of a result file; docs/figures.py puts them on pages."""

import textwrap


def paragraph(text: str) -> list[str]:
  return textwrap.wrap(text, 108, break_long_words=False, break_on_hyphens=False)


def hardware(found: dict) -> str:
  """On what and with which jax a result was made, and when; machines: a list, of a result that was made on
  several, each with its versions and how many runs it made."""
  machines = found.get('machines') or [{key: found[key] for key in ('hardware', 'versions')}]
  runs = {}
  for one in machines:
    name = f'{device(one["hardware"])}, jax {one["versions"]["jax"]}'
    runs[name] = runs.get(name, 0) + one.get('runs', 1)
  if len(runs) == 1:
    return f'{next(iter(runs))}, {found["date"]}'
  return f'{" and ".join(f"{name} ({count} runs)" for name, count in runs.items())}, {found["date"]}'


def device(parts: dict) -> str:
  """What hardware is called."""
  if parts.get('platform') == 'gpu':
    return parts['device_kind']
  return f'{parts["cpu_count"]} CPU cores, {parts["cpu"]}'


def listed(names) -> str:
  *first, last = names
  return f'{", ".join(first)} and {last}' if first else last


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def between(interval: dict) -> str:
  return f'{percent(interval["low"])} to {percent(interval["high"])}'


def gain(interval: dict, name='95 % interval ') -> str:
  return f'{percent(interval["estimate"])} points ({name}{between(interval)})'


def field(found: dict) -> list[str]:
  ours = [row for row in found['rows'] if ' ' not in row['mixer']]
  sizes = list(dict.fromkeys(row['size'] for row in ours))
  rows = {(row['mixer'], row['size']): row for row in ours}
  last = sizes[-1]

  def slowness(name):
    row = rows.get((name, last), {})
    return row['times_of_attention']['wall'] if 'times_of_attention' in row else float('inf')

  head = ''.join(f' {size.replace("x", " x ")}: time | MB |' for size in sizes)
  lines = [f'| mixer | parameters |{head}', '|---|---|' + '---|' * (2 * len(sizes))]
  for name in sorted({row['mixer'] for row in ours}, key=lambda name: (slowness(name), name)):
    cells = [rows.get((name, size)) for size in sizes]
    counts = [f'{cell["parameters"]:,}' for cell in cells if cell and 'parameters' in cell]
    lines.append(f'| `{name}` | {counts[0] if counts else ""} | {" | ".join(map(_cost, cells))} |')
  rounds = {row['size']: row['rounds'] for row in ours if 'rounds' in row}
  turns = ', '.join(f'{count} at {size.replace("x", " x ")}' for size, count in rounds.items())
  return [
    *lines,
    '',
    *paragraph(
      f'Time: multiples of the wall time of full attention in the same turns (medians of {turns}). MB: what '
      f'the compiled step needs beside parameters and optimizer. {hardware(found)}{commits(found)}; '
      f'`{found["command"]}`.'
    ),
    *field_peers([row for row in found['rows'] if ' ' in row['mixer']]),
  ]


def field_peers(rows: list[dict]) -> list[str]:
  """What PyTorch takes for the mixers of the same names; see docs/peers.md."""
  told = []
  for row in rows:
    name, size = row['mixer'].removesuffix(' torch'), row['size'].replace('x', ' x ')
    times = 'not run' if 'not_run' in row else f'{row[f"times_of_{name}"]["wall"]:.2f}'
    told.append(f'`{name}` {times} at {size}')
  if not rows:
    return []
  versions = sorted({row['torch'] for row in rows if 'torch' in row})
  return ['', *paragraph(f'PyTorch {", ".join(versions)}, time over ours: {"; ".join(told)}.')]


def _cost(row) -> str:
  if row is None or 'not_run' in row:
    return 'not run | '
  return f'{row["times_of_attention"]["wall"]:.2f} | {row["temporary_megabytes"]:,.0f}'


def ways(found: dict | None) -> list[str]:
  if found is None:
    return ['Not run.']
  lines = head(['mixer', 'size', 'time of others over ours'])
  for row in sorted(found['rows'], key=lambda row: row['mixer']):
    lines.append(f'| `{row["mixer"]}` | {row["size"].replace("x", " x ")} | {_others(row)} |')
  worst = max(found['rows'], key=lambda row: row['times_of_cheapest']['wall'])
  return [
    *lines,
    '',
    *paragraph(
      f'Ours takes at most {worst["times_of_cheapest"]["wall"]:.2f} times as long as the cheapest '
      f'(`{worst["mixer"]}`, {worst["size"].replace("x", " x ")}; target 2).'
    ),
    '',
    *source(found),
  ]


def _others(row) -> str:
  ways = ((way, cost['times_of_ours']['wall']) for way, cost in row['ways'].items() if way != 'ours')
  return ', '.join(f'{way.replace("=", " ")} {times:.2f}' for way, times in ways)


def field_compiled(found: dict) -> list[str]:
  tasks = list(dict.fromkeys(row['task'] for row in found['rows']))
  rows = {(row['mixer'], row['task']): row for row in found['rows']}
  heads = ' | '.join(f'{task}: parameters | MiB per chip | compiled in' for task in tasks)
  lines = [f'| mixer | {heads} |', '|---' * (1 + 3 * len(tasks)) + '|']
  for name in sorted({row['mixer'] for row in found['rows']}):
    cells = ' | '.join(_compiled(rows.get((name, task))) for task in tasks)
    lines.append(f'| `{name}` | {cells} |')
  fits = all(row.get('fits', True) for row in found['rows'])
  return [
    *lines,
    '',
    *paragraph(
      f'{"All that was compiled fits" if fits else "Not all fit"} {found["topology"]} (16 GiB a chip). '
      f'Compiled ahead of time and not run: {hardware(found)}, commit {found["commit"]}; '
      f'`{found["command"]}`.'
    ),
  ]


def _compiled(row) -> str:
  if row is None or 'not_run' in row:
    return f'{(row or {}).get("not_run", "not run")} | | '
  mebibytes = f'{row["bytes_per_device"] / 2**20:,.0f}' + ('' if row['fits'] else ' (does not fit)')
  return f'{row["parameters"]:,} | {mebibytes} | {row["compile_seconds"]:.0f} s'


def head(names) -> list[str]:
  return [f'| {" | ".join(names)} |', '|---' * len(names) + '|']


def source(found: dict) -> list[str]:
  """Where, when, of which commit and by which command."""
  return paragraph(f'{hardware(found)}{commits(found)}; `{found["command"]}`.')


def commits(found: dict) -> str:
  """, commit ..., and those of rows that a resumed benchmark had kept."""
  kept = {row['commit']: row['date'] for row in found.get('rows', []) if 'commit' in row}
  older = ''.join(f', rows of {commit} from {date}' for commit, date in kept.items())
  return f', commit {found["commit"]}{older}' if found.get('commit') else ''


def _compiled_only(found: dict, what: str) -> list[str]:
  return paragraph(
    f'{what} Compiled ahead of time and not run: {hardware(found)}{commits(found)}; `{found["command"]}`.'
  )


def chips(found: dict) -> list[str]:
  heads = (
    'model',
    'slices',
    'chips',
    'MiB a chip',
    'sent by a chip, MiB',
    'of it between slices, MiB',
    'at best',
  )
  lines = head(heads)
  for row in found['rows']:
    cells = [f'`{row["model"]}`', row['topology']]
    if 'not_run' in row:
      cells += ['not run'] + [''] * 4
    else:
      between = row['between_slices_per_device']
      cells.append(f'{row["devices"]}')
      sizes = (row['bytes_per_device'], row['sent_per_device'] + between, between)
      cells += [f'{size / 2**20:,.1f}' for size in sizes]
      cells.append(f'{1e3 * max(row["seconds_at_best"].values()):.2f} ms')
    lines.append(f'| {" | ".join(cells)} |')
  return [*lines, '', *_compiled_only(found, f'{found["batch_size"]} rows a step in {found["precision"]}.')]


def configs_compiled(found: dict) -> list[str]:
  lines = head(('task', 'model', 'slice', 'stage', 'batch', 'GiB a chip', 'sent by a chip, MiB', 'at best'))
  for row in found['rows']:
    for stage in ('pretrain', 'finetune'):
      part, cells = row[stage], [row['case'], f'`{row["model"]}`', row['topology'], stage]
      if 'not_run' in part:
        cells += ['', part['not_run'], '', '']
      else:
        fits = '' if part['bytes_per_device'] <= part['hbm'] else ', does not fit'
        cells.append(f'{part["batch_size"]}')
        cells.append(f'{part["bytes_per_device"] / 2**30:.2f}{fits}')
        if fits:
          cells += ['', '']
        else:
          cells.append(f'{part["sent_per_device"] / 2**20:,.1f}')
          cells.append(f'{1e3 * part["seconds_at_best"]:,.2f} ms, {part["bound_by"]}')
      lines.append(f'| {" | ".join(cells)} |')
  return [
    *lines,
    '',
    *_compiled_only(
      found,
      f'Masked regime, values of the configs, {found["precision"]}, pathx256 with mesh.seq=2; a chip '
      'of v5e has 15.75 GiB.',
    ),
  ]


def tpu_traffic(found: dict) -> list[str]:
  heads = 'task', 'model', 'moves, GiB', 'least, GiB', 'times the least', 'the operation that moves most'
  lines = head(heads)
  for row in found['rows']:
    cells = [row['task'], f'`{row["case"]}`']
    if 'not_run' in row:
      cells += [row['not_run'], '', '', '']
    else:
      moved, least = row['memory_bytes_per_device'], sum(row['least_memory_bytes_per_device'].values())
      most = row['largest_traffic'][0]
      where = most['source'].rpartition('/')[2] or most['operation']
      backward = ' of the backward pass' if 'transpose(' in most['source'] else ''
      cells += [f'{moved / 2**30:,.1f}', f'{least / 2**30:,.1f}', f'{moved / least:.1f}']
      cells.append(f'`{where}`{backward}, {100 * most["bytes"] / moved:.0f} %')
    lines.append(f'| {" | ".join(cells)} |')
  what = f'A finetuning step with the values of the configs on {found["topology"]}, each chip.'
  return [*lines, '', *_compiled_only(found, what)]


def first_step(found: dict) -> list[str]:
  kinds = found['cache']
  heads = ' | '.join(f'{kind} compile cache, s' for kind in kinds)
  lines = [f'| part | {heads} |', '|---' * (1 + len(kinds)) + '|']
  for part in next(iter(kinds.values()))['parts']:
    cells = [f'{kind["parts"][part]:.1f}' for kind in kinds.values()]
    lines.append(f'| {part} | {" | ".join(cells)} |')
  sums = ' | '.join(
    f'**{kind["seconds"]:.1f}** (target {kind["target_seconds"]:.0f})' for kind in kinds.values()
  )
  asked = ', '.join(f'`{name}` {seconds:.2f} s' for name, seconds in found['commands'].items())
  return [
    *lines,
    f'| in all | {sums} |',
    '',
    *paragraph(
      f'What only answers: {asked}. {hardware(found)}, commit {found["commit"]}; `{found["command"]}`.'
    ),
  ]


def epoch(found: dict) -> list[str]:
  lines = ['| config | epoch, s | evaluation | saving | a save, s |', '|---|---|---|---|---|']
  for row in found['rows']:
    shares = [f'{100 * row["shares"][part]:.2g} %' for part in ('evaluation', 'saving')]
    cells = [f'`{row["case"]}`', f'{row["epoch_seconds"]:,.0f}', *shares, f'{row["seconds"]["saving"]:.2f}']
    lines.append(f'| {" | ".join(cells)} |')
  most = max(1 - row['shares']['steps'] for row in found['rows'])
  save = max(row['seconds']['saving'] for row in found['rows'])
  return [
    *lines,
    '',
    *paragraph(
      f'At most {100 * most:.1f} % here is not steps (target {100 * found["target"]:.0f} %). '
      f'Where an epoch takes less than about {save * (1 / found["target"] - 1):.0f} s, as small tasks may on '
      'accelerators, saving alone would take more; `evaluate_every` spaces both out. '
      f'{hardware(found)}, commit {found["commit"]}; '
      f'`{found["command"]}`.'
    ),
  ]


def saves(found: dict) -> list[str]:
  times = 'first save (by default)', 'foreground (by default)', 'background', 'written after'
  lines = head(('state of', 'on', 'MB', *(f'{name}, ms' for name in times)))

  def shown(of, *names):
    ours, *rest = (f'{of[name]["milliseconds"]:,.0f}' for name in names)
    return ours + ''.join(f' ({other})' for other in rest)

  for row in found['rows']:
    devices = '1 device' if row['devices'] == 1 else f'{row["devices"]} devices'
    on = devices if row['processes'] == 1 else f'{row["processes"]} processes'
    both = 'foreground', 'defaults'
    cells = f'`{row["case"]}`', on, f'{row["megabytes"]:.1f}', shown(row['first'], *both), shown(row, *both)
    lines.append(f'| {" | ".join((*cells, shown(row, "background"), shown(row, "written")))} |')
  return [*lines, '', *source(found)]


def digests(found: dict) -> list[str]:
  """Of a checkpoint when it is saved, of a prepared set when it is opened."""
  save, opened = found['checkpoint'], found['set']
  milliseconds = [f'{save[part]["milliseconds"]:.0f}' for part in ('digests', 'save')]
  seconds = [f'{opened[part]["milliseconds"] / 1e3:.2f} s' for part in ('first', 'again')]
  return paragraph(
    'A checkpoint holds a digest of every array, a prepared set of every file: '
    f'{milliseconds[0]} of the {milliseconds[1]} ms in which the pretraining state of the Transformer on '
    f'Image ({save["megabytes"]:.1f} MB) is saved; a set of {opened["megabytes"]:.0f} MB opens in '
    f'{seconds[0]} the first time, when its files are read, and in {seconds[1]} from then on. '
    f'{hardware(found)}{commits(found)}, load average {found["load_average_before"]:.1f} by other work; '
    f'`{found["command"]}`.'
  )


STAGES = {'pretrain': 'pretraining', 'finetune': 'finetuning'}


def pathx256(found: dict) -> list[str]:
  """Memory of PathX-256 on one CPU device; stages that need the same stand in one line."""
  rows = {}
  for run in found['runs']:
    for name, stage in run['stages'].items():
      if stage['topology'] == 'cpu:1':
        memory = f'{stage["bytes_per_device"]["total"] / 2**30:.1f}'
        rows.setdefault((stage['model'], stage['batch_size'], memory), []).append(STAGES[name])
  lines = head(('step', 'batch', 'memory, GiB'))
  return lines + [
    f'| `{model}`, {" or ".join(stages)} | {batch} | {memory} |'
    for (model, batch, memory), stages in rows.items()
  ]


def processes(found: dict) -> list[str]:
  lines = head(['model', 'processes', 'losses apart', 'all-reduces a step', 'of bytes', 'MB a process'])
  for row in found['rows']:
    for one in row['by_processes']:
      assert one['collectives'].keys() <= {'all-reduce'}, 'another column is needed'
      reduced = one['collectives'].get('all-reduce', {'count': 0, 'bytes': 0})
      apart = f'{one["difference"]:.1g}' if one['difference'] else '0'
      cells = (one['processes'], apart, reduced['count'], f'{reduced["bytes"]:,}', f'{one["megabytes"]:,}')
      lines.append(f'| `{row["model"]}` | {" | ".join(map(str, cells))} |')
  count = found['rows'][0]['by_processes'][0]['losses']
  told = f'Apart: the largest relative difference of {count} losses to those of one process.'
  return [*lines, '', *paragraph(told), '', *source(found)]


FAULTS = {  # of one process
  'later': 'clock an hour later',
  'earlier': 'clock an hour earlier',
  'read': 'one read fails',
  'reads': 'all reads fail',
  'full': 'disk full',
  'twice': 'SIGINT twice',
}
ENDS = {0: 'well', 2: 'error', 75: '75', -9: 'killed', -15: 'killed', 130: 'interrupted'}


def faults_several(found: dict) -> list[str]:
  lines = head(['fault', 'where', 'tries', 'ends: struck, other', 'slowest, s', 'losses apart'])
  for row in found['rows']:
    tries = [one for one in found['each'] if (one['fault'], one['phase']) == (row['fault'], row['where'])]
    pairs = ((one['statuses'][one['process']], one['statuses'][1 - one['process']]) for one in tries)
    ends = '; '.join(sorted({f'{ENDS.get(a, a)}, {ENDS.get(b, b)}' for a, b in pairs}))
    where = row['where'] or 'random moments'
    apart = 'not ended' if row['difference'] is None else f'{row["difference"]:.1g}'
    cells = (
      FAULTS.get(row['fault'], row['fault']),
      where,
      row['tries'],
      ends,
      f'{row["slowest"]:.0f}',
      apart,
    )
    lines.append(f'| {" | ".join(map(str, cells))} |')
  told = f'{found["tries"]} tries, {len(found["problems"])} problems.'
  commits = sorted({one['commit'] for one in found['each']})
  of = f'{hardware(found)}, {"commits" if len(commits) > 1 else "commit"} {", ".join(commits)}'
  return [*lines, '', *paragraph(f'{told} {of}; `{found["command"]}`.')]
