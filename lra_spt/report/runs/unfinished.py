"""Runs that were started and have no result: what they are, and how far they came."""

import datetime
import pathlib

from lra_spt import files
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import STAGES


def folders(workdir):
  """The folders in or below a folder that have a config.json and no result.json."""
  paths = sorted(files.place(workdir).rglob(run_folder.CONFIG))
  return [path.parent for path in paths if not (path.parent / run_folder.RESULT).exists()]


def read(folder) -> dict | None:
  """The config.json of a run without a result; None if it belongs to something else than a run.

  Raises:
    DamagedFile: config.json, failure.json or a stage.json is damaged.
    FileAccessError: one cannot be read.
  """
  config, _ = checksums.read(folder / run_folder.CONFIG, 'the config of a run', run_folder.CONFIG_ADVICE)
  if not {'task', 'model', 'regime', 'seed', 'protocol', 'causal'} <= {*config}:
    return None
  run_folder.read_failure(folder)
  for stage in run_folder.stages_in(folder):
    run_folder.read_stage(stage)
    run_folder.check_metrics(stage)
  return config


def progress_of(folder: pathlib.Path):
  """(stage, step, date and time) of the last line of metrics in a run's last stage; None each before it."""
  for stage in reversed(STAGES):
    logs = [place / run_folder.METRICS for place in run_folder.stages_in(folder, [stage])]
    steps = [(step, log) for log in logs if log.exists() and (step := _last_step(log)) is not None]
    if steps:
      step, log = max(steps, key=lambda pair: pair[0])
      if files.is_bucket(log):
        return stage, step, None
      time = datetime.datetime.fromtimestamp(log.stat().st_mtime)
      return stage, step, time.isoformat(' ', timespec='minutes')
  return None, None, None


def _last_step(log):
  # A process that is killed while it writes leaves half a line.
  return max((record['step'] for record in run_folder.metrics_lines(log) if record), default=None)
