"""Runs of baselines that come with `lra-spt compare`, and quick looks of it at our newer mixers."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import harness
from lra_spt import files
from lra_spt.files import checksums
from lra_spt.report import export
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive
from lra_spt.report.study import table as studies_table
from lra_spt.studies import compare
from lra_spt.studies import study as studies

SOURCES = 'mini_longer', 'questions'
MOST = 3_000_000  # bytes of the file
OF_MACHINE = 'seconds', 'time'  # these entries of a stage cannot be compared between machines

NEW = ('deltanet', 'gated_deltaproduct', 'kda', 'gated_deltanet2', 'rwkv7', 'retnet', 'gla', 'mamba3')
NEW += ('log_linear_mamba2', 'mesanet', 'ttt_linear', 'forgetting_attention', 'path_attention', 'slstm')
NEW += ('min_lstm', 'linoss', 'b2s6', 's4d_dfout')
UNLIMITED = '--config.pretrain.max_seconds=0', '--config.finetune.max_seconds=0'


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


def run_compare_quick(arguments):
  """Takes a quick look at every newer mixer: ListOps-mini from scratch and after self-pretraining, one seed.

    lra-spt prepare listops_mini --data_dir=data
    python -m benchmarks compare_quick --data_dir=data --workdir=runs/quick

  A row has the runs of `lra-spt compare --quick --model=MIXER`, but without the limit of time, so that all
  mixers make the same number of steps on every machine. Rows that the file has are not run again, and the
  same command continues after an interruption. `python -m docs.build` then makes the table of docs/models.md.
  """
  parser = harness.parser(run_compare_quick, 'compare_quick.json')
  harness.add_names(parser, '--mixers', NEW)
  parser.add_argument('--data_dir', default='data', help='folder of prepared sets (%(default)s)')
  parser.add_argument('--workdir', type=pathlib.Path, default='runs/quick', help='of the runs (%(default)s)')
  parser.add_argument('--smoke', action='store_true', help='a few steps; numbers mean nothing')
  parser.set_defaults(resume=True)
  given = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('compare_quick', 'a quick look at newer mixers on ListOps-mini, one seed')

  def measure(mixer):
    workdir, start = given.workdir / mixer, time.monotonic()
    plan = f'{compare.RECIPE}:models={mixer},quick=true'
    command = [sys.executable, '-m', 'lra_spt', 'study', plan, f'--workdir={workdir}', '--processes=2']
    command += [*UNLIMITED, f'--config.runtime.data_dir={given.data_dir}', *['--smoke'] * given.smoke]
    subprocess.run(command, cwd=harness.ROOT, check=True, stdout=sys.stderr)
    return _looked_at(workdir) | {'minutes': round((time.monotonic() - start) / 60, 1)}

  harness.fill(given, report, [{'mixer': mixer} for mixer in given.mixers], measure)


def _looked_at(workdir) -> dict:
  """The columns of a row from the folder of a quick look."""
  table = studies_table.read_table(workdir)
  arms = {}
  for line, cell in zip(export.table_lines(table), table.cells.values(), strict=True):
    (run,) = cell.runs
    steps = {name: stage['steps'] for name, stage in run.result['stages'].items()}
    facts = {key: line[key] for key in ('score', 'low', 'high', 'parameters', 'flops')}
    arms[line['row'].partition(', ')[2]] = facts | {'seed': run.seed, 'steps': steps}
  return {'task': line['task'], 'arms': arms}
