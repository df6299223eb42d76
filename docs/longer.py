"""Tables of configs/studies/mini_longer.py beside the same cells of mini_table.py, and of
benchmarks/mini_minutes.py; docs/figures.py puts them on pages."""

import numpy as np

from configs.studies.mini_longer import STEPS
from configs.studies.mini_table import ALL, TASKS
from docs import arms, mini, origins
from docs.costs import hardware, head, paragraph
from docs.told import FINETUNED, MOST, Scores, claim, paragraphs

COLUMN = 'ListOps'
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
  told += f'bold (Holm-adjusted, in either study over its own gains).{origins.data_short(found)}'
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
  if mean := mean_of(found, column):
    lines.append(f'| mean |  |  |  |  | {mini.in_bold(mean_of(of_table, column))} | {mini.in_bold(mean)} |')
  return lines


def _gains(found, column) -> dict[str, dict]:
  of_column = [one for one in found['gains'] if (one['column'], one['regime']) == (column, 'masked')]
  return {one['model']: one for one in of_column}


def mean_of(found, column) -> dict | None:
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
    f'{FINETUNED:,} and {MOST:,}) gains are, in points:'
  )
  parts = [_answer(study, of_table, column) for study in found for column in columns(study)]
  return f'{_turned(of_table, *found)}{limits} {"; ".join(parts)}.'


def _turned(of_table, *found) -> str:
  """A sentence where runs that are best later than the table allows turn mean losses into gains, or ''."""
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
        some = mini.listed([model for model in models if gains[model]['significant']]) or 'none'
        losses = (
          'none of them significant' if not any(before[one]['significant'] for one in models) else 'means'
        )
        turned.append(
          f'on {column} the losses of {mini.listed(models)} ({losses}) turn into gains (significant: {some})'
        )
  return f'Yes: {mini.listed(turned)}. ' if turned else ''


def _answer(found, of_table, column) -> str:
  before, gains = _gains(of_table, column), _gains(found, column)
  verdict = arms.count([*gains.values()])
  if mean := mean_of(found, column):
    again = _again(found, of_table, column)
    other = '; part of it [has another reason](mini.md#longer-finetuning)' if again['higher'] else ''
    return (
      f'on {column} on average {mini.with_limits(mean)} instead of '
      f'{mini.signed(mean_of(of_table, column), "estimate")} (single models {arms.span([*gains.values()])}; '
      f'{verdict}{other})'
    )
  shown = [f'{mini.with_limits(one)} for {model}' for model, one in gains.items()]
  shorter = mini.listed([mini.signed(before[model], 'estimate') for model in gains])
  return f'on {column} {mini.listed(shown)} (in the table {shorter}; {verdict})'


def apart(found: dict, after: str) -> str:
  """By how much the best model on ListOps leads the worst, with DLR, the worst from scratch, and without."""
  (first, last), (other, others_last) = (Scores(found).widths(COLUMN, without) for without in ((), (DLR,)))
  return claim(
    f'the best leads the worst by {100 * first:.1f} points from scratch and by {100 * last:.1f} after '
    f'{after} (without DLR by {100 * other:.1f} and {100 * others_last:.1f})',
    last < first / 2,
    others_last < other,
    Scores(found).order(COLUMN, 'scratch')[-1] == DLR,
  )


def short(of_table: dict, found: dict) -> str:
  """Sentences below the table of the README; found: of mini_longer.py."""
  mean = mean_of(found, COLUMN)
  changed = [one for one in found['leads'] if one['significant']]
  behind = [
    one for one in (*of_table['leads'], *found['leads']) if {one['leader'], one['other']} == {S4, ROTARY}
  ]
  return claim(
    f'**With [longer finetuning](docs/mini.md#longer-finetuning) it helps on {COLUMN} too** '
    f'({mini.signed(mean, "estimate")} points, {mini.signed(mean, "low")} to {mini.signed(mean, "high")}), '
    f'and models come closer together there: {apart(found, "SPT")}. On no task does the rotary Transformer '
    'come significantly closer to S4.',
    mean['significant'] and mean['estimate'] > 0,
    len(changed) > 0 and all(abs(one['after']) < abs(one['before']) for one in changed),
    len(behind) > 1 and not any(one['significant'] for one in behind),
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
      mean_of(found, COLUMN)['significant'],
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
  here, gains = Scores(found), _gains(found, column)
  before, mean = (mean_of(some, column) for some in (of_table, found))
  of_table_gains = _gains(of_table, column)
  steps = [step for model in gains for step in here.cells[f'{model}, masked', column]['steps']]
  best = here.cells[f'{ROTARY}, masked', column]['best_steps']
  again = _again(found, of_table, column)
  return paragraphs(
    claim(
      f'On {column} all finetuned runs stop by themselves. Those of the rotary Transformer are best after '
      f'{min(best):,} to {max(best):,} steps, and its gain grows most. The mean gain is '
      f'{mini.with_limits(mean)} points (in the table {mini.signed(before, "estimate")}).',
      max(steps) < STEPS['masked'],
      min(best) > FINETUNED,
      mean['significant'] and mean['estimate'] > 0,
      max(gains, key=lambda model: gains[model]['estimate'] - of_table_gains[model]['estimate']) == ROTARY,
    )
    + ' '
    + claim(
      f'Not all of that is longer training: {mini.listed(again["models"])} are best after '
      f'{min(again["steps"]):,} to {max(again["steps"]):,} steps, which the table allows too, and yet '
      f'{again["higher"]} of their {len(again["rises"])} finetuned runs score higher here, by '
      f'{100 * np.mean(again["rises"]):.1f} points on average. Pretraining was repeated for these runs, and '
      'its losses differ from those of the table in the third or fourth digit.',
      again['models'] == [S4, S5, LRU],
      again['higher'] > len(again['rises']) / 2,
    )
  )


def _again(found, of_table, column) -> dict:
  """Of models whose finetuned runs are all best within the steps of the table, and yet score otherwise:
  `models`, the steps at the best validation, by how much scores rise, and how many rise, if most do."""
  here, there = Scores(found), Scores(of_table)
  again = {'models': [], 'steps': [], 'rises': []}
  for model in _gains(found, column):
    now, then = (some.cells[f'{model}, masked', column] for some in (here, there))
    if max(now['best_steps']) < FINETUNED and now['scores'] != then['scores']:
      again['models'].append(model)
      again['steps'] += now['best_steps']
      again['rises'] += np.subtract(now['scores'], then['scores']).tolist()
  higher = sum(rise > 0 for rise in again['rises'])
  return again | {'higher': higher if higher > len(again['rises']) / 2 else 0}


def repeats(found: dict) -> list[str]:
  """Of benchmarks/results/mini_repeats.json."""
  in_table = found['in_table']['loss']
  alone, both = ([row for row in found['rows'] if row['cores'] == cores] for cores in (1, 2))
  (first, *others), (again, *_) = alone, both
  return paragraph(
    claim(
      'For S4 (seed 2) code is not the reason: on one core losses of validation agree to the last bit '
      f'between commits {mini.listed([row["commit"] for row in alone])} (the last of them for the first '
      f'{found["every"]} steps only), and the last loss is {first["loss"][-1]:.5f}. On two cores it is '
      f'{again["loss"][-1]:.5f} at {mini.listed([row["commit"] for row in both])}, because sums are taken in '
      f'another order. In the table it is {in_table:.5f}, and what differed there is not known '
      f'({hardware(found)}; `{found["command"]}`).',
      all(row['loss'] == first['loss'][: len(row['loss'])] for row in others),
      [len(row['loss']) for row in alone] == [5, 5, 1],
      all(row['loss'] == again['loss'] for row in both),
      in_table not in (first['loss'][-1], again['loss'][-1]),
    )
  )


def minutes(found: dict) -> list[str]:
  """Of benchmarks/mini_minutes.py: a task a line."""
  taken = {tuple(row['case'].split(':')): row['minutes'] for row in found['rows']}
  models = [model for model in ALL if any(model == other for _, other in taken)]
  lines = head(('minutes of a masked run', *(ALL[model] for model in models)))
  for task in dict.fromkeys(task for task, _ in taken):
    cells = (f'{taken[task, model]:.1f}' if (task, model) in taken else '' for model in models)
    lines.append(f'| {TASKS[task]} | {" | ".join(cells)} |')
  slow = [minutes for minutes in taken.values() if minutes > AIM]
  more = 'takes' if len(slow) == 1 else 'take'
  aim = f'{len(slow)} of {len(taken)} {more} more' if slow else 'No run takes more'
  told = f'Whole runs with nothing else running, computed from {found["steps"]} of their 4,000 steps'
  told += f' ({hardware(found)}; `{found["command"]} --data_dir=data`). {aim} than the {AIM} minutes that a '
  told += f'run is meant to take{f", at most {max(slow):.1f}" if slow else ""}.'
  return [*lines, '', *paragraph(told)]
