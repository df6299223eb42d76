"""Chunks of a set, each made once, by many processes and in any order.

A chunk is a pure function of (settings, start, stop), stored in a file that appears whole or not at all. Any
number of processes, on this machine or on others that share the folder, can therefore make the chunks of a
set and be stopped at any moment. Existing chunks are not made again, and the set does not depend on who made
it. One process then reads the chunks in order.

  folder = chunks.open_folder(work, settings)
  parts = chunks.divide(folder, examples, size=256)
  chunks.make_chunks(functools.partial(draw, seed), parts, workers=8, title='drawing', unit=' images')
  for part in parts:
    arrays = chunks.read(part)
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import pathlib
import shlex
import shutil
import signal
import threading
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import process

import numpy as np
import tqdm

from lra_spt.config import user_files
from lra_spt.errors import ConfigError, DataError, UserError

RUNNERS = ('local', 'beam')


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Examples start to stop - 1, stored in the file `path`."""

  path: pathlib.Path
  start: int
  stop: int


def open_folder(work: pathlib.Path, settings: Mapping) -> pathlib.Path:
  """The folder in `work` for chunks of these settings (JSON), created if missing.

  Chunks of other settings are useless and are removed.
  """
  key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
  folder = work.absolute() / key  # other processes have another working directory
  folder.mkdir(parents=True, exist_ok=True)
  for other in work.iterdir():
    if other.name != key and other.is_dir():
      shutil.rmtree(other)
  return folder


def divide(folder: pathlib.Path, stop: int, *, size: int, start: int = 0) -> list[Chunk]:
  """Examples start to stop - 1 in chunks of `size`, the last one smaller where they do not divide evenly."""
  ends = [(first, min(first + size, stop)) for first in range(start, stop, size)]
  return [Chunk(folder / f'{first:09d}-{last:09d}.npz', first, last) for first, last in ends]


def read(chunk: Chunk) -> dict[str, np.ndarray]:
  """The arrays of a chunk that was made.

  Raises:
    DataError: the file is missing or damaged.
  """
  arrays = _read(chunk.path)
  if arrays is None:
    raise DataError(
      f'{chunk.path} is missing or damaged; run the same command again, which makes this chunk again.'
    )
  return arrays


def make_chunks(
  make: Callable[[int, int], Mapping[str, np.ndarray]],
  chunks: Sequence[Chunk],
  *,
  workers: int | None = None,
  runner: str = 'local',
  beam_options: str = '',
  title: str = 'making chunks',
  unit: str = ' examples',
):
  """Makes the missing chunks.

  Args:
    make: (start, stop) -> {name: array}, a pure function that can be pickled: a function of an importable
      module, or a `functools.partial` of one with its settings.
    chunks: from `divide`.
    workers: number of processes; None for all cores. A script that uses more than one needs `if __name__ ==
      '__main__'`, because each process imports it.
    runner: 'local' (processes of this machine) or 'beam' (Apache Beam; the extra `[beam]`).
    beam_options: pipeline options in the form of a command line, '--runner=FlinkRunner --flink_master=...'.
      Without `--runner` Beam runs `workers` processes of this machine. All its workers need this package and
      the same folder under the same name. Tested only with Beam's local runners.
    title, unit: texts of the progress bar.

  Raises:
    ConfigError: the runner is unknown, options have no runner, or Beam is not installed.
    UserError: a local process died, for example because memory ran out.
    An error of `make` is raised unchanged (Beam wraps it in a RuntimeError); finished chunks stay.
  """
  check_runner(runner, beam_options)
  workers = workers or os.cpu_count() or 1
  total = sum(chunk.stop - chunk.start for chunk in chunks)
  with tqdm.tqdm(total=total, desc=title, unit=unit, disable=None) as bar:
    make_missing = functools.partial(_make_missing, make)
    if runner == 'beam':
      _run_beam(make_missing, chunks, workers, beam_options, bar)
    else:
      _run_local(make_missing, chunks, workers, bar)


def check_runner(runner: str, beam_options: str):
  """Raises a ConfigError for an unknown runner, or for options of another runner."""
  if runner not in RUNNERS:
    raise ConfigError(f'There is no runner {runner!r}; choose one of {", ".join(RUNNERS)}.')
  if beam_options and runner != 'beam':
    raise ConfigError(f"beam_options {beam_options!r} have no meaning for runner {runner!r}; choose 'beam'.")


def _read(path):
  """The arrays in the file, or None if it is missing or damaged (zip has checksums)."""
  try:
    with open(path, 'rb') as file, np.load(file, allow_pickle=False) as arrays:
      return dict(arrays)
  except Exception:  # a damaged file can raise almost any error
    return None


def _make_missing(make, chunk):
  if _read(chunk.path) is not None:
    return
  arrays = make(chunk.start, chunk.stop)
  # Not the process id: machines that share the folder may have equal ones.
  unfinished = chunk.path.with_suffix(f'.{uuid.uuid4().hex}.part')
  try:
    # Like np.savez_compressed, but 2 to 5 times faster through level 1.
    with zipfile.ZipFile(unfinished, 'x', zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
      for name, array in arrays.items():
        with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
          np.lib.format.write_array(member, array, allow_pickle=False)
    os.replace(unfinished, chunk.path)
  finally:
    unfinished.unlink(missing_ok=True)


def _run_local(make_missing, chunks, workers, bar):
  """Makes chunks in processes, because threads would run Python code of `make` one at a time. They are
  spawned, because a fork would copy JAX's locks."""
  workers = min(workers, len(chunks))
  if workers <= 1:
    for chunk in chunks:
      make_missing(chunk)
      bar.update(chunk.stop - chunk.start)
    return
  spawn = multiprocessing.get_context('spawn')
  pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn, initializer=_follow_parent)
  try:
    with user_files.project_first():  # the processes import this module anew
      running = {pool.submit(make_missing, chunk): chunk for chunk in chunks}
    for future in concurrent.futures.as_completed(running):
      future.result()
      bar.update(running[future].stop - running[future].start)
  except process.BrokenProcessPool:
    raise UserError(
      f'One of {workers} processes at work in {chunks[0].path.parent} died, perhaps because memory ran out; '
      'run the same command again, with fewer workers if so: finished chunks are kept.'
    ) from None
  finally:
    pool.shutdown(cancel_futures=True)


def _follow_parent():
  """Makes a local process end silently at Ctrl-C, or when its parent is killed."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _run_beam(make_missing, chunks, workers, beam_options, bar):
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"The runner 'beam' needs Apache Beam ({error}); pip install 'lra_spt[beam]', or choose 'local'."
    ) from None
  options = [
    # DirectRunner is the same, unless it can download Prism, which would not start these processes.
    '--runner=FnApiRunner',
    '--direct_running_mode=multi_processing',
    f'--direct_num_workers={workers}',
    *shlex.split(beam_options),  # the last one of a name counts
  ]
  with _following(chunks, bar), beam.Pipeline(options=PipelineOptions(options)) as pipeline:
    _ = pipeline | beam.Create(chunks) | beam.Reshuffle() | beam.Map(make_missing)


@contextlib.contextmanager
def _following(chunks, bar):
  """Moves the bar by the files that exist, because Beam reports nothing while it runs."""
  done = threading.Event()

  def count():
    names = set(os.listdir(chunks[0].path.parent))
    bar.update(sum(chunk.stop - chunk.start for chunk in chunks if chunk.path.name in names) - bar.n)

  def watch():
    while not done.wait(1):  # second
      count()

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()
    count()
