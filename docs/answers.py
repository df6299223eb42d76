"""The questions that LRA-mini was made for, and what its result files answer: the top of docs/results.md."""

from docs import arms, longer, mini
from docs.costs import paragraph, percent
from docs.told import NUMBERS, Scores, claim

MAIN, ROTARY = 'S4', 'Transformer + Rotary'


def answers(studies: dict[str, dict]) -> list[str]:
  """A question and its answer a paragraph; studies: {name: its result file}."""
  table, of_longer = studies['mini_table'], (studies['mini_longer'], studies['mini_longer_tasks'])
  asked = {
    'In short:': _in_short(table, *of_longer, studies['mini_arms'], studies['mini_labels']),
    'What does masked self-pretraining gain?': _gains(table),
    'Was finetuning too short for that?': longer.answer(table, *of_longer),
    'Do the models come closer together?': _closer(table, *of_longer),
    'Do further architectures gain?': _further(studies['mini_further']),
    'What does causal self-pretraining gain, and masked over scratch with the steps of finetuning only?': (
      arms.answer(studies['mini_arms'])
    ),
    'Does the rotary Transformer come closer to S4?': _behind(table, *of_longer),
    'Does initialisation matter less after self-pretraining?': _random(
      studies['mini_random'], studies['mini_longer_random']
    ),
    'Are gains larger where labels are few?': _labels(studies['mini_labels']),
    'Is the ranking that of the full tasks?': _agreement(table),
    'And at full length?': _length(studies['mini_length']),
  }
  lines = []
  for question, answer in asked.items():
    lines += ['', *paragraph(f'**{question}** {answer}')]
  return lines[1:]


def leads(*found: dict) -> list[str]:
  """Of S4 over both Transformers, before and after masked self-pretraining, a task and model a line."""
  lines = mini.head(('lead of S4 over', 'from scratch', 'masked', 'change (95 % interval)', 'p after Holm'))
  for other in (ROTARY, 'Transformer'):
    for one in (lead for study in found for lead in _of_main(study, other)):
      change = mini.in_bold(_turned(one, one['leader'] != MAIN))
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
  """What a lead shrinks by or, turned, grows by."""
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
  means = [one for one in found['means'] if one['significant']]
  rest = [one['column'] for one in found['means'] if not one['significant']]
  told = [one for one in found['gains'] if one['significant']]
  listed = mini.listed(
    [f'{_points(one)} on {one["column"]} (single models {_span(found, one)})' for one in means]
  )
  single = mini.listed([f'{_points(one)} for {one["model"]} on {one["column"]}' for one in told])
  return (
    f'On average over these models {listed}; the mean gains on {mini.listed(rest)} are not significant. '
    f'{len(told)} of {len(found["gains"])} single gains are significant: {single}.'
  )


def _span(found, mean) -> str:
  """'+0.3 to +10.1': the gains of which it is the mean."""
  same = [one for one in found['gains'] if (one['column'], one['regime']) == (mean['column'], mean['regime'])]
  ends = (pick(same, key=lambda one: one['estimate']) for pick in (min, max))
  return ' to '.join(mini.signed(one, 'estimate') for one in ends)


def _further(found) -> str:
  gains = found['gains']
  (column,) = {one['column'] for one in gains}
  each = mini.listed([f'{mini.with_limits(one)} for {one["model"]}' for one in gains])
  return claim(
    f'With the steps of the table, in points on {column}: {each}; {arms.count(gains)}. Its finetuning was '
    '[too short](mini.md#further-architectures) too.',
    [one['model'] for one in gains] == ['MEGA'],
  )


def _behind(found, *longer_runs) -> str:
  leads = _of_main(found, ROTARY)
  again = [one for study in longer_runs for one in _of_main(study, ROTARY)]
  parts, later = (
    [f'{" and ".join(_values(one))} on {_place(one)}' for one in some] for some in (leads, again)
  )
  return claim(
    'That is not seen: no change of its distance is significant. It is behind S4, in points from scratch '
    f'and after masked self-pretraining, by {mini.listed(parts)} ([intervals](mini.md#the-table)); with '
    f'longer finetuning by {mini.listed(later)} ([intervals](mini.md#longer-finetuning)). On Pathfinder and '
    'Pulse the intervals are too wide to tell.',
    not any(one['significant'] for one in leads + again),
    all(_wide(one) for one in leads if one['column'] in ('Pathfinder', 'Pulse')),
  )


def _values(one) -> tuple[str, str]:
  """A lead of S4 from scratch and after self-pretraining."""
  return tuple(mini.value(one, when, one['leader'] == MAIN) for when in ('before', 'after'))


def _wide(one) -> bool:
  """Whether a lead may as well change by more than the larger of its ends."""
  return one['high'] - one['low'] > 2 * max(abs(one['before']), abs(one['after']))


def _closer(found, of_list_ops, of_image) -> str:
  """of_list_ops, of_image: of the studies with longer finetuning."""
  told, there = ([one for one in study['leads'] if one['significant']] for study in (of_list_ops, found))
  of_dlr = [one for one in told if longer.DLR in (one['leader'], one['other'])]
  turned = [one for one in there if one['column'] == longer.COLUMN]
  again = {frozenset((one['leader'], one['other'])): one for one in of_list_ops['leads']}
  (text, text_after), (image, image_after) = Scores(found).widths('Text'), Scores(of_image).widths('Image')
  (order,) = [one for one in found['answers'] if one.startswith('The rankings of')]
  return claim(
    f'On {longer.COLUMN} yes, with finetuning long enough: {len(told)} of {len(of_list_ops["leads"])} leads '
    f'of one model over another shrink significantly, {len(of_dlr)} of them leads over DLR, and none grows; '
    f'{longer.apart(of_list_ops, "masked self-pretraining")}. On Text and Image they do not: there it leads '
    f'by {100 * text:.1f} and {100 * text_after:.1f}, and by {100 * image:.1f} and {100 * image_after:.1f} '
    f'points. With the steps of the table {len(there)} of '
    f'{len(found["leads"])} leads change significantly; the {NUMBERS[len(turned)]} on {longer.COLUMN} are '
    f'reversed there, but not with longer finetuning. {order}',
    all(abs(one['after']) < abs(one['before']) for one in told),
    all(one['other'] == longer.DLR for one in of_dlr),
    text_after > text and image_after > 0.9 * image,
    all(one['before'] * one['after'] < 0 for one in turned),
    all(again[frozenset((one['leader'], one['other']))]['after'] > 0 for one in turned),
  )


def _in_short(found, of_list_ops, of_image, of_arms, of_labels) -> str:
  """What the answers below come to."""
  of_table = {one['column']: one for one in found['means']}
  here = [of_table['Text'], of_table['Image'], longer.mean_of(of_list_ops, longer.COLUMN)]
  text, image, list_ops = (f'{one["column"]} ({mini.signed(one, "estimate")} points)' for one in here)
  causal = [one for one in (*of_arms['gains'], *of_arms['means']) if one['regime'] == 'causal']
  return claim(
    f'On these small tasks masked self-pretraining helps on average on {text} and {image} and, where '
    f'finetuning is long enough, on {list_ops}; on Pathfinder and Pulse no difference shows. Models come '
    'closer together on ListOps only. It is not seen that the rotary Transformer comes closer to S4, that '
    'causal self-pretraining helps, or that gains are larger with fewer labels.',
    all(one['significant'] and one['estimate'] > 0 for one in here),
    longer.mean_of(of_image, 'Image')['estimate'] > of_table['Image']['estimate'],
    not any(of_table[column]['significant'] for column in ('Pathfinder', 'Pulse')),
    not any(one['significant'] and one['estimate'] > 0 for one in causal),
    not any(one['significant'] and one['estimate'] > 0 for one in of_labels['growths']),
  )


def _random(found, of_longer) -> str:
  """of_longer: of the study with longer finetuning."""
  (column,) = {one['column'] for one in (*found['leads'], *of_longer['leads'])}
  (shorter, ends_of_shorter), (longer, ends) = map(_over_structured, (found, of_longer))
  told = [model for model, one in longer.items() if one['significant']]
  changes = f'the change of {mini.listed(told)} is significant' if told else 'no change is significant'
  return claim(
    f'Not answered: {changes}, and only {column} has been run. Where finetuning is long enough, random '
    f'initial values lead structured ones, from scratch and after masked self-pretraining, by {ends}; both '
    f'differences shrink. With the steps of the table they lead by {ends_of_shorter}, since finetuning from '
    'random values was too short.',
    all(one['before'] > one['after'] > 0 for one in longer.values()),
    all(one['before'] > 0 > one['after'] for one in shorter.values()),
  )


def _over_structured(found) -> tuple[dict[str, dict], str]:
  """{model: lead of its random over its structured values}, and all of them with limits in words."""
  leads, parts = {}, []
  for model in ('S4', 'DLR'):
    (one,) = [one for one in found['leads'] if {one['leader'], one['other']} == {model, f'{model} random'}]
    ours = one['leader'] != model
    parts.append(f'{" and ".join(_ends(one, ours))} points for {model}')
    leads[model] = one | {key: one[key] if ours else -one[key] for key in ('before', 'after')}
  return leads, ' and by '.join(parts)


def _labels(found) -> str:
  larger, smaller = (
    [one for one in found['growths'] if one['significant'] and sign * one['estimate'] > 0] for sign in (1, -1)
  )
  which = mini.listed([f'{one["row"]}, with {one["column"]}: {_points(one)}' for one in smaller])
  return claim(
    f'Not here: of {len(found["growths"])} gains with fewer labels none is significantly larger than with '
    f'all labels, and {len(smaller)} {"is" if len(smaller) == 1 else "are"} smaller: {which}.',
    not larger,
    len(smaller) > 0,
  )


def _agreement(found) -> str:
  parts = {}
  for one in found['agreement']:
    parts.setdefault(one['regime'], []).append(
      f'{mini.tau(one, " ({})")} on {one["column"]} with {len(one["models"])} models'
    )
  scratch, masked = (mini.listed(parts[regime]) for regime in ('scratch', 'masked'))
  return (
    f'Kendall\u2019s tau with the published ranking (95 % of resamples): from scratch {scratch}; after '
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
    'One seed and few epochs give no answer yet. Last validation, from scratch and after masked '
    f'self-pretraining: {mini.listed(parts)}.'
  )
