"""Runs that were started and have no result: how far they came, or why they ended."""

import dataclasses
import datetime
import json
import pathlib

from lra_spt import files, run_folder
from lra_spt.errors import DamagedFile
from lra_spt.report.runs import STAGE_NAMES, STAGES


@dataclasses.dataclass(frozen=True)
class Unfinished:
  """path: of its folder. what: 'image, s4, masked, seed 0'. stage, step, written: where its metrics.jsonl
  ends and when that was written (date and time), None before the first line. failure: the sentence with which
  it ended, '' where none is known. date: of the failure, '' where none is known."""

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
    return 'not one step logged' if self.step is None else f'{STAGE_NAMES[self.stage]}, step {self.step:,}'

  @property
  def state(self):
    """'failed on 2026-11-21: finetuning, step 20' or 'unfinished: ...'."""
    ended = f'failed{f" on {self.date}" if self.date else ""}' if self.failure else 'unfinished'
    return f'{ended}: {self.progress}'


def unfinished(workdir):
  """All Unfinished in or below a folder, by path: folders with a config.json of a run and no result.json.

  Files that are damaged are no error here: what they say is missing, and the run is listed all the same.
  """
  found = []
  for path in sorted(pathlib.Path(workdir).rglob(run_folder.CONFIG)):
    folder = path.parent
    if not (folder / run_folder.RESULT).exists():
      what = _what(_read(path))
      if what:
        found.append(_unfinished(folder, what))
  return found


def _unfinished(folder, what):
  failure = _read(folder / run_folder.FAILURE) or {}
  sentence, date = (str(failure.get(key) or '') for key in ('error', 'date'))
  stage, step, written = progress_of(folder)
  return Unfinished(folder, what, stage, step, written, sentence, date)


def _read(path):
  """The content of a JSON file; None where it is damaged."""
  try:
    return files.read_json(path, 'JSON', '')
  except (DamagedFile, OSError):
    return None


def _what(config):
  """The run in words; '' for a config.json of something else than a run."""
  if config is None:
    return f'{run_folder.CONFIG} is damaged'
  if not {'task', 'model', 'regime', 'seed'} <= {*config}:
    return ''
  named = (
    config[key].get('name') if isinstance(config[key], dict) else config[key] for key in ('task', 'model')
  )
  return f'{", ".join(map(str, named))}, {config["regime"]}, seed {config["seed"]}'


def progress_of(folder: pathlib.Path):
  """(stage, step, date and time) of the last line of metrics in a run's last stage; None each before it."""
  for stage in reversed(STAGES):
    logs = folder.glob(f'{stage}-*/{run_folder.METRICS}')
    steps = [(step, log) for log in logs if (step := _last_step(log)) is not None]
    if steps:
      step, log = max(steps, key=lambda pair: pair[0])
      time = datetime.datetime.fromtimestamp(log.stat().st_mtime)
      return stage, step, time.isoformat(' ', timespec='minutes')
  return None, None, None


def _last_step(log):
  last = None
  for line in log.read_text(encoding='utf-8', errors='replace').splitlines():
    try:
      last = max(last or 0, int(json.loads(line)['step']))
    except (ValueError, KeyError, TypeError):
      continue  # a process that is killed while it writes leaves half a line
  return last
