"""Runs that were started and have no result: how far they got, or why they ended."""

import dataclasses
import datetime
import pathlib

from lra_spt import files
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import STAGE_NAMES, STAGES


@dataclasses.dataclass(frozen=True)
class Unfinished:
  """path: of its folder. what: 'image, s4, masked, seed 0'. stage, step, written: where its metrics.jsonl
  ends and when that was written (date and time; None where that is not known). failure: the sentence with
  which it ended, '' where none is known. date: of the failure, '' where none is known."""

  path: pathlib.Path
  what: str
  stage: str | None
  step: int | None
  written: str | None
  failure: str = ''
  date: str = ''

  @property
  def progress(self):
    """'self-pretraining, step 1,200'."""
    return 'no step logged yet' if self.step is None else f'{STAGE_NAMES[self.stage]}, step {self.step:,}'

  @property
  def state(self):
    """'failed on 2026-11-21: finetuning, step 20' or 'unfinished: ...'."""
    ended = f'failed{f" on {self.date}" if self.date else ""}' if self.failure else 'unfinished'
    return f'{ended}: {self.progress}'


def folders(workdir):
  """The folders in or below a folder that have a config.json and no result.json."""
  paths = sorted(files.place(workdir).rglob(run_folder.CONFIG))
  return [path.parent for path in paths if not (path.parent / run_folder.RESULT).exists()]


def read(folder):
  """The Unfinished of a folder; None where its config.json is of something else than a run.

  Raises:
    DamagedFile: config.json, failure.json or a stage.json is damaged.
    FileAccessError: one cannot be read.
  """
  config, _ = checksums.read(folder / run_folder.CONFIG, 'the config of a run', run_folder.CONFIG_ADVICE)
  what = _what(config)
  if not what:
    return None
  failure = run_folder.read_failure(folder) or {}
  for stage in run_folder.stages_in(folder):
    run_folder.read_stage(stage)
    run_folder.check_metrics(stage)
  sentence, date = (failure.get(key, '') for key in ('error', 'date'))
  stage, step, written = progress_of(folder)
  return Unfinished(folder, what, stage, step, written, sentence, date)


def _what(config):
  """The run in words; '' for a config.json of something else than a run."""
  if not {'task', 'model', 'regime', 'seed'} <= {*config}:
    return ''
  named = (
    config[key].get('name') if isinstance(config[key], dict) else config[key] for key in ('task', 'model')
  )
  return f'{", ".join(map(str, named))}, {config["regime"]}, seed {config["seed"]}'


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
