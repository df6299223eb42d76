"""The folded sections of a report as data for its template: every number as text, every chart as SVG."""

import math

import numpy as np

from lra_spt.config.loading import flattened
from lra_spt.report.pages import charts, colours, document, styles
from lra_spt.report.runs import restored
from lra_spt.report.runs.run import STAGE_NAMES
from lra_spt.report.statistics.scores import DASH, minus
from lra_spt.report.study import notes
from lra_spt.report.study.arms import duration, scaled
from lra_spt.report.study.findings import MORE_SEEDS
from lra_spt.report.study.sentences import clearest, shown_p, size

HIDDEN = (11, 98, 164)  # the colour of masked self-pretraining
ORIGINS = {
  'paper': "the paper's tables or text",
  'code': 'the published code',
  'ours': 'our choice',
  'command line': 'set for this run',
}
TESTED = ('95 % interval', 'seeds', 'p', 'p after Holm', 'verdict')


def compared_sections(findings) -> list[dict]:
  """{'title', 'note', 'head', 'rows'} of every kind of comparison that there is."""
  unrun = findings.unrun | {'differences': 0}

  def section(kind, title, note, head, rows):
    more = f' and {unrun[kind]} still to run' if unrun.get(kind) else ''
    held = f'Verdicts hold for all {len(rows)}{more} together' if more or len(rows) > 1 else 'The verdict'
    note += f' {held}: Holm-adjusted p \u2264 0.05.'
    return {'title': title, 'note': note, 'head': (*head, *TESTED), 'rows': rows}

  sections = [
    section(
      'pairs',
      'Gains of self-pretraining',
      'Differences between test scores of the same model (accuracies in percentage points), paired by '
      'example over the seeds that both have.',
      ('compared', 'place', 'from scratch', 'self-pretrained', 'gain'),
      [
        (f'{one.pretrained.row} over {one.scratch.row}', *_gained(one, one.values()))
        for one in findings.pairs
      ],
    ),
    section(
      'means',
      'Mean gains of all models',
      'Over the seeds that all models of a task have.',
      ('models', 'place', 'from scratch', 'self-pretrained', 'gain'),
      [
        (f'{len(one.pairs)} models, {_regime(one)}', *_gained(one, (one.before, one.after)))
        for one in findings.means
      ],
    ),
    section(
      'growths',
      'Changes of gains along the chart',
      'Gains compared with the gain of the same model at the right end of the chart; positive: larger here.',
      ('gain of', 'place', 'gain', 'at the right end', 'larger by'),
      [
        (f'{one.here.pretrained.row} over {one.here.scratch.row}', f'{one.place}, against {one.end.place}')
        + _signed(one, one.gain, one.end_gain)
        for one in findings.growths
      ],
    ),
    section(
      'gaps',
      'Leads of one model over another',
      'The leader is ahead in the mean of both ways of training; positive: pretraining shrinks its lead.',
      ('lead of', 'place', 'from scratch', 'self-pretrained', 'smaller by'),
      [
        (f'{one.leader.name} over {one.other.name}', f'{one.place}, {_regime(one)}')
        + _signed(one, one.before, one.after)
        for one in sorted(findings.gaps, key=clearest, reverse=True)
      ],
    ),
    section(
      'differences',
      'Differences between models that were trained alike',
      'On the same test examples, seed by seed.',
      ('models', 'place', 'training', 'difference'),
      [
        (f'{one.names[0]} over {one.names[1]}', one.place, one.training)
        + (one.score.signed(one.interval.estimate), *_tested(one))
        for one in sorted(findings.differences, key=clearest, reverse=True)
      ],
    ),
  ]
  sections = [one for one in (*sections, *_others(findings)) if one['rows']]
  return [one | {'head': [_capital(name) for name in one['head']]} for one in sections]


def _capital(name):
  return name if name.split()[0] in ('p', '\u03c4') else name[0].upper() + name[1:]


def _others(findings):
  yield {
    'title': 'Two single runs',
    'note': "McNemar's exact test and Tango's interval, of accuracies of independent test examples.",
    'head': (
      'compared',
      'place',
      'only the first right',
      'only the second',
      'difference',
      '95 % interval',
      'p',
    ),
    'rows': [
      (f'{pair.pretrained.row} over {pair.scratch.row}', pair.place)
      + (f'{pair.single.only_b:,}', f'{pair.single.only_a:,}')
      + (pair.score.signed(pair.single.interval.estimate), pair.score.signed_limits(pair.single.interval))
      + (shown_p(pair.single.p),)
      for pair in findings.pairs
      if pair.single
    ],
  }
  yield {
    'title': 'Agreement of rankings',
    'note': 'Kendall\u2019s \u03c4 between the order of models from scratch and after self-pretraining (1: '
    'the same, \u22121: reversed), mean over the places. Resampling adds noise, which biases its limits '
    'towards 0.',
    'head': ('after', 'models', 'places', '\u03c4', '95 % of resamples'),
    'rows': [
      (_regime(one), '\u2013'.join(map(str, dict.fromkeys(one.models))), ', '.join(one.places))
      + (minus(f'{one.tau.estimate:.2f}'), minus(f'{one.tau.low:.2f} to {one.tau.high:.2f}'))
      for one in findings.rankings
      if one.tau.known
    ],
  }
  yield {
    'title': 'Seeds that beat the constant answer',
    'note': 'A run beats it if so many right answers have p < 0.000001; a diverged run does not.',
    'head': ('arm', 'place', 'constant answer', 'seeds', '95 % interval'),
    'rows': [
      (one.cell.row, one.place, one.cell.score.show(one.chance))
      + (f'{one.beating} of {one.total}', one.cell.score.limits(one.rate))
      for one in findings.successes
    ],
  }
  yield {
    'title': 'The smallest gains that would be noticed',
    'note': 'A test at 5 % finds a true gain of this size in four studies of five.',
    'head': ('place', 'examples', 'now', 'among all gains', *(f'with {seeds} seeds' for seeds in MORE_SEEDS)),
    'rows': [
      (one.place, f'{one.examples:,} {one.what}', f'{size(one.score, one.now)} ({one.seeds})')
      + (size(one.score, one.among),)
      + tuple(size(one.score, one.more[n]) if n in one.more else DASH for n in MORE_SEEDS)
      for one in findings.smallest
    ],
  }


def _regime(one):
  return f'{one.regime}, over the {one.form}' if one.form else one.regime


def _gained(one, scores):
  return (one.place, *map(one.score.show, scores), one.score.signed(one.interval.estimate), *_tested(one))


def _signed(one, *values):
  return (*map(one.score.signed, (*values, one.interval.estimate)), *_tested(one))


def _tested(one):
  limits, seeds = one.score.signed_limits(one.interval), str(len(one.seeds))
  return limits, seeds, shown_p(one.estimate.p), shown_p(one.adjusted), one.verdict


def cost(table) -> list[dict]:
  """Per column: every arm with its parameters, operations and time, and a chart of score against operations.

  A row is on the Pareto front if no row with fewer operations scored as high.
  """
  shown = []
  for column in table.columns:
    cells = [cell for cell in table.cells.values() if cell.column == column and cell.arm]
    points = []
    for cell in cells:
      flops, seconds, parameters = (
        cell.arm.mean(value)
        for value in (
          lambda run: run.total('flops'),
          lambda run: run.total('seconds'),
          lambda run: run.result.get('parameters'),
        )
      )
      points.append((cell, styles.of_row(table.rows.index(cell.row)), flops, seconds, parameters))
    points.sort(key=lambda point: point[2] or math.inf)
    if points:
      shown.append({'column': column, **_cost(points)})
  return shown


def _cost(points):
  best, rows = -math.inf, []
  for number, (cell, style, flops, seconds, parameters) in enumerate(points, 1):
    value = cell.arm.score.estimate
    front, best = flops is not None and value > best, max(best, value)
    stages = ', '.join(
      f'{STAGE_NAMES[name]} {steps:,.0f}'
      for name in STAGE_NAMES
      if (steps := cell.arm.mean(lambda run, name=name: run.stage(name, 'steps')))
    )
    rows.append(
      {
        'name': f'{number}  {cell.row}',
        'style': style,
        'value': cell.text,
        'parameters': DASH if parameters is None else f'{parameters:,.0f}',
        'stages': stages,
        'flops': '\u2265 ' * any(run.flops_at_least for run in cell.runs) + scaled(flops, 'FLOP'),
        'seconds': duration(seconds),
        'front': front,
        'rank': (flops or '', seconds or ''),
      }
    )
  score = points[0][0].score
  dots = [
    (flops, cell.arm.score.estimate, style, str(number))
    for number, (cell, style, flops, *_) in enumerate(points, 1)
    if flops
  ]
  svg = charts.scatter(dots, 'FLOPs of training', score.name, percent=score.in_percent)
  return {'rows': rows, 'svg': svg}


def kernels(table) -> list[dict]:
  """For every run with a kernels.json a chart per layer shown: K_max against the lag, initial and learned."""
  shown = []
  for run in table.runs:
    if (stored := run.kernels) is None:
      continue
    pictures, initial = [], styles.Style(colours.GREY, '5 2')
    for layer, before, after in zip(
      stored.shown, stored.reach('initial'), stored.reach('learned'), strict=True
    ):
      lags = np.arange(1, stored.lags + 1)
      lines = [
        charts.Line(name, style, ((lags, curves[layer - 1, : stored.lags]),))
        for name, style, curves in (
          ('initial', initial, stored.initial),
          ('learned', styles.of_regime(run.regime), stored.learned),
        )
      ]
      svg = charts.line_chart(lines, 'lag', 'largest |K|', percent=False, ylog=True)
      pictures.append((f'Layer {layer}: {_within(after)}, at the start {_within(before)}', svg))
    shown.append(
      {
        'caption': f'{run.task}, {run.model}, {run.arm}, seed {run.seed}',
        'key': [
          (f'{stored.initialisation} initialisation', initial),
          (f'after {STAGE_NAMES[stored.stage]}', styles.of_regime(run.regime)),
        ],
        'pictures': pictures,
      }
    )
  return shown


def _within(reach):
  return 'not finite' if reach is None else f'90\u00a0% within {reach:,} lag{"s" if reach != 1 else ""}'


def restored_inputs(table) -> list[dict]:
  """Pictures of the inputs that the first run of every arm restored."""
  shown = []
  for cell in table.cells.values():
    inputs = next(filter(None, (restored.read_restored(run.path) for run in cell.runs)), None)
    if inputs is not None:
      side = math.isqrt(inputs.hidden.shape[1])
      name = f'{cell.row}, {cell.column}'
      shown.append(
        {
          'name': name,
          'inputs': inputs,
          'pictures': list(_pictures(inputs, side)),
          'side': max(48, 8 * side) if side <= 16 else 96,
        }
      )
  return shown


def _pictures(inputs, side):
  """Per example (index, original, given, restored), pictures as addresses for <img src>."""

  def image(values):
    return document.image_uri(values.reshape(side, side, *values.shape[1:]))

  for index, original, hidden, restored_one in zip(
    inputs.index.tolist(), inputs.original, inputs.hidden, inputs.restored, strict=True
  ):
    in_colours = np.repeat(original[:, None], 3, axis=1) if original.ndim == 1 else original
    given = np.where(hidden[:, None], np.uint8(HIDDEN), in_colours)
    yield index, image(original), image(given), image(restored_one)


def run_settings(runs) -> dict:
  """Facts of all runs, and their settings with origins: those that all share, and those that differ."""
  facts = {}
  for label, get in (
    ('Commit', lambda r: r.get('commit') or 'not known'),
    ('Date', lambda r: r.get('date', 'not known')),
    ('Protocol', lambda r: r['protocol']),
    ('Seed', lambda r: r['seed']),
    ('Hardware', lambda r: _pairs(r.get('hardware'))),
    ('Precision', lambda r: (r.get('runtime') or {}).get('precision') or ''),
    ('Versions', lambda r: _pairs(r.get('versions'))),
    ('Proven kernels', _proven_kernels),
    ('Data', notes.data_text),
    ('Fingerprints', lambda r: _pairs(r.get('fingerprints'))),
    ('Splits', lambda r: r.get('splits') or ''),
    ('Pretraining of', lambda r: (r.get('pretrained') or {}).get('run') or ''),
  ):
    if values := dict.fromkeys(filter(None, (str(get(run.result)) for run in runs))):
      facts[label] = '; '.join(values)
  configs = [flattened(run.result.get('config') or {}) for run in runs]
  origins = [flattened(run.result.get('origins') or {}) for run in runs]
  same, differ = [], []
  for key in dict.fromkeys(key for config in configs for key in config if key != 'seed'):
    values = dict.fromkeys(str(config.get(key, DASH)) for config in configs)
    origin = ', '.join(sorted({str(each[key]) for each in origins if key in each})) or DASH
    (same if len(values) == 1 else differ).append((key, ' | '.join(values), origin))
  return {'facts': facts, 'same': same, 'differ': differ, 'origins': ORIGINS}


def _proven_kernels(result):
  """The implementations that `lra_spt.training.autotune` chose, call by call; '' on CPUs."""
  stages = (result.get('stages') or {}).values()
  chosen = {call: name for stage in stages for call, name in (stage.get('kernels') or {}).items()}
  return '; '.join(f'{name} runs {call}' for call, name in chosen.items())


def _pairs(mapping):
  return ', '.join(f'{key} {DASH if value is None else value}' for key, value in (mapping or {}).items())
