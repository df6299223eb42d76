"""What a careful reader should know: cautions beside the numbers, and notes on how far to believe them."""

import itertools

import numpy as np

from lra_spt.config import loading
from lra_spt.report.runs.run import RECORDED

FEW_GROUPS = 30
TELLING = 3  # wrong predictions that several trainings do not have in common by chance


def cautions(runs):
  """Sentences to stand beside the numbers of one group of runs: on its splits and its data."""
  sentences = told_by(runs)
  if len({prints for run in runs if (prints := fingerprints(run))}) > 1:
    sentences.append(
      'These runs are on several versions of the set or of its splits, so they differ in more than training.'
    )
  return sentences + shared(runs) + recorded(runs)


def shared(runs):
  """Sentences on seeds of an arm that have more in common than the way of training."""
  return one_pretraining(runs) + recorded_again(runs)


def one_pretraining(runs):
  """A sentence on seeds of an arm that were finetuned from one pretraining."""

  def source(run):
    return run.arm, (run.result['stages'].get('pretrain') or {}).get('folder') or ''

  found = []
  for (arm, folder), same in itertools.groupby(sorted(runs, key=source), key=source):
    if folder and (count := len(list(same))) > 1:
      found.append(
        f'{arm}: {count} seeds were finetuned from one pretraining ({folder}), so no interval covers how '
        'much pretrainings differ.'
      )
  return found


def recorded_again(runs):
  """A sentence on seeds of an arm that were recorded with the same predictions."""
  found = {}
  for run in runs:
    if run.recorded and run.predictions is not None and _tells(run):
      arrays = (array_N.tobytes() for array_N in run.predictions)
      found.setdefault((run.arm, *arrays), []).append(run.seed)
  return [
    f'{arm}: seeds {", ".join(map(str, seeds))} have the same predictions, wrong ones too, so they are one '
    'run, and no interval covers how much seeds differ; keep one of them.'
    for (arm, *_), seeds in found.items()
    if len(seeds) > 1
  ]


def _tells(run):
  """Whether predictions tell one training from another; not where all trainings may answer with the right
  class or, as at chance, with the same one."""
  _, label_N, prediction_N = run.predictions
  values, counts = np.unique(prediction_N, return_counts=True)
  own_N = (prediction_N != label_N) & (prediction_N != values[counts.argmax()])
  return np.count_nonzero(own_N) >= TELLING


def told_by(runs):
  """What runs say themselves of how far to believe them, and whether their data are the official ones."""
  sentences = list(dict.fromkeys(sentence for run in runs for sentence in run.cautions))
  if any(loading.is_short(run.result.get('config') or {}) for run in runs):
    sentences.append('Some of these are smoke runs of a few steps: their numbers mean nothing.')
  sources = sorted({str(data.get('source')) for data in map(_data, runs) if unverified(data)})
  if sources:
    sentences.append(f'The data could not be verified to be the official files: {"; ".join(sources)}.')
  return sentences


def recorded(runs):
  """A sentence on those of the runs that were recorded; none without any."""
  sources = sorted({run.recorded.get('source') or 'source not given' for run in runs if run.recorded})
  if not sources:
    return []
  return [
    f'{RECORDED} Recorded from predictions made elsewhere ({"; ".join(sources)}), not trained here: labels '
    'and scores were checked against the prepared set; regime, protocol, parameters and time are taken from '
    'whoever recorded them.'
  ]


def _data(run):
  return run.result.get('data') or {}


def fingerprints(run) -> str:
  """Of the data and the splits; '' where the result has none."""
  found = run.result.get('fingerprints')
  return str(sorted(found.items())) if found else ''


def unverified(data):
  """Whether the data were imported from files that do not equal the official ones, as far as is known; data
  that were generated or are a user's own say so in their source."""
  return data.get('verified') is False and not str(data.get('source')).startswith(('generated', 'own files'))


def data_text(result):
  """'files cifar-10-binary.tar.gz, verified'."""
  data = result.get('data') or {}
  checked = ', verified' if data.get('verified') else ', NOT VERIFIED' if unverified(data) else ''
  return str(data.get('source') or 'not known') + checked


def notes(runs, groups):
  """What a careful reader should know before believing the numbers: a list of sentences.

  Args:
    runs: list of FinishedRun. groups: their `tables.Group`s.
  """
  found = []
  for group in groups:
    where = f'{group.task}, {group.model}: ' if len(groups) > 1 else ''
    found += [where + note for note in _on_chance(group)]
  if any(group.gains for group in groups):
    found.append(
      'Whether two rows differ is read from the paired gain, not from whether their own intervals '
      'overlap: on the same test examples much of the chance cancels.'
    )
  without = [str(run.path) for run in runs if run.predictions is None]
  if without:
    found.append(
      'No predictions.npz, so no paired comparison and no majority class: ' + ', '.join(without) + '.'
    )
  found += contradictions(runs)
  if any(run.protocol == 'paper' for run in runs):
    found.append(
      'Protocol paper repeats the published code\u2019s behaviours, some of which flatter or blur '
      'results; protocol clean is the one to quote.'
    )
  found.append(
    'The paper\u2019s numbers are single runs with its own sizes, budgets and data preparation; '
    'where ours stand beside them, read the sizes under "How it was run" first.'
  )
  return found


def contradictions(runs):
  """A sentence per run whose result.json and predictions.npz do not say the same."""
  found = []
  for run in runs:
    if run.predictions is None:
      continue
    counted, size = run.counted, len(run.predictions[0])
    if not abs(counted - run.value) <= run.score.tolerance or size != run.examples:
      said, counted = map(run.score.show, (run.value, counted))
      found.append(
        f'{run.path}: result.json says {said} of {run.examples:,} and predictions.npz '
        f'{counted} of {size:,}; do not trust this run.'
      )
  return found


def _on_chance(group):
  counts = {len(arm.runs) for arm in group.arms}
  if counts == {1}:
    yield (
      'One seed per row: what is said of two rows is said of two runs. The intervals say how much the result '
      'could move with other test examples; how much it moves with another seed is not in them.'
    )
  elif len(counts) > 1:
    yield (
      f'Rows have different numbers of seeds ({", ".join(map(str, sorted(counts)))}); a gain uses only '
      'the seeds that both sides have.'
    )
  methods = dict.fromkeys(
    [arm.score.method for arm in group.arms] + [gain.interval.method for gain in group.gains]
  )
  yield 'Intervals: ' + '; '.join(methods) + '.'
  yield from _on_units([run for arm in group.arms for run in arm.runs if run.units is not None])
  for gain in group.gains:
    if gain.missing:
      yield (
        f'{gain.arm.name} over {gain.against.name} leaves out seeds of which not both kept predictions: '
        f'{", ".join(map(str, gain.missing))}.'
      )
  if len(group.gains) > 1:
    yield (
      f'{len(group.gains)} comparisons are shown with 95 % each, without correction for their number: '
      'about one interval in twenty misses the true value.'
    )


def _on_units(runs):
  """What the intervals take for independent. runs: those with predictions."""
  if not runs:
    return
  if any(run.group_N is None for run in runs):
    if runs[0].score.is_share:
      return
    # Runs that note their splits note groups too, where there are any.
    if any('splits' not in run.result or run.result.get('groups') for run in runs):
      yield (
        'Test examples are taken for independent, because predictions.npz does not say which belong '
        'together. Windows of one recording are not: if there are any, the intervals are too narrow.'
      )
    return
  fewest, name = min(len(run.units) for run in runs), runs[0].group_name
  yield (
    f'{runs[0].group_members.capitalize()} of one group are right or wrong together, so the intervals count '
    f'groups, not examples: {fewest} {name}.'
  )
  if fewest < FEW_GROUPS:
    yield (
      f'{fewest} {name} are few: such intervals are wide, and where these differ much from each other '
      'they still miss the true value more often than one time in twenty.'
    )
