"""Data, machines and time of runs."""

import json
import pathlib
import statistics

from lra_spt.report.runs import run_folder


def data(results: list[dict]) -> dict[str, list[dict]]:
  """{task: the sources of its set; `verified`: it is the official one}."""
  sources_of = {}
  for result in results:
    source = {key: (result.get('data') or {}).get(key) for key in ('source', 'verified')}
    sources = sources_of.setdefault(result['task'], [])
    if source not in sources:
      sources.append(source)
  return sources_of


def machine(result: dict) -> dict:
  """The hardware, versions and precision of a run."""
  facts = {key: result[key] for key in ('hardware', 'versions')}
  return facts | {'precision': (result.get('runtime') or {}).get('precision')}


def machines(results: list[dict]) -> list[dict]:
  """The different machines in the order of their first run, each with its number of runs."""
  runs_of = {}
  for result in results:
    runs_of.setdefault(json.dumps(machine(result), sort_keys=True), []).append(result)
  return [json.loads(key) | {'runs': len(same)} for key, same in runs_of.items()]


def time(workdir) -> dict[str, dict]:
  """{task: seconds that the runs in a folder took}, with those of the search for learning rates.

  runs: their number. fastest, median, slowest: seconds of all stages of a run. seconds: total of all runs; a
  stage that several of them share counts once.
  """
  runs, stages = {}, {}
  for path in sorted(pathlib.Path(workdir).rglob(run_folder.RESULT)):
    result = json.loads(path.read_text())
    seconds = {
      stage.get('folder') or f'{path.parent}/{name}': stage['seconds']
      for name, stage in result['stages'].items()
      if stage.get('seconds') is not None
    }
    if seconds:  # a recorded run has no time
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
