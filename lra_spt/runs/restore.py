"""Images restored by masked self-pretraining: test images, their hidden pixels, and the model's guess."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.data import examples as examples_lib
from lra_spt.distributed import sharding
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.restored import RestoredInputs
from lra_spt.runs.build import build, stored_run

COUNT = 12


def restore(folder, data_dir, count: int = COUNT) -> RestoredInputs:
  """Hides pixels of test images as pretraining did, and fills them with what its best checkpoint predicts.

  Args:
    folder: folder of a run with masked self-pretraining on a task of square images in bytes.
    data_dir: folder of the prepared set.
    count: number of images, the first ones of the test split.

  Raises:
    CheckpointError, DamagedFile, DataError: the run has no such checkpoint, or the set does not exist.
  """
  folder = pathlib.Path(folder).absolute()
  built = build(stored_run(folder), 'pretrain')
  mesh = sharding.make_mesh(devices=sharding.all_devices()[:1])
  stage = run_folder.stage_folders(folder, run_folder.read_config(folder))['pretrain']
  best = built.best_state(stage, mesh)
  test = examples_lib.open_split(built.task, 'test', data_dir)
  batch = test.gather(np.arange(min(count, len(test))))

  @jax.jit
  def predict(params, stats, batch, key):
    keys_B = jax.vmap(lambda index: jax.random.fold_in(key, index))(batch['index'])
    prepared = built.objective.prepare(batch, keys_B)
    model = built.model.merge(params, stats)
    outputs = model(prepared.inputs, lengths_B=prepared.lengths_B, deterministic=True)
    return prepared.weights > 0, outputs.astype(jnp.float32)

  hidden_BL, outputs = map(np.asarray, predict(best['params'], best['stats'], batch, jax.random.key(0)))
  original = batch['inputs']
  guess = _bytes(built.task, outputs).reshape(original.shape)
  hidden = hidden_BL.reshape(*hidden_BL.shape, *[1] * (original.ndim - 2))
  return RestoredInputs(
    index=batch['index'],
    original=original,
    hidden=hidden_BL,
    restored=np.where(hidden, guess, original),
    step=np.int32(best['step']),
  )


def _bytes(task, outputs) -> np.ndarray:
  """Converts the outputs of a denoising head to stored values, uint8."""
  inputs = task.inputs
  if inputs.denoising_classes:
    return outputs.argmax(axis=-1).astype(np.uint8)
  values = (outputs * np.float32(inputs.std) + np.float32(inputs.mean)) * np.float32(inputs.scale)
  return np.clip(np.rint(values), 0, 255).astype(np.uint8)
