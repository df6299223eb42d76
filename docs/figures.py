"""Numbers and pictures of the pages, from the files in benchmarks/results: python -m docs.figures

Between `<!-- figures: NAME -->` and `<!-- end -->` a page holds what the function of that name here makes of
its result file. Without arguments all of them are written again, and the pictures drawn; --check changes
nothing and ends with status 1 where a page says something else than its file.
"""

import argparse
import json
import pathlib
import re
import sys

import numpy as np

from docs import costs, speeds
from docs.costs import hardware, paragraph
from lra_spt.pages import figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'
PICTURES = ROOT / 'docs' / 'images'
MARKED = re.compile(r'(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)', re.DOTALL)


def result(name: str) -> dict | None:
  """A file of benchmarks/results; None where there is none yet."""
  path = RESULTS / f'{name}.json'
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def between(interval: dict) -> str:
  return f'{percent(interval["low"])} to {percent(interval["high"])}'


def gain(interval: dict, name='95 % interval ') -> str:
  return f'{percent(interval["estimate"])} points ({name}{between(interval)})'


NO_CELL = 'It is being run; no cell of its table is finished.'
DEMO = {  # arm of the result: how the page calls it, steps, in bold
  'scratch': ('from scratch', '400', False),
  'scratch, compute-tied': ('from scratch, compute-tied', '900', False),
  'masked self-pretraining': ('masked self-pretraining, then finetuning', '500 + 400', True),
  'scratch, causal form': ('from scratch, causal form', '400', False),
  'causal self-pretraining': ('causal self-pretraining, then finetuning', '500 + 400', True),
}


def demo() -> list[str]:
  found = result('demo_seeds')
  gains = found['gains']
  rows = []
  for arm, (name, steps, bold) in DEMO.items():
    score = found['accuracy'][arm]
    accuracy = f'{percent(score["estimate"])} %'
    accuracy = f'**{accuracy}**' if bold else accuracy
    rows.append(f'| {name} | {steps} | {accuracy} | {between(score)} % |')
  return [
    *paragraph(
      f'Five fresh seeds, each with its own generated data, {found["test_examples_per_seed"]:,} test images '
      f'each ({hardware(found)}; `python -m benchmarks.demo_seeds` reruns them):'
    ),
    '',
    '| training (4,000 images) | steps | test accuracy | 95 % interval |',
    '|---|---|---|---|',
    *rows,
    '',
    *paragraph(
      'Compute-tied scratch has as many steps as SPT and finetuning together. Masked SPT gains '
      f'{gain(gains["masked self-pretraining over scratch"])} over scratch, and '
      f'{gain(gains["masked self-pretraining over scratch, compute-tied"], "")} over compute-tied scratch; '
      f'causal SPT gains {gain(gains["causal self-pretraining over scratch, causal form"], "")} over the '
      'causal form from scratch. Intervals are t intervals over seeds. Always answering the most frequent '
      'class gives 26 %.'
    ),
  ]


def mini() -> list[str]:
  """Every gain of masked self-pretraining that can be counted yet, in a line."""
  found = result('mini_table')
  gains = [one for one in found['gains'] if one['regime'] == 'masked'] if found else []
  if not gains:
    return [NO_CELL]
  run, cells = len(_whole(found)), len(found['cells'])
  share = (
    f'All {cells} cells are run' if run == cells else f'{run} of {cells} cells are run, the others not yet'
  )
  return [
    '| test accuracy, % | from scratch | after masked SPT | gain, points (95 % interval) |',
    '|---|---|---|---|',
    *map(_gained, gains),
    '',
    *paragraph(
      f'{_means(found)}; in bold what can be told (p after Holm over all gains at most 5 %). '
      f'{share} ({_source(found)}).'
    ),
  ]


def _gained(one) -> str:
  estimate, low, high = (f'{100 * one[key]:+.1f}' for key in ('estimate', 'low', 'high'))
  said = f'{estimate} ({low} to {high})'.replace('-', '\u2212')
  said = f'**{said}**' if one['told'] else said
  cells = (f'{one["column"]}, {one["model"]}', percent(one['scratch']), percent(one['pretrained']), said)
  return f'| {" | ".join(cells)} |'


def mini_whole() -> list[str]:
  found = result('mini_table')
  searched = [
    cell for cell in (found['cells'] if found else ()) if cell['search'] and cell['search'][0]['won']
  ]
  if not searched:
    return _mini()
  rates = [tried['values'].split('=')[1] for tried in searched[0]['search'][0]['tried']]
  heads = ' | '.join(f'validation at {rate}' for rate in rates)
  lines = [f'| learning rates | {heads} |', '|---' * (len(rates) + 1) + '|']
  for cell in searched:
    scores = ' | '.join(_tried(tried, cell['search'][0]['won']) for tried in cell['search'][0]['tried'])
    lines.append(f'| {cell["row"]}, {cell["column"]} | {scores} |')
  return [*_mini(), '', *lines, '', 'Bold is what was chosen.']


def _tried(tried, won) -> str:
  if tried['score'] is None:
    return 'failed'
  score = f'{percent(tried["score"])} %'
  return f'**{score}**' if tried['values'] == won else score


def _mini() -> list[str]:
  """The table with an interval per cell, and all that it says."""
  found = result('mini_table')
  whole = _whole(found)
  if not whole:
    return [NO_CELL]
  cells = {(cell['row'], cell['column']): cell for cell in whole}
  columns = list(dict.fromkeys(column for _, column in cells))
  lines = [f'| test accuracy, % | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
  for row in dict.fromkeys(row for row, _ in cells):
    numbers = [cells.get((row, column)) for column in columns]
    lines.append(f'| {row} | {" | ".join(_score(cell) for cell in numbers)} |')
  told = f'{_means(found)} with 95 % t intervals; an empty cell has not been run ({_source(found)}).'
  return [*lines, '', *paragraph(told), *(line for one in found['answers'] for line in ('', *paragraph(one)))]


def _whole(found) -> list[dict]:
  """The cells of which all seeds are there."""
  return [cell for cell in found['cells'] if cell['seeds'] and not cell['state']] if found else []


def _means(found) -> str:
  seeds = sorted({seed for cell in _whole(found) for seed in cell['seeds']})
  return f'Means of seeds {", ".join(map(str, seeds))}'


def _source(found) -> str:
  return f'{hardware(found)}; `{found["command"]}`'


def _score(cell) -> str:
  if cell is None:
    return ''
  return f'{percent(cell["score"])} ({percent(cell["low"])} to {percent(cell["high"])})'


def development() -> list[str]:
  lines = ['| task | training | steps | examples seen | test |', '|---|---|---|---|---|']
  for run in result('mini_development')['runs']:
    stages = run['stages'].values()
    seen = sum(stage['steps'] * stage['batch_size'] for stage in stages)
    score = f'{percent(run["test"])} %' if run['metric'] == 'accuracy' else f'R2 {run["test"]:.2f}'
    part = '' if run['part'] == 1 else f', {run["part"]:.0%} of the training set'
    steps = ' + '.join(f'{stage["steps"]:,}' for stage in stages)
    lines.append(f'| `{run["task"]}`{part} | {run["regime"]} | {steps} | {seen:,} | {score} |')
  return lines


BLOCKS = {
  'attention': lambda: speeds.attention(result('attention_cpu')),
  'block_attention': lambda: speeds.block_attention(result('attention_block_cpu')),
  'configs_compiled': lambda: costs.configs_compiled(result('configs_compiled')),
  'chips': lambda: costs.chips(result('chips_compiled')),
  'data': lambda: speeds.data(result('data')),
  'demo': demo,
  'development': development,
  'first_step': lambda: costs.first_step(result('first_step')),
  'epoch': lambda: costs.epoch(result('epoch')),
  'saves': lambda: costs.saves(result('saves')),
  'field': lambda: costs.field(result('field_cpu')),
  'field_compiled': lambda: costs.field_compiled(result('field_compiled')),
  'generator': lambda: speeds.generator(result('generator')),
  'huge_pages': lambda: speeds.huge_pages(result('huge_pages')),
  'mini': mini,
  'mini_whole': mini_whole,
  'members': lambda: speeds.members(result('members')),
  'slopes': lambda: speeds.slopes(result('slopes')),
  'ssm': lambda: speeds.ssm(result('ssm_cpu')),
  'tpu_traffic': lambda: costs.tpu_traffic(result('tpu_traffic')),
  'ways': lambda: costs.ways(result('ways')),
}


def filled(text: str) -> str:
  """The text of a page with what its result files say now."""
  return MARKED.sub(lambda found: f'{found[1]}' + '\n'.join(BLOCKS[found[2]]()) + f'\n{found[4]}', text)


def pages() -> list[pathlib.Path]:
  return [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def stale() -> list[pathlib.Path]:
  """Pages that say something else than the result files."""
  return [path for path in pages() if filled(path.read_text(encoding='utf-8')) != path.read_text('utf-8')]


INK, RULE, SCRATCH, SPT = '#1b1f24', '#8b949e', '#8b949e', '#0b62a4'


def front():
  """Three test images of the demo: as they are, what the model is given, what it restores; and accuracies."""
  shown, found = result('demo_restored'), result('demo_seeds')
  original, hidden, restored = (np.array(shown[key]) for key in ('original', 'hidden', 'restored'))
  with figures.style('front'):
    figure, _ = figures.chart(9.6, 3.3, faint=INK, grid=RULE)
    figure.clear()
    images, bars = figure.subfigures(1, 2, width_ratios=(1, 1.25))
    panels = images.subplots(len(original), 3)
    for row, axes in enumerate(panels):
      given = np.ma.masked_array(original[row], hidden[row])
      for axis, values in zip(axes, (original[row], given, restored[row]), strict=True):
        axis.set_facecolor('#d7e6f2')
        axis.imshow(values, cmap='gray', vmin=0, vmax=255)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    for axis, name in zip(panels[0], ('image', 'given', 'restored'), strict=True):
      axis.set_title(name, color=INK, fontsize=9)
    axes = bars.subplots()
    axes.spines[['top', 'right', 'left']].set_visible(False)
    names = list(DEMO)[::-1]
    scores = [found['accuracy'][name] for name in names]
    values = [100 * score['estimate'] for score in scores]
    spans = [(score['estimate'] - score['low'], score['high'] - score['estimate']) for score in scores]
    colours = [SPT if DEMO[name][2] else SCRATCH for name in names]
    axes.barh(
      names,
      values,
      xerr=100 * np.array(spans).T,
      color=colours,
      height=0.62,
      error_kw={'lw': 1, 'ecolor': INK},
    )
    axes.set_xlim(0, 100)
    axes.set_xlabel('test accuracy, %, five seeds with 95 % intervals', color=INK)
    axes.tick_params(colors=INK, length=0)
    figure.savefig(PICTURES / 'front.png', dpi=150, facecolor='white')


def main(arguments=None) -> int:
  parser = argparse.ArgumentParser(prog='python -m docs.figures', description=__doc__.split('\n')[0])
  parser.add_argument('--check', action='store_true', help='write nothing; status 1 where a page is stale')
  if parser.parse_args(arguments).check:
    found = stale()
    for path in found:
      print(
        f'{path.relative_to(ROOT)} says other numbers than benchmarks/results: run python -m docs.figures'
      )
    return bool(found)
  for path in stale():
    path.write_text(filled(path.read_text(encoding='utf-8')), encoding='utf-8')
    print(f'wrote {path.relative_to(ROOT)}')
  front()
  return 0


if __name__ == '__main__':
  sys.exit(main())
