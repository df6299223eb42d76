"""The runs of baselines that come with `lra-spt compare`, chosen from those of our studies."""

import json
import pathlib
import tempfile

from benchmarks import harness
from lra_spt import files
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive
from lra_spt.studies import compare
from lra_spt.studies import study as studies

SOURCES = 'mini_longer', 'questions'
MOST = 3_000_000  # bytes
OF_MACHINE = 'seconds', 'time'  # parts of a stage that nobody should compare with times of other machines


def run_compare_runs(arguments):
  """Writes the runs of baselines that `lra-spt compare` shows without training.

  Takes the runs that are exactly of the recipe from the existing file, from those of the studies mini_longer
  and questions (where it exists) and from the folder of a study. Leaves out times and learning curves.
  """
  parser = harness.parser(run_compare_runs)
  parser.add_argument('--workdir', type=pathlib.Path, help='folder of a study with further runs')
  parser.add_argument('--results', type=pathlib.Path, default=harness.RESULTS, help='folder of the files')
  parser.add_argument('--output', type=pathlib.Path, default=compare.RUNS, help='(%(default)s)')
  options = parser.parse_args(arguments)
  lines = {}
  if options.workdir:
    with tempfile.TemporaryDirectory() as folder:
      archive.store(options.workdir, further := pathlib.Path(folder, 'runs.jsonl'))
      lines = archive.lines_of(further)
  for path in (*(options.results / f'{name}_runs.jsonl' for name in SOURCES), compare.RUNS):
    lines |= archive.lines_of(path) if path.exists() else {}
  recipe = compare.recipe()
  plan = compare.load(recipe.BASELINES, ','.join(recipe.TASKS), ','.join(recipe.ARMS))
  jobs = studies.jobs(plan)
  of_jobs = [(job, lines.get(str(job.folder))) for job in jobs]
  chosen = [_shipped(line) for job, line in of_jobs if line and compare.is_of(line, job)]
  with files.replacing(options.output, 'w') as file:
    for line in ({'study': {'study': plan.name}}, *chosen):
      file.write(json.dumps(line, separators=(',', ':')) + '\n')
  size = options.output.stat().st_size
  print(f'{options.output}: {len(chosen)} of {len(jobs)} runs, {size:,} bytes')
  return int(size > MOST)


def _shipped(line) -> dict:
  """A run without what belongs to the machine that made it, and without curves."""
  result = {key: value for key, value in line['result'].items() if key != checksums.KEY}
  result['stages'] = {
    name: {key: value for key, value in stage.items() if key not in OF_MACHINE}
    for name, stage in result['stages'].items()
  }
  sealed = checksums.sealed(pathlib.Path(run_folder.RESULT), result)[checksums.KEY]
  result[checksums.KEY] = line['result'][checksums.KEY] | sealed
  return {key: value for key, value in line.items() if key != archive.CURVES} | {'result': result}
