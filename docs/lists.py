"""Makes tables from code and configs: keys, sets, studies. docs/build.py puts them on pages."""

import collections
import dataclasses
import html
import re

from benchmarks.tables.markdown import table
from data_prep import catalogue
from lra_spt.config import fields, loading, schema
from lra_spt.data import splits
from lra_spt.data.tasks import get_task
from lra_spt.report import published
from lra_spt.report.pages import leaderboard
from lra_spt.report.study.table import CHANCE, averages


def device(hardware: dict) -> str:
  if hardware.get('platform') == 'gpu':
    return hardware['device_kind']
  return f'{hardware["cpu_count"]} CPU cores, {hardware["cpu"]}'


def config_keys() -> list[str]:
  """Makes a table for each section of a config; both stages share one."""
  stage, keys = schema.meanings(schema.StageSpec), fields.keys_of(schema.ConfigSpec)
  sections = {'The run': [], '`model.`': [], '`pretrain.` and `finetune.`': [], '`pretrain.` only': []}
  for key, meaning in schema.meanings().items():
    section, dot, rest = key.partition('.')
    title = f'`{section}.`' if dot else 'The run'
    if rest in stage:
      title = '`pretrain.` and `finetune.`'
    elif section in ('pretrain', 'finetune'):
      title = f'{title} only'
    row = f'`{rest or key}`', *_default_and_values(keys.get(key)), _quotes_as_code(meaning)
    if row not in sections.setdefault(title, []):
      sections[title].append(row)
  lines = []
  for title, rows in sections.items():
    lines += ['', *table((title, 'default', 'values', 'meaning'), rows)]
  return lines[1:]


def _default_and_values(field) -> tuple[str, str]:
  """Describes the default of a key, if it has one, and the values that it takes."""
  if field is None:
    return '', ''
  default = '' if field.default is dataclasses.MISSING else _code(field.default)
  kinds = {int: 'integer', float: 'number', bool: 'true, false', str: 'text', tuple[int, ...]: 'integers'}
  rules = field.metadata
  if 'choices' in rules:
    values = ', '.join(map(_code, rules['choices']))
  else:
    bounds = {'least': '≥', 'above': '>', 'most': '≤', 'below': '<'}
    limits = ', '.join(f'{sign} {rules[rule]:,}' for rule, sign in bounds.items() if rule in rules)
    values = f'{kinds.get(field.type, "number")} {limits}'.strip()
  return default, values


def _code(value) -> str:
  """Formats a value as the command line takes it."""
  if value is None:
    return 'not set'
  text = str(value).lower() if isinstance(value, bool) else str(value)
  return f'`{text}`' if text else "`''`"


def _quotes_as_code(meaning: str) -> str:
  return re.sub(r"'([a-z0-9]*(?:,[a-z]+)?)'", lambda quoted: f'`{quoted[1] or quoted[0]}`', meaning)


def mask_rates() -> list[str]:
  """Says by task which share of the positions masked pretraining hides."""
  tasks = 'image', 'scifar', 'pathfinder', 'pathx', 'speech_commands', 'bidmc', 'text', 'retrieval', 'listops'
  rates = {}
  for name in tasks:
    rate = loading.load(f'configs/{name}.py:model=s4,regime=masked').pretrain.mask_rate
    rates.setdefault(rate, []).append(f'`{name}`')
  rows = [(f'{100 * rate:.0f} %', ', '.join(names)) for rate, names in rates.items()]
  return table(('hidden', '`--config=configs/`'), rows)


def small_sets() -> list[str]:
  """Lists the tasks of LRA-mini with their sizes."""
  contents = {
    'listops_mini': 'expressions of 16 to 126 tokens, generated',
    'image_mini': 'CIFAR-10 in gray, area averages of 12 x 12',
    'text_mini': 'first 255 characters of IMDb reviews',
    'pathfinder_mini': '16 x 16, our generator',
    'pulse_mini': 'heart rate from 8.192 s of PPG and ECG (BIDMC), 31.25 Hz',
  }
  rows = []
  for name, what in contents.items():
    config = loading.load(f'configs/mini/{name.removesuffix("_mini")}.py:model=s4')
    part = config.finetune.data_fraction
    train, *others = _sizes(get_task(name))
    used = f' (used: {int(part * train):,})' if part < 1 else ''
    counts = f'{train:,}{used}', *(f'{count:,}' for count in others)
    rows.append((f'`{name}`', f'{get_task(name).length:,}', ', '.join(counts), what))
  return table(('set and task', 'positions', 'train, validation, test', 'contents'), rows)


def _sizes(task) -> list[int]:
  """Counts training, validation and test examples.

  Splits of BIDMC are by patient, and some patients have several recordings, all of them equally long.
  """
  counts, groups = dict(catalogue.SETS[task.dataset].counts), []
  if task.splits == 'grouped':
    from data_prep.sources import bidmc

    recordings = collections.Counter(map(bidmc.patient, bidmc.NUMBERS))
    groups = [counts['train'] // len(bidmc.NUMBERS) * number for number in recordings.values()]
  parts = splits.split_positions(task.splits, {'counts': counts, 'groups': {'train': groups}})
  return [len(parts[name][1]) for name in splits.SPLITS]


def submissions() -> list[str]:
  """Lists the verified files of the folder leaderboard/."""
  names = 'Model', 'Training', 'Task', 'Score', '95 % interval', 'Seeds', 'Parameters', 'File'
  rows = []
  for (task, _), lines in leaderboard.submitted().items():
    for line in lines:
      parameters = f'{line["parameters"]:,}' if line['parameters'] else ''
      where = task if line['protocol'] == 'clean' else f'{task}, protocol {line["protocol"]}'
      shown = line['score'], line['limits'], line['seeds'], parameters
      rows.append(
        (line['model'], line['training'], where, *shown, f'{line["source"]} {line["note"]}'.strip())
      )
  return table(names, [tuple(map(_cell, row)) for row in rows])


def lra_rows() -> list[str]:
  """Lists the published rows with scores on Long Range Arena, the best mean of six tasks first."""
  return _published(published.LRA)


def other_rows() -> list[str]:
  """Lists the published rows on other tasks, the best of the first of them first."""
  return _published(
    ('pathx256', 'path512', 'scifar', 'speech_commands', 'bidmc_hr', 'bidmc_rr', 'bidmc_spo2')
  )


def _published(tasks) -> list[str]:
  of_lra, rows = tasks == published.LRA, []
  for row in leaderboard.distinct(leaderboard.rows()):
    if not row.values.keys() & {*tasks}:
      continue
    scores = [row.values.get(task) for task in tasks]
    shown = ['' if score is None else f'{score:.3f}' if score <= 1 else f'{score:.2f}' for score in scores]
    _, mean, _ = averages(row.values, 100 * CHANCE).values()
    if of_lra:
      printed = '' if row.average is None else f'{row.average:.2f}' + ' (!)' * bool(row.problem)
      shown += ['' if mean is None else f'{mean:.2f}', printed]
    source = f'{row.source} ({row.note})' if row.note else row.source
    order = [-(score or 0) for score in ([mean] if of_lra else scores)]
    rows.append((order, tuple(map(_cell, (row.model, row.regime, *shown, source)))))
  rows.sort(key=lambda row: row[0])
  names = [published.TASK_NAMES[task] for task in tasks] + ['Mean of six', 'Printed'] * of_lra
  return table(('Model', 'Training', *names, 'Source'), [cells for _, cells in rows])


def _cell(text) -> str:
  return html.escape(str(text).strip(), quote=False).replace('|', '&#124;')


LISTS = {
  'submissions': submissions,
  'lra_rows': lra_rows,
  'other_rows': other_rows,
  'config_keys': config_keys,
  'mask_rates': mask_rates,
  'small_sets': small_sets,
}
