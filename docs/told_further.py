"""What docs/results.md says in words of the further studies of LRA-mini (docs/told.py: of its table)."""

import numpy as np

from docs import mini, origins
from docs.costs import percent
from docs.told import EVERY, Scores, claim, paragraphs


def labels(found: dict, of_table: dict) -> list[str]:
  """Of configs/studies/mini_labels.py."""
  scores, whole = Scores(found), Scores(of_table)
  regimes = {'scratch': 'scratch', 'masked': 'masked on all inputs'}
  again = [scores.shown(f'S4, {arm}', '100%') for arm in regimes.values()]
  before = [whole.shown(f'S4, {regime}', 'Text') for regime in regimes]
  growths = {(one['row'].removeprefix('S4, masked on '), one['column']): one for one in found['growths']}
  told = [key for key, one in growths.items() if one['told']]
  few = growths['the part', '3%']
  highest = max(cell['score'] for (_, column), cell in scores.cells.items() if column == '3%')
  more = {one['column']: one for one in found['inputs']}
  return paragraphs(
    claim(
      'The cells of 100 % repeat runs of the table above, with the same seeds and values and later code, and '
      f'come out as nearly the same: {again[0]} and {again[1]} % instead of {before[0]} and {before[1]} %.',
      all(
        abs(scores(f'S4, {arm}', '100%') - whole(f'S4, {regime}', 'Text')) < 0.003
        for regime, arm in regimes.items()
      ),
    )
    + ' '
    + claim(
      'The gain does not grow here as labels get fewer: with 30 % of them it is as large as with all, '
      'and below it is smaller by every mean, which can be told where pretraining and finetuning have 3 '
      f'%, 150 reviews ({mini.signed(few, "gain")} points, and {mini.signed(few, "end_gain")} with all). '
      f'There no way of training has a mean of {np.ceil(100 * highest):.0f} %, where guessing has 50. '
      f'Further inputs without labels are worth {mini.signed(more["3%"], "estimate")} points there, '
      'beyond chance; with 10 and 30 % that cannot be told. The question was fixed before the runs; its two '
      'tests, of gains over the share of labels and of the two ways of pretraining, joined on 2026-11-27, '
      'when the runs were there.',
      told == [('the part', '3%')],
      all(abs(one['estimate']) < 0.005 for (_, column), one in growths.items() if column == '30%'),
      all(one['estimate'] < -0.02 for (_, column), one in growths.items() if column != '30%'),
      [column for column, one in more.items() if one['told']] == ['3%'],
      more['3%']['estimate'] > 0,
    )
  )


def random(found: dict) -> list[str]:
  """Of configs/studies/mini_random.py."""
  scores = Scores(found)

  def both(model, regime):
    return [scores(f'{name}, {regime}', 'ListOps') for name in (f'{model} random', model)]

  (s4, s4_made), (dlr, dlr_made) = both('S4', 'scratch'), both('DLR', 'scratch')
  (s4_after, s4_made_after), (dlr_after, dlr_made_after) = both('S4', 'masked'), both('DLR', 'masked')
  return paragraphs(
    claim(
      'ListOps is run, Text is not. In this table the means do not say what the paper says: from scratch '
      f'random values are no handicap ({percent(s4)} % for S4, where hand-made ones have '
      f'{percent(s4_made)}; {percent(dlr)} and {percent(dlr_made)} % for DLR, of which seeds differ '
      f'widely), and after self-pretraining the hand-made ones are ahead ({percent(s4_made_after)} and '
      f'{percent(s4_after)}; {percent(dlr_made_after)} and {percent(dlr_after)} %). Only the gain of DLR '
      'can be told. Budgets here are a small part of those at full length, and one task is one task.',
      {column for _, column in scores.cells} == {'ListOps'},
      s4 > s4_made and dlr > dlr_made,
      np.ptp(scores.cells['DLR random, scratch', 'ListOps']['scores']) > 0.05,
      s4_made_after > s4_after and dlr_made_after > dlr_after,
      [one['model'] for one in found['gains'] if one['told']] == ['DLR'],
    )
  )


LEFT = 0.2  # accuracy above which a run on ListOps has left chance, which is 0.17 to 0.19


def _leaves(curves: dict, row: str) -> int | None:
  """Steps with labels after which a run on ListOps at full length is above chance."""
  above = np.flatnonzero(np.array(curves[row, 'ListOps']['score']) > LEFT)
  return int(above[0] + 1) * EVERY if len(above) else None


def _listed_ends(curves: dict) -> str:
  rows = ('Transformer + Rotary, scratch', 'Transformer + Rotary, masked', 'S4, scratch')
  return mini.listed([percent(curves[row, 'ListOps']['score'][-1]) for row in rows])


def _rotary_at_length(found: dict, curves: dict) -> str:
  scratch, masked = (
    curves[f'Transformer + Rotary, {arm}', 'Image']['score'] for arm in ('scratch', 'masked')
  )
  platforms = [origins.platforms(found, model, 'Image') for model in ('S4', 'Transformer + Rotary')]
  return claim(
    'The rotary Transformer of so few parameters and steps stays far below S4 on Image at full length: '
    f'{percent(scratch[-1])} % from scratch, {percent(masked[-1])} % after pretraining, where at the size of '
    'the paper [pretraining gains much](#image-at-the-size-of-the-paper). (S4 ran there on CPUs in float32, '
    'the Transformer on a GPU with TF32 products; the gap holds that difference too.)',
    scratch[-1] > masked[-1],
    curves['S4, masked', 'Image']['score'][-1] > scratch[-1] + 0.1,
    platforms == [{'cpu'}, {'gpu'}],
  )


def length(found: dict) -> list[str]:
  """Of configs/studies/mini_length.py."""
  curves = {(one['row'], one['column']): one for one in found['curves']}
  small, full = 'Image, 12 x 12', 'Image'
  short = {row: curves[row, small]['score'] for row, column in curves if column == small}
  scratch, masked = curves['S4, scratch', full], curves['S4, masked', full]
  at = np.interp(masked['flops'], scratch['flops'], scratch['score'])
  labelled = len(masked['score'])  # validations in finetuning
  as_long = scratch['score'][labelled - 1]
  spent = scratch['flops'][labelled - 1] / masked['flops'][-1]
  rotary = short['Transformer + Rotary, scratch']
  trees = {row: curves[row, 'ListOps, 128']['score'] for row in short}
  return paragraphs(
    claim(
      'On 2,000 images of 12 x 12 more steps do not help these runs from scratch: S4 has its best validation '
      'early and ends by patience, and the rotary Transformer has long levelled off. After pretraining both '
      'end higher.',
      np.argmax(short['S4, scratch']) < 4,
      len(short['S4, scratch']) < len(rotary),
      max(rotary[:10]) == max(rotary),
      short['S4, masked'][-1] > max(short['S4, scratch']),
      short['Transformer + Rotary, masked'][-1] > max(rotary),
    ),
    claim(
      'On expressions of 128 tokens S4 has more at its best from scratch than it ends with after '
      f'pretraining ({percent(max(trees["S4, scratch"]))} and {percent(trees["S4, masked"][-1])} %), but '
      f'falls from there (to {percent(trees["S4, scratch"][-1])} %); the rotary Transformer is ahead from '
      f'scratch ({percent(trees["Transformer + Rotary, scratch"][-1])} and '
      f'{percent(trees["Transformer + Rotary, masked"][-1])} %), and still rises after pretraining.',
      max(trees['S4, scratch']) > trees['S4, masked'][-1] > trees['S4, scratch'][-1],
      trees['Transformer + Rotary, scratch'][-1] > max(trees['Transformer + Rotary, masked']),
      np.argmax(trees['Transformer + Rotary, masked']) == 5,
      trees['Transformer + Rotary, masked'][-1] > trees['Transformer + Rotary, masked'][-2] + 0.01,
    ),
    claim(
      'On Image at full length S4 from scratch, with labels in all of its steps, is ahead at every '
      'number of operations, and levels off at their end; after pretraining it still rises there. Its '
      '1,500 steps with labels bring it a little further than the first 1,500 do from scratch '
      f'({percent(masked["score"][-1])} and {percent(as_long)} %), which take less than half of the '
      'operations.',
      all(at > masked['score']),
      max(scratch['score'][-5:]) - scratch['score'][-5] < 0.01,
      masked['score'][-1] == max(masked['score']) > masked['score'][-2] + 0.02,
      0 < masked['score'][-1] - as_long < 0.03,
      spent < 0.5,
    ),
    _rotary_at_length(found, curves),
    claim(
      'On ListOps at full length all runs are at chance at first. They have left it from scratch after '
      f'{_leaves(curves, "S4, scratch"):,} steps (S4) and '
      f'{_leaves(curves, "Transformer + Rotary, scratch"):,} (Transformer), after pretraining after '
      f'{_leaves(curves, "Transformer + Rotary, masked"):,} steps of finetuning (Transformer) or not at all '
      f'(S4, {percent(curves["S4, masked", "ListOps"]["score"][-1])} %). The three end at '
      f'{_listed_ends(curves)} %.',
      _leaves(curves, 'S4, masked') is None,
      _leaves(curves, 'Transformer + Rotary, masked') < _leaves(curves, 'Transformer + Rotary, scratch'),
      _leaves(curves, 'Transformer + Rotary, scratch') < _leaves(curves, 'S4, scratch'),
    )
    + ' In the paper each stage has up to 200 epochs, here both together have fewer than three: the curves '
    'say what so short a training is worth, not who would win in the end.',
  )
