"""Makes tables of what compiled programs need, of errors, faults and the costs of studies."""

import math

from benchmarks.tables.markdown import table

GIB, MIB = 2**30, 2**20


def field_compiled(result: dict) -> list[str]:
  tasks = list(dict.fromkeys(row['task'] for row in result['rows']))
  by = {(row['mixer'], row['task']): row for row in result['rows']}
  rows = []
  for name in sorted({row['mixer'] for row in result['rows']}):
    cells = []
    for task in tasks:
      row = by.get((name, task), {'not_run': 'not run'})
      if 'not_run' in row:
        cells += [row['not_run'], '', '']
      else:
        memory = f'{row["bytes_per_device"] / MIB:,.0f}' + ('' if row['fits'] else ' (does not fit)')
        cells += [f'{row["parameters"]:,}', memory, f'{row["compile_seconds"]:.0f} s']
    rows.append((f'`{name}`', *cells))
  names = [name for task in tasks for name in (f'{task}: parameters', 'MiB per chip', 'compiled in')]
  return table(('mixer', *names), rows)


def configs_compiled(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    for stage in ('pretrain', 'finetune'):
      part, cells = row[stage], [row['case'], f'`{row["model"]}`', row['topology'], stage]
      if 'not_run' in part:
        cells += ['', part['not_run'], '', '']
      elif part['bytes_per_device'] > part['hbm']:
        cells += [part['batch_size'], f'{part["bytes_per_device"] / GIB:.2f}, does not fit', '', '']
      else:
        cells += [part['batch_size'], f'{part["bytes_per_device"] / GIB:.2f}']
        cells += [f'{part["sent_per_device"] / MIB:,.1f}']
        cells += [f'{1e3 * part["seconds_at_best"]:,.2f} ms, {part["bound_by"]}']
      rows.append(cells)
  names = 'task', 'model', 'slice', 'stage', 'batch', 'GiB a chip', 'sent by a chip, MiB', 'at best'
  return table(names, rows)


def chips(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    cells = [f'`{row["model"]}`', row['topology']]
    if 'not_run' in row:
      cells += ['not run', '', '', '', '']
    else:
      between = row['between_slices_per_device']
      sizes = row['bytes_per_device'], row['sent_per_device'] + between, between
      best = f'{1e3 * max(row["seconds_at_best"].values()):.2f} ms'
      cells += [row['devices'], *(f'{size / MIB:,.1f}' for size in sizes), best]
    rows.append(cells)
  sent = 'sent by a chip, MiB', 'of it between slices, MiB'
  return table(('model', 'slices', 'chips', 'MiB a chip', *sent, 'at best'), rows)


def tpu_traffic(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    cells = [row['task'], f'`{row["case"]}`']
    if 'not_run' in row:
      cells += [row['not_run'], '', '', '']
    else:
      moved, least = row['memory_bytes_per_device'], sum(row['least_memory_bytes_per_device'].values())
      most = row['largest_traffic'][0]
      where = most['source'].rpartition('/')[2] or most['operation']
      backward = ' of the backward pass' if 'transpose(' in most['source'] else ''
      cells += [f'{moved / GIB:,.1f}', f'{least / GIB:,.1f}', f'{moved / least:.1f}']
      cells.append(f'`{where}`{backward}, {100 * most["bytes"] / moved:.0f} %')
    rows.append(cells)
  names = 'task', 'model', 'moves, GiB', 'least, GiB', 'times the least', 'the operation that moves most'
  return table(names, rows)


def numerics(result: dict) -> list[str]:
  kernels = {  # file in lra_spt/ops: what it computes
    'cauchy': 'S4 (`ops/cauchy.py`)',
    'vandermonde': 'DLR, S4D (`ops/vandermonde.py`)',
    'fft_conv': "convolution (`ops/fft_conv.py`), FFT and TPU's route",
    'scan': 'scan (`ops/scan.py`)',
    'scan_pallas': 'scan in Pallas (`ops/scan_pallas.py`), interpreted',
  }
  lengths = sorted({row['positions'] for row in result['rows']})

  def worst(kernel, length, what):
    of_kernel = [row for row in result['rows'] if (row['kernel'], row['positions']) == (kernel, length)]
    return f'{max(row[what] for row in of_kernel):.1e}'.replace('e-0', 'e-')

  kinds = 'values', 'gradients'
  rows = [
    (name, *(' / '.join(worst(kernel, length, what) for length in lengths) for what in kinds))
    for kernel, name in kernels.items()
  ]
  both = ' / '.join(f'{length:,}' for length in lengths)
  return table(('kernel', *(f'{what}, {both}' for what in kinds)), rows)


def processes(result: dict) -> list[str]:
  rows = []
  for row in result['rows']:
    for one in row['by_processes']:
      reduced = one['collectives'].get('all-reduce', {'count': 0, 'bytes': 0})
      apart = f'{one["difference"]:.1g}' if one['difference'] else '0'
      counts = reduced['count'], f'{reduced["bytes"]:,}', f'{one["megabytes"]:,}'
      rows.append((f'`{row["model"]}`', one['processes'], apart, *counts))
  names = 'model', 'processes', 'losses apart', 'all-reduces a step', 'of bytes', 'MB a process'
  return table(names, rows)


def faults_several(result: dict) -> list[str]:
  names = {
    'later': 'clock an hour later',
    'earlier': 'clock an hour earlier',
    'read': 'one read fails',
    'reads': 'all reads fail',
    'full': 'disk full',
    'twice': 'SIGINT twice',
  }
  ends = {0: 'well', 2: 'error', 75: '75', -9: 'killed', -15: 'killed', 130: 'interrupted'}
  rows = []
  for row in result['rows']:
    tries = [one for one in result['each'] if (one['fault'], one['phase']) == (row['fault'], row['where'])]
    pairs = ((one['statuses'][one['process']], one['statuses'][1 - one['process']]) for one in tries)
    both = '; '.join(sorted({f'{ends.get(a, a)}, {ends.get(b, b)}' for a, b in pairs}))
    where = row['where'] or 'random moments'
    apart = 'not ended' if row['difference'] is None else f'{row["difference"]:.1g}'
    fault = names.get(row['fault'], row['fault'])
    rows.append((fault, where, row['tries'], both, f'{row["slowest"]:.0f}', apart))
  return table(('fault', 'where', 'tries', 'ends: struck, other', 'slowest, s', 'losses apart'), rows)


def study_costs(result: dict) -> list[str]:
  studies = {  # of configs/studies: what it is
    'table1': 'LRA-size Transformers and seven efficient ones',
    'table2': 'rotary Transformers, S4, SPADE, MEGA, Pythia',
    'table3': 'Speech Commands, sCIFAR, BIDMC',
    'table7': 'structured and random initialisation',
    'table8': 'fixed epochs, shared between the stages',
    'table9': 'Image over model sizes',
    'figure1': 'Transformers and S4, before and after',
    'figure2': 'the runs of Table 7, their averages as bars',
    'figure3': 'parts of the training data',
    'figure4': 'kernels of S4',
    'figure5': 'training accuracy over epochs',
    'pooling': 'C.1.1: pooling on PathX',
    'larger_s4': 'C.1.2: S4 as large as the Transformer',
    'pathx_training': 'appendix D: training accuracy on PathX',
    'grid': 'search of C.1, here rotary Transformer on Image',
  }
  by = {row['study']: row for row in result['rows']}
  rows = []
  for name, what in studies.items():
    operations = by[name]['operations']
    exa = operations / 1e18
    digits = max(0, 2 - math.floor(math.log10(exa)))
    days = f'{operations / 1e14 / 86400:.2g}'
    rows.append((f'`{name}.py`', what, by[name]['runs'], f'{exa:.{digits}f} EFLOP', days))
  return table(('file', 'what it is', 'runs', 'operations, at most', 'days at 100 TFLOP/s'), rows)
