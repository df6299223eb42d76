"""Numbers and pictures of the pages, from the files in benchmarks/results: python -m docs.figures

Between `<!-- figures: NAME -->` and `<!-- end -->` a page holds what the function of that name here makes of
its result file, or of the configs. Without arguments all of them are written again, and the pictures drawn;
--check changes nothing and ends with status 1 where a page says, or a picture shows, something else.
"""

import argparse
import json
import pathlib
import re
import sys

import numpy as np

from docs import (
  answers,
  arms,
  charts,
  costs,
  counts,
  course,
  gpu,
  in_short,
  longer,
  mini,
  origins,
  pictures,
  rooms,
  short_runs,
  speeds,
  told,
  told_further,
)
from docs.costs import between, gain, hardware, paragraph, percent
from lra_spt.config import loading, schema

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'
PICTURES = ROOT / 'docs' / 'images'
MARKED = re.compile(r'(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)', re.DOTALL)


def result(name: str) -> dict | None:
  """A file of benchmarks/results; None where there is none yet."""
  path = RESULTS / f'{name}.json'
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def minis(*names: str) -> list[dict]:
  """Files of studies of LRA-mini."""
  return [result(f'mini_{name}') for name in names]


def studies() -> dict[str, dict]:
  """All of them by name."""
  return {name: result(name) for name in mini.ASKED}


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
      f'Five fresh seeds, each with its own generated data and {found["test_examples_per_seed"]:,} test '
      f'images ({hardware(found)}; rerun with `python -m benchmarks demo_seeds`):'
    ),
    '',
    '| training (4,000 images) | steps | test accuracy | 95 % interval |',
    '|---|---|---|---|',
    *rows,
    '',
    *paragraph(
      'Compute-tied: from scratch with as many steps as SPT and finetuning together. Masked SPT gains '
      f'{gain(gains["masked self-pretraining over scratch"])} over scratch, and '
      f'{gain(gains["masked self-pretraining over scratch, compute-tied"], "")} over compute-tied scratch; '
      f'causal SPT gains {gain(gains["causal self-pretraining over scratch, causal form"], "")} over the '
      'causal form from scratch, part of which may be longer training: that form was not trained for 900 '
      'steps. Intervals are t intervals over seeds. Always predicting the most frequent '
      'class is right in 26 %.'
    ),
  ]


def demo_told() -> list[str]:
  found = result('demo_seeds')
  accuracy = found['accuracy']

  def told(arm):
    return f'{percent(accuracy[arm]["estimate"])} % ({between(accuracy[arm])})'

  return paragraph(
    'In the demo, chosen because the effect shows quickly, a Transformer reads 8 x 8 images pixel by pixel. '
    f'Test accuracy over five fresh seeds: {told("scratch")} from scratch, {told("scratch, compute-tied")} '
    f'with the steps of both stages, {told("masked self-pretraining")} after masked SPT ({hardware(found)}; '
    '`python -m benchmarks demo_seeds`; [more](docs/results.md#the-demo)).'
  )


TASKS = ('image', 'scifar', 'pathfinder', 'pathx', 'speech_commands', 'bidmc', 'text', 'retrieval', 'listops')


def mask_rates() -> list[str]:
  """Of the configs of the paper's tasks."""
  rows = {}
  for name in TASKS:
    rate = loading.load(f'configs/{name}.py:model=s4,regime=masked').pretrain.mask_rate
    rows.setdefault(rate, []).append(f'`{name}`')
  lines = [f'| {100 * rate:.0f} % | {", ".join(names)} |' for rate, names in rows.items()]
  return ['| hidden | `--config=configs/` |', '|---|---|', *lines]


QUOTED = re.compile(r"'([a-z0-9]*(?:,[a-z]+)?)'")


def _as_code(quoted) -> str:
  return f'`{quoted[1]}`' if quoted[1] else f'`{quoted[0]}`'


def config_keys():
  """A table for the keys of every section, both stages in one."""
  sections = {
    'The run': schema.WHOLE,
    '`model.`': schema.MODEL,
    '`pretrain.` and `finetune.`': schema.STAGE,
    '`pretrain.` only': schema.PRETRAIN,
    '`finetune.` only': schema.FINETUNE,
    '`runtime.`': schema.RUNTIME,
  }
  lines = []
  for name, meanings in sections.items():
    lines += ['', *mini.head((name, 'meaning'))]
    lines += [f'| `{key}` | {re.sub(QUOTED, _as_code, meaning)} |' for key, meaning in meanings.items()]
  return lines[1:]


BLOCKS = {
  'attention': lambda: speeds.attention(result('attention_cpu')),
  'block_attention': lambda: speeds.block_attention(result('attention_block_cpu')),
  'config_keys': config_keys,
  'configs_compiled': lambda: costs.configs_compiled(result('configs_compiled')),
  'chips': lambda: costs.chips(result('chips_compiled')),
  'data': lambda: speeds.data(result('data')),
  'demo': demo,
  'digests': lambda: costs.digests(result('digests')),
  'pathx256_compiled': lambda: costs.pathx256(result('pathx256_compiled')),
  'slopes_again': lambda: speeds.slopes_again(result('slopes_again')),
  'slow_tests': lambda: speeds.slow_tests(result('slow_tests')),
  'demo_told': demo_told,
  'development': lambda: mini.development(result('mini_development')),
  'first_step': lambda: costs.first_step(result('first_step')),
  'epoch': lambda: costs.epoch(result('epoch')),
  'saves': lambda: costs.saves(result('saves')),
  'epochs': lambda: charts.curves(result('image_epochs'), 'images/image_epochs.png'),
  'faults_several': lambda: costs.faults_several(result('faults_several')),
  'processes': lambda: costs.processes(result('processes')),
  'field': lambda: costs.field(result('field_cpu')),
  'field_compiled': lambda: costs.field_compiled(result('field_compiled')),
  'generator': lambda: speeds.generator(result('generator')),
  'gpu_attention': lambda: gpu.attention(result('accelerator')),
  'gpu_epochs': lambda: gpu.epochs(result('image_epochs')),
  'gpu_errors': lambda: gpu.errors(result('accelerator')),
  'gpu_members': lambda: gpu.members(result('accelerator')),
  'gpu_steps': lambda: gpu.steps(result('accelerator')),
  'huge_pages': lambda: speeds.huge_pages(result('huge_pages')),
  'mini': lambda: mini.gains(result('mini_table'), longer.short(*minis('table', 'longer'))),
  'mini_answers': lambda: answers.answers(studies()),
  'mini_leads': lambda: answers.leads(result('mini_table')),
  'mini_rates': lambda: mini.rates(*minis('table', 'arms', 'further', 'random')),
  'mini_arms': lambda: arms.table(result('mini_arms')),
  'mini_course': lambda: course.of_seeds(result('mini_course')),
  'mini_further': lambda: mini.whole(result('mini_further')),
  'mini_labels': lambda: charts.labels(result('mini_labels')),
  'mini_length': lambda: charts.curves(result('mini_length'), 'images/mini_length.png'),
  'mini_longer': lambda: longer.table(*minis('longer', 'table')),
  'mini_longer_leads': lambda: answers.leads(*minis('longer', 'longer_tasks')),
  'mini_longer_tasks': lambda: longer.table(*minis('longer_tasks', 'table')),
  'mini_longer_random': lambda: longer.table(*minis('longer_random', 'random')),
  'mini_minutes': lambda: longer.minutes(result('mini_minutes')),
  'mini_repeats': lambda: longer.repeats(result('mini_repeats')),
  'mini_protocol': lambda: counts.mini_protocol(result('mini_table')),
  'mini_random': lambda: mini.whole(result('mini_random')),
  'mini_run': lambda: mini.run(studies()),
  'numerics': lambda: counts.numerics(result('numerics')),
  'own_mixer': lambda: mini.own_mixer(result('own_mixer')),
  'mini_time': lambda: origins.times(result('mini_table')),
  'mini_whole': lambda: mini.whole(result('mini_table')),
  'mask_rates': mask_rates,
  'members': lambda: speeds.members(result('members')),
  'short_runs': lambda: short_runs.table(result('image_small_run'), result('small_runs')),
  'small_sets': counts.small_sets,
  'slopes': lambda: speeds.slopes(result('slopes')),
  'speed_in_short': lambda: in_short.speed(
    *map(result, ('attention_cpu', 'ssm_cpu', 'data', 'generator', 'accelerator'))
  ),
  'ssm': lambda: speeds.ssm(result('ssm_cpu')),
  'studies': lambda: counts.studies(result('study_costs')),
  'tpu_traffic': lambda: costs.tpu_traffic(result('tpu_traffic')),
  'told_arms': lambda: arms.told(result('mini_arms')),
  'told_course': lambda: told.course(result('mini_course'), result('mini_table')),
  'told_longer': lambda: longer.told(*minis('longer', 'table')),
  'told_longer_tasks': lambda: longer.told_tasks(*minis('longer_tasks', 'table')),
  'told_longer_random': lambda: told_further.longer_random(*minis('longer_random', 'random')),
  'told_architectures': lambda: told_further.architectures(*minis('further', 'table')),
  'told_labels': lambda: told_further.labels(result('mini_labels'), result('mini_table')),
  'told_length': lambda: told_further.length(result('mini_length')),
  'told_random': lambda: told_further.random(result('mini_random')),
  'told_table': lambda: told.table(result('mini_table')),
  'ways': lambda: costs.ways(result('ways')),
  'what_has_been_run': lambda: gpu.what_has_been_run(result('image_epochs')),
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
MODELS = {'Transformer + Rotary': '#b35900', 'S4': SPT}
ARMS = {'scratch': SCRATCH, 'masked on the part': '#8fb8d8', 'masked on all inputs': SPT}


def front(shown, found):
  """The figure of three test images of the demo, as they are, as given and as restored, and of accuracies.

  shown, found: of demo_restored.json and demo_seeds.json.
  """
  figure, bars = course.beside_images(shown, INK, RULE)
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
  return figure


DRAWN = {  # picture: its result files, and how it is drawn from what they hold
  'front': (('demo_restored', 'demo_seeds'), front),
  'mini_course': (
    ('mini_course',),
    lambda found: course.draw(found, INK, RULE, {'scratch': SCRATCH, 'masked': SPT}),
  ),
  'mini_labels': (('mini_labels',), lambda found: charts.draw_labels(found, INK, RULE, ARMS)),
  'mini_length': (('mini_length',), lambda found: charts.draw_curves(found, INK, RULE, MODELS)),
  'image_epochs': (('image_epochs',), lambda found: charts.draw_curves(found, INK, RULE, MODELS)),
  'rooms': ((), lambda: rooms.draw(INK, RULE)),  # of no result
}


def draw() -> None:
  """All pictures."""
  for name, (names, make) in DRAWN.items():
    found = [result(one) for one in names]
    pictures.save(PICTURES / f'{name}.png', lambda make=make, found=found: make(*found), _files(names))


def _files(names) -> list[pathlib.Path]:
  return [RESULTS / f'{name}.json' for name in names] or [ROOT / 'docs' / 'rooms.py']


def stale_pictures() -> list[pathlib.Path]:
  """Pictures that show other result files."""
  paths = {PICTURES / f'{name}.png': _files(names) for name, (names, _) in DRAWN.items()}
  paths[PICTURES / pictures.PAGE.name] = [RESULTS / path.name for path in pictures.OF_PAGE]
  return [path for path, files in paths.items() if pictures.is_stale(path, files)]


def main(arguments=None) -> int:
  parser = argparse.ArgumentParser(prog='python -m docs.figures', description=__doc__.split('\n')[0])
  parser.add_argument('--check', action='store_true', help='write nothing; status 1 where a page is stale')
  options = parser.parse_args(arguments)
  try:
    found = stale()
  except told.NotTrue as untrue:
    print(untrue)
    return 1
  if options.check:
    for path in (*found, *(drawn := stale_pictures())):
      print(
        f'{path.relative_to(ROOT)} shows other numbers than benchmarks/results: run python -m docs.'
        + ('pictures' if path == pictures.PAGE else 'figures')
      )
    return bool(found or drawn)
  for path in found:
    path.write_text(filled(path.read_text(encoding='utf-8')), encoding='utf-8')
    print(f'wrote {path.relative_to(ROOT)}')
  draw()
  return 0


if __name__ == '__main__':
  sys.exit(main())
