"""The time that evaluation and checkpoints take in an epoch, and the minutes of whole runs."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from configs.studies import mini
from data_prep import catalogue
from lra_spt.config import loading
from lra_spt.data.tasks import Task, Tokens
from lra_spt.distributed import sharding
from lra_spt.report.runs import run_folder
from lra_spt.runs.build import resolve, stages_of
from lra_spt.runs.stage import Built
from lra_spt.training.checkpoints.store import Checkpoints
from lra_spt.training.evaluate import evaluation_key, evaluation_step
from lra_spt.training.step import train_steps

TASKS = ('image', 'listops', 'text', 'retrieval', 'pathfinder', 'pathx', 'bidmc', 'speech_commands')
MINI = ('mini/image', 'mini/text', 'mini/listops', 'mini/pathfinder', 'mini/pulse')
CASES = [f'{name}:model={model}' for name in (*TASKS, *MINI) for model in ('transformer_rotary', 's4')]
TARGET = 0.1  # largest share of an epoch for evaluation and checkpoints
POSITIONS = 4096  # approximate number in a timed step

WHOLE_RUNS = [f'{task}:{model}' for task in mini.TASKS for model in mini.MODELS]
STEPS = 250  # steps of each stage in a shortened run
STAGES = ('pretrain', 'finetune')
AGAIN = 1  # the best state is validated once more at the end of a stage


def random_batch(task: Task, rows: int) -> dict[str, np.ndarray]:
  """Random examples in the layout of `Examples.gather`."""
  rng, parts = np.random.default_rng(0), task.batch(rows)
  batch = {name: np.zeros(part.shape, part.dtype) for name, part in parts.items()}
  highest = task.vocabulary if isinstance(task.inputs, Tokens) else 200
  batch['inputs'] = rng.integers(4, highest, parts['inputs'].shape).astype(parts['inputs'].dtype)
  batch['label'] = rng.integers(0, task.classes or 2, rows).astype(parts['label'].dtype)
  batch['lengths'] += task.length
  batch['weight'] += 1
  return batch | {'index': np.arange(rows, dtype=np.int32)}


def seconds_of_parts(built: Built, rows: int, rounds: int) -> dict[str, float]:
  """Seconds of a training step and an evaluation of so many rows, and of saving, each a median."""
  built = dataclasses.replace(built, spec=dataclasses.replace(built.spec, batch_size=rows))
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with (
    jax.set_mesh(mesh),
    tempfile.TemporaryDirectory() as folder,
    contextlib.closing(Checkpoints(pathlib.Path(folder))) as checkpoints,
  ):
    batch = random_batch(built.task, rows)
    chunk = sharding.to_devices(
      jax.tree.map(lambda x: x[None], batch), mesh, rows, np.arange(rows), leading=1
    )
    batch = sharding.to_devices(batch, mesh, rows, np.arange(rows))
    step, key = train_steps(built.typical_program), built.key
    evaluate = evaluation_step(built.model, built.objective)
    collected = jax.tree.map(jnp.asarray, built.objective.metrics.empty())
    states = [built.fresh_state(mesh)]

    def train():
      states.append(jax.block_until_ready(step(states.pop(), chunk, jnp.int32(1), key)[0]))

    def validate():
      params, stats = states[0]['params'], states[0]['stats']
      jax.block_until_ready(evaluate(params, stats, batch, evaluation_key(0), collected))

    def save():
      states[0]['step'] = states[0]['step'] + 1
      checkpoints.save_best(states[0])
      checkpoints.save_latest(states[0])

    samples = harness.turns({'step': train, 'evaluation': validate, 'saving': save}, rounds)
  return {name: statistics.median(sample['seconds'] for sample in of) for name, of in samples.items()}


def measured(case: str, rounds: int, positions: int = POSITIONS) -> dict:
  """The columns of a row of `epoch`."""
  built = stages_of(resolve(loading.load(f'configs/{case.replace(":", ".py:", 1)}')))['finetune']
  length = built.task.length * built.task.documents
  rows = max(1, min(built.spec.batch_size, positions // length))
  seconds, count = seconds_of_parts(built, rows, rounds), catalogue.published_counts(built.task)
  # Examples from one evaluation to the next.
  trained = built.spec.evaluate_every * built.spec.batch_size or count['train'] * built.spec.data_fraction
  parts = {
    'steps': seconds['step'] / rows * trained,
    'evaluation': seconds['evaluation'] / rows * count['validation'],
    'saving': seconds['saving'],
  }
  epoch = sum(parts.values())
  return {
    'rows': rows,
    'seconds': {name: round(value, 4) for name, value in seconds.items()},
    'examples': {'train': round(trained), 'validation': count['validation']},
    'epoch_seconds': round(epoch, 1),
    'shares': {name: round(value / epoch, 4) for name, value in parts.items()},
  }


def run_epoch(arguments):
  """Measures the share of evaluation and checkpoints in an epoch at the default settings of a config.

  An epoch of finetuning (or the time between two evaluations, if the config spaces them out) is a training
  step for every batch, one evaluation of the validation set, and a save of the best and of the latest state.
  Each is timed with the config's model and random examples of full length on one CPU device, and scaled to
  the size of the published set. Steps and evaluation use fewer rows where a batch would take minutes. Reading
  examples is not included (see `python -m benchmarks data`).
  """
  parser = harness.parser(run_epoch, 'epoch.json')
  harness.add_names(parser, '--cases', CASES)
  parser.add_argument('--rounds', type=int, default=3, help='turns of each part (%(default)s)')
  harness.add_resume(parser)
  options = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('epoch', 'what evaluation and checkpoints take of an epoch', target=TARGET)
  cases = [{'case': case} for case in options.cases]
  harness.fill(options, report, cases, lambda case: measured(case, options.rounds))


def minutes(case: str, data_dir) -> dict:
  """The columns of a row of `mini_minutes`: of a shortened run, continued at its pace."""
  task, model = case.split(':')
  source = f'configs/mini/{task}.py:model={model},regime=masked'
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, '-m', 'lra_spt', 'train', f'--config={source}', f'--workdir={folder}/run']
    command += [f'--config.runtime.data_dir={data_dir}']
    for stage in STAGES:
      command += [f'--config.{stage}.{key}={STEPS}' for key in ('max_steps', 'evaluate_every')]
    alone = {key: value for key, value in os.environ.items() if key != 'LRA_SPT_CACHE'}
    run = functools.partial(subprocess.run, command, check=True, cwd=harness.ROOT, env=alone)
    seconds = harness.timed(run)['seconds']
    result = run_folder.read_result(pathlib.Path(folder) / 'run')
  return whole_run(seconds, {name: result['stages'][name]['time'] for name in STAGES}, loading.load(source))


def whole_run(seconds: float, times: dict, whole) -> dict:
  """Minutes of the whole run, and the paces that they follow from.

  Args:
    seconds: time of the shortened run.
    times: {stage: {part: seconds}} of the shortened run.
    whole: config of the whole run.
  """
  row, more = {}, 0.0
  for stage, spent in times.items():
    step = (spent['steps'] + spent['data']) / STEPS
    validation = (spent['evaluation'] + spent['checkpoints']) / (1 + AGAIN)
    validations = whole[stage].max_steps // whole[stage].evaluate_every
    more += (whole[stage].max_steps - STEPS) * step + (validations - 1) * validation
    row[f'{stage}_step_milliseconds'] = round(1e3 * step, 1)
    row[f'{stage}_validation_seconds'] = round(validation, 2)
  return {'minutes': round((seconds + more) / 60, 1), 'shortened_seconds': round(seconds, 1)} | row


def run_mini_minutes(arguments):
  """Estimates the minutes of a whole run of LRA-mini on this machine, if nothing else runs on it.

  Each case of mini.py is a run with masked self-pretraining, `lra-spt train`, from the start of the
  program to its test, without a compilation cache, but with only 250 steps and one validation in either
  stage. The further steps and validations of a whole run are added at the pace of these.
  """
  parser = harness.parser(run_mini_minutes, 'mini_minutes.json')
  parser.add_argument('--data_dir', required=True, type=pathlib.Path, help='folder of the prepared sets')
  harness.add_names(parser, '--cases', WHOLE_RUNS)
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  harness.cpu_only()
  what = 'minutes of whole runs of LRA-mini on this machine'
  report = harness.report('mini_minutes', what, steps=len(STAGES) * STEPS)
  measure = functools.partial(minutes, data_dir=given.data_dir.resolve())
  harness.fill(given, report, [{'case': case} for case in given.cases], measure)
