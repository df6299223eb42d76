"""Where the runs of a study of ours come from and what they took: data, machines, time."""

import json
import pathlib
import statistics

from lra_spt.report.runs import run_folder


def data(results: list[dict]) -> dict[str, list[dict]]:
  """{task: the sources of its set, each with whether it was verified to be the official one}."""
  found = {}
  for result in results:
    source = {key: (result.get('data') or {}).get(key) for key in ('source', 'verified')}
    sources = found.setdefault(result['task'], [])
    if source not in sources:
      sources.append(source)
  return found


def machine(result: dict) -> dict:
  """On what a run was computed, with which versions, in which precision."""
  found = {key: result[key] for key in ('hardware', 'versions')}
  return found | {'precision': (result.get('runtime') or {}).get('precision')}


def machines(results: list[dict]) -> list[dict]:
  """The different ones in the order in which they first come, each with how many runs it made: a study takes
  days, and machines and versions change."""
  found = {}
  for result in results:
    found.setdefault(json.dumps(machine(result), sort_keys=True), []).append(result)
  return [json.loads(key) | {'runs': len(same)} for key, same in found.items()]


def time(workdir) -> dict[str, dict]:
  """{task: what the runs in a folder took}, those of the search for learning rates included.

  runs: how many. fastest, median, slowest: seconds of all stages of a run. seconds: of all runs, a stage that
  several of them share counted once.
  """
  runs, stages = {}, {}
  for path in sorted(pathlib.Path(workdir).rglob(run_folder.RESULT)):
    result = json.loads(path.read_text())
    seconds = {
      stage.get('folder') or f'{path.parent}/{name}': stage['seconds']
      for name, stage in result['stages'].items()
      if stage.get('seconds') is not None
    }
    if seconds:  # a run that was recorded knows of none
      runs.setdefault(result['task'], []).append(sum(seconds.values()))
      stages.setdefault(result['task'], {}).update(seconds)
  return {
    task: {
      'runs': len(of),
      'fastest': round(min(of), 1),
      'median': round(statistics.median(of), 1),
      'slowest': round(max(of), 1),
      'seconds': round(sum(stages[task].values())),
    }
    for task, of in runs.items()
  }
