"""The content of result.json, and the sentences that a run says when it is finished."""

import datetime

from lra_spt.config import loading
from lra_spt.distributed import settings
from lra_spt.report.runs import metrics, run_folder
from lra_spt.runs import provenance
from lra_spt.runs.active_run import ActiveRun


def content(
  run: ActiveRun, train, test: dict, undefined: dict, arm: str | None, by_length: dict | None = None
) -> dict:
  """Returns the content of result.json of a trained and tested run.

  Args:
    run: with a report of every stage.
    train: the training examples.
    test: {metric: value, 'examples': their number} of the test split, None for a metric that is not defined.
    undefined: {metric: why} of these.
    arm: the name of the run in reports, or None.
    by_length: metrics of longer test splits, see `schema.Metrics`.
  """
  spec, finetune, taken = run.spec, run.stages['finetune'], run.taken
  facts, report = metrics.of_data(finetune.task, spec.model.name, train), run.reports['finetune']
  # The identity is that of config.json, whatever became of the user's files since.
  values = {key: value for key, value in run.identity.items() if key not in run_folder.BESIDE}
  origins = dict(spec.origins)
  if taken is not None:  # the values that the other run pretrained with, not those of this command
    values['pretrain'] = run_folder.read_config(taken.run)['pretrain']
    origins.pop('pretrain', None)
  optional = {
    'arm': arm,
    'cautions': [*facts.get('cautions', ()), *divergences(run), *_other_precisions(run)],
    'code': run.identity.get('code'),
    'pretrained': taken and {'run': str(taken.run), 'seed': taken.seed, 'hash': taken.hash},
  }
  result = {
    'model': spec.model.name,
    'regime': spec.regime.name,
    'causal': spec.causal,
    'protocol': spec.values['protocol'],
    'seed': spec.seed,
    'metric': finetune.objective.selection[0],
    'metrics': metrics.of_splits(report, {'metrics': test, 'undefined': undefined})
    | ({'by_length': by_length} if by_length else {}),
    'parameters': finetune.model.parameter_count,
    'stages': run.reports,
    'hardware': provenance.hardware(),
    'versions': provenance.versions(),
    'settings': settings.in_force(),
    'commit': provenance.commit(),
    'date': datetime.date.today().isoformat(),
    'config': values,
    'runtime': spec.values['runtime'],
    'origins': origins,
  }
  return result | facts | {key: value for key, value in optional.items() if value}


def score(run: ActiveRun) -> str:
  """A line with the test score of a finished run, beside that of a model that ignores its input."""
  metric, test = run.result['metric'], run.result['metrics']['test']
  where = f'over {test["examples"]} example{"s" * (test["examples"] != 1)}'
  result_in = f'result in {run.workdir / run_folder.RESULT}'
  if test[metric] is None:
    return f'no test {metric} {where}: {run.result["metrics"]["undefined"]["test"][metric]}; {result_in}'
  constants = {
    'r2': ' (always the mean label of these: 0)',
    'accuracy': f' (always the most frequent class: {test.get("majority", 0):.4f})',
  }
  return f'test {metric} {test[metric]:.4f} {where}{constants.get(metric, "")}; {result_in}'


def divergences(run: ActiveRun) -> list[str]:
  """A sentence for every stage that diverged. The few steps of a smoke run say nothing about it."""
  if loading.is_short(run.spec.values):
    return []
  return [
    f'The {name} stage of regime {run.spec.regime.name}, seed {run.spec.seed}, diverged: its training loss '
    f'ended above twice that of an answer that ignores the input; lower {name}.optimizer.lr.'
    for name, report in run.reports.items()
    if report.get('diverged')
  ]


def _other_precisions(run: ActiveRun) -> list[str]:
  """A sentence for every stage that was trained, at least in part, in other precisions than the run has
  now."""
  now, sentences = provenance.computed(run.spec.runtime), []
  for name, report in run.reports.items():
    for attempt in (*report.get('computed_before', ()), report.get('computed', {})):
      if changed := provenance.changes(attempt, now, precisions_only=True):
        sentences.append(
          f'After the {name} stage, or a part of it, the run went on with {", ".join(changed)}.'
        )
  return [*dict.fromkeys(sentences)]
