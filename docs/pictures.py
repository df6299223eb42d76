"""Draws the pictures of the pages from result files. A PNG notes a checksum of the numbers that it shows."""

import functools
import hashlib
import json
import math
import pathlib
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

FOLDER = pathlib.Path(__file__).parent / 'images'
INK, RULE, SPT, HIDDEN = '#1b1f24', '#8b949e', '#0b62a4', '#d7e6f2'
MODELS = {'Transformer + Rotary': '#b35900', 'S4': SPT}
NOTE = 'Description'  # the keyword of PNG that holds the checksum
STYLE = {'font.size': 9, 'font.family': 'DejaVu Sans', 'text.parse_math': False, 'axes.linewidth': 0.8}


def checksum(files, read) -> str:
  """Hashes the content of result files without the tables in them. read(name) returns a content."""
  contents = [{key: value for key, value in read(file).items() if key != 'tables'} for file in files]
  return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def stale(read) -> list[str]:
  """Lists the pictures that are missing or show other numbers."""
  return [name for name, (files, _) in PICTURES.items() if _noted(name) != checksum(files, read)]


def _noted(name: str) -> str:
  path = FOLDER / f'{name}.png'
  if not path.exists():
    return ''
  with Image.open(path) as picture:
    return picture.text.get(NOTE, '')


def draw(name: str, read) -> None:
  files, make = PICTURES[name]
  with matplotlib.rc_context(STYLE):
    figure = make(*map(read, files))
    metadata = {NOTE: checksum(files, read)}
    # The front picture lies on the colour of its page.
    face = 'none' if make in (front, front_dark) else 'white'
    figure.savefig(FOLDER / f'{name}.png', dpi=150, facecolor=face, metadata=metadata)


def panels(width: float, height: float, rows: int = 1, columns: int = 1):
  """Makes a figure of this size in inches and returns it with its axes."""
  figure = Figure(figsize=(width, height), layout='constrained')
  axes = list(figure.subplots(rows, columns, squeeze=False).flat)
  for one in axes:
    _plain(one)
  return figure, axes


def _plain(axes, ink: str = INK):
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  axes.spines[['left', 'bottom']].set_color(RULE)
  axes.tick_params(which='both', colors=ink, length=3)
  axes.xaxis.label.set_color(ink)
  axes.yaxis.label.set_color(ink)


def front(shown: dict, seeds: dict, ink: str = INK, blue: str = SPT):
  """Draws one test image of the demo as a model restores it, and test accuracies with a dot per seed.

  It is narrow, so that it can be read on a phone.
  """
  ways = {  # from top to bottom: (steps, colour)
    'scratch': ('from scratch\n400 steps', RULE),
    'scratch, compute-tied': ('scratch, compute-tied\n900 steps', RULE),
    'masked self-pretraining': ('masked SPT\n500 + 400 steps', blue),
  }
  means = {way: 100 * seeds['accuracy'][way]['estimate'] for way in ways}
  figure = Figure(figsize=(5.6, 3.5), layout='constrained')
  tied, masked = means['scratch, compute-tied'], means['masked self-pretraining']
  title = (
    f'Same images, same number of steps: {tied:.1f} % from\n'
    f'scratch, {masked:.1f} % after self-pretraining (SPT)'
  )
  figure.suptitle(title, color=ink, fontsize=11.5, fontweight='bold', x=0.01, ha='left')
  left, right = figure.subfigures(1, 2, width_ratios=(1, 4.2))
  original, hidden, restored = (np.array(shown[key][0]) for key in ('original', 'hidden', 'restored'))
  pictures = {'image': original, 'hidden: blue': np.ma.masked_array(original, hidden), 'restored': restored}
  for one, (name, values) in zip(left.subplots(3), pictures.items(), strict=True):
    one.set_facecolor(HIDDEN)
    one.imshow(values, cmap='gray', vmin=0, vmax=255)
    one.set(xticks=[], yticks=[])
    one.spines[:].set_visible(False)
    one.set_title(name, color=ink, fontsize=9, pad=2)
  axes = right.subplots()
  axes.set_facecolor('none')
  _plain(axes, ink)
  for place, (way, (_, colour)) in enumerate(ways.items()):
    of_seeds = [100 * value for value in seeds['accuracy_per_seed'][way].values()]
    axes.barh(-place, means[way], color=colour, alpha=0.55, height=0.62)
    axes.plot(of_seeds, [-place] * len(of_seeds), 'o', ms=5, mec=ink, mfc=colour, mew=0.8)
    axes.text(2, -place, f'{means[way]:.1f} %', color=ink, va='center', fontsize=10.5, fontweight='bold')
  axes.set_yticks([0, -1, -2], [name for name, _ in ways.values()], fontsize=9.5)
  axes.spines['left'].set_visible(False)
  axes.tick_params(axis='y', length=0)
  axes.set_xlim(0, 100)
  axes.set_xlabel('test accuracy in the demo, %; a dot per seed', fontsize=9.5)
  return figure


def front_dark(shown: dict, seeds: dict):
  """Draws the same for a dark page."""
  return front(shown, seeds, ink='#e6edf3', blue='#4ea1e0')


def before_and_after(result: dict):
  """Draws test scores from scratch and after masked self-pretraining, a panel per task."""
  gains = [one for one in result['gains'] if one['regime'] == 'masked']
  tasks = list(dict.fromkeys(one['column'] for one in gains))
  models = list(dict.fromkeys(cell['row'].partition(', ')[0] for cell in result['cells']))[::-1]
  figure, axes = panels(10.5, 3.2, columns=len(tasks))
  for one, task in zip(axes, tasks, strict=True):
    for gain in (gain for gain in gains if gain['column'] == task):
      scale = 1 if gain['metric'] == 'r2' else 100
      place, before, after = models.index(gain['model']), scale * gain['scratch'], scale * gain['pretrained']
      colour = SPT if gain['significant'] else RULE
      one.plot([before, after], [place, place], color=colour, lw=1.6)
      one.plot(before, place, 'o', ms=5, mfc='white', mec=colour)
      one.plot(after, place, 'o', ms=5, color=colour)
    one.margins(0.12, 0.1)
    one.set_title(task, fontsize=9, color=INK)
    one.set_yticks(range(len(models)), models if one is axes[0] else [''] * len(models))
    one.set_xlabel('R²' if task == 'Pulse' else 'test accuracy, %')
    one.grid(axis='both', color=RULE, alpha=0.25)
  dots = [Line2D([], [], marker='o', ls='', mec=INK, mfc=colour) for colour in ('white', INK)]
  dots += [Line2D([], [], color=colour) for colour in (SPT, RULE)]
  names = 'from scratch', 'after masked self-pretraining', 'significant gain', 'not significant'
  figure.legend(dots, names, loc='outside upper center', ncols=4, frameon=False, labelcolor=INK)
  return figure


def curves(result: dict):
  """Draws validation accuracy over the operations of training, a panel per task."""
  tasks = list(dict.fromkeys(one['column'] for one in result['curves']))
  columns = min(2, len(tasks))
  rows = math.ceil(len(tasks) / columns)
  figure, axes = panels(1 + 4.2 * columns, 0.7 + 2.7 * rows, rows, columns)
  for one, task in zip(axes, tasks, strict=False):
    for curve in (curve for curve in result['curves'] if curve['column'] == task):
      model, _, arm = curve['row'].partition(', ')
      dashes = '--' if arm == 'masked' else '-'
      flops, scores = np.array(curve['flops']) / 1e15, 100 * np.array(curve['score'])
      one.plot(flops, scores, dashes, color=MODELS[model], label=curve['row'])
    one.set_title(task, fontsize=10, color=INK)
    one.set_xlim(left=0)
    one.grid(axis='y', color=RULE, alpha=0.3)
  for one in axes[::columns]:
    one.set_ylabel('accuracy on validation, %')
  for one in axes[-columns:]:
    one.set_xlabel('PFLOP of training, pretraining included')
  lines = max(axes, key=lambda one: len(one.lines)).get_legend_handles_labels()
  figure.legend(*lines, loc='outside upper center', ncols=2 * columns, frameon=False, labelcolor=INK)
  return figure


AXES = {'flops': (1e12, 'TFLOP, pretraining included'), 'steps': (1, 'steps with labels')}
ARMS = {'scratch': RULE, 'masked': SPT}


def question(result: dict, column: str):
  """Draws validation accuracy of every seed of one task, over operations and over steps with labels.

  Each model has a column of panels.
  """
  curves = [one for one in result['curves'] if one['column'] == column]
  models = list(dict.fromkeys(one['row'].rpartition(', ')[0] for one in curves))
  figure, axes = panels(1 + 2.9 * len(models), 5.2, len(AXES), len(models))
  for place, one in enumerate(axes):
    (x, (unit, name)), model = list(AXES.items())[place // len(models)], models[place % len(models)]
    for arm, colour in ARMS.items():
      of_arm = [curve for curve in curves if curve['row'] == f'{model}, {arm}']
      for curve in of_arm:
        one.plot(np.array(curve[x]) / unit, 100 * np.array(curve['score']), color=colour, lw=0.9, alpha=0.75)
    one.sharey(axes[0])
    one.tick_params(labelleft=not place % len(models))
    one.set_xlim(left=0)
    one.set_xlabel(name)
    one.grid(axis='y', color=RULE, alpha=0.25)
    if place < len(models):
      one.set_title(model, fontsize=10, color=INK)
  for one in axes[:: len(models)]:
    one.set_ylabel('accuracy on validation, %')
  lines = [Line2D([], [], color=colour) for colour in ARMS.values()]
  names = 'from scratch, a line per seed', 'after masked self-pretraining'
  figure.legend(lines, names, loc='outside upper center', ncols=2, frameon=False, labelcolor=INK)
  return figure


def lab(result: dict):
  """Draws the test accuracy of every seed of every arm of the laboratory, with means and 95 % intervals."""
  figure, (axes,) = panels(8.2, 4.4)
  cells = result['cells'][::-1]
  for place, cell in enumerate(cells):
    colour = RULE if cell['regime'] == 'scratch' else SPT
    mean, low, high = (100 * cell[key] for key in ('score', 'low', 'high'))
    axes.plot([low, high], [place, place], color=colour, lw=1.4)
    axes.plot(mean, place, 'o', ms=7, color=colour)
    axes.plot(100 * np.array(cell['scores']), [place - 0.28] * len(cell['scores']), '|', ms=6, color=INK)
  axes.axvline(25, color=RULE, lw=0.8, ls=':')  # chance
  names = [cell['row'] if cell['regime'] == 'scratch' else f'transferred: {cell["row"]}' for cell in cells]
  axes.set_yticks(range(len(cells)), [textwrap.fill(name, 30) for name in names])
  axes.set_xlim(15, 90)
  axes.set_xlabel('test accuracy, % (dotted: chance): mean with 95 % interval, and below a line per seed')
  axes.grid(axis='x', color=RULE, alpha=0.25)
  return figure


COLOURS = MODELS | {'Gated DeltaNet': '#2f7d32', 'Mamba-2': '#7b3fa0', 'sLSTM': '#c2185b'}


def recall(result: dict):
  """Draws accuracy against the number of pairs (MQAR), and of parity against the length of test examples."""
  points = {}, {}  # of recall and of parity: {model: [(place, accuracy)]}
  for cell in (cell for cell in result['cells'] if cell['scores']):
    longer = cell.get('by_length')
    scores_at = [(one['length'], one['accuracy']) for one in longer[0].values()] if longer else []
    scores_at = scores_at or [(int(cell['task'].partition('_')[2]), cell['score'])]
    points[bool(longer)].setdefault(cell['row'], []).extend(scores_at)
  figure, axes = panels(8.2, 3.2, columns=2)
  names = 'pairs to recall', 'positions of parity; trained on the fewest'
  for one, of_models, name in zip(axes, points, names, strict=True):
    for model, scores_at in of_models.items():
      places, scores = np.transpose(scores_at)
      one.plot(places, 100 * scores, 'o-', ms=4, lw=1.4, color=COLOURS[model], label=model)
    one.set_xscale('log', base=2)
    one.set_xticks(places, [f'{place:.0f}' for place in places])
    one.minorticks_off()
    one.set_ylim(0, 103)
    one.set_xlabel(name)
    one.grid(axis='y', color=RULE, alpha=0.25)
  axes[0].set_ylabel('test accuracy, %')
  pairs = np.array(sorted({place for scores_at in points[0].values() for place, _ in scores_at}))
  axes[0].plot(pairs, 100 / pairs, ':', color=RULE, lw=1)  # chance
  axes[1].axhline(50, color=RULE, lw=1, ls=':')
  lines = {line.get_label(): line for one in axes[::-1] for line in one.lines}
  lines = {model: lines[model] for model in COLOURS if model in lines}
  figure.legend(
    [*lines.values()], [*lines], loc='outside upper center', ncols=5, frameon=False, labelcolor=INK
  )
  return figure


WAYS = {  # of the study of archives: marker, colour and name in the legend
  'scratch': ('o', RULE, 'from scratch, compute-tied'),
  'scratch, steps of finetuning': ('|', INK, 'from scratch, equal finetuning'),
  'masked': ('o', SPT, 'masked self-pretraining'),
}
ROCKET = 'x', INK, 'MultiRocket'


def archives(result: dict):
  """Draws the mean test score of every way of training, a row per set and a column of panels per model.

  MultiRocket stands in every column. Sets with another metric than accuracy have panels below.
  """
  cells = [cell for cell in [*result['cells'], *result['recorded']] if cell['scores']]
  models = list(dict.fromkeys(cell['row'].partition(', ')[0] for cell in result['cells']))
  sets = {'accuracy': {}, 'r2': {}}  # metric: {column: place}
  for cell in result['cells']:
    of_metric = sets[cell['metric']]
    of_metric.setdefault(cell['column'], -len(of_metric))
  figure = Figure(figsize=(9.5, 4.6), layout='constrained')
  heights = [len(of_metric) + 0.6 for of_metric in sets.values()]
  grid = figure.subplots(2, len(models), sharex='row', sharey='row', height_ratios=heights)
  for axes, (metric, places) in zip(grid, sets.items(), strict=True):
    unit = 100 if metric == 'accuracy' else 1
    for one, model in zip(axes, models, strict=True):
      _plain(one)
      styles = {f'{model}, {way}': style for way, style in WAYS.items()} | {f'{ROCKET[-1]}, scratch': ROCKET}
      for cell in (cell for cell in cells if cell['metric'] == metric and cell['row'] in styles):
        marker, colour, _ = styles[cell['row']]
        one.plot(unit * cell['score'], places[cell['column']], marker, color=colour, ms=7, mew=1.5)
      one.grid(axis='both', color=RULE, alpha=0.25)
      one.margins(y=0.6 / len(places))
      one.set_xlabel('R²' if metric == 'r2' else 'test accuracy, %')
    axes[0].set_yticks([*places.values()], [*places])
  for one, model in zip(grid[0], models, strict=True):
    one.set_title(model, fontsize=10, color=INK)
  styles = [*WAYS.values(), ROCKET]
  marks = [Line2D([], [], ls='', marker=marker, color=colour, mew=1.5) for marker, colour, _ in styles]
  figure.legend(
    marks, [name for *_, name in styles], loc='outside upper center', ncols=4, frameon=False, labelcolor=INK
  )
  return figure


STATES = {  # of inside.json: title and colour
  'initial': ('before training', RULE),
  'pretrained': ('after self-pretraining', SPT),
  'finetuned': ('after finetuning', SPT),
  'scratch': ('from scratch', RULE),
  'tied': ('scratch, compute-tied', RULE),
}
FARTHEST = 32  # from the middle of 64 pixels


def by_distance(rows: int, states: dict, curves):
  """Draws a column per state with a thin line per seed and their mean.

  states: as in STATES. curves(state, row): float [seeds, L] over distances.
  """
  figure, axes = panels(10.5, 1 + 1.6 * rows, rows, len(states))
  for place, one in enumerate(axes):
    row, column = divmod(place, len(states))
    state, (title, colour) = list(states.items())[column]
    curve = np.array(curves(state, row))[:, : FARTHEST + 1]
    one.plot(curve.T, color=colour, lw=0.6, alpha=0.5)
    one.plot(curve.mean(0), color=colour, lw=1.6)
    one.set_xticks(range(0, FARTHEST + 1, 8))
    one.grid(axis='x', color=RULE, alpha=0.25)
    one.sharey(axes[row * len(states)])
    one.tick_params(labelleft=not column)
    if not row:
      one.set_title(title, fontsize=9, color=INK)
  for one in axes[-len(states) :]:
    one.set_xlabel('distance, pixels')
  return figure, axes[:: len(states)]


def field(result: dict):
  """Draws the receptive field in every state of training."""
  figure, (first,) = by_distance(1, STATES, lambda state, row: result['field'][state])
  first.set_yscale('log')
  first.set_ylabel('share of the gradient, %')
  first.minorticks_off()
  first.set_yticks([0.01, 0.1, 1], ['1', '10', '100'])
  first.set_ylim(0.004, 1)
  return figure


def attention(result: dict):
  """Draws mean attention weights over uniform ones in every state of training, a row per layer."""
  weights = {
    state: np.array(each) / np.array(result['uniform']) for state, each in result['attention'].items()
  }
  figure, firsts = by_distance(2, STATES, lambda state, layer: weights[state][:, layer])
  for layer, one in enumerate(firsts, 1):
    one.set_ylim(0, 2.5)
    one.set_ylabel(f'layer {layer}: weight / uniform')
  return figure


PICTURES = {  # picture: its result files, and what draws it from their content
  'archives': (('archives.json',), archives),
  'recall': (('recall.json',), recall),
  'front': (('demo_restored.json', 'demo_seeds.json'), front),
  'front_dark': (('demo_restored.json', 'demo_seeds.json'), front_dark),
  'image_epochs': (('image_epochs.json',), curves),
  'lab': (('lab.json',), lab),
  'lab_attention': (('inside.json',), attention),
  'lab_field': (('inside.json',), field),
  'mini': (('mini_table.json',), before_and_after),
  'question_image': (('questions.json',), functools.partial(question, column='Image')),
}
