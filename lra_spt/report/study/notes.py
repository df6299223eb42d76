"""Sentences on how far to believe runs: cautions beside their numbers, notes on their intervals."""

import itertools
import math
import re

import numpy as np

from lra_spt.report.runs.run import RECORDED, in_what_they_differ, settings

FEW_GROUPS = 30
TELLING = 3  # wrong predictions that several trainings do not have in common by chance


def cautions(table) -> list[str]:
  """Sentences to stand beside the numbers of a ResultTable, the worst first."""
  by_sentence = {}
  for cell in table.cells.values():
    for sentence in (*of_runs(cell.runs), *shared(cell.runs), *_mixed(cell.runs), *at_edge(cell.record)):
      by_sentence.setdefault(sentence, []).append(f'{cell.row}, {cell.column}')
  everywhere = sum(bool(cell.runs) for cell in table.cells.values())
  sentences = [
    sentence if len(names) == everywhere else f'{some(names)}: {sentence}'
    for sentence, names in by_sentence.items()
  ]
  sentences += [
    f'The runs of {task} used several versions of its set; those on different versions are not compared.'
    for task, prints in _prints(table.runs).items()
    if len(prints) > 1
  ]
  if partial := _rows_lacking_seeds(table):
    sentences.append(f'Averages of {", ".join(partial)} include cells with missing seeds.')
  return contradictions(table.runs) + unscored(table) + sentences + recorded(table.runs)


def some(names) -> str:
  """The first of several names and the number of others."""
  return names[0] if len(names) == 1 else f'{names[0]} and {len(names) - 1} more'


def of_runs(runs) -> list[str]:
  """Returns the cautions that runs carry, and a sentence on unverified data."""
  sentences = list(dict.fromkeys(sentence for run in runs for sentence in run.cautions))
  sources = sorted({str(data.get('source')) for data in map(_data, runs) if unverified(data)})
  if sources:
    sentences.append(f'The data could not be verified to be the official files: {"; ".join(sources)}.')
  return sentences


def shared(runs) -> list[str]:
  """Sentences on seeds of an arm that have more in common than the way of training."""
  sentences, folders, answers = [], {}, {}
  for run in runs:
    if folder := (run.result['stages'].get('pretrain') or {}).get('folder'):
      folders.setdefault(folder, []).append(run.seed)
    if run.recorded and run.predictions is not None and _tells(run):
      answers.setdefault(tuple(array_N.tobytes() for array_N in run.predictions), []).append(run.seed)
  for folder, seeds in folders.items():
    if len(seeds) > 1:
      sentences.append(
        f'{len(seeds)} seeds were finetuned from one pretraining ({folder}), so no interval covers how much '
        'pretrainings differ.'
      )
  for seeds in answers.values():
    if len(seeds) > 1:
      sentences.append(
        f'Seeds {", ".join(map(str, seeds))} have the same predictions, wrong ones too, so they are one run, '
        'and no interval covers how much seeds differ; keep one of them.'
      )
  return sentences


def _tells(run):
  """True if predictions tell one training from another. They do not if all trainings may answer with the
  right class or, as at chance, with the same class."""
  _, label_N, prediction_N = run.predictions
  values, counts = np.unique(prediction_N, return_counts=True)
  rare_N = (prediction_N != label_N) & (prediction_N != values[counts.argmax()])
  return np.count_nonzero(rare_N) >= TELLING


def _mixed(runs):
  """Sentences on runs of one cell that are no seeds of one way of training."""
  if len({fingerprints(run) for run in runs}) > 1:
    yield 'These runs used several versions of the set, so their mean belongs to none of them.'
  if keys := in_what_they_differ([settings(run.result) for run in runs]):
    yield f'These runs differ in {", ".join(keys)}, so their mean belongs to none of these settings.'


def at_edge(record) -> list[str]:
  """Returns sentences on numbers that won a search as the smallest or largest that it tried. A choice of two
  numbers says nothing, because each of them is an end. record: of a cell."""
  sentences = []
  for part in record['search']:
    tried = [_numbers(one['values']) for one in part['tried']]
    for key, value in _numbers(part['won'] or '').items():
      values = sorted({one[key] for one in tried if key in one})
      if len(values) > 2 and value in (values[0], values[-1]):
        end, further = ('smallest', 'smaller') if value == values[0] else ('largest', 'larger')
        sentences.append(
          f'The best {key} is {value:g}, the {end} that was tried, so a {further} one may do better.'
        )
  return sentences


def _numbers(text) -> dict[str, float]:
  """{key: number} of 'key=value, key=value'."""
  pairs = (pair.partition('=') for pair in text.split(', ') if '=' in pair)
  return {key: float(value) for key, _, value in pairs if re.fullmatch(r'[-+.\deE]+', value)}


def _prints(runs) -> dict[str, set[str]]:
  """{task: fingerprints of the examples} of its runs that have them."""
  prints = {}
  for run in runs:
    if data := (run.result.get('fingerprints') or {}).get('data'):
      prints.setdefault(run.task, set()).add(data)
  return prints


def _rows_lacking_seeds(table) -> list[str]:
  if not table.record['averages']:
    return []
  partial = {cell.row for cell in table.cells.values() if cell.arm and (cell.open or cell.unscored)}
  return [row for row in table.rows if row in partial and any(mean for _, mean, _ in table.averages(row))]


def recorded(runs) -> list[str]:
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
  """The fingerprints of the data and the splits; '' where the result has none."""
  prints = run.result.get('fingerprints')
  return str(sorted(prints.items())) if prints else ''


def unverified(data) -> bool:
  """True if the data were imported from files that are not known to be the official ones. Generated data and
  data of a user do not count; their source says what they are."""
  return data.get('verified') is False and not str(data.get('source')).startswith(('generated', 'own files'))


def data_text(result) -> str:
  """'files cifar-10-binary.tar.gz, verified'."""
  data = result.get('data') or {}
  checked = ', verified' if data.get('verified') else ', NOT VERIFIED' if unverified(data) else ''
  return str(data.get('source') or 'not known') + checked


def contradictions(runs) -> list[str]:
  """A sentence per run whose result.json and predictions.npz do not agree."""
  sentences = []
  for run in runs:
    if run.predictions is None:
      continue
    counted, size = run.counted, len(run.predictions[0])
    counted = None if math.isnan(counted) else counted
    known = None not in (counted, run.value)
    agree = abs(counted - run.value) <= run.score.tolerance if known else counted is run.value
    if not agree or size != run.examples:
      of_result, counted = map(run.score.show, (run.value, counted))
      sentences.append(
        f'{run.path}: result.json says {of_result} of {run.examples:,} and predictions.npz '
        f'{counted} of {size:,}; do not trust this run.'
      )
  return sentences


def unscored(table) -> list[str]:
  """A sentence per reason why tables hold no score of finished runs, with these runs."""
  return _by_sentence(
    (f'no test {run.score.name}: {run.why_left_out}.', cell, run)
    for cell in table.cells.values()
    for run in cell.unscored
  )


def failures(table) -> list[str]:
  """A sentence per cause of failure, with the runs that it befell, and one per damaged run."""
  sentences = _by_sentence(
    (run.failure, cell, run) for cell in table.cells.values() for run in cell.open if run.failure
  )
  return sentences + [f'{run.path} is left out: {run.sentence}' for run in table.damaged]


def _by_sentence(of_runs) -> list[str]:
  """Each sentence once, after the runs that it is about; of_runs: (sentence, cell, run)."""
  named = [(sentence, f'{cell.row}, {cell.column}, seed {run.seed}') for sentence, cell, run in of_runs]
  return [
    f'{some([place for _, place in same])}: {sentence}'
    for sentence, same in itertools.groupby(sorted(named), key=lambda pair: pair[0])
  ]


def on_intervals(table) -> list[str]:
  """Sentences on what intervals and comparisons of a ResultTable cover."""
  arms = [cell.arm for cell in table.cells.values() if cell.arm]
  of = table.findings
  compared = [*of.pairs, *of.means, *of.growths, *of.gaps, *of.differences]
  methods = dict.fromkeys([arm.score.method for arm in arms] + [one.interval.method for one in compared])
  sentences = [f'Intervals: {"; ".join(methods)}.'] if methods else []
  if any(len(arm.runs) == 1 for arm in arms):
    sentences.append(
      'An interval of one seed covers how much the result could move with other test examples, not how much '
      'it moves with another seed.'
    )
  sentences += _on_units([run for run in table.runs if run.units is not None])
  if without := [str(run.path) for run in table.runs if run.predictions is None]:
    sentences.append(f'Without predictions.npz nothing can be compared: {some(without)}.')
  if any(run.protocol == 'paper' for run in table.runs):
    sentences.append(
      'Protocol paper repeats the published code\u2019s behaviours, some of which flatter or blur results; '
      'protocol clean is the one to quote.'
    )
  return [*sentences, *of.apart]


def _on_units(runs):
  """Sentences on the units that the intervals take for independent."""
  # Runs that note their splits note groups too, where there are any.
  unknown = [run for run in runs if run.group_N is None and not run.score.counts]
  if any('splits' not in run.result or run.result.get('groups') for run in unknown):
    yield (
      'Test examples are taken for independent, because predictions.npz does not say which belong together. '
      'Windows of one recording are not: if there are any, the intervals are too narrow.'
    )
  groups = {}
  for run in runs:
    if run.group_N is not None:
      groups.setdefault((run.group_members, run.group_name), []).append(len(run.units))
  for (members, name), sizes in groups.items():
    few = ' These are few: where they differ much, intervals miss the true value more often than one time in '
    yield (
      f'{members.capitalize()} of one group are right or wrong together, so the intervals count groups, not '
      f'examples: {min(sizes)} {name}.' + (f'{few}twenty.' if min(sizes) < FEW_GROUPS else '')
    )
