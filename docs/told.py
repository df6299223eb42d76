"""What docs/mini.md says in words of LRA-mini: numbers are those of the result files, and no sentence is
written that they do not bear out."""

import numpy as np

from docs import mini
from docs.costs import paragraph, percent
from lra_spt.report import published
from lra_spt.report.statistics.scores import minus

EVERY, MOST, FINETUNED = 250, 4000, 1500  # steps between two validations, at most from scratch, of finetuning
NUMBERS = tuple('none one two three four five six seven eight nine ten eleven twelve'.split())


class NotTrue(Exception):
  """A sentence is not what the result files say any more."""


def claim(sentence: str, *holds: bool) -> str:
  """The sentence, where all hold; NotTrue otherwise."""
  if not all(holds):
    raise NotTrue(f'The result files do not bear this out; rewrite it in docs/*.py: {sentence}')
  return sentence


class Scores:
  """Mean test scores of the whole cells of a study."""

  def __init__(self, found: dict):
    self.cells = {(cell['row'], cell['column']): cell for cell in mini.whole_cells(found)}

  def __call__(self, row: str, column: str) -> float:
    return self.cells[row, column]['score']

  def shown(self, row: str, column: str) -> str:
    return percent(self(row, column))

  def order(self, column: str, regime: str) -> list[str]:
    """Models with a row `MODEL, REGIME` there, the best first."""
    scores = {
      row.removesuffix(f', {regime}'): cell['score']
      for (row, place), cell in self.cells.items()
      if place == column and row.endswith(f', {regime}')
    }
    return sorted(scores, key=scores.get, reverse=True)

  def widths(self, column: str, without=()) -> tuple[float, float]:
    """How far the best model there leads the worst, from scratch and after masked self-pretraining."""
    ends = [
      (regime, *(model for model in self.order(column, regime) if model not in without))
      for regime in ('scratch', 'masked')
    ]
    return tuple(
      self(f'{best}, {regime}', column) - self(f'{worst}, {regime}', column)
      for regime, best, *_, worst in ends
    )


def paragraphs(*texts: str) -> list[str]:
  lines = []
  for text in texts:
    lines += ['', *paragraph(text)]
  return lines[1:]


def _taus(found) -> dict:
  return {(one['column'], one['regime']): one for one in found['agreement']}


def table(found: dict) -> list[str]:
  """Of configs/studies/mini_table.py."""
  return paragraphs(
    _averages(found),
    _list_ops(found),
    _agreement(found),
    _text(found),
    _generated(found),
    _ended(found),
    _capped(found),
  )


def _averages(found) -> str:
  told = {one['column'] for one in found['means'] if one['significant'] and one['estimate'] > 0}
  return claim(
    'Means over the models of a task were added to the reports on 2026-11-26, after these runs, so they are '
    'not part of the protocol; they cover all models that have run, so nothing was selected. By these means '
    'self-pretraining helps on Image and Text, the tasks made of real images and reviews, and makes no '
    'significant difference on the two generated tasks and on Pulse.',
    told == {'Image', 'Text'},
    len(found['means']) == 5,
    not any(one['significant'] for one in found['means'] if one['column'] not in told),
  )


def _list_ops(found) -> str:
  scores = Scores(found)
  scratch, masked = (scores.order('ListOps', regime) for regime in ('scratch', 'masked'))
  taus = _taus(found)
  printed = taus['ListOps', 'masked']['models'].keys() & taus['ListOps', 'scratch']['models'].keys()
  gains = {
    model: taus['ListOps', 'masked']['models'][model]['printed']
    - taus['ListOps', 'scratch']['models'][model]['printed']
    for model in printed
  }
  return claim(
    'On ListOps the ranking by means changes: S5, LRU and the rotary Transformer lead from scratch and DLR '
    'is last; S5, S4 and DLR lead after self-pretraining and both Transformers are last. This is not what '
    'the paper found at full length, where Transformers gain most; short finetuning is [part of the '
    'reason](#longer-finetuning).',
    scratch[:3] == ['S5', 'LRU', 'Transformer + Rotary'],
    scratch[-1] == 'DLR',
    masked[:3] == ['S5', 'S4', 'DLR'],
    {*masked[-2:]} == {'Transformer', 'Transformer + Rotary'},
    {*sorted(gains, key=gains.get)[-2:]} == {'transformer', 'transformer_rotary'},
  )


def _agreement(found) -> str:
  taus = _taus(found)
  image, list_ops = taus['Image', 'scratch'], taus['ListOps', 'scratch']
  here, printed = (
    sorted(image['models'], key=lambda model: image['models'][model][place], reverse=True)[:3]
    for place in ('mini', 'printed')
  )
  after = {column: taus[column, 'masked'] for column in ('ListOps', 'Image')}
  return claim(
    'Does a small task predict the ranking at full size? From scratch, with six models, loosely: '
    f'Kendall\u2019s tau is {image["tau"]:.2f} on ListOps and on Image, where the three leaders, S5, S4 and '
    'LRU, are those of the published table in another order. After masked pretraining, with the four models '
    f'that have a published number, hardly on ListOps ({mini.tau(after["ListOps"], "; {}")}) and fully on '
    f'Image ({mini.tau(after["Image"], "; {}")}); so few models and seeds cannot separate the two.',
    image['tau'] == list_ops['tau'],
    after['Image']['low'] < after['ListOps']['high'],
    len(image['models']) == len(list_ops['models']) == 6,
    here == ['s5', 's4', 'lru'],
    here != printed,
    {*here} == {*printed},
    all(len(one['models']) == 4 for one in after.values()),
    after['ListOps']['tau'] < 0.5,
    after['Image']['tau'] == 1,
  )


def _text(found) -> str:
  scores, taus = Scores(found), _taus(found)
  scratch, masked = taus['Text', 'scratch'], taus['Text', 'masked']
  gains = {one['model']: one for one in found['gains'] if one['column'] == 'Text'}
  most = sorted(gains, key=lambda model: gains[model]['estimate'], reverse=True)
  plain, lru = gains['Transformer'], gains['LRU']
  printed = masked['models']['transformer']['printed'] - scratch['models']['transformer']['printed']
  others = [scores(f'{model}, masked', 'Text') for model in most[:3]]
  (lead,) = [one for one in found['leads'] if one['significant'] and one['column'] == 'Text']
  planned = sum(cell['row'].endswith(', masked') for cell in found['cells'])
  return claim(
    'On Text LRU is far ahead from scratch, about where other models arrive after pretraining, and gains '
    f'{mini.signed(lru, "estimate")} points. DLR, S4, the rotary Transformer and S5 gain six to ten points; '
    'only the gain of DLR is significant. The Transformer without rotary positions gains next to nothing '
    f'({mini.signed(plain, "estimate")} points, {printed:.0f} in the paper), so the lead of DLR over it '
    f'grows by {percent(-lead["estimate"])} points, which is significant. From scratch the ranking largely '
    f'agrees with the published one ({mini.tau(scratch, "; {}")}), after self-pretraining not at all by the '
    f'means ({mini.tau(masked, "; {}")}). On their own the gains of S4 and S5 would have p below 0.01; among '
    f'the {planned} comparisons of the study they are not significant.',
    len(gains) == len(scratch['models']) == 6,
    scores.order('Text', 'scratch')[0] == 'LRU',
    scores('LRU, scratch', 'Text') - scores(f'{scores.order("Text", "scratch")[1]}, scratch', 'Text') > 0.05,
    min(others) < scores('LRU, scratch', 'Text') < max(others),
    most == ['DLR', 'S4', 'Transformer + Rotary', 'S5', 'LRU', 'Transformer'],
    all(0.06 < gains[model]['estimate'] < 0.105 for model in most[:4]),
    [model for model, one in gains.items() if one['significant']] == ['DLR'],
    abs(plain['estimate']) < 0.005,
    (lead['leader'], lead['other'], lead['estimate'] < 0) == ('DLR', 'Transformer', True),
    0.6 < scratch['tau'] < 0.9,
    abs(masked['tau']) < 0.1,
    min(gains[model]['adjusted'] for model in ('S4', 'S5')) > 0.05,
    max(gains[model]['p'] for model in ('S4', 'S5')) < 0.01,
  )


def _generated(found) -> str:
  scores = Scores(found)
  s4, rotary, plain, lru = (
    [scores.cells[f'{model}, {regime}', 'Pulse'] for regime in ('scratch', 'masked')]
    for model in ('S4', 'Transformer + Rotary', 'Transformer', 'LRU')
  )
  gains = {one['model']: one['estimate'] for one in found['gains'] if one['column'] == 'Pulse'}
  rest = np.mean([gain for model, gain in gains.items() if model != 'Transformer'])
  spans = [
    ' to '.join(mini.value(cell | {'score': end(cell['scores'])}, 'score') for end in (min, max))
    for cell in lru
  ]
  spread = min(np.ptp(cell['scores']) for cell in s4)
  below = [score < 0 for cell in (*rotary, *plain) for score in cell['scores']]
  solved = [scores(f'{model}, scratch', 'Pathfinder') for model in ('S4', 'S5', 'LRU')]
  return claim(
    'On Pathfinder S4, S5 and LRU have nothing left to gain: each reaches at least '
    f'{percent(min(solved))} % from scratch, and DLR is close. On Pulse, with six test patients, the seeds '
    f'of S4 differ more than its arms, and those of LRU range from {spans[0]} (R\u00b2) from scratch and '
    f'from {spans[1]} pretrained. The two Transformers are worse there than predicting the mean in '
    f'{NUMBERS[sum(below)]} of {NUMBERS[len(below)]} runs, from scratch and pretrained; the one without '
    'rotary positions by so much that it dominates the mean gain on Pulse and its interval (the other five '
    f'models gain {minus(f"{rest:+.2f}")} on average).',
    min(solved) > 0.99,
    0.95 < scores('DLR, scratch', 'Pathfinder') < 0.99,
    spread > abs(s4[0]['score'] - s4[1]['score']),
    sum(below) > len(below) / 2,
    all(any(score < 0 for score in cell['scores']) for cell in (*rotary, *plain)),
    len(gains) == 6,
    gains['Transformer'] > 10 * abs(rest),
    np.ptp(lru[0]['scores']) > 4 * np.ptp(lru[1]['scores']),
  )


def _ended(found) -> str:
  """On runs from scratch that patience ended where they had learned nothing."""
  scratch = [cell for cell in mini.whole_cells(found) if cell['regime'] == 'scratch']
  runs = [(cell, *run) for cell in scratch for run in zip(cell['steps'], cell['best_steps'], strict=True)]
  early = [steps < MOST for _, steps, _ in runs]
  first = {}
  for cell, _, best in runs:
    if best == EVERY:
      name = f'{cell["row"].removesuffix(", scratch")} on {cell["column"]}'
      first[name] = first.get(name, 0) + 1
  listed = mini.listed([f'{name} ({NUMBERS[count]})' for name, count in first.items()])
  untold = {f'{one["model"]} on {one["column"]}' for one in found['gains'] if not one['significant']}
  return claim(
    f'{sum(early)} of {len(runs)} runs from scratch stopped before their {MOST:,} steps because validation '
    f'had not improved six times in a row. In {sum(first.values())} of them the first validation, after '
    f'{EVERY} steps, was the best: {listed}. Other runs left such a plateau late, and finetuning, with six '
    'validations in all, cannot stop on one. So the stopping rule accounts for part of the gains and losses '
    'of these cells and of the differences between their seeds. No significant gain is among them.',
    all(steps <= MOST for _, steps, _ in runs),
    all(early[n] for n, (_, _, best) in enumerate(runs) if best == EVERY),
    {*first} <= untold,
  )


def _capped(found) -> str:
  """On runs that their number of steps ended, and those of which the last validation was the best."""
  runs = {
    regime: [
      (cell['column'], *run)
      for cell in mini.whole_cells(found)
      if cell['regime'] == regime
      for run in zip(cell['steps'], cell['best_steps'], strict=True)
    ]
    for regime in ('masked', 'scratch')
  }
  masked, scratch = runs['masked'], runs['scratch']
  capped = sum(steps == MOST for _, steps, _ in scratch)
  last = [column for column, steps, best in masked if best == steps]
  last_scratch = sum(best == steps for _, steps, best in scratch)
  most = max(last, key=last.count)
  of_most = sum(column == most for column, *_ in masked)
  return claim(
    f'All {len(masked)} finetunings after masked self-pretraining end at their cap of {FINETUNED:,} steps, '
    f'and in {len(last)} of them the last validation is the best, most often on {most} ({last.count(most)} '
    f'of {of_most}). From scratch {capped} of {len(scratch)} runs end at their cap, and in {last_scratch} '
    'the last validation is the best. So most runs from scratch, but no finetuned ones, trained until '
    'validation stopped improving; [longer finetuning](#longer-finetuning) shows what that costs.',
    all(steps == FINETUNED for _, steps, _ in masked),
    len(last) > 3 * last_scratch,
    last.count(most) > of_most / 2,
    len(scratch) - capped > len(scratch) / 2,
  )


def course(found: dict, of_table: dict) -> list[str]:
  """Of benchmarks/mini_course.py: the rotary Transformer on Pathfinder."""
  curves = {
    regime: [one for one in found['curves'] if one['regime'] == regime] for regime in ('scratch', 'masked')
  }
  scratch, masked = (sorted(ones, key=lambda one: one['test'], reverse=True) for ones in curves.values())
  late = scratch[0]['step'][int(np.argmax(np.array(scratch[0]['score']) > 0.6))]
  (gain,) = [
    one
    for one in of_table['gains']
    if (one['model'], one['column']) == ('Transformer + Rotary', 'Pathfinder')
  ]
  printed = {
    row.regime: f'{row.value:.1f}'
    for row in published.ROWS
    if (row.table, row.model, row.task, row.causal) == (2, 'transformer_rotary', 'pathfinder', False)
  }
  return paragraphs(
    claim(
      'From scratch one seed leaves chance late, one barely, and one was stopped at chance after six '
      'validations without improvement; finetuning, with six validations in all, cannot be stopped like '
      'that. (On the development seeds neither learning rate left chance from scratch, so the first was '
      'taken.) After self-pretraining two seeds leave chance early in finetuning and get further than any '
      'from scratch, one of them still rising at its last step; the third has hardly left chance by then. '
      f'The paper reports {printed["scratch"]} % from scratch and {printed["masked"]} % after '
      'self-pretraining of this model on the full task. Here it is partly luck whether a seed finds the '
      'solution, and the gain over three seeds is not significant. Images are those of the first seed: the '
      'model restores the dashes in the right places, fainter than they are.',
      len(scratch) == len(masked) == 3,
      late > 2000,
      0.55 < scratch[1]['test'] < 0.65,
      scratch[2]['test'] < 0.52,
      scratch[2]['step'][-1] < scratch[0]['step'][-1],
      all(len(one['step']) == 6 for one in masked),
      masked[1]['test'] > scratch[0]['test'],
      masked[1]['score'][-1] == max(masked[1]['score']) > masked[1]['score'][-2] + 0.05,
      masked[2]['test'] < 0.56,
      not gain['significant'],
    )
  )
