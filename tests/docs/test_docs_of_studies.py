"""What the pages say of small studies: tables, sentences and pictures from what benchmarks.mini wrote."""

import json
import shutil
import sys

import pytest
from matplotlib.figure import Figure

from docs import (
  answers,
  arms,
  charts,
  costs,
  figures,
  in_short,
  longer,
  mini,
  origins,
  pictures,
  told,
  told_further,
)

# What benchmarks.mini writes: a cell all of whose seeds have run, and what is said of all.
CELL = {'state': '', 'seeds': [2, 3, 4], 'metric': 'accuracy', 'low': 0.4, 'high': 0.6}
CELL |= {'scores': [0.4, 0.5, 0.6]}
COLLECTED = {
  'command': 'c',
  'hardware': {'cpu_count': 2, 'cpu': 'CPU'},
  'versions': {'jax': '1'},
  'date': '2026-11-22',
  'means': [],
  'growths': [],
  'inputs': [],
  'answers': ['So.'],
}


def test_runs_after_pretraining_all_end_at_their_cap():
  found = figures.result('mini_table')
  assert told._capped(found).startswith(
    'All 90 finetunings after masked self-pretraining end at their cap of 1,500'
  )
  masked = next(cell for cell in found['cells'] if cell['regime'] == 'masked')
  masked['steps'][0] -= told.EVERY
  with pytest.raises(told.NotTrue, match='All 90 finetunings after masked'):
    told._capped(found)


def test_each_machine_stands_beside_its_own_versions():
  cpu = {'hardware': COLLECTED['hardware'], 'versions': {'jax': '1'}}
  gpu = {'hardware': {'platform': 'gpu', 'device_kind': 'GPU'}, 'versions': {'jax': '2'}}
  assert costs.hardware(COLLECTED) == '2 CPU cores, CPU, jax 1, 2026-11-22'
  found = {'date': '2026-11-22', 'machines': [cpu | {'runs': 4}, gpu | {'runs': 6}, cpu | {'runs': 5}]}
  assert costs.hardware(found) == '2 CPU cores, CPU, jax 1 (9 runs) and GPU, jax 2 (6 runs), 2026-11-22'


def test_cells_stand_beside_the_machine_that_they_ran_on():
  cpu = {'hardware': COLLECTED['hardware'] | {'platform': 'cpu'}, 'precision': 'float32', 'runs': 3}
  gpu = {'hardware': {'platform': 'gpu', 'device_kind': 'GPU', 'matmul_precision': 'default'}}
  gpu |= {'precision': 'float32', 'runs': 3}
  rows = ('A, scratch', 'A, masked', 'B, scratch', 'B, masked')
  cells = [{'column': column, 'row': row, 'seeds': [2]} for column in ('Text', 'Image') for row in rows]
  for cell, number in zip(cells, (0, 0, 0, 1, 1, 1, 1, 1), strict=True):
    cell['machines'] = [number]
  found = {'cells': cells, 'machines': [cpu, gpu | {'runs': 5}]}
  assert origins.places(found) == (
    ' A and B, scratch on Text ran on 2 CPU cores, CPU with float32 matrix products; the others on GPU with '
    'TF32 matrix products, the default there.'
  )
  found['machines'][0]['runs'] = 6
  assert origins.places(found).startswith(' B, masked on Text and all of Image ran on GPU with')
  assert origins.platforms(found, 'B', 'Text') == {'cpu', 'gpu'}
  assert origins.places(found | {'machines': [cpu]}) == ''


def test_what_runs_took():
  cells = [
    {'task': 'text_mini', 'column': 'Text'},
    {'task': 'text_mini', 'column': 'Text'},
    {'column': 'Pulse'},
  ]
  time = {'text_mini': {'runs': 2, 'fastest': 90.0, 'median': 105.0, 'slowest': 120.0, 'seconds': 5400}}
  found = {'cells': cells, 'time': time, 'machines': [{'hardware': COLLECTED['hardware']}]}
  lines = origins.times(found)
  assert lines[2:4] == ['| Text | 2 | 1.5 | 1.8 | 2.0 | 1.5 |', '']
  assert lines[4].startswith('2 hours of runs in all, on 2 CPU cores, CPU, ')


def test_sets_that_are_not_verified_are_named():
  """But those that are generated, of which there are no official files."""
  tasks = {'Text': 'text_mini', 'Image': 'image_mini', 'ListOps': 'listops_mini'}
  found = {'cells': [{'column': column, 'task': task} for column, task in tasks.items()]}
  assert origins.data(found) == origins.data_short(found) == ''
  sources = {'text_mini': 'files reviews', 'image_mini': [*origins.DECODED][0], 'listops_mini': 'generated'}
  found['data'] = {task: [{'source': source, 'verified': False}] for task, source in sources.items()}
  told = origins.data(found)
  assert told.startswith(' The data of Text (files reviews) and of Image (files cifar-10-batches-bin) could ')
  assert '; 73 of the training and 20 of the test images of CIFAR-10 (60,000 in all) were decoded' in told
  assert origins.data_short(found, 'a.md') == ' Data of Text and Image: [not verified](a.md#the-table).'
  found['data']['image_mini'][0]['verified'] = True
  assert 'Image' not in origins.data(found) + origins.data_short(found)
  found['cells'] = found['cells'][:1]
  assert origins.data(found) == (' The data (files reviews) could not be verified to be the official files.')


def test_a_table_of_part_of_its_cells():
  cell = CELL | {'score': 0.5}
  found = dict(COLLECTED)
  found['cells'] = [
    cell | {'row': 'A', 'column': 'Text'},
    cell | {'row': 'B', 'column': 'Image', 'score': 0.45},
    cell | {'row': 'B', 'column': 'Text', 'state': '1 of 3 seeds'},
  ]
  gain = {'regime': 'masked', 'column': 'Text', 'row': 'A', 'scratch': 0.5, 'pretrained': 0.49}
  gain |= {'p': 0.0211, 'adjusted': 0.25, 'metric': 'accuracy', 'operations': 0.614}
  helped = gain | {'model': 'B', 'estimate': 0.02, 'low': 0.01, 'high': 0.03, 'significant': True}
  found['gains'] = [
    gain | {'model': 'A', 'estimate': -0.01, 'low': -0.03, 'high': 0.02, 'significant': False},
    helped | {'row': 'B', 'column': 'Image'},
    helped | {'row': 'B', 'regime': 'causal'},
  ]
  mean = {'regime': 'masked', 'metric': 'accuracy', 'estimate': 0.01, 'low': -0.005, 'high': 0.025}
  found['means'] = [
    mean | {'column': 'Image', 'significant': True},
    mean | {'column': 'Text', 'regime': 'causal'},
  ]
  lines = mini.gains(found)
  assert lines[:6] == [
    '| test accuracy, % | Text | Image |',
    '|---|---|---|',
    '| A | 50.0 \u2192 49.0 |  |',
    '| B |  | **50.0 \u2192 49.0** |',
    '| mean gain (95 %) |  | **+1.0 (\u22120.5 to +2.5)** |',
    '',
  ]
  assert (
    'seeds 2, 3, 4. Significant gains in bold (Holm-adjusted p \u2264 5 %): 0 of 2. Averaged over these '
    'models it helps on Image. Averages, longer finetuning and'
  ) in ' '.join(lines)
  assert ' it helps on Image. Longer. Averages, longer finetuning' in ' '.join(mini.gains(found, 'Longer.'))
  assert '2 of 3 cells have been run' in ' '.join(lines)
  reordered = found | {'cells': found['cells'][::-1]}
  assert [line[:3] for line in mini.gains(reordered)[2:4]] == ['| B', '| A']  # in the order of the study
  means = [
    mean | {'column': name, 'significant': told} for name, told in (('B', True), ('C', True), ('D', False))
  ]
  assert mini._averaged(means) == (
    'Averaged over these models it helps on B and C and makes no significant difference on D'
  )
  rates = [{'values': f'lr={rate}', 'score': score} for rate, score in ((0.1, 0.3), (0.2, None))]
  for number, cell in enumerate(found['cells']):
    cell['search'] = [{'tried': rates, 'won': None if number else 'lr=0.1'}]
  lines = mini.whole(found)
  assert lines[2:4] == ['| A | 50.0 (40.0 to 60.0) |  |', '| B |  | 45.0 (40.0 to 60.0) |']
  assert 'Means of seeds 2, 3, 4' in lines[5]
  assert 'So.' in lines
  assert '| A, Text | \u22121.0 (\u22123.0 to +2.0) | 0.021 | 0.25 | 61% |' in lines
  further = found | {'further': [found['gains'][0] | {'over': 'S'}]}
  more = [line for line in mini.whole(further) if line not in lines]
  assert more == ['| A, Text, over S | \u22121.0 (\u22123.0 to +2.0) | 0.021 | 0.25 | 61% |']
  assert mini.rates(found)[:3] == [
    '| learning rates | validation at 0.1 | validation at 0.2 |',
    '|---|---|---|',
    '| A, Text | **30.0 %** | failed |',
  ]


def test_scores_of_a_regression_are_no_percentages():
  cell = CELL | {'metric': 'r2', 'column': 'Pulse', 'score': -0.873, 'low': -0.9, 'high': -0.8}
  cell |= {'scores': [-0.8, -0.946]}
  tried = [{'values': f'lr={rate}', 'score': 0.25} for rate in (0.1, 0.2)]
  cell |= {'row': 'A', 'search': [{'tried': tried, 'won': 'lr=0.1'}]}
  gain = {
    'regime': 'masked',
    'column': 'Pulse',
    'row': 'A',
    'model': 'A',
    'metric': 'r2',
    'significant': False,
  }
  gain |= {'scratch': -0.873, 'pretrained': 0.5, 'estimate': 1.373, 'low': 1.1, 'high': 1.5}
  found = COLLECTED | {'cells': [cell], 'gains': [gain | {'p': 0.2, 'adjusted': 0.2, 'operations': 0.98}]}
  lines = mini.gains(found)
  assert lines[0] == '| test accuracy, %; Pulse: R\u00b2 | Pulse |'
  assert lines[2] == '| A | \u22120.87 \u2192 0.50 |'
  lines = mini.whole(found)
  assert '| A | \u22120.87 (\u22120.90 to \u22120.80) |' in lines
  assert 'Intervals of R\u00b2 also cover the choice of test patients.' in ' '.join(lines)
  assert ['| seed by seed | Pulse |', '|---|---|', '| A | \u22120.80, \u22120.95 |'] == lines[7:10]
  assert '| A, Pulse | +1.37 (+1.10 to +1.50) | 0.20 | 0.20 | 98% |' in lines
  assert mini.rates(found, found)[2:] == ['| A, Pulse | **0.25** | 0.25 |']


def test_a_lead_is_that_of_the_model_asked_about():
  """Whichever of the two is ahead in the mean of both ways of training."""
  lead = {'metric': 'accuracy', 'significant': False, 'adjusted': 0.5, 'before': 0.02, 'after': 0.05}
  lead |= {'estimate': -0.03, 'low': -0.06, 'high': 0.01}
  lead |= {'limits': {'before': {'low': -0.01, 'high': 0.06}, 'after': {'low': 0.03, 'high': 0.07}}}
  found = {
    'cells': [{'column': 'Text'}, {'column': 'Image'}],
    'leads': [
      lead | {'leader': answers.ROTARY, 'other': 'S4', 'column': 'Image'},
      lead | {'leader': 'S4', 'other': answers.ROTARY, 'column': 'Text', 'significant': True},
      lead | {'leader': 'S4', 'other': 'DLR', 'column': 'Text'},
    ],
  }
  assert answers.leads(found)[2:] == [
    '| Transformer + Rotary, Text | 2.0 (\u22121.0 to 6.0) | 5.0 (3.0 to 7.0) '
    '| **+3.0 (\u22121.0 to +6.0)** | 0.50 |',
    '| Transformer + Rotary, Image | \u22122.0 (\u22126.0 to 1.0) | \u22125.0 (\u22127.0 to \u22123.0) '
    '| \u22123.0 (\u22126.0 to +1.0) | 0.50 |',
  ]
  with pytest.raises(told.NotTrue, match='no change of its distance is significant'):
    answers._behind(found, found)
  found['leads'][1]['significant'] = False
  said = answers._behind(found, {**found, 'leads': found['leads'][:1]})
  assert (
    'by 2.0 and 5.0 on Text and \u22122.0 and \u22125.0 on Image ([intervals](mini.md#the-table)); ' in said
  )
  assert 'with longer finetuning by ' in said
  assert 'by \u22122.0 and \u22125.0 on Image ([intervals]' in said


def test_orders_have_limits():
  one = {'column': 'Text', 'regime': 'scratch', 'models': {'s4': {}}, 'of_seeds': [0.5], 'tau': -0.25}
  lines = mini._agreement([one | {'low': -0.5, 'high': 0.5}, one | {'low': None, 'high': None}])
  assert lines[3:5] == [
    '| Text, scratch | `s4` | \u22120.25 (\u22120.50 to 0.50) | 0.50 |',
    '| Text, scratch | `s4` | \u22120.25 | 0.50 |',
  ]


def test_accuracies_over_the_labels():
  cell = CELL | {'high': 0.7}
  found = COLLECTED | {
    'cells': [
      cell | {'row': row, 'column': column, 'score': score}
      for row, column, score in (
        ('S4, scratch', '10%', 0.5),
        ('S4, masked on the part', '10%', 0.52),
        ('S4, masked on all inputs', '10%', 0.56),
        ('S4, scratch', '100%', 0.6),
        ('S4, masked on all inputs', '100%', 0.66),
      )
    ],
  }
  found['cells'].append(cell | {'row': 'S4, scratch', 'column': '30%', 'state': '1 of 3 seeds'})
  gain = {'low': 0.01, 'high': 0.07, 'significant': True, 'metric': 'accuracy'}
  more = {'metric': 'accuracy', 'estimate': -0.02, 'low': -0.03, 'high': -0.01, 'significant': True}
  more |= {'p': 0.01, 'adjusted': 0.02, 'column': '10%'}
  found['growths'] = [more | {'row': 'S4, masked on the part'}]
  found['inputs'] = [more | {'model': 'S4', 'estimate': 0.04, 'low': 0.02, 'high': 0.05}]
  found['gains'] = [
    gain | {'row': 'S4, masked on the part', 'column': 'Text, 10%', 'estimate': 0.02, 'significant': False},
    gain | {'row': 'S4, masked on all inputs', 'column': 'Text, 10%', 'estimate': 0.06},
    gain | {'row': 'S4, masked on all inputs', 'column': 'Text', 'estimate': 0.06},  # of another place
  ]
  lines = charts.labels(found)
  heads = (
    '| labels | from scratch | masked on the part | gain | masked on all inputs | gain | all over part |'
  )
  assert lines[0] == heads
  assert lines[2:4] == [
    '| 10% | 50.0 | 52.0 | +2.0 (+1.0 to +7.0) | 56.0 | **+6.0 (+1.0 to +7.0)** | **+4.0 (+2.0 to +5.0)** |',
    '| 100% | 60.0 |  |  | 66.0 |  |  |',
  ]
  assert (
    lines[-1] == '| S4, masked on the part | 10% | **\u22122.0 (\u22123.0 to \u22121.0)** | 0.010 | 0.020 |'
  )
  assert 'So.' in lines
  assert charts.labels(None) == [mini.NO_CELL]
  (axes,) = charts.draw_labels(found, 'black', 'gray', figures.ARMS).axes
  assert [text.get_text() for text in axes.get_legend().get_texts()] == [f'S4, {arm}' for arm in figures.ARMS]
  # A second model has lines of its own; what is missing of it is left empty.
  found['cells'].append(cell | {'row': 'B, masked on all inputs', 'column': '10%', 'score': 0.55})
  lines = charts.labels(found)
  assert lines[0] == heads
  assert lines[2].startswith('| 10%, S4 | 50.0 | 52.0 |')
  assert lines[4] == '| 10%, B |  |  |  | 55.0 |  |  |'
  assert len(charts.draw_labels(found, 'black', 'gray', figures.ARMS).axes) == 2


def test_curves_of_the_models_that_are_run():
  cell = CELL | {'score': 0.5}
  found = COLLECTED | {
    'cells': [
      cell | {'row': 'S4, scratch', 'column': 'Image'},
      cell | {'row': 'S4, masked', 'column': 'Image', 'state': '0 of 1 seeds'},
    ],
    'curves': [{'row': 'S4, scratch', 'column': 'Image', 'seed': 2, 'flops': [1, 2], 'score': [0.1, 0.2]}],
  }
  assert (
    charts.draw_curves(found, 'black', 'gray', figures.MODELS) is None
  )  # never a picture with a run that is missing
  assert charts.curves(found, 'p.png')[2:4] == ['| S4, scratch | 20.0 |', '']
  assert not any('p.png' in line for line in charts.curves(found, 'p.png'))
  found['cells'][1]['state'] = ''
  assert len(charts.draw_curves(found, 'black', 'gray', figures.MODELS).axes) == 1
  assert charts.curves(found, 'p.png')[-1].endswith('(p.png)')
  # Another model has one of its two arms: it is named, and has no line.
  found['cells'].append(cell | {'row': 'B, scratch', 'column': 'Image'})
  found['cells'].append(cell | {'row': 'B, masked', 'column': 'Image', 'state': '0 of 1 seeds'})
  found['curves'].append(found['curves'][0] | {'row': 'B, scratch'})
  (axes,) = charts.draw_curves(found, 'black', 'gray', figures.MODELS).axes
  assert axes.get_title() == 'Image (not run: B)'
  assert [line.get_label() for line in axes.lines] == ['S4, scratch']
  assert charts.curves(None, 'p.png') == [mini.NO_CELL]


def test_many_curves_stand_in_two_columns():
  """Four in a row are too small to read on a page; of three the last place is empty."""
  found = {'cells': [], 'curves': []}
  for column in 'ABC':
    place = {'row': 'S4, scratch', 'column': column}
    found['cells'].append(CELL | place)
    found['curves'].append(place | {'flops': [1, 2], 'score': [0.1, 0.2]})
  axes = charts.draw_curves(found, 'black', 'gray', figures.MODELS).axes
  assert [one.get_title() for one in axes if one.get_visible()] == ['A', 'B', 'C']
  assert axes[0].get_gridspec().get_geometry() == (2, 2)


def test_a_picture_of_other_numbers_is_noticed(monkeypatch, tmp_path, capsys):
  shutil.copytree(figures.RESULTS, tmp_path / 'results')
  monkeypatch.setattr(figures, 'RESULTS', tmp_path / 'results')
  assert figures.stale_pictures() == []
  for name in ('mini_length.json', 'demo_restored.json', 'mini_table_runs.jsonl'):
    with (tmp_path / 'results' / name).open('a') as file:
      file.write('\n')
  assert [path.name for path in figures.stale_pictures()] == ['front.png', 'mini_length.png', 'mini.png']
  assert figures.main(['--check']) == 1
  said = capsys.readouterr().out
  assert (
    'docs/images/front.png shows other numbers than benchmarks/results: run python -m docs.figures' in said
  )
  assert (
    'docs/images/mini.png shows other numbers than benchmarks/results: run python -m docs.pictures' in said
  )
  files = [tmp_path / 'results' / 'mini_length.json']
  assert pictures.is_stale(tmp_path / 'new.png', files)
  pictures.save(tmp_path / 'new.png', lambda: None, files)
  assert not (tmp_path / 'new.png').exists()
  pictures.save(tmp_path / 'new.png', Figure, files)
  assert not pictures.is_stale(tmp_path / 'new.png', files)


def test_the_picture_of_a_page_is_of_the_study_whose_runs_it_names(monkeypatch, tmp_path, capsys):
  page, browser, picture = (tmp_path / name for name in ('report.html', 'browser', 'mini.png'))
  browser.write_text(
    f'#!{sys.executable}\nimport sys\nfrom PIL import Image\n'
    "(path,) = [one.partition('=')[2] for one in sys.argv if one.startswith('--screenshot=')]\n"
    "Image.new('RGB', (8, 4), 'red').save(path)\n"
  )
  browser.chmod(0o755)
  monkeypatch.setattr(pictures, 'PAGE', picture)
  page.write_text('<p>Study mini_arms · 3 runs</p>', encoding='utf-8')
  with pytest.raises(SystemExit):
    pictures.main([str(page), f'--browser={browser}'])
  assert 'is not the page of the study mini_table; give its report.html' in capsys.readouterr().err
  assert not picture.exists()
  page.write_text('<p>Study mini_table · 3 runs</p>', encoding='utf-8')
  pictures.main([str(page), f'--browser={browser}'])
  assert not pictures.is_stale(picture, pictures.OF_PAGE)


def test_arms_stand_beside_each_other_and_what_is_missing_stays_empty():
  rows = [f'{model}, {arm}' for model in ('A', 'B') for arm in arms.ARMS]
  cells = [
    CELL | {'column': column, 'row': row, 'score': 0.5} for column in ('Text', 'Image') for row in rows
  ]
  cells = [cell for cell in cells if cell['column'] == 'Text' or cell['row'].startswith('A, scratch')]
  cells[-1] = cells[-1] | {'state': '2 of 3'}
  cells = [cell for cell in cells if (cell['column'], cell['row']) != ('Text', 'B, causal')]
  gain = {'column': 'Text', 'metric': 'accuracy', 'low': -0.03, 'high': 0.02, 'significant': False}
  gains = [
    gain | {'model': model, 'regime': regime, 'estimate': estimate, 'significant': model == 'B'}
    for model, regime, estimate in (('A', 'masked', -0.01), ('A', 'causal', 0.02), ('B', 'masked', 0.04))
  ]
  further = [one | {'estimate': 0.03} for one in gains if one['regime'] == 'masked']
  mean = gain | {'regime': 'causal', 'estimate': 0.01}
  found = COLLECTED | {'cells': cells, 'gains': gains, 'further': further, 'means': [mean]}
  assert arms.columns(found) == ['Text']  # of Image no model has all of its arms
  lines = arms.table(found)
  assert lines[2:4] == ['| A | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 |', '| B | 50.0 | 50.0 | 50.0 | 50.0 |  |']
  assert (
    '| A, Text | \u22121.0 (\u22123.0 to +2.0) | +3.0 (\u22123.0 to +2.0) | +2.0 (\u22123.0 to +2.0) |'
    in lines
  )
  assert '| B, Text | **+4.0 (\u22123.0 to +2.0)** | **+3.0 (\u22123.0 to +2.0)** |  |' in lines
  assert not any(line.startswith('| mean') for line in lines)  # of A alone, where the study plans B too
  assert arms.answer(found) == (
    'On Text, where only A has all arms, causal self-pretraining gains +2.0 (\u22123.0 to +2.0) points over '
    'training the causal form from scratch; this is not significant. Masked self-pretraining gains +3.0 to '
    '+3.0 points over training from scratch for the steps of finetuning only; that of B is significant.'
  )
  found['gains'].append(gain | {'model': 'B', 'regime': 'causal', 'estimate': 0.05, 'significant': True})
  assert '| mean, Text |  |  | +1.0 (\u22123.0 to +2.0) |' in arms.table(found)
  assert arms.answer(found).startswith(
    'On Text causal self-pretraining gains +2.0 to +5.0 points over training the causal form from scratch, '
    'on average +1.0 points (\u22123.0 to +2.0); that of B is significant. Masked '
  )


def test_words_on_arms_are_of_list_ops_and_are_refused_where_they_are_not_true():
  found = figures.result('mini_arms')
  said = arms.told(found)
  other = [one | {'column': 'Image', 'estimate': 9.0} for one in found['further']]
  assert arms.told(found | {'further': found['further'] + other}) == said
  for one in found['gains']:
    one['significant'] = True
  with pytest.raises(told.NotTrue, match='No causal gain is significant'):
    arms.told(found)


def test_longer_runs_stand_beside_those_of_the_table():
  names = [f'{model}, {arm}' for model in ('A', 'B') for arm in ('scratch', 'masked')]
  steps = {'steps': [6_000, 3_000], 'best_steps': [5_750, 1_500]}
  cells = [CELL | steps | {'column': 'ListOps', 'row': row, 'score': 0.5} for row in names]
  gain = {'column': 'ListOps', 'regime': 'masked', 'metric': 'accuracy', 'low': -0.03, 'high': 0.02}
  gains = [gain | {'model': model, 'estimate': 0.01, 'significant': False} for model in ('A', 'B')]
  mean = gain | {'models': ['A', 'B'], 'estimate': 0.015, 'significant': True}
  before = COLLECTED | {'cells': cells, 'gains': gains, 'means': [mean]}
  now = COLLECTED | {
    'cells': [cell | {'score': 0.6} for cell in cells[:2]]
    + [cell | {'state': '2 of 3'} for cell in cells[2:]],
    'gains': [gains[0] | {'estimate': 0.04, 'significant': True}],
    'means': [mean | {'models': ['A']}],
  }
  lines = longer.table(now, before)
  of_a = '| A | 50.0 | 60.0 | 50.0 | 60.0 | +1.0 (\u22123.0 to +2.0) | **+4.0 (\u22123.0 to +2.0)** |'
  assert lines[2:4] == [of_a, '']  # a mean of all models that are planned, or none
  assert '| A, masked | 6,000, 3,000 | 5,750, 1,500 |' in lines
  limits = 'With up to 6,000 steps of finetuning and 8,500 from scratch (in the table 1,500 and 4,000) '
  of_one = 'on ListOps +4.0 (\u22123.0 to +2.0) for A (in the table +1.0; this is significant)'
  assert longer.answer(before, now, now) == f'{limits}gains are, in points: {of_one}; {of_one}.'
  now = before | {'gains': [one | {'estimate': 0.04} for one in gains]}
  assert longer.table(now, before)[4].startswith('| mean |  |  |  |  | **+1.5 (')
  assert longer.answer(before, now).endswith(
    'on ListOps on average +1.5 (\u22123.0 to +2.0) instead of +1.5 (single models +4.0 to +4.0; none of 2 '
    'gains is significant).'
  )


@pytest.mark.parametrize(
  ('words', 'study', 'of', 'refused'),
  [
    (longer.told, 'longer', 'table', 'From scratch longer runs change little'),
    (longer.told_tasks, 'longer_tasks', 'table', 'On Image all finetuned runs stop by themselves'),
    (told_further.longer_random, 'longer_random', 'random', 'Finetuning from random values is best after'),
    (told_further.architectures, 'further', 'table', 'After self-pretraining its mean is lower'),
  ],
)
def test_words_on_longer_runs_are_refused_where_runs_stop_otherwise(words, study, of, refused):
  found, shorter = (figures.result(f'mini_{name}') for name in (study, of))
  assert words(found, shorter)
  for cell in found['cells']:
    cell['steps'] = [longer.STEPS['scratch']] * len(cell['steps'])
    cell['best_steps'] = [0] * len(cell['best_steps'])
  with pytest.raises(told.NotTrue, match=refused):
    words(found, shorter)


@pytest.mark.parametrize(
  'slowest, told_of_it',
  [(9.9, 'No run takes more than the 10'), (10.8, '1 of 2 takes more than the 10 minutes that a run is')],
)
def test_minutes_of_a_run(slowest, told_of_it):
  rows = [
    {'case': f'text:{model}', 'minutes': slowest - i} for i, model in enumerate(('transformer_rotary', 's4'))
  ]
  lines = longer.minutes(COLLECTED | {'rows': rows, 'steps': 500})
  assert lines[2] == f'| Text | {slowest} | {slowest - 1:.1f} |'
  assert told_of_it in ' '.join(lines)


def test_the_summary_of_speeds_is_refused_where_the_files_say_otherwise():
  files = [figures.result(name) for name in ('attention_cpu', 'ssm_cpu', 'data', 'generator', 'accelerator')]
  assert sum(line.startswith('* ') for line in in_short.speed(*files)) == 5
  for row in files[1]['steps']:
    for ratio in row.get('times_faster_than', {}).values():
      ratio['wall'] = 50.0
  with pytest.raises(told.NotTrue, match='LRU takes about twice as long'):
    in_short.speed(*files)


def test_repeats_are_compared_with_the_run_of_the_table(repository):
  found = figures.result('mini_repeats')
  assert longer.repeats(found)[0].startswith('For S4')
  lines = (repository / 'benchmarks/results/mini_table_runs.jsonl').read_text(encoding='utf-8').splitlines()
  (run,) = [one for one in map(json.loads, lines) if one.get('folder') == found['in_table']['run']]
  assert run['result']['stages']['pretrain']['metrics']['loss'] == found['in_table']['loss']
  found['rows'][1]['loss'][0] += 1e-6
  with pytest.raises(told.NotTrue, match='code is not the reason'):
    longer.repeats(found)
