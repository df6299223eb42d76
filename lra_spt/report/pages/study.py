"""report.html of a study: its conclusions, its table or figure, its cost, and every cell in detail."""

import dataclasses
import math
import pathlib
import shlex

from lra_spt.config import loading
from lra_spt.report.pages import colours, document, plots, styles
from lra_spt.report.pages import curves as study_curves
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import RECORDED
from lra_spt.report.statistics.scores import ACCURACY, DASH, minus
from lra_spt.report.study import arms as tables
from lra_spt.report.study import sentences
from lra_spt.report.study import table as studies
from lra_spt.report.study.findings import MORE_SEEDS

TAIL = 12  # lines of a log
MOST_COMPARISONS = 20  # rows of a table; more are folded
COLOURS = (
  colours.BLUE,
  colours.ORANGE,
  colours.GREEN,
  colours.PURPLE,
  colours.RED,
  colours.BROWN,
  colours.GREY,
)
DASHES = ('', '8 2', '2 2')
# What a study shows of the learning of its runs: by `Study.show`.
CURVES = {'curves': study_curves.over_steps, 'operations': study_curves.over_operations}


def write(table: studies.ResultTable, path=None, title: str = '') -> pathlib.Path:
  """Writes the page, by default report.html in the folder of the study; FileAccessError when it cannot be."""
  path, title = path or table.workdir / 'report.html', title or table.record['title']
  return document.write_page(path, 'study.html', script='tables.js', title=title, **_view(table))


def _view(table):
  record = table.record
  return {
    'record': record,
    'counts': table.counts,
    'paragraphs': [part.strip() for part in record['about'].split('\n\n') if part.strip()],
    'cautions': studies.cautions(table),
    'answers': _answers(table),
    'findings': _findings(table.findings),
    'most': MOST_COMPARISONS,
    'more_seeds': MORE_SEEDS,
    'head': _columns(record),
    'rows': [_row(table, row) for row in table.rows],
    'chart': _chart(table),
    'cost': _cost(table),
    'curves': CURVES[record['show']](table, _looks(table)) if record['show'] in CURVES else [],
    'kernels': _kernels(table) if record['show'] == 'kernels' else [],
    'failures': [sentence.removeprefix('! ') for sentence in studies.failures(table)],
    'details': [_details(table, cell) for cell in table.cells.values() if cell.record['seeds']],
    'show': {'duration': tables.duration, 'scaled': tables.scaled},
  }


def _answers(table):
  said = sentences.sentences(table.findings) if table.runs else []
  return [document.unbroken(sentence) for sentence in said]


def _findings(found):
  """What the section on them shows, as text; None where there is nothing to show."""
  if not (found.pairs or found.successes or found.apart):
    return None
  return {
    'unrun': found.unrun,
    'pairs': [_pair(pair) for pair in found.pairs],
    'means': [_average(mean) for mean in found.means],
    'growths': [_growth(growth) for growth in found.growths],
    'gaps': [_gap(gap) for gap in sorted(found.gaps, key=sentences.clearest, reverse=True)],
    'rankings': [
      {
        'regime': _over_form(ranking),
        'models': _range(*ranking.models),
        'places': ', '.join(ranking.places),
        'tau': minus(f'{ranking.tau.estimate:.2f}') if ranking.tau.known else DASH,
        'limits': minus(f'{ranking.tau.low:.2f} to {ranking.tau.high:.2f}')
        if ranking.tau.known
        else 'no order from scratch',
        'seeds': _range(*ranking.seeds),
      }
      for ranking in found.rankings
    ],
    'successes': [
      {
        'row': one.cell.record['row'],
        'place': one.place,
        'chance': one.cell.score.show(one.chance),
        'beating': f'{one.beating} of {one.total}',
        'limits': one.cell.score.limits(one.rate),
      }
      for one in found.successes
    ],
    'smallest': [
      {
        'place': one.place,
        'examples': f'{one.examples:,} {one.what}',
        'now': f'{sentences.size(one.score, one.now)} ({one.seeds} seed{"s" if one.seeds > 1 else ""})',
        'among': sentences.size(one.score, one.among),
        'more': [
          sentences.size(one.score, one.more[seeds]) if seeds in one.more else DASH for seeds in MORE_SEEDS
        ],
      }
      for one in found.smallest
    ],
    'apart': found.apart,
    'methods': list(
      dict.fromkeys(one.interval.method for one in (*found.pairs, *found.means, *found.growths, *found.gaps))
    ),
    'single': any(len(pair.seeds) == 1 for pair in found.pairs),
  }


def _range(low, high):
  return str(low) if low == high else f'{low} to {high}'


def _over_form(one):
  """'causal, over the causal form': of a Gap or Ranking."""
  return f'{one.regime}, over the {one.form}' if one.form else one.regime


def _pair(pair):
  return _gained(pair, pair.pretrained.record['row'], pair.scratch.record['row'], pair.values())


def _average(mean):
  base = f'scratch, {mean.form}' if mean.form else 'scratch'
  return _gained(mean, f'{len(mean.pairs)} models, {mean.regime}', base, (mean.before, mean.after))


def _gained(one, row, base, scores):
  before, after = map(one.score.show, scores)
  return _compared(one) | {
    'row': row,
    'base': base,
    'place': one.place,
    'before': before,
    'after': after,
    'gain': one.score.signed(one.interval.estimate),
    'direction': one.direction,
    'verdict': one.verdict,
  }


def _growth(growth):
  return _compared(growth) | {
    'row': growth.here.pretrained.record['row'],
    'base': growth.here.scratch.record['row'],
    'place': growth.place,
    'end': growth.end.place,
    'gain': growth.score.signed(growth.gain),
    'end_gain': growth.score.signed(growth.end_gain),
    'more': growth.score.signed(growth.interval.estimate),
    'verdict': growth.verdict,
  }


def _gap(gap):
  return _compared(gap) | {
    'leader': gap.leader.name,
    'other': gap.other.name,
    'place': gap.place,
    'regime': _over_form(gap),
    'before': gap.score.signed(gap.before),
    'after': gap.score.signed(gap.after),
    'less': gap.score.signed(gap.interval.estimate),
    'verdict': gap.verdict,
  }


def _compared(one):
  return {
    'limits': one.score.signed_limits(one.interval),
    'seeds': len(one.seeds),
    'p': sentences.shown_p(one.estimate.p),
    'adjusted': sentences.shown_p(one.adjusted),
  }


def _columns(record):
  return [*record['columns'], *([name for name, *_ in studies.AVERAGES] if record['averages'] else [])]


def _row(table, row):
  """(name, [what a cell shows])."""
  gains = {id(pair.pretrained): pair for pair in table.findings.pairs if pair.main}
  places = [table.cells.get((row, column)) for column in table.columns]
  cells = [_shown(cell, gains.get(id(cell))) for cell in places]
  if table.record['averages']:
    for _, ours, theirs in table.averages(row):
      published = None if theirs is None else f'{100 * theirs:.2f}'
      cells.append(
        {
          'value': ACCURACY.show(ours),
          'limits': '',
          'published': published,
          'state': '',
          'moved': '',
          'gain': None,
          'rank': theirs if ours is None else ours,
        }
      )
  return row, cells


def _shown(cell, gain):
  """What a cell of the table has; gain: the Pair of a pretrained one and the same model from scratch."""
  if cell is None:
    return None
  limits = cell.score.limits(cell.arm.score) if cell.arm and cell.arm.score.known else ''
  published, moved = cell.published, ''
  if cell.arm and published and published['value'] is not None:
    difference = cell.arm.score.estimate - published['value']
    moved = f'{cell.score.signed(difference)}'
  return {
    'value': cell.text if cell.arm else '',
    'limits': limits,
    'published': published and published['printed'],
    'state': cell.state,
    'moved': moved,
    'gain': gain
    and {
      'text': gain.score.signed(gain.interval.estimate),
      'direction': gain.direction,
      'arrow': {'better': '\u2191', 'worse': '\u2193', '': ''}[gain.direction],
    },
    'rank': cell.arm.score.estimate if cell.arm else studies.published(cell),
  }


def _looks(table):
  """{row: Style}, by turns."""
  return {
    row: styles.Style(COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)])
    for number, row in enumerate(table.rows)
  }


def _chart(table):
  """The figure of a study that has one: of every row a line, ours solid and published dashed."""
  chart = table.record.get('chart')
  if not chart:
    return None
  looks, lines, key = _looks(table), [], []
  for row in table.rows:
    cells = sorted(
      (c for c in table.cells.values() if c.record['row'] == row and c.record.get('x') is not None),
      key=lambda c: c.record['x'],
    )
    for kind, value, dash in (('', studies.ours, ''), (', published', studies.published, '4 3')):
      points = [(cell.record['x'], value(cell)) for cell in cells]
      points = [(x, y) for x, y in points if y is not None]
      if points:
        style = dataclasses.replace(looks[row], dash=dash)
        lines.append(plots.Line(row + kind, style, (tuple(zip(*points, strict=True)),)))
        key.append((row + kind, style))
  shares = all(cell.score.is_share for cell in table.cells.values())
  svg = plots.line_chart(lines, chart['x'], chart['y'], 'study', log=chart['log'], percent=shares)
  return svg and {'svg': svg, 'key': key}


def _cost(table):
  """Score against what training took: a chart per unit of cost, and what nothing else beats at its price."""
  points = []
  for (row, column), cell in table.cells.items():
    if cell.arm:
      flops, seconds = (cell.arm.mean(lambda run, key=key: run.total(key)) for key in ('flops', 'seconds'))
      points.append((row, column, cell, flops, seconds))
  if not points:
    return None
  looks = _looks(table)
  shown = []
  for column in dict.fromkeys(column for _, column, *_ in points):
    here = [(row, cell, flops, seconds) for row, c, cell, flops, seconds in points if c == column]
    front = _front([(flops, cell.arm.score.estimate) for _, cell, flops, _ in here])
    shown.append(
      {
        'column': column,
        'rows': [
          {
            'name': row,
            'style': looks[row],
            'value': cell.text,
            'flops': tables.scaled(flops, 'FLOP'),
            'seconds': tables.duration(seconds),
            'best': best,
            'rank': {'flops': flops or '', 'seconds': seconds or ''},
          }
          for (row, cell, flops, seconds), best in sorted(
            zip(here, front, strict=True), key=lambda pair: pair[0][2] or math.inf
          )
        ],
        'svg': plots.scatter(
          [(flops, cell.arm.score.estimate, looks[row]) for row, cell, flops, _ in here if flops],
          'FLOPs of training',
          here[0][1].score.name,
          f'cost{len(shown)}',
          percent=here[0][1].score.is_share,
        ),
      }
    )
  return shown


def _front(points):
  """Of every (cost, score) whether no other is at least as good for less."""
  return [
    cost is not None
    and not any(c is not None and c <= cost and s >= score and (c, s) != (cost, score) for c, s in points)
    for cost, score in points
  ]


def _kernels(table):
  """Of every run with a kernels.json: what it is, the names of its two curves, a chart per shown layer."""
  shown, style = [], styles.of_regime('masked')
  for cell in table.cells.values():
    for run in cell.runs:
      if run.kernels is not None:
        charts = plots.kernel_charts(run.kernels, f'k{len(shown)}', style)
        caption = f'{cell.record["row"]}, {cell.record["column"]}, seed {run.seed}'
        labels = plots.kernel_labels(run.kernels)
        pairs = zip(run.kernels.shown, charts, strict=True)
        shown.append({'caption': caption, 'labels': labels, 'charts': list(pairs), 'style': style})
  return shown


def _details(table, cell):
  record = cell.record
  tail = []
  for seed, how, sentence in cell.open:
    log = cell.folder / f'seed{seed}' / run_folder.LOG
    if log.exists():
      with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - 8000))
        tail.append((seed, how, sentence, file.read().decode('utf-8', 'replace').splitlines()[-TAIL:]))
    else:
      tail.append((seed, how, sentence, []))
  more = [f'--config.{key}={value}' for key, value in record['overrides'].items()]
  more += [f'--register={path}' for path in table.record.get('register', ())]
  more += ['--smoke'] if table.record.get('smoke') else []
  more += [f'--config.seed={record["seeds"][0]}']
  command = shlex.join(['lra-spt', 'train', f'--config={record["config"]}', *more, '--workdir=W'])
  base = _base(table, cell)
  return {
    'cell': cell,
    'record': record,
    'command': command,
    'tried': [
      [
        {
          'name': tried['values'],
          'score': cell.score.show(tried['score']),
          'won': tried['values'] == part['won'],
        }
        for tried in part['tried']
      ]
      for part in record['search']
    ],
    'base': base and base.record,
    'differences': loading.difference(_config(base), _config(cell)) if base else '',
    'runs': [
      {
        'seed': run.seed,
        'value': run.score.show(run.value) + f' {RECORDED}' * bool(run.recorded),
        'seconds': tables.duration(run.total('seconds')),
        'flops': tables.scaled(run.total('flops'), 'FLOP'),
        'parameters': f'{run.result.get("parameters") or 0:,}',
        'path': str(run.path.relative_to(table.workdir)),
        'commit': run.result.get('commit') or 'not known',
        'date': run.result.get('date') or 'not known',
      }
      for run in cell.runs
    ],
    'open': tail,
  }


def _base(table, cell):
  """The cell to which another is compared: in its column the first of its model, or else the first. None
  where that is itself, or one of them has no runs with a config."""
  same = [other for other in table.cells.values() if other.record['column'] == cell.record['column']]
  same = [other for other in same if other.runs and _config(other)]
  if cell not in same:
    return None
  alike = [other for other in same if other.runs[0].result['model'] == cell.runs[0].result['model']]
  return next((other for other in (alike[0], same[0]) if other is not cell), None)


def _config(cell):
  return {key: value for key, value in cell.runs[0].result.get('config', {}).items() if key != 'seed'}
