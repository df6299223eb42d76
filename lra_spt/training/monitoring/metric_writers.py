"""Writers of metrics: a JSON lines file, TensorBoard, trackers (`trackers.py`).

The writers have the method names of `clu.metric_writers` (which needs TensorFlow), so clu's objects fit in
their place. Data are on disk after `flush`; `close` writes nothing, because it is also called after an error.
"""

import contextlib
import functools
import json
import math
import os
import pathlib
import socket
import struct
import sys
import time
from collections.abc import Iterable

import jax

from lra_spt import files
from lra_spt.errors import touching
from lra_spt.training.monitoring import trackers


def _step(line):
  """The step of a line of metrics.jsonl; None if it is no such line."""
  try:
    step = json.loads(line)['step']
  except (ValueError, TypeError, KeyError, RecursionError):
    return None
  return step if type(step) is int else None


def lacks_validation(directory: pathlib.Path, step: int) -> bool:
  """True if metrics.jsonl has a training line of a step, but no validation line. If validation was due at
  that step, the stage was asked to end during that validation."""
  path = directory / 'metrics.jsonl'
  with touching(path, 'read'):
    lines = path.read_text(encoding='utf-8', errors='replace').split('\n') if path.exists() else []
  splits = {json.loads(line).get('split') for line in lines if _step(line) == step}
  return 'train' in splits and 'validation' not in splits


class JsonlWriter:
  """metrics.jsonl: one JSON object a line.

  Opening the file drops the lines after `resume_step`, which the resumed run writes again.
  """

  def __init__(self, path: pathlib.Path, resume_step: int):
    with touching(path, 'read'):
      lines = path.read_text(encoding='utf-8', errors='replace').split('\n') if path.exists() else []
    valid = []
    for number, line in enumerate(lines, 1):
      step = _step(line)
      if step is not None and step <= resume_step:
        valid.append(line)
      elif step is None and number < len(lines):  # the last line may be cut off by a kill
        print(f'{path}, line {number}, is damaged and was left out.', file=sys.stderr)
    files.write_text(path, ''.join(line + '\n' for line in valid))
    self._lines = []
    self._file = files.Appended(path)

  def write_scalars(self, step: int, scalars: dict) -> None:
    """Appends {"step": step, "split": ..., name: value, ...}; what is None or not finite becomes null."""
    plain = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in scalars.items()}
    self._lines.append(json.dumps({'step': step} | plain) + '\n')

  def flush(self) -> None:
    """Puts the lines on the disk; raises a FileAccessError if the operating system refuses."""
    self._file.add(''.join(self._lines).encode())
    self._lines.clear()

  def close(self) -> None:
    self._file.close()


@functools.cache
def _tensorboard():
  """Returns the module of events, the class of summaries and the checksum of records.

  The import takes half a second, and more where PyTorch is installed, so the first event makes it: the first
  training step does not wait for it.
  """
  from tensorboardX import record_writer
  from tensorboardX.proto import event_pb2, summary_pb2

  return event_pb2, summary_pb2.Summary, record_writer.masked_crc32c


class TensorBoardWriter:
  """A TensorBoard event file in `directory`, tagged '<split>/<name>'.

  It is written without a thread: that of tensorboardX prints its errors instead of raising them.
  """

  def __init__(self, directory: pathlib.Path, resume_step: int):
    with touching(directory, 'written'):
      directory.mkdir(parents=True, exist_ok=True)
    # TensorFlow's names; the process id distinguishes starts within the same second.
    path = directory / f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}'
    self._file, self._resume_step, self._records = files.Appended(path), resume_step, []
    self._started = False

  def write_scalars(self, step: int, scalars: dict) -> None:
    event_pb2, summary, _ = _tensorboard()
    if not self._started:
      self._add(file_version='brain.Event:2')
      # Readers hide the events from this step on that a killed process wrote.
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._add(step=self._resume_step + 1, session_log=start)
      self._started = True
    for name, value in scalars.items():
      if name != 'split' and value is not None:
        tagged = summary.Value(tag=f'{scalars["split"]}/{name}', simple_value=float(value))
        self._add(step=step, summary=summary(value=[tagged]))

  def flush(self) -> None:
    """Puts the events on the disk; raises a FileAccessError if the operating system refuses."""
    self._file.add(b''.join(self._records))
    self._records.clear()

  def close(self) -> None:
    self._file.close()

  def _add(self, **fields):
    """Adds an event as a TFRecord: its length and its content, each with a checksum."""
    event_pb2, _, checksum = _tensorboard()
    content = event_pb2.Event(wall_time=time.time(), **fields).SerializeToString()
    size = struct.pack('<Q', len(content))
    parts = (size, struct.pack('<I', checksum(size)))
    self._records += [*parts, content, struct.pack('<I', checksum(content))]


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


def create_writer(
  directory: pathlib.Path,
  resume_step: int,
  tensorboard: bool,
  tracked: Iterable[str] = (),
  about: dict | None = None,
) -> MultiWriter:
  """Makes the writers of one stage; processes other than the first write nothing.

  Args:
    directory: the folder of the stage.
    resume_step: the step that the stage goes on from.
    tensorboard: write a TensorBoard file too.
    tracked: names of trackers.
    about: see `trackers.open_tracker`.
  """
  if jax.process_index() > 0:
    return MultiWriter([])
  with touching(directory, 'written'):
    directory.mkdir(parents=True, exist_ok=True)
  makers = [functools.partial(JsonlWriter, directory / 'metrics.jsonl', resume_step)]
  if tensorboard:
    makers.append(functools.partial(TensorBoardWriter, directory / 'tensorboard', resume_step))
  makers += [functools.partial(trackers.open_tracker, name, directory, about or {}) for name in tracked]
  with contextlib.ExitStack() as opened:
    writers = [opened.enter_context(contextlib.closing(make())) for make in makers]
    opened.pop_all()
  return MultiWriter(writers)
