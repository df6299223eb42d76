"""How many runs, steps and operations the studies of the paper take, at most.

  python -m benchmarks study_costs [--studies table1,...] [--resume]

What `lra-spt study configs/studies/NAME.py --dry_run` counts before anything is trained: runs with those of a
search, stages that have to be trained, their steps with the longest training that the configs allow, and
operations (FLOP), as the models count them. Sets are as large as published, whatever lies in a data folder
here. Nothing is trained; a minute in all. Writes benchmarks/results/study_costs.json after each study.
"""

import pathlib
import tempfile

import tqdm

from benchmarks import harness
from lra_spt.studies import budget, estimate, search
from lra_spt.studies import study as study_lib

STUDIES = ('table1', 'table2', 'table3', 'table7', 'table8', 'table9')
STUDIES += ('figure1', 'figure3', 'figure4', 'figure5', 'grid')


def cost(study: str) -> dict[str, int]:
  """Runs, stages, steps and operations (FLOP) of a study in configs/studies."""
  chosen = study_lib.load(str(harness.ROOT / 'configs' / 'studies' / f'{study}.py'))
  with tempfile.TemporaryDirectory() as folder:
    nowhere = [f'runtime.data_dir={pathlib.Path(folder) / "data"}']
    jobs = study_lib.jobs(chosen, overrides=nowhere)
    jobs = search.all_jobs(chosen, jobs, nowhere) + jobs
    steps, _ = budget.plan(jobs)
    stages = estimate.stages_to_train(jobs, steps)
  return {
    'runs': len(jobs),
    'stages': len(stages),
    'steps': sum(stage.steps for stage in stages),
    'operations': sum(stage.steps * stage.flops for stage in stages),
  }


def main(arguments=None):
  parser = harness.parser('study_costs', __doc__, 'study_costs.json')
  parser.add_argument('--studies', default=','.join(STUDIES), help='(%(default)s)')
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  names = harness.chosen(parser, 'study', given.studies, STUDIES)
  harness.cpu_only()
  report = harness.report('study_costs', __doc__.splitlines()[0], rows=[])
  cases = [{'study': name} for name in names]
  shown = tqdm.tqdm(cases, desc='studies', unit=' studies', disable=None)
  harness.fill(given, report, shown, cost)


if __name__ == '__main__':
  main()
