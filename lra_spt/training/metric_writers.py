"""Where metrics go: a JSON line file, TensorBoard, the terminal.

The writers have the method names of `clu.metric_writers` (which itself needs TensorFlow), so clu's own
objects fit in their place.
"""

import json
import math
import pathlib
import sys

import jax

from lra_spt import files


def _step(line):
  """The step of a line of metrics.jsonl; None of what is no such line."""
  try:
    step = json.loads(line)['step']
  except (ValueError, TypeError, KeyError, RecursionError):
    return None
  return step if type(step) is int else None


class JsonlWriter:
  """metrics.jsonl: one JSON object a line.

  Opening it drops the lines after `resume_step`, which the resumed run writes again.
  """

  def __init__(self, path: pathlib.Path, resume_step: int):
    self._path = path
    lines = path.read_text(encoding='utf-8', errors='replace').split('\n') if path.exists() else []
    kept = []
    for number, line in enumerate(lines, 1):
      step = _step(line)
      if step is not None and step <= resume_step:
        kept.append(line)
      elif step is None and number < len(lines):  # the last line was being written by a process that died
        print(f'{path}, line {number}, is damaged and was left out.', file=sys.stderr)
    files.write_text(path, ''.join(line + '\n' for line in kept))
    self._file = path.open('a', encoding='utf-8')

  def write_scalars(self, step: int, scalars: dict) -> None:
    """Appends {"step": step, "split": ..., name: value, ...}; non-finite numbers become null."""
    plain = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in scalars.items()}
    self._file.write(json.dumps({'step': step} | plain) + '\n')

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    self._file.close()


class TensorBoardWriter:
  """TensorBoard event files in `directory`, tagged '<split>/<name>'."""

  def __init__(self, directory: pathlib.Path, resume_step: int):
    import tensorboardX  # costs half a second, so only when it is asked for

    # Readers hide events from purge_step on that a killed process wrote; a first start has none to hide.
    self._writer = tensorboardX.SummaryWriter(str(directory), purge_step=resume_step + 1)

  def write_scalars(self, step: int, scalars: dict) -> None:
    for name, value in scalars.items():
      if name != 'split':
        self._writer.add_scalar(f'{scalars["split"]}/{name}', value, step)

  def flush(self) -> None:
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()


class MultiWriter:
  """Passes everything on to several writers."""

  def __init__(self, writers):
    self._writers = tuple(writers)

  def write_scalars(self, step: int, scalars: dict) -> None:
    for writer in self._writers:
      writer.write_scalars(step, scalars)

  def flush(self) -> None:
    for writer in self._writers:
      writer.flush()

  def close(self) -> None:
    for writer in self._writers:
      writer.close()


def create_writer(directory: pathlib.Path, resume_step: int, tensorboard: bool) -> MultiWriter:
  """The writers of one stage; processes other than the first write nothing."""
  if jax.process_index() > 0:
    return MultiWriter([])
  directory.mkdir(parents=True, exist_ok=True)
  writers = [JsonlWriter(directory / 'metrics.jsonl', resume_step)]
  if tensorboard:
    writers.append(TensorBoardWriter(directory / 'tensorboard', resume_step))
  return MultiWriter(writers)
