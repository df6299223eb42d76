"""`lra-spt demo`: self-pretraining from beginning to end, on generated data, on a CPU, in minutes.

All arms have one finetuning budget: from scratch (bidirectional and causal form), and after masked and after
causal self-pretraining on the same training images. A further arm from scratch adds the steps of pretraining,
which asks whether longer training would have done as well.
"""

import pathlib
import time

import numpy as np

from lra_spt.config import loading, user_files
from lra_spt.errors import touching
from lra_spt.report.pages import report
from lra_spt.report.runs import restored
from lra_spt.report.runs.run import read_run
from lra_spt.report.study import any_folder, text
from lra_spt.report.study.arms import score_text
from lra_spt.runs import api, experiment

ARMS = {  # folder: (argument of configs/demo.py, name in the report)
  'scratch': ('regime=scratch', None),
  'scratch_tied': ('regime=scratch', 'scratch, compute-tied'),
  'scratch_causal': ('regime=scratch,causal=true', None),
  'masked': ('regime=masked', None),
  'causal': ('regime=causal', None),
}
STORY = (pathlib.Path(__file__).parent / 'demo.md').read_text(encoding='utf-8').strip()
PICTURES = 12  # test images that the report shows restored


def run_seed(seed: int, workdir: pathlib.Path, *, smoke: bool) -> None:
  """Prepares the data of one seed and runs all arms that are not finished below `workdir`/seed<seed>."""
  user_files.claim_data_prep()
  from data_prep.sources import stripes  # only here: the rest of the package works on prepared data

  folder = workdir / f'seed{seed}'
  data_dir = workdir / 'data' / f'seed{seed}'
  if not (data_dir / 'stripes').exists():
    print(f'seed {seed}: generating {stripes.SIZES["train"]:,} training images')
  stripes.prepare_stripes(data_dir, examples=200 if smoke else None, seed=seed)
  for number, (arm, (argument, name)) in enumerate(ARMS.items(), 1):
    config = _config(argument, arm, seed, data_dir, smoke)
    start = time.monotonic()
    experiment.run(config, folder / arm, arm=name, announce=lambda line: None)
    label = name or arm.replace('_', ', ')
    took = f'{time.monotonic() - start:.0f} s'
    score = score_text(read_run(folder / arm))
    print(f'seed {seed}, arm {number} of {len(ARMS)}, {label}: {score} ({took})')


def _config(argument: str, arm: str, seed: int, data_dir, smoke: bool):
  config = loading.load(f'configs/demo.py:{argument},seed={seed}', {'runtime.data_dir': str(data_dir)})
  if smoke:
    loading.shorten(config)
  if arm == 'scratch_tied':
    with config.unlocked():
      config.finetune.max_steps += config.pretrain.max_steps
  return config


def restore(folder, data_dir) -> restored.RestoredInputs:
  """Hides pixels of the first test images, and fills them with what the pretrained model predicts."""
  run = api.load_run(folder, 'pretrain', data_dir=data_dir)
  batch = run.examples('test').gather(np.arange(PICTURES))
  answers, original = run.predict(batch['inputs']), batch['inputs']
  guess = stored_values(run.task, answers.prediction).reshape(original.shape)
  restored_NL = np.where(answers.asked, guess, original)
  return restored.RestoredInputs(batch['index'], original, answers.asked, restored_NL, np.int32(run.step))


def stored_values(task, values) -> np.ndarray:
  """Converts normalised values, as a model restores them, to those of a prepared set, uint8."""
  inputs = task.inputs
  scaled = (values * np.float32(inputs.std) + np.float32(inputs.mean)) * np.float32(inputs.scale)
  return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def run_all(workdir, seeds, *, smoke: bool) -> None:
  """Runs the seeds below `workdir`, prints what came out and writes report.html there."""
  workdir = pathlib.Path(workdir)
  with touching(workdir, 'written to'):
    workdir.mkdir(parents=True, exist_ok=True)
  experiment.keep_compiled(workdir)  # the arms share most programs, so each compiles once
  start, (task, *_) = time.monotonic(), STORY.split('\n\n')
  print(
    f'{task}\n\nIt is trained in {len(ARMS)} ways. If you stop it, the same command resumes.\n', flush=True
  )
  for seed in seeds:
    run_seed(seed, workdir, smoke=smoke)
  pictured = workdir / f'seed{seeds[0]}' / 'masked'
  if not (pictured / restored.NAME).exists():
    restored.write_restored(pictured, restore(pictured, workdir / 'data' / f'seed{seeds[0]}'))
  table = any_folder.read_any(workdir)
  print(f'\n{text.text(table)}')
  story = STORY + ('\n\nThis was a smoke run of a few steps: its numbers mean nothing.' if smoke else '')
  report.write(table, workdir / 'report.html', 'Never train from scratch: the demo', story)
  print(f'\nReport: {workdir / "report.html"} (after {time.monotonic() - start:.0f} s)')
