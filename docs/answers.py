"""The questions that LRA-mini was made for, and what its result files answer: the top of docs/results.md."""

from docs import arms, mini
from docs.costs import paragraph, percent
from docs.told import claim

MAIN, ROTARY = 'S4', 'Transformer + Rotary'


def answers(table: dict, of_arms: dict, random: dict, labels: dict, length: dict) -> list[str]:
  """A question and its answer a paragraph, each from the result file of a study."""
  asked = {
    'What does masked self-pretraining gain?': _gains(table),
    'And causal self-pretraining, or over training for the steps of finetuning only?': arms.answer(of_arms),
    'How far is the rotary Transformer behind S4?': _behind(table),
    'Do models change places?': _order(table),
    'Do random initial values matter less after self-pretraining?': _random(random),
    'Are gains larger where labels are few?': _labels(labels),
    'Is the order of models that of the full tasks?': _agreement(table),
    'And at full length?': _length(length),
  }
  lines = []
  for question, answer in asked.items():
    lines += ['', *paragraph(f'**{question}** {answer}')]
  return lines[1:]


def leads(table: dict) -> list[str]:
  """Of S4 over both Transformers, before and after masked self-pretraining, a task and model a line."""
  lines = mini.head(
    ('lead of S4 over', 'from scratch', 'masked', 'smaller by (95 % interval)', 'p after Holm')
  )
  for other in (ROTARY, 'Transformer'):
    for one in _of_main(table, other):
      change = mini.in_bold(_turned(one, one['leader'] == MAIN))
      cells = (
        f'{other}, {_place(one)}',
        *_ends(one, one['leader'] == MAIN),
        change,
        mini.shown_p(one['adjusted']),
      )
      lines.append(f'| {" | ".join(cells)} |')
  return lines


def _of_main(found, other) -> list[dict]:
  """The leads of S4 over a model, in the order of the table's columns."""
  columns = list(dict.fromkeys(cell['column'] for cell in found['cells']))
  between = [one for one in found['leads'] if {one['leader'], one['other']} == {MAIN, other}]
  return sorted(between, key=lambda one: columns.index(one['column']))


def _turned(one, same: bool) -> dict:
  """A lead as that of the other model where not same."""
  if same:
    return one
  return one | {'estimate': -one['estimate'], 'low': -one['high'], 'high': -one['low']}


def _points(one) -> str:
  return mini.with_limits(one, '' if one['metric'] == 'r2' else ' points')


def _ends(one, ours: bool) -> tuple[str, str]:
  """A lead from scratch and after self-pretraining with its limits, of the other model where not ours."""
  found = []
  for when in ('before', 'after'):
    limits = {key: one['limits'][when][key] for key in (('low', 'high') if ours else ('high', 'low'))}
    low, high = (mini.value(one | limits, key, ours) for key in limits)
    found.append(f'{mini.value(one, when, ours)} ({low} to {high})')
  return tuple(found)


def _place(one) -> str:
  return one['column'] + (' (R\u00b2)' if one['metric'] == 'r2' else '')


def _gains(found) -> str:
  means = [one for one in found['means'] if one['told']]
  rest = [one['column'] for one in found['means'] if not one['told']]
  told = [one for one in found['gains'] if one['told']]
  listed = mini.listed(
    [f'{_points(one)} on {one["column"]} (single ones {_span(found, one)})' for one in means]
  )
  single = mini.listed([f'{_points(one)} for {one["model"]} on {one["column"]}' for one in told])
  return (
    f'On average over these models {listed}; on {mini.listed(rest)} no mean gain can be told. Of '
    f'{len(found["gains"])} single gains {len(told)} can be told: {single}.'
  )


def _span(found, mean) -> str:
  """'+0.3 to +10.1': the gains of which it is the mean."""
  same = [one for one in found['gains'] if (one['column'], one['regime']) == (mean['column'], mean['regime'])]
  ends = (pick(same, key=lambda one: one['estimate']) for pick in (min, max))
  return ' to '.join(mini.signed(one, 'estimate') for one in ends)


def _behind(found) -> str:
  leads = _of_main(found, ROTARY)
  parts = [f'{" and ".join(_ends(one, one["leader"] == MAIN))} on {_place(one)}' for one in leads]
  told = [one['column'] for one in leads if one['told']]
  changes = f'the change on {mini.listed(told)} can be told' if told else 'none of these changes can be told'
  return (
    'By so many points, from scratch and after masked self-pretraining: '
    f'{mini.listed(parts)}; {changes} (intervals of the changes are in the table of leads).'
  )


def _order(found) -> str:
  told = [one for one in found['leads'] if one['told']]
  (order,) = [one for one in found['answers'] if one.startswith('The order of')]
  return (
    f'Of {len(found["leads"])} leads of one model over another {len(told)} can be told to change. {order}'
  )


def _random(found) -> str:
  parts, flipped = [], []
  for model in ('S4', 'DLR'):
    (one,) = [one for one in found['leads'] if {one['leader'], one['other']} == {model, f'{model} random'}]
    ours = one['leader'] != model
    before, after = _ends(one, ours)
    change = _turned(one, not ours)  # after less before
    parts.append(
      f'{before} points from scratch and {after} after masked self-pretraining for {model}, a change of '
      f'{_points(change)} that {"can" if one["told"] else "cannot"} be told'
    )
    flipped.append((one['before'] > 0) != (one['after'] > 0))
  (column,) = {one['column'] for one in found['leads']}
  return claim(
    f'Run on {column}: random values lead over hand-made ones by {"; by ".join(parts)}. So by '
    'means they matter in both ways of training, in opposite directions.',
    all(flipped),
  )


def _labels(found) -> str:
  larger, smaller = (
    [one for one in found['growths'] if one['told'] and sign * one['estimate'] > 0] for sign in (1, -1)
  )
  which = mini.listed([f'{one["row"]}, with {one["column"]}: {_points(one)}' for one in smaller])
  return claim(
    f'Not here: of {len(found["growths"])} gains with fewer labels none can be told to be larger than with '
    f'all, and {len(smaller)} to be smaller: {which}.',
    not larger,
    len(smaller) > 0,
  )


def _agreement(found) -> str:
  parts = {}
  for one in found['agreement']:
    parts.setdefault(one['regime'], []).append(
      f'{mini.tau(one)} on {one["column"]}, {len(one["models"])} models'
    )
  scratch, masked = ('; '.join(parts[regime]) for regime in ('scratch', 'masked'))
  return (
    f'Kendall\u2019s tau with the printed order, and of 95 % of resamples: from scratch {scratch}. After '
    f'masked self-pretraining {masked}.'
  )


def _length(found) -> str:
  last = {(one['row'], one['column']): percent(one['score'][-1]) for one in found['curves']}
  parts = [
    f'{last[row, column]} and {last[row.replace("scratch", "masked"), column]} % ({row.partition(",")[0]} on '
    f'{column})'
    for row, column in last
    if row.endswith('scratch') and column in ('Image', 'ListOps')
    if (row.replace('scratch', 'masked'), column) in last
  ]
  return (
    'One seed and few epochs, so no answer. Last validation, from scratch and after masked '
    f'self-pretraining: {mini.listed(parts)}.'
  )
