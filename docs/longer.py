"""Tables of configs/studies/mini_longer.py beside the same cells of mini_table.py, and of
benchmarks/mini_minutes.py; docs/figures.py puts them on pages."""

from configs.studies.mini_longer import STEPS
from configs.studies.mini_table import TASKS
from docs import arms, mini, origins
from docs.costs import hardware, head, paragraph
from docs.told import FINETUNED, MOST, Scores, claim, paragraphs

COLUMN = 'ListOps'
MODELS = {'transformer_rotary': 'Transformer + Rotary', 's4': 'S4'}
AIM = 10  # minutes
ROTARY, PLAIN = 'Transformer + Rotary', 'Transformer'
S4, DLR, S5, LRU = 'S4', 'DLR', 'S5', 'LRU'
TRANSFORMERS = ROTARY, PLAIN
STATE_SPACE = S4, DLR, S5, LRU


def table(found: dict, of_table: dict) -> list[str]:
  """Per task a model a line: both arms in the table and here, and the gain in both; then the lengths of its
  runs."""
  lines = []
  for column in columns(found):
    lines += [*_scores(found, of_table, column), '', *_lengths(found, column), '']
  told = f'{mini.means_of(found)}. {mini.count_of_cells(found)} ({mini.origin(found)}). Significant gains in '
  told += f'bold (Holm-adjusted, in either study over its own gains).{origins.data(found)}'
  return [*lines, *paragraph(told)]


def columns(found: dict) -> list[str]:
  """Tasks on which both arms of some model are whole."""
  return list(dict.fromkeys(one['column'] for one in found['gains']))


def _scores(found, of_table, column) -> list[str]:
  here, there = Scores(found), Scores(of_table)
  before, gains = _gains(of_table, column), _gains(found, column)
  names = 'scratch', 'scratch, longer', 'masked', 'masked, longer', 'gain, points (95 % interval)'
  lines = head((f'{column}, test accuracy, %', *names, 'gain, longer'))
  for model, gain in gains.items():
    scores = [some.shown(f'{model}, {arm}', column) for arm in STEPS for some in (there, here)]
    lines.append(f'| {" | ".join((model, *scores, mini.in_bold(before[model]), mini.in_bold(gain)))} |')
  if mean := _mean(found, column):
    lines.append(f'| mean |  |  |  |  | {mini.in_bold(_mean(of_table, column))} | {mini.in_bold(mean)} |')
  return lines


def _gains(found, column) -> dict[str, dict]:
  of_column = [one for one in found['gains'] if (one['column'], one['regime']) == (column, 'masked')]
  return {one['model']: one for one in of_column}


def _mean(found, column) -> dict | None:
  """Over all models that the study plans; None until all have run."""
  return next((one for one in arms.means(found, column) if one['regime'] == 'masked'), None)


def _lengths(found, column) -> list[str]:
  """Steps with labels of every run, and after which its validation was best."""
  lines = head((f'{column}, steps with labels, seed by seed', 'trained', 'at the best validation'))
  for cell in mini.whole_cells(found):
    if cell['column'] == column:
      steps = [', '.join(f'{step:,}' for step in cell[key]) for key in ('steps', 'best_steps')]
      lines.append(f'| {cell["row"]} | {" | ".join(steps)} |')
  return lines


def answer(of_table: dict, *found: dict) -> str:
  """What masked self-pretraining gains where runs may take longer, and what the same models gain in the
  table; found: the studies with longer runs."""
  limits = (
    f'With up to {STEPS["masked"]:,} steps of finetuning and {STEPS["scratch"]:,} from scratch (in the table '
    f'{FINETUNED:,} and {MOST:,}), gains are in points:'
  )
  parts = [_answer(study, of_table, column) for study in found for column in columns(study)]
  return f'{_turned(of_table, *found)}{limits} {"; ".join(parts)}.'


def _turned(of_table, *found) -> str:
  """A sentence where runs that are best later than the table allows turn losses by the means into gains, or
  ''."""
  turned = []
  for study in found:
    cells = Scores(study).cells
    for column in columns(study):
      before, gains = _gains(of_table, column), _gains(study, column)
      models = [
        model
        for model, gain in gains.items()
        if before[model]['estimate'] < 0 < gain['estimate']
        if min(cells[f'{model}, masked', column]['best_steps']) > FINETUNED
      ]
      if models:
        turned.append(f'on {column} the losses of {mini.listed(models)} turn into gains')
  return f'Yes: by the means {mini.listed(turned)}. ' if turned else ''


def _answer(found, of_table, column) -> str:
  before, gains = _gains(of_table, column), _gains(found, column)
  verdict = arms.count([*gains.values()])
  if mean := _mean(found, column):
    return (
      f'on {column} {arms.span([*gains.values()])}, on average {mini.with_limits(mean)} (in the table '
      f'{arms.span([*before.values()])}, on average {mini.signed(_mean(of_table, column), "estimate")}; '
      f'{verdict})'
    )
  shown = [f'{mini.with_limits(one)} for {model}' for model, one in gains.items()]
  shorter = mini.listed([mini.signed(before[model], 'estimate') for model in gains])
  return f'on {column} {mini.listed(shown)} (in the table {shorter}; {verdict})'


def short(of_table: dict, found: dict, of_tasks: dict) -> str:
  """A sentence below the table of the README; found, of_tasks: of mini_longer.py and mini_longer_tasks.py."""
  mean = _mean(found, COLUMN)
  pairs = [  # gains of the rotary Transformer in the table and here
    [_gains(some, column)[ROTARY] for some in (of_table, study)]
    for study, column in ((found, COLUMN), (of_tasks, 'Image'))
  ]
  (shorter, longer), (on_image, longer_on_image) = (
    [mini.signed(one, 'estimate') for one in pair] for pair in pairs
  )
  return claim(
    f'With longer training it helps on {COLUMN} too ({mini.signed(mean, "estimate")} points, '
    f'{mini.signed(mean, "low")} to {mini.signed(mean, "high")}); the rotary Transformer gains {longer} '
    f'there instead of {shorter}, and {longer_on_image} on Image instead of {on_image} ([neither '
    'significant](docs/mini.md#longer-finetuning)).',
    *(before['estimate'] < gain['estimate'] and gain['estimate'] > 0 for before, gain in pairs),
    not any(one['significant'] for pair in pairs for one in pair),
    mean['significant'] and mean['estimate'] > 0,
  )


def told(found: dict, of_table: dict) -> list[str]:
  """What the runs say in words."""
  here, there = Scores(found), Scores(of_table)
  gains, before = _gains(found, COLUMN), _gains(of_table, COLUMN)
  scratch = {cell['row']: cell for cell in mini.whole_cells(found) if cell['row'].endswith('scratch')}
  moved = max(abs(here(row, COLUMN) - there(row, COLUMN)) for row in scratch)
  stopped = sum(step < STEPS['scratch'] for cell in scratch.values() for step in cell['steps'])
  best = {model: here.cells[f'{model}, masked', COLUMN]['best_steps'] for model in gains}
  of_transformers = [step for model in TRANSFORMERS for step in best[model]]
  lost = [model for model, gain in before.items() if gain['estimate'] < 0]
  others = [step for model in STATE_SPACE for step in best[model]]
  leads = [some(f'{S4}, masked', COLUMN) - some(f'{ROTARY}, masked', COLUMN) for some in (there, here)]
  return paragraphs(
    claim(
      'From scratch longer runs change little: all of them stop by themselves, and no mean moves by more '
      f'than {100 * moved:.1f} points.',
      stopped == sum(len(cell['steps']) for cell in scratch.values()),
      moved < 0.01,
    )
    + ' '
    + claim(
      'Finetuning of the state-space models stops by itself too, and is best after '
      f'{min(others):,} to {max(others):,} steps. That of the Transformers is best after '
      f'{min(of_transformers):,} to {max(of_transformers):,} and is ended by its limit, so they rise most: '
      f'from {there.shown(f"{ROTARY}, masked", COLUMN)} to {here.shown(f"{ROTARY}, masked", COLUMN)} % with '
      f'rotary positions, from {there.shown(f"{PLAIN}, masked", COLUMN)} to '
      f'{here.shown(f"{PLAIN}, masked", COLUMN)} % without.',
      all(step < STEPS['masked'] for model in STATE_SPACE for step in _steps(here, model)),
      all(step == STEPS['masked'] for model in TRANSFORMERS for step in _steps(here, model)),
      min(of_transformers) > max(others),
      {*sorted(gains, key=lambda model: _rise(here, there, model))[-2:]} == {*TRANSFORMERS},
    ),
    claim(
      f'So the losses in the table on {COLUMN}, of {mini.listed(lost)}, were ones of short finetuning: here '
      'every model gains by the means. The gain of the Transformer without rotary positions is '
      'significant, as is that of DLR, and so is the mean gain. After self-pretraining the rotary '
      f'Transformer is {100 * leads[1]:.1f} points behind S4 (in the table {100 * leads[0]:.1f}).',
      lost == [ROTARY, PLAIN, LRU],
      all(gain['estimate'] > 0 for gain in gains.values()),
      [model for model, gain in gains.items() if gain['significant']] == [PLAIN, DLR],
      _mean(found, COLUMN)['significant'],
      leads[1] < leads[0] / 3,
    ),
  )


def _steps(scores: Scores, model: str) -> list[int]:
  return scores.cells[f'{model}, masked', COLUMN]['steps']


def _rise(here: Scores, there: Scores, model: str) -> float:
  return here(f'{model}, masked', COLUMN) - there(f'{model}, masked', COLUMN)


def told_tasks(found: dict, of_table: dict) -> list[str]:
  """What the runs of configs/studies/mini_longer_tasks.py say in words, of Image so far."""
  column = 'Image'
  here, gains, before = Scores(found), _gains(found, column), _gains(of_table, column)
  steps = [step for model in gains for step in here.cells[f'{model}, masked', column]['steps']]
  best = {model: here.cells[f'{model}, masked', column]['best_steps'] for model in gains}
  of = {model: [mini.signed(some[model], 'estimate') for some in (gains, before)] for model in gains}
  chance = S4, S5, LRU
  early = [step for model in chance for step in best[model]]
  changed = mini.listed([f'{new} instead of {old}' for new, old in map(of.get, chance)])
  return paragraphs(
    claim(
      f'On {column} all finetuned runs stop by themselves. The gain of the rotary Transformer, best after '
      f'{min(best[ROTARY]):,} to {max(best[ROTARY]):,} steps, grows from {of[ROTARY][1]} to {of[ROTARY][0]} '
      'points.',
      max(steps) < STEPS['masked'],
      gains[ROTARY]['estimate'] > 2 * before[ROTARY]['estimate'] > 0,
      min(best[ROTARY]) > FINETUNED,
    )
    + ' '
    + claim(
      f'{mini.listed(chance)} are best after {min(early):,} to {max(early):,} steps, which the table allows '
      f'too. So it is chance that they gain {changed} points: runs were repeated with later code, whose '
      'losses of pretraining differ in the third or fourth digit.',
      max(early) < FINETUNED,
      all(before[model]['low'] < gains[model]['estimate'] < before[model]['high'] for model in chance),
    )
  )


def minutes(found: dict) -> list[str]:
  """Of benchmarks/mini_minutes.py: a task a line."""
  taken = {tuple(row['case'].split(':')): row['minutes'] for row in found['rows']}
  lines = head(('minutes of a masked run', *MODELS.values()))
  for task in dict.fromkeys(task for task, _ in taken):
    lines.append(f'| {TASKS[task]} | {" | ".join(f"{taken[task, model]:.1f}" for model in MODELS)} |')
  slow = [minutes for minutes in taken.values() if minutes > AIM]
  more = 'takes' if len(slow) == 1 else 'take'
  aim = f'{len(slow)} of {len(taken)} {more} more' if slow else 'No run takes more'
  told = f'Whole runs with nothing else running, computed from {found["steps"]} of their 4,000 steps'
  told += f' ({hardware(found)}; `{found["command"]} --data_dir=data`). {aim} than the {AIM} minutes that a '
  told += f'run is meant to take{f", at most {max(slow):.1f}" if slow else ""}.'
  return [*lines, '', *paragraph(told)]
