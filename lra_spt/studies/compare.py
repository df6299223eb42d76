"""`lra-spt compare`: a mixer among baselines of one fixed recipe, `configs/compare.py`.

Runs of baselines come with the package, without weights (`RUNS`). One of them takes the place of a run only
if training would give the same: config, seed, set and splits are equal. A baseline is shown if all runs of
its cell are there; else the page says which training is missing.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import pathlib
import re

from lra_spt import files
from lra_spt.config import loading, user_files
from lra_spt.data import examples
from lra_spt.data.tasks import get_task, is_own
from lra_spt.errors import ConfigError, MissingFile
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive
from lra_spt.report.study.arms import duration
from lra_spt.studies import runner, search, study
from lra_spt.studies.study import folder_of

RUNS = pathlib.Path(__file__).parent / 'compare_runs.jsonl'
RECIPE = 'configs/compare.py'
MATCHED = {'parameters': 'parameters', 'operations': 'operations per step of finetuning'}
WITHIN = 0.1  # a match differs from the first baseline by this share at most
NO_BASELINE = 'no baseline'
WIDTHS = range(8, 513, 4)


@functools.cache
def recipe():
  """The module of the recipe."""
  return user_files.run(user_files.find(RECIPE), '_recipe_')


def load(models, tasks='', regimes='', quick=False) -> study.Study:
  """The study of the recipe about the first of these models; tasks, regimes: joined by commas, '' for the
  default."""
  choice = {'models': '+'.join(models), 'tasks': tasks, 'regimes': regimes, 'quick': 'true' * quick}
  words = (f'{key}={value.replace(",", "+")}' for key, value in choice.items() if value)
  chosen = study.load(f'{RECIPE}:{",".join(words)}')
  return dataclasses.replace(chosen, title=f'{models[0]}: {chosen.title}', focus=models[0])


def prepare(chosen: study.Study, data_dir) -> None:
  """Makes the sets of a study that are missing; raises MissingFile for that of a user's task."""
  for cell in {cell.column: cell for cell in chosen.cells}.values():
    task = get_task(loading.load(cell.config).task)
    try:
      examples.open_split(task, 'test', data_dir)
    except MissingFile:
      if is_own(task):
        raise
      print(f'Preparing {task.dataset} in {data_dir}', flush=True)
      user_files.claim_data_prep()
      from data_prep import prepare as preparation

      preparation.prepare(task.dataset, data_dir)


def apart(function, register, *arguments):
  """Calls a function in a process of its own, because jax would keep a GPU that the runs need."""
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
    return pool.submit(_registered, register, function, arguments).result()


def _registered(register, function, arguments):
  for path in register:
    loading.register(path)
  return function(*arguments)


def matched(chosen: study.Study, model: str, match: str) -> study.Study:
  """The study with a depth, or else a width, at which `model` costs as much as the first baseline.

  Args:
    match: a key of `MATCHED`. Both models are measured in the bidirectional form. The size that is found
      holds for all arms of a task.

  Raises:
    ConfigError: no size comes close enough.
  """
  like, *_ = recipe().BASELINES
  sizes, texts = {}, []
  for column in chosen.columns:
    config = next(cell.config for cell in chosen.cells if cell.column == column)
    mine, theirs = (re.sub('model=.*', f'model={name},regime=scratch', config) for name in (model, like))
    cost, goal = functools.partial(_cost, mine, match), _cost(theirs, match, {})
    name = f'{model} on {column}'
    sizes[column], reached = _sized(cost, goal, loading.load(mine).model, name, MATCHED[match])
    size = ', '.join(f'{key.removeprefix("model.")} {value}' for key, value in sizes[column].items())
    texts.append(f'on {column} {size or "its size of the recipe"}: {reached:,} to {goal:,}')
  cells = [
    dataclasses.replace(cell, overrides=cell.overrides | sizes[cell.column])
    if loading.load(cell.config).model.name == model
    else cell
    for cell in chosen.cells
  ]
  about = f'{model} is as large as {like}, by {MATCHED[match]}: {"; ".join(texts)}.'
  return dataclasses.replace(chosen, cells=cells, about=f'{chosen.about} {about}')


def _cost(config, match, overrides) -> int:
  from lra_spt.runs import build  # needs jax

  built = build.stages_of(build.resolve(loading.load(config, overrides)))['finetune']
  return built.model.parameter_count if match == 'parameters' else built.flops_per_step


def _sized(cost, goal, values, name, unit):
  """(overrides of the model, its cost); cost: function of overrides. name: for an error."""

  def is_close(reached):
    return abs(reached - goal) <= WITHIN * goal

  if is_close(now := cost({})):
    return {}, now
  period = len(values.get('mixers', ())) or 1
  first, second = (cost({'model.depth': depth}) for depth in (period, 2 * period))
  depth = period * max(1, round((goal - first) / (second - first)) + 1)
  if is_close(deep := cost({'model.depth': depth})):
    return {'model.depth': depth}, deep
  guess = values.width * (goal / now) ** 0.5
  for width in sorted(WIDTHS, key=lambda width: abs(width - guess))[:12]:
    size = {'model.width': width}
    if values.feed_forward:
      size['model.feed_forward'] = max(1, round(values.feed_forward * width / values.width))
    try:
      if is_close(wide := cost(size)):
        return size, wide
    except ConfigError:  # heads that do not divide this width
      continue
  raise ConfigError(
    f'{name} has {now:,} {unit}, and no depth or width brings it within {WITHIN:.0%} of {goal:,}: leave '
    'out --match.'
  )


def restore(jobs, workdir: pathlib.Path) -> int:
  """Restores runs of the package that are exactly those of jobs without a result; returns their number."""
  lines, count = archive.lines_of(RUNS), 0
  with files.owned(workdir, 'putting runs into'):
    for job in jobs:
      line = lines.get(str(job.folder))
      if line is None or (workdir / job.folder / run_folder.RESULT).exists():
        continue
      split = examples.open_split(job.config.task, 'test', job.config.runtime.data_dir)
      here = {'data': split.fingerprint, 'splits': split.split_fingerprint}
      if line['result']['fingerprints'] == here and is_of(line, job):
        archive.restore_run(line, workdir, RUNS, lambda task, split=split: archive.test_examples(split))
        count += 1
  return count


def is_of(line: dict, job: study.Job) -> bool:
  """True if a run, from `archive.lines_of`, has the config of a job."""
  return not runner.differences(line['result'], job, str(job.seed))


def lacking(jobs, workdir: pathlib.Path) -> list[study.Job]:
  """Returns the jobs of cells that have a fixed learning rate and an unfinished run."""
  unfinished = {folder_of(job.cell) for job in jobs if runner.state(workdir, job) != runner.FINISHED}
  return [job for job in jobs if job.cell.search is None and folder_of(job.cell) in unfinished]


def without(chosen: study.Study, jobs) -> tuple[study.Study, str]:
  """(the study without runs in the cells of these jobs, a sentence on what is missing)."""
  folders, columns = {folder_of(job.cell) for job in jobs}, {}
  for job in jobs:
    columns.setdefault(job.cell.column, {})[job.cell.row.partition(', ')[0]] = None
  names = '; '.join(f'on {column}: {", ".join(models)}' for column, models in columns.items())
  sentence = (
    f'Baselines without runs of exactly this recipe: {names}. --train_baselines trains them, in {len(jobs)} '
    'runs.'
  )
  cells = [
    dataclasses.replace(cell, note=NO_BASELINE) if folder_of(cell) in folders else cell
    for cell in chosen.cells
  ]
  return dataclasses.replace(chosen, cells=cells, about=f'{chosen.about} {sentence}'), sentence


def costs(chosen: study.Study, names, workdir, overrides) -> dict:
  """Seconds of the cells with these folders, see `estimate.seconds_of_cells`."""
  from lra_spt.studies import budget, estimate

  jobs = [job for job in study.jobs(chosen, overrides=overrides) if folder_of(job.cell) in names]
  jobs = [*search.all_jobs(chosen, jobs, overrides), *jobs]
  return estimate.seconds_of_cells(jobs, budget.check(jobs), workdir)


def outlook(cells: dict, jobs, processes: int) -> str:
  """A sentence on when the first row and all rows will be there; cells: from `costs`."""
  if not cells:
    return 'Steps are too large to be measured here, so there is no estimate.'
  names = {folder_of(job.cell): job.place for job in jobs}
  first = min(cells, key=cells.get)
  return (
    f'All runs take about {duration(sum(cells.values()) / processes)} at most (from a few steps, without '
    f'evaluations); the first row, {names[first]}, comes after {duration(cells[first] / processes)}.'
  )


def by_cost(cells: dict, workdir: pathlib.Path):
  """The `pick` of a study that finishes one cell after another, the cheapest first."""
  tried = set()

  def pick(searched, chosen):
    open_jobs = [*searched]
    for job in chosen:
      if job.folder not in tried and runner.state(workdir, job) != runner.FINISHED:
        open_jobs.append(job)
    if not open_jobs:
      return chosen
    cell = min((folder_of(job.cell) for job in open_jobs), key=lambda folder: cells.get(folder, 0.0))
    now = [job for job in open_jobs if folder_of(job.cell) == cell]
    tried.update(job.folder for job in now)
    return now

  return pick
