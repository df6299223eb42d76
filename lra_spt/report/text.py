"""The numbers of a report as plain text for a terminal."""

import functools
import itertools
import textwrap

from lra_spt.report import compare
from lra_spt.report.study import notes
from lra_spt.report.study.arms import duration, scaled, summarise

WIDTH = 108


def text_table(runs):
  """The scores and gains of all runs as plain text, the same numbers as in the report."""
  if not runs:
    return 'No finished run was found: a run is finished when its folder holds a result.json.'
  blocks, groups = [], summarise(runs)
  for group in groups:
    examples = ' or '.join(f'{n:,}' for n in group.examples)
    score = group.score
    head = f'{group.task}, {group.model}, protocol {group.protocol}: {score.name} on {examples} test examples'
    beside = '; '.join(filter(None, (group.constant_text, group.controls_text)))
    head += f' ({beside})' if beside else ''
    mae = any(arm.mae is not None for arm in group.arms)
    rows = [('training', 'seeds', score.name, '95 % interval', *['mean error'] * mae, 'total time', 'paper')]
    rows += [
      (
        arm.name,
        str(len(arm.runs)),
        arm.shown,
        score.limits(arm.score),
        *[scaled(arm.mae)] * mae,
        duration(arm.mean(lambda run: run.total('seconds'))),
        arm.published.printed if arm.published else '\u2013',
      )
      for arm in group.arms
    ]
    gains = [
      (
        'gain',
        'seeds',
        score.difference.lower() if score.is_share else score.difference,
        '95 % interval',
        'verdict',
      )
    ]
    gains += [
      (
        f'{g.arm.name} over {g.against.name}',
        str(len(g.seeds)),
        score.signed(g.interval.estimate),
        score.signed_limits(g.interval),
        g.verdict,
      )
      for g in group.gains
    ]
    marked = [f'  ! {caution}' for caution in group.cautions]
    block = [*_wrapped(head, *marked), *_align(rows)]
    if len(gains) > 1:
      block += ['', *_align(gains)]
    block += _wrapped(*(f'  ! {sentence}' for sentence in group.apart))
    blocks.append('\n'.join(block))
  blocks += ['\n'.join(_models(comparison)) for comparison in compare.comparisons(groups)]
  contradictions = notes.contradictions(runs)
  if contradictions:
    blocks.append('\n'.join(_wrapped(*(f'! {sentence}' for sentence in contradictions))))
  return '\n\n'.join(blocks)


def _models(comparison):
  """Lines: models by arms, and the differences between models."""
  score = comparison.score
  head = f'{comparison.task}, protocol {comparison.protocol}: {score.name} of every model'
  rows = [('training', *comparison.models)]
  for key in comparison.arms:
    arms = [comparison.cells.get((model, key)) for model in comparison.models]
    rows.append((key[2], *(arm.shown if arm else score.show(None) for arm in arms)))
  lines = [head, *_align(rows)]
  if comparison.gains:
    differences = [
      ('difference between models', 'training', 'seeds', score.difference, '95 % interval', 'verdict')
    ]
    differences += [
      (
        f'{gain.arm.model} over {gain.against.model}',
        gain.arm.name,
        str(len(gain.seeds)),
        score.signed(gain.interval.estimate),
        score.signed_limits(gain.interval),
        gain.verdict,
      )
      for gain in comparison.gains
    ]
    lines += ['', *_align(differences)]
  return lines


def _wrapped(*paragraphs):
  # Paths stay whole.
  whole = {'break_long_words': False, 'break_on_hyphens': False}
  wrap = functools.partial(textwrap.wrap, width=WIDTH, subsequent_indent='    ', **whole)
  return list(itertools.chain.from_iterable(map(wrap, paragraphs)))


def unfinished_text(started):
  """Runs that were started and have no result, as lines; '' when there are none."""
  if not started:
    return ''
  rows = [(run.what, run.state, str(run.path)) for run in started]
  sentences = [f'! {run.path}: {run.failure}' for run in started if run.failure]
  return '\n'.join(['Not finished:', *_align(rows), *_wrapped(*sentences)])


def damaged_text(damaged):
  """Runs that were left out because a file of theirs is damaged, as lines; '' when there are none."""
  return '\n'.join(_wrapped(*(f'! {run.path} is left out: {run.sentence}' for run in damaged)))


def _align(rows):
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '
    + '  '.join(
      cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]
