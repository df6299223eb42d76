"""What the template of a report shows: every number as text or as a place on a scale, every chart as SVG."""

import dataclasses
import math

import numpy as np

from lra_spt.report import compare, published
from lra_spt.report.pages import document, plots, styles
from lra_spt.report.pages.document import unbroken
from lra_spt.report.runs import restored
from lra_spt.report.runs.run import STAGE_NAMES, STAGES, default_arm
from lra_spt.report.statistics import scores
from lra_spt.report.study import arms as tables
from lra_spt.report.study import notes
from lra_spt.report.text import text_table

HIDDEN = (11, 98, 164)  # the colour of masked self-pretraining
MOST_OPEN = 12  # rows of a table of differences between models; a longer one is folded
ORIGINS = {
  'paper': "the paper's tables or text",
  'code': 'the published code',
  'ours': 'our choice',
  'command line': 'set for this run',
}


def report_view(runs, story, started=(), damaged=()):
  """Everything but the title that report.html shows; arguments as `page.write_report`."""
  groups = tables.summarise(runs)
  looks = styles.styles(
    (run.regime, run.causal, run.arm, run.arm == default_arm(run.regime, run.causal)) for run in runs
  )
  return {
    'story': [p.strip() for p in (story or '').split('\n\n') if p.strip()],
    'started': started,
    'damaged': damaged,
    'groups': [_group_view(group, f'g{number}', looks) for number, group in enumerate(groups)],
    'answers': _answers(groups),
    'comparisons': list(map(_comparison_view, compare.comparisons(groups))),
    'contradictions': notes.contradictions(runs),
    'restored': _restored_view(runs),
    'paper': _paper_view({run.published['task'] for run in runs if run.published}),
    'how': _how_view(runs),
    'notes': notes.notes(runs, groups),
    'kernels': _kernels_view(runs, looks),
    'stage_names': STAGE_NAMES,
    'drawn': {
      'widths': plots.WIDTHS,
      'opacity': plots.SEED_OPACITY,
      'dot': plots.DOT,
      'initial_dash': plots.INITIAL_DASH,
    },
    'table_text': text_table(runs) if runs else '',
    'show': {'duration': tables.duration, 'scaled': tables.scaled, 'percent': _percent},
  }


def _answers(groups):
  """The answers of all groups; what several of them end with is said once, at the end."""
  said = [unbroken(sentence) for group in groups for sentence in tables.answer(group)]
  return list(dict.fromkeys(reversed(said)))[::-1]


def _percent(share):
  return unbroken(scores.percent(share))


@dataclasses.dataclass(frozen=True)
class Strip:
  """Geometry of one interval in a row of a table, in per cent of the strip's width."""

  left: float
  right: float
  dot: float
  mark: float | None


def _strips(intervals, marks, bounds):
  """Strips on one scale, and its (low, high). marks: for every strip a reference value or None.

  bounds: the scale does not go beyond what the quantity can be.
  """
  ends = [v for i in intervals for v in (i.low, i.estimate, i.high)] + [m for m in marks if m is not None]
  ends = [v for v in ends if math.isfinite(v)]
  low, high = min(ends), max(ends)
  pad = 0.04 * (high - low) or 0.01
  low, high = max(low - pad, bounds[0]), min(high + pad, bounds[1])

  def place(value):
    return None if value is None else round(100 * (value - low) / (high - low), 2)

  def bar(interval):
    known = (interval.low, interval.high) if interval.known else (interval.estimate,) * 2
    return map(place, known)

  return [Strip(*bar(i), place(i.estimate), place(m)) for i, m in zip(intervals, marks, strict=True)], (
    low,
    high,
  )


def _group_view(group, name, looks):
  """What the template shows of one Group."""
  score = group.score
  # The mean label scores 0, which would leave an R2 near 1 no room.
  mark = group.constant if score.is_share else None
  arms, arm_scale = _strips([arm.score for arm in group.arms], [mark] * len(group.arms), score.bounds)
  gains, gain_scale = [], None
  if group.gains:
    zeros = [0.0] * len(group.gains)
    gains, gain_scale = _strips([g.interval for g in group.gains], zeros, score.gain_bounds)
  return {
    'group': group,
    'score': score,
    'arms': [(arm, strip, looks[arm.key]) for arm, strip in zip(group.arms, arms, strict=True)],
    'arm_scale': arm_scale,
    'gains': [(gain, strip, looks[gain.arm.key]) for gain, strip in zip(group.gains, gains, strict=True)],
    'singles': [len(gain.seeds) == 1 for gain in group.gains],
    'gain_scale': gain_scale,
    'charts': _charts(group, name, looks),
    'costs': [_cost(arm) for arm in group.arms],
    'mae': any(arm.mae is not None for arm in group.arms),
    'classes': _classes(group),
  }


def _classes(group):
  if not group.score.is_share:
    return None
  labels = [
    set(run.predictions[1].tolist()) for arm in group.arms for run in arm.runs if run.predictions is not None
  ]
  return len(set().union(*labels)) if labels else None


def _cost(arm):
  stages = [s for s in STAGES if any(s in run.result['stages'] for run in arm.runs)]
  keys = ('steps', 'examples', 'epochs', 'seconds')
  return {
    'arm': arm,
    'parameters': arm.mean(lambda run: run.result.get('parameters')),
    'total_seconds': arm.mean(lambda run: run.total('seconds')),
    'total_flops': arm.mean(lambda run: run.total('flops')),
    'stages': [
      {
        'stage': s,
        'flops': arm.mean(lambda run, s=s: run.flops(s)),
        **{key: arm.mean(lambda run, s=s, key=key: run.stage(s, key)) for key in keys},
      }
      for s in stages
    ],
  }


def _charts(group, name, looks):
  """The learning curves of one group: dicts with svg, caption, note, lines and alt, a sentence."""
  finetune, total, denoising, score = [], [], {}, group.score
  for arm in group.arms:
    style, steps, examples = looks[arm.key], [], []
    for run in arm.runs:
      x, y = run.curves.get('finetune', {}).get('validation', {}).get(score.key, ((), ()))
      steps.append((x, y))
      per_step = _examples_per_step(run)
      before = run.stage('pretrain', 'examples', 0)
      examples.append((x * per_step + before, y) if len(x) and per_step else ((), ()))
      validation = run.curves.get('pretrain', {}).get('validation', {})
      for metric in ('accuracy', 'r2', 'mae'):
        if metric in validation:
          denoising.setdefault(metric, {}).setdefault((style, arm.name), []).append(validation[metric])
          break
    finetune.append(plots.Line(arm.name, style, tuple(steps)))
    total.append(plots.Line(arm.name, style, tuple(examples)))
  charts = [
    ('Finetuning', '', 'finetuning steps', f'validation {score.name}', finetune, score.is_share),
    (
      'Over everything seen',
      'self-pretraining counted too',
      'examples seen in both stages',
      f'validation {score.name}',
      total,
      score.is_share,
    ),
  ]
  words = {
    'accuracy': 'accuracy on hidden elements',
    'r2': 'R\u00b2 on hidden values',
    'mae': 'mean absolute error',
  }
  for metric, by_arm in denoising.items():
    lines = [plots.Line(arm, style, tuple(curves)) for (style, arm), curves in by_arm.items()]
    charts.append(
      (
        'Self-pretraining',
        'validation of denoising; different objectives cannot be compared',
        'pretraining steps',
        words[metric],
        lines,
        metric == 'accuracy',
      )
    )
  shown = []
  for number, (caption, note, xlabel, ylabel, lines, percent) in enumerate(charts):
    svg = plots.line_chart(lines, xlabel, ylabel, f'{name}c{number}', percent)
    if svg is not None:
      lines = [line for line in lines if any(len(x) for x, _ in line.curves)]
      shown.append(
        {
          'svg': svg,
          'caption': caption,
          'note': note,
          'lines': lines,
          'alt': _alt(caption, ylabel, xlabel, lines, percent),
        }
      )
  return shown


def _examples_per_step(run):
  steps, examples = run.stage('finetune', 'steps'), run.stage('finetune', 'examples')
  return examples / steps if steps and examples else None


def _alt(caption, ylabel, xlabel, lines, percent):
  parts = []
  for line in lines:
    ends = [(x[-1], y[-1]) for x, y in line.curves if len(x)]
    x, y = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    parts.append(f'{line.name} ends at {scores.percent(y) if percent else format(y, ".3g")} after {x:,.0f}')
  return f'Line chart. {caption}: {ylabel} against {xlabel}. ' + '; '.join(parts) + '.'


def _kernels_view(runs, looks):
  """Per arm, its runs with a kernels.json: each with a chart per shown layer and its reach in words."""
  views = {}
  for number, run in enumerate(runs):
    kernels = run.kernels
    if kernels is None:
      continue
    charts, style = [], looks[run.regime, run.causal, run.arm]
    for layer, svg, before, after in zip(
      kernels.shown,
      plots.kernel_charts(kernels, f'k{number}', style),
      kernels.reach('initial'),
      kernels.reach('learned'),
      strict=True,
    ):
      note = f'{_within(after)}, at the start {_within(before)}'
      charts.append(
        {
          'layer': layer,
          'svg': svg,
          'note': note,
          'alt': f'Line chart. Layer {layer}, largest absolute kernel value by lag: {note}.',
        }
      )
    labels = plots.kernel_labels(kernels)
    view = {'run': run, 'kernels': kernels, 'charts': charts, 'labels': labels, 'colour': style.colour}
    views.setdefault((run.group, run.arm), []).append(view)
  return list(views.values())


def _within(reach):
  return 'not finite' if reach is None else f'90\u00a0% within {reach:,} lag{"s" if reach != 1 else ""}'


def _comparison_view(comparison):
  """What the template shows of one Comparison."""
  return {
    'comparison': comparison,
    'score': comparison.score,
    'rows': [
      (model, [comparison.cells.get((model, arm)) for arm in comparison.arms]) for model in comparison.models
    ],
    'singles': [len(gain.seeds) == 1 for gain in comparison.gains],
    'folded': len(comparison.gains) > MOST_OPEN,
  }


def _restored_view(runs):
  """Pictures of what the first run of every arm restored."""
  views = {}
  for run in runs:
    found = restored.read_restored(run.path)
    if found is not None and (run.group, run.arm) not in views:
      side = max(48, 8 * math.isqrt(found.hidden.shape[1])) if found.hidden.shape[1] <= 256 else 96
      views[run.group, run.arm] = {
        'run': run,
        'found': found,
        'pictures': list(_pictures(found)),
        'side': side,
      }
  return list(views.values())


def _pictures(found):
  """Per example (index, original, given, restored), pictures as addresses for <img src>."""
  side = math.isqrt(found.hidden.shape[1])

  def image(values):
    return document.image_uri(values.reshape(side, side, *values.shape[1:]))

  for index, original, hidden, restored_one in zip(
    found.index.tolist(), found.original, found.hidden, found.restored, strict=True
  ):
    colours = np.repeat(original[:, None], 3, axis=1) if original.ndim == 1 else original
    given = np.where(hidden[:, None], np.uint8(HIDDEN), colours)
    yield index, image(original), image(given), image(restored_one)


def _paper_view(tasks):
  """The paper's rows for models that this project has (Tables 1 and 2), the columns of our tasks marked."""
  shown = ('transformer', 'transformer_rotary', 's4')
  columns = [*published.LRA, 'pathx256']
  columns += sorted({row.task for row in published.ROWS if row.task in tasks and row.table == 3} - {*columns})
  keys = dict.fromkeys(
    (row.table, row.approach) for row in published.ROWS if row.table <= 2 and row.model in shown
  )
  rows = []
  for table, approach in keys:
    same = {row.task: row for row in published.ROWS if (row.table, row.approach) == (table, approach)}
    first = next(iter(same.values()))
    cells = [
      same.get(task) or published.published_row(task, first.model, first.regime, first.causal)
      for task in columns
    ]
    rows.append({'table': table, 'approach': approach, 'cells': cells})
  return {
    'source': published.PAPER,
    'columns': [(t, published.TASK_NAMES[t], t in tasks) for t in columns],
    'rows': rows,
    'ours': sorted(tasks & {*columns}),
    'table_3': len(columns) > len(published.LRA) + 1,
    'regression': any(task.startswith('bidmc') for task in columns),
  }


def _how_view(runs):
  """Facts shared by all runs, the config with origins, and what differs between arms."""
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
    ('Splits', lambda r: r.get('splits') or 'not known'),
    ('Pretraining of', lambda r: (r.get('pretrained') or {}).get('run') or ''),
  ):
    facts[label] = list(dict.fromkeys(filter(None, (str(get(run.result)) for run in runs))))
  seldom = ('Precision', 'Proven kernels', 'Pretraining of')
  facts = {label: values for label, values in facts.items() if values or label not in seldom}
  configs = [flatten(run.result.get('config') or {}) for run in runs]
  origins = [flatten(run.result.get('origins') or {}) for run in runs]
  keys = [key for key in dict.fromkeys(k for c in configs for k in c) if not key.startswith('origins.')]
  same, differ = [], []
  arms = list(dict.fromkeys((run.group, run.arm) for run in runs))
  for key in keys:
    values = [_shown(c.get(key)) for c in configs]
    if len(set(values)) == 1:
      same.append((key, values[0], _origin_text({str(o[key]) for o in origins if key in o})))
      continue
    by_arm = [
      sorted({v for v, run in zip(values, runs, strict=True) if (run.group, run.arm) == arm}) for arm in arms
    ]
    found = {str(o[key]) for o in origins if key in o}
    differ.append((key, [', '.join(cell) for cell in by_arm], _origin_text(found)))
  groups = {group for group, _ in arms}
  told = 4 if len({group[:3] for group in groups}) < len(groups) else 3  # the metric where it tells apart
  names = [f'{arm} ({", ".join(group[:told])})' if len(groups) > 1 else arm for group, arm in arms]
  return {
    'many_seeds': len({run.seed for run in runs}) > 1,
    'facts': facts,
    'same': same,
    'differ': differ,
    'arms': names,
    'origins': ORIGINS,
  }


def _proven_kernels(result):
  """What ran the calls that had a choice (`lra_spt.training.autotune`), of all stages; '' on CPUs."""
  stages = (result.get('stages') or {}).values()
  chosen = {call: name for stage in stages for call, name in (stage.get('kernels') or {}).items()}
  return '; '.join(f'{name} runs {call}' for call, name in chosen.items())


def flatten(nested, where=''):
  """{'a': {'b': 1}} -> {'a.b': 1}; an empty mapping below the top is kept as its own value."""
  flat = {}
  for key, value in nested.items():
    if isinstance(value, dict) and value:
      flat.update(flatten(value, f'{where}{key}.'))
    else:
      flat[f'{where}{key}'] = value
  return flat


def _shown(value):
  return '\u2013' if value is None else str(value)


def _origin_text(found):
  return ', '.join(sorted(found)) or '\u2013'


def _pairs(mapping):
  return ', '.join(f'{key} {_shown(value)}' for key, value in (mapping or {}).items()) or 'not known'
