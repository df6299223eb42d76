"""Experiment trackers that a stage reports to in addition to metrics.jsonl: Weights & Biases, MLflow.

Each stage is one run of the tracker, named 'FOLDER/STAGE', and stays that run when it resumes in the same
folder. Server, project and account come from the settings of the trackers (WANDB_PROJECT, WANDB_MODE,
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...). If a tracker fails, it gets no more metrics of that stage,
and training continues; metrics.jsonl has them all.

A killed run writes some steps again when it resumes. Their values are the same, and the tracker shows both.
"""

import hashlib
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Iterable

from lra_spt.config.loading import flattened
from lra_spt.errors import FieldError, UserError

PROJECT = 'lra_spt'  # unless the settings of the tracker name another


def check_installed(names: Iterable[str]) -> None:
  """Raises a FieldError if a chosen tracker is not installed."""
  for name in names:
    if importlib.util.find_spec(name) is None:
      raise FieldError('trackers', f"has {name}, which is not installed: pip install 'lra_spt[{name}]'")


def open_tracker(name: str, directory: pathlib.Path, about: dict):
  """Opens a writer (see `metric_writers`) for the folder of a stage.

  about: the description of the stage, `Built.described`.

  Raises:
    UserError: the tracker cannot be used as it is set up.
  """
  try:
    return _Tolerant(name, TRACKERS[name](directory.resolve(), about))
  except Exception as error:  # each tracker has errors of its own
    raise UserError(
      f'{name} cannot be used: {_sentence(error)} Set it up, or leave it out of runtime.trackers.'
    ) from error


def _sentence(error) -> str:
  """The text of an error as one line that ends with a full stop."""
  text = ' '.join(str(error).split()) or type(error).__name__
  return text if text.endswith('.') else f'{text}.'


def _identifier(directory: pathlib.Path) -> str:
  """An identifier of the tracker's run that depends on the folder only."""
  return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _values(scalars: dict) -> dict:
  split = scalars['split']
  return {f'{split}/{k}': float(v) for k, v in scalars.items() if k != 'split' and v is not None}


class _Tolerant:
  """Passes metrics on to a writer until it fails, and then prints why.

  Trackers try again for minutes before they fail; without this, training would wait for that at every line.
  """

  def __init__(self, name, writer):
    self._name, self._writer, self._failed = name, writer, False

  def write_scalars(self, step: int, scalars: dict) -> None:
    self._try(self._writer.write_scalars, step, scalars)

  def flush(self) -> None:
    self._try(self._writer.flush)

  def close(self) -> None:
    self._try(self._writer.close)

  def _try(self, act, *arguments):
    if self._failed:
      return
    try:
      act(*arguments)
    except Exception as error:
      self._failed = True
      print(
        f'{self._name} did not accept metrics: {_sentence(error)} It gets no more in this stage; '
        'metrics.jsonl has them all.',
        file=sys.stderr,
      )


class WandbWriter:
  """A run of Weights & Biases, which sends metrics from a process of its own; the files of WANDB_MODE=offline
  are in the folder of the stage."""

  def __init__(self, directory: pathlib.Path, about: dict):
    import wandb  # costs a second

    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT') or PROJECT,
      dir=str(directory),
      id=_identifier(directory),
      name=f'{directory.parent.name}/{directory.name}',
      group=directory.parent.name,
      config=about,
      resume='allow',
      reinit='create_new',
      settings=wandb.Settings(console='off'),
    )
    # The step that W&B counts may not go back, but a killed run does when it resumes.
    self._run.define_metric('*', step_metric='step')

  def write_scalars(self, step: int, scalars: dict) -> None:
    self._run.log({'step': step} | _values(scalars))

  def flush(self) -> None:
    pass

  def close(self) -> None:
    self._run.finish()


class MlflowWriter:
  """A run of MLflow."""

  LIMIT = 1000  # metrics that MLflow takes at once

  def __init__(self, directory: pathlib.Path, about: dict):
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    self._metric, self._client, self._waiting = Metric, MlflowClient(), []
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or PROJECT
    number = self._experiment(name)
    identifier = _identifier(directory)
    runs = self._client.search_runs([number], f"tags.`lra_spt.stage` = '{identifier}'", max_results=1)
    if runs:
      self._run = runs[0].info.run_id
      self._client.update_run(self._run, status='RUNNING')
      return
    run_name, tags = f'{directory.parent.name}/{directory.name}', {'lra_spt.stage': identifier}
    self._run = self._client.create_run(number, run_name=run_name, tags=tags).info.run_id
    params = [Param(key, str(value)) for key, value in flattened(about).items() if value != {}]
    for start in range(0, len(params), 100):
      self._client.log_batch(self._run, params=params[start : start + 100])

  def _experiment(self, name: str) -> str:
    """Returns the id of an experiment. If several runs start together, one of them makes it."""
    from mlflow.exceptions import MlflowException

    if (experiment := self._client.get_experiment_by_name(name)) is None:
      try:
        return self._client.create_experiment(name)
      except MlflowException:
        if (experiment := self._client.get_experiment_by_name(name)) is None:
          raise
    return experiment.experiment_id

  def write_scalars(self, step: int, scalars: dict) -> None:
    now = int(1000 * time.time())
    self._waiting += [self._metric(key, value, now, step) for key, value in _values(scalars).items()]

  def flush(self) -> None:
    while self._waiting:
      self._client.log_batch(self._run, metrics=self._waiting[: self.LIMIT])
      del self._waiting[: self.LIMIT]

  def close(self) -> None:
    self._client.set_terminated(self._run)


TRACKERS = {'wandb': WandbWriter, 'mlflow': MlflowWriter}
