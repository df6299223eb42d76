"""Tables of LRA-mini, from what benchmarks.mini wrote; docs/figures.py puts them on pages."""

from docs import origins
from docs.costs import hardware, head, listed, paragraph, percent
from lra_spt.report.study.comparisons import LEVEL
from lra_spt.report.study.sentences import shown_p

NO_CELL = 'No cell of its table is finished yet.'


def gains(found, further: str = '') -> list[str]:
  """Scores before and after masked self-pretraining, a model a line and a task a column, of whole cells.

  further: what another study adds, a sentence.
  """
  shown = [one for one in found['gains'] if one['regime'] == 'masked'] if found else []
  if not shown:
    return [NO_CELL]
  columns = list(dict.fromkeys(one['column'] for one in shown))
  lines = head((_scores_of(shown), *columns))
  pretrained = rows_of(found, {one['row'] for one in shown})
  for model in dict.fromkeys(one['model'] for row in pretrained for one in shown if one['row'] == row):
    of_model = {one['column']: _gained(one) for one in shown if one['model'] == model}
    lines.append(f'| {model} | {" | ".join(of_model.get(column, "") for column in columns)} |')
  if found['means']:
    of_models = {one['column']: in_bold(one) for one in found['means'] if one['regime'] == 'masked'}
    lines.append(f'| mean gain (95 %) | {" | ".join(of_models.get(column, "") for column in columns)} |')
  told = 'From scratch (with at most the steps of both stages) \u2192 after masked SPT, '
  told += f'{means_of(found).lower()}. '
  significant = sum(one['adjusted'] <= LEVEL for one in shown)
  told += f'Significant gains in bold (Holm-adjusted p \u2264 5 %): {significant} of {len(shown)}. '
  if found['means']:
    told += f'{_averaged(found["means"])}. '
  told += f'{further} ' if further else ''
  told += 'Averages, longer finetuning and how p is computed came '
  told += '[after the runs](docs/mini.md#what-is-significant). '
  if any(one['metric'] == 'r2' for one in shown):
    told += 'R\u00b2 intervals resample patients. '
  run = '' if len(whole_cells(found)) == len(found['cells']) else f'{count_of_cells(found)}. '
  told += f'{run}{origin(found)}.{origins.data_short(found, "docs/mini.md")}'
  return [*lines, '', *paragraph(told)]


def _averaged(means) -> str:
  """On which tasks the mean gain of masked self-pretraining is significant."""
  by_verdict = {}
  for one in means:
    if one['regime'] == 'masked':
      moved = 'helps' if one['estimate'] > 0 else 'hurts'
      verdict = moved if one['significant'] else 'makes no significant difference'
      by_verdict.setdefault(verdict, []).append(one['column'])
  parts = [f'{verdict} on {listed(columns)}' for verdict, columns in by_verdict.items()]
  return f'Averaged over these models it {" and ".join(parts)}'


def _gained(one) -> str:
  scores = f'{value(one, "scratch")} \u2192 {value(one, "pretrained")}'
  return f'**{scores}**' if one['significant'] else scores


def _scores_of(lines) -> str:
  """The heading of scores of these cells or gains."""
  of_r2 = dict.fromkeys(one['column'] for one in lines if one['metric'] == 'r2')
  return '; '.join(['test accuracy, %', *(f'{column}: R\u00b2' for column in of_r2)])


def value(one, key: str, positive: bool = True) -> str:
  """An accuracy or a difference in per cent, or an R\u00b2; not positive: of the opposite sign."""
  number = one[key] if positive else -one[key]
  return (f'{number:.2f}' if one['metric'] == 'r2' else percent(number)).replace('-', '\u2212')


def signed(one, key: str) -> str:
  """A difference: in points, or of R\u00b2."""
  said = f'{one[key]:+.2f}' if one['metric'] == 'r2' else f'{100 * one[key]:+.1f}'
  return said.replace('-', '\u2212')


def count_of_cells(found) -> str:
  run, cells = len(whole_cells(found)), len(found['cells'])
  if run == cells:
    return f'All {cells} cells have been run'
  return f'{run} of {cells} cells have been run'


def whole(found) -> list[str]:
  """The table with an interval per cell, all that it says, and its tests."""
  if not (found and whole_cells(found)):
    return [NO_CELL]
  compared = [*found['gains'], *found.get('further', ())]
  return [*_table(found), *_tests(compared), *_agreement(found.get('agreement', ()))]


def rates(*studies) -> list[str]:
  """The learning rates that were tried in each cell, in bold what was chosen; of a cell in several studies
  once."""
  rows, names = {}, ()
  for found in studies:
    for cell in found['cells']:
      if cell['metric'] and cell['search'] and cell['search'][0]['won']:
        tried = cell['search'][0]['tried']
        names = tuple(f'validation at {one["values"].split("=")[1]}' for one in tried)
        scores = ' | '.join(_tried(cell, one) for one in tried)
        rows.setdefault(f'{cell["row"]}, {cell["column"]}', scores)
  return [*head(('learning rates', *names)), *(f'| {row} | {scores} |' for row, scores in rows.items())]


def _tests(gains) -> list[str]:
  names = 'self-pretraining', 'gain, points (95 % interval)', 'p', 'p after Holm', 'operations of scratch'
  lines = ['', *head(names)]
  for one in gains:
    tests = ' | '.join(shown_p(one[key]) for key in ('p', 'adjusted'))
    name = f'{one["row"]}, {one["column"]}' + (f', over {one["over"]}' if 'over' in one else '')
    lines.append(f'| {name} | {in_bold(one)} | {tests} | {one["operations"]:.0%} |')
  if gains:
    told = 'Operations of scratch: those of the scratch runs, as a share of the operations of both stages. '
    told += 'The share is below 100 % where scratch runs stopped early because validation stopped improving.'
    lines += ['', *paragraph(told)]
  return lines if gains else []


def _agreement(found) -> list[str]:
  if not found:
    return []
  names = 'ranking here and as published at full size', 'models', "Kendall's tau (95 %)", 'per seed'
  lines = ['', *head(names)]
  for one in found:
    of_seeds = ', '.join(f'{tau:.2f}' for tau in one['of_seeds'])
    names = ', '.join(f'`{model}`' for model in one['models'])
    line = f'| {one["column"]}, {one["regime"]} | {names} | {tau(one)} | {of_seeds} |'
    lines.append(line.replace('-', '\u2212'))
  told = 'In parentheses: range of 95 % of resamples of seeds and test examples. The noise of resampling by '
  told += 'itself biases tau towards 0; the uncertainty of published numbers is not included.'
  return [*lines, '', *paragraph(told)]


def tau(one, between: str = ' ({})') -> str:
  """'0.73 (0.20 to 1.00)', of an entry of agreement; between: how the limits stand behind it."""
  limits = '' if one['low'] is None else between.format(f'{one["low"]:.2f} to {one["high"]:.2f}')
  return f'{one["tau"]:.2f}{limits}'.replace('-', '\u2212')


def _tried(cell, tried) -> str:
  if tried['score'] is None:
    return 'failed'
  score = value(cell | tried, 'score') + ('' if cell['metric'] == 'r2' else ' %')
  return f'**{score}**' if tried['values'] == cell['search'][0]['won'] else score


def _table(found) -> list[str]:
  """The table with an interval per cell, and all that it says."""
  cells = {(cell['row'], cell['column']): cell for cell in whole_cells(found)}
  if not cells:
    return [NO_CELL]
  scores = _by_cell(found, cells, _scores_of(cells.values()), _score)
  seeds = _by_cell(found, cells, 'seed by seed', _of_seeds)
  told = f'{means_of(found)} with 95 % t intervals; empty cells have not been run ({origin(found)}).'
  told += origins.data(found)
  if any(cell['metric'] == 'r2' for cell in cells.values()):
    told += ' Intervals of R\u00b2 also cover the choice of test patients.'
  answers = (line for one in found['answers'] for line in ('', *paragraph(one)))
  return [*scores, '', *paragraph(told), '', *seeds, *answers]


def _by_cell(found, cells, heading, shown) -> list[str]:
  """A table of the study's rows and columns; shown(cell), or shown(None) of a cell that is not whole."""
  columns = list(dict.fromkeys(column for _, column in cells))
  lines = head((heading, *columns))
  for row in rows_of(found, {row for row, _ in cells}):
    lines.append(f'| {" | ".join((row, *(shown(cells.get((row, column))) for column in columns)))} |')
  return lines


def _of_seeds(cell) -> str:
  return ', '.join(value({'metric': cell['metric'], 'it': it}, 'it') for it in cell['scores']) if cell else ''


def rows_of(found, some: set[str]) -> list[str]:
  """Some rows of a study in its order."""
  return [row for row in dict.fromkeys(cell['row'] for cell in found['cells']) if row in some]


def whole_cells(found) -> list[dict]:
  """The cells of which all seeds are there."""
  return [cell for cell in found['cells'] if cell['seeds'] and not cell['state']] if found else []


def means_of(found) -> str:
  seeds = sorted({seed for cell in whole_cells(found) for seed in cell['seeds']})
  return f'Means of seeds {", ".join(map(str, seeds))}'


def origin(found) -> str:
  return f'{hardware(found)}; `{found["command"]}`'


def _score(cell) -> str:
  if cell is None:
    return ''
  return f'{value(cell, "score")} ({value(cell, "low")} to {value(cell, "high")})'


def with_limits(one: dict, unit: str = '') -> str:
  """'+1.5 (+0.2 to +2.8)': an estimate with its interval; unit: behind the estimate."""
  return f'{signed(one, "estimate")}{unit} ({signed(one, "low")} to {signed(one, "high")})'


def in_bold(one: dict) -> str:
  """The same, in bold where it is significant."""
  said = with_limits(one)
  return f'**{said}**' if one['significant'] else said


ASKED = {  # by the studies in benchmarks/results
  'mini_table': 'what masked self-pretraining gives six models on five tasks',
  'mini_arms': 'all arms: also causal models, and scratch for the steps of finetuning only',
  'mini_longer': 'ListOps with runs long enough to stop by themselves',
  'mini_longer_tasks': 'the same on Image, Pathfinder and Text',
  'mini_further': 'MEGA, Mamba-2, RG-LRU and Gated DeltaNet on ListOps',
  'mini_labels': 'S4 with 3 to 100 % of the labels, at the learning rates chosen for the table',
  'mini_random': 'S4 and DLR from random instead of structured initial values',
  'mini_longer_random': 'the same on ListOps with longer finetuning',
  'mini_length': 'the same models and steps at full length: validation over operations',
}


def run(studies: dict[str, dict]) -> list[str]:
  """What each study asks, and how many of its cells have been run. studies: {name: its result file}."""
  lines = head(('file', 'question', 'cells run'))
  for name, asked in ASKED.items():
    cells = studies[name]['cells']
    done = whole_cells(studies[name])
    parts = {
      column: tuple(sum(cell['column'] == column for cell in some) for some in (done, cells))
      for column in dict.fromkeys(cell['column'] for cell in cells)
    }
    of = '; '.join(
      f'{column}: {"all" if count == all_ else f"{count} of {all_}"}'
      for column, (count, all_) in parts.items()
      if count
    )
    of = f' ({of})' if len(parts) > 1 else ''
    said = f'all {len(cells)}' if len(done) == len(cells) else f'{len(done)} of {len(cells)}{of}'
    lines.append(f'| `{name}.py` | {asked} | {said} |')
  return lines


def development(found: dict) -> list[str]:
  lines = head(('task', 'model', 'training', 'steps', 'examples seen', 'test'))
  for run in found['runs']:
    stages = run['stages'].values()
    seen = sum(stage['steps'] * stage['batch_size'] for stage in stages)
    score = f'{percent(run["test"])} %' if run['metric'] == 'accuracy' else f'R2 {run["test"]:.2f}'
    part = '' if run['part'] == 1 else f', {run["part"]:.0%} of the training set'
    part += f', {run["set"]}' if 'set' in run else ''
    steps = ' + '.join(f'{stage["steps"]:,}' for stage in stages)
    lines.append(
      f'| `{run["task"]}`{part} | `{run["model"]}` | {run["regime"]} | {steps} | {seen:,} | {score} |'
    )
  return lines


def own_mixer(found: dict) -> list[str]:
  """What the README's mixer came to on ListOps, an arm a line, all with the steps of both stages."""
  lines = head(('own mixer', 'steps', 'test accuracy, %', 'time'))
  for run in found['runs']:
    stages = run['stages'].values()
    steps = ' + '.join(f'{stage["steps"]:,}' for stage in stages)
    seconds = sum(stage['seconds'] for stage in stages)
    name = run['regime'] + (', causal form' if run['causal'] and run['regime'] == 'scratch' else '')
    lines.append(f'| {name} | {steps} | {percent(run["test"]["accuracy"])} | {seconds:.0f} s |')
  first, prepared = found['runs'][0], found['installed_and_prepared_seconds']
  told = (
    f'{first["test"]["examples"]:,} test expressions, seed {first["seed"]}. From a fresh clone to the report '
  )
  told += (
    f'it took {found["seconds"] / 60:.0f} minutes, {prepared} s of which were installation (packages cached '
  )
  told += 'locally) and preparation of the data.'
  return [*lines, '', *paragraph(f'{told} {hardware(found)}.')]
