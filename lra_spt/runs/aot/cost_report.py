"""The printed report of `lra-spt compile`: bytes, operations and seconds of a compiled step."""


def roofline(chip, flops: float, memory_bytes: float, sent_bytes: float) -> dict[str, float]:
  """The least seconds that one chip needs for its matrix products, its memory and its links."""
  return {
    'matrix products': flops / chip.flops,
    'memory': memory_bytes / chip.hbm_bandwidth,
    'interconnect': sent_bytes / chip.ici_bandwidth,
  }


def table(result: dict) -> str:
  """Formats the report of a stage."""
  mesh = ' '.join(f'{axis}={size}' for axis, size in result['mesh'].items())
  parts = f' in {result["microbatches"]} microbatches' if result['microbatches'] > 1 else ''
  parts += f', of each of {result["members"]} runs' if result.get('members', 1) > 1 else ''
  rows_of = f'{result["batch_size"]} {"pairs of rows" if result["documents"] == 2 else "rows"} of'
  rows = [
    ('step', f'{rows_of} {result["length"]:,} positions{parts}; {result["precision"]}, '
             f'remat={result["remat"]}'),
    ('compiled for', f'{result["topology"]}, {result["devices"]} device(s), mesh {mesh}, in '
                     f'{result["compile_seconds"]:.0f} s'),
    ('parameters', f'{result["parameters"]:,}'),
    *_memory_rows(result),
    ('FLOPs per step', f'{result["flops_per_step"]:.3g} by our count (3 x forward x batch)'),
  ]  # fmt: skip
  if 'collectives' in result:
    rows += _cost_rows(result)
  if 'seconds_at_best' in result:
    rows += _time_rows(result)
  title = f'{result["stage"]}: {result["model"]} on {result["task"]} ({result["regime"]})'
  return '\n'.join([title, *map(_line, rows)])


def smallest_table(result: dict) -> str:
  """Formats the search for the smallest slice, for the lines below `table`."""
  smallest = result['smallest']
  none = 'none so far' if smallest['estimated'] else 'none of those that can share the batch evenly'
  rows = [('smallest slice', smallest['slice'] or none)]
  for name, total in smallest['tried'].items():
    fits = 'fits' if total <= result['hbm'] else f'does not fit by {_short(total - result["hbm"])}'
    rows.append(('', f'{name}: {_short(total)}, {fits}'))
  for name, total in smallest['estimated'].items():
    rows.append(('', f'{name}: about {_short(total)}, not compiled to save time; --smallest=true does'))
  return '\n'.join(map(_line, rows))


def _line(row):
  return f'  {row[0]:<17}  {row[1]}'


def _memory_rows(result):
  sizes = dict(result['bytes_per_device'])
  total = sizes.pop('total')
  if sizes:
    parts = ', '.join(f'{name} {_short(size)}' for name, size in sizes.items())
    yield 'memory per device', f'{parts} (outputs: beyond the donated state)'
  if 'hbm' not in result:
    verdict = "the CPU program's buffers; a GPU's will differ"
  elif result['fits']:
    verdict = f'fits {_short(result["hbm"])}, {_short(result["hbm"] - total)} free'
  else:
    verdict = f'does not fit {_short(result["hbm"])} by {_short(total - result["hbm"])}'
  yield 'in all', f'{_short(total)}: {verdict}'
  if not result['training_set_known']:
    yield '', 'without the training set, not prepared here, which may be on devices too (runtime.placement)'


def _cost_rows(result):
  yield '', f"{result['xla_flops_per_step']:.3g} by XLA's, which counts loops once and omits kernels"
  if 'hbm' in result:
    traffic = f'{_short(result["memory_bytes_per_device"])} per step and device'
    if least := result.get('least_memory_bytes_per_device'):
      residuals = f'{_short(least["kept"])} of it for the backward pass'
      traffic += f', at least {_short(sum(least.values()))} where nothing stays on the chip ({residuals})'
    yield 'memory traffic', traffic
  kinds = [f'{c["count"]} {kind} of {_short(c["bytes"])}' for kind, c in result['collectives'].items()]
  yield 'collectives', ', '.join(kinds) + ' in all' if kinds else 'none'
  if 'between_slices' in result:
    kinds = [f'{c["count"]} {kind} of {_short(c["bytes"])}' for kind, c in result['between_slices'].items()]
    yield 'between slices', f'{", ".join(kinds)} sent to the network by each device, not in the time below'
  if result['unknown_loops']:
    yield '', f'{result["unknown_loops"]} loop(s) of unknown length count once in traffic and collectives'


def _time_rows(result):
  seconds = result['seconds_at_best']
  binds = max(seconds, key=seconds.get)
  each = ', '.join(f'{name} {1e3 * value:.3g}' for name, value in seconds.items())
  yield 'time per step', f'{1e3 * seconds[binds]:.3g} ms at best, bound by {binds} ({each} ms)'
  used = seconds['matrix products'] / seconds[binds]
  yield 'utilisation', f'{100 * used:.1f} % of the bfloat16 peak at best'
  if 'epoch_seconds_at_best' in result:
    yield 'time per epoch', f'{result["epoch_seconds_at_best"]:.1f} s at best'


def _short(size: float) -> str:
  for unit in ('B', 'KiB', 'MiB'):
    if size < 999.5:  # 1e+03 otherwise
      return f'{size:.3g} {unit}'
    size /= 1024
  return f'{size:.3g} GiB' if size < 1000 else f'{size:,.0f} GiB'
