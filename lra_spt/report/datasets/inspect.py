"""Reads a prepared set, in the splits of a task, for `lra-spt inspect`.

A set of at most `WHOLE_BYTES` on disk is read completely. Of a larger one a random sample of every split is
read, and the report says so.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tqdm

from lra_spt.data import examples as examples_lib
from lra_spt.data import fingerprints, generated, prepared, tasks
from lra_spt.data import splits as splits_lib
from lra_spt.errors import ConfigError, DataError, nearest
from lra_spt.report.datasets import contents as contents_lib

WHOLE_BYTES = 2 * 2**30
SAMPLE = 5_000
SEED = 0


@dataclasses.dataclass(frozen=True)
class Inspection:
  """Everything that tables and charts show.

  Attributes:
    task: with the splits of the protocol.
    protocol: 'clean' or 'paper'.
    folder, stored_bytes, metadata: of the set.
    whole: True if all examples were read.
    recomputed: True if the fingerprint was computed again from the stored examples.
    contents: {split: Contents} of the splits that have examples; train is the first, if it has any.
    overlaps: within and between splits.
    documents: shared documents, for sets of pairs.
    groups: {split: {(file, number of a group)}}; empty for a set without groups.
    shown: a batch of examples of the first split, see `choose`.
  """

  task: tasks.Task
  protocol: str
  folder: pathlib.Path
  stored_bytes: int
  metadata: dict
  whole: bool
  recomputed: bool
  contents: Mapping[str, contents_lib.Contents]
  overlaps: Sequence[contents_lib.Overlap]
  documents: Sequence[contents_lib.Documents]
  groups: Mapping[str, set[tuple[str, int]]]
  shown: Mapping[str, np.ndarray]

  @property
  def first(self) -> contents_lib.Contents:
    """The contents of the training split, or of the first split that has examples."""
    return next(iter(self.contents.values()))


def find_task(name: str, data_dir) -> tasks.Task:
  """Returns the task of that name, else the task that shows most of the set of that name, else the task of a
  set in `data_dir`.

  Raises:
    DataError: there is none.
  """
  if name in tasks.TASKS or generated.parts_of(name):
    return tasks.get_task(name)
  # Two tasks read cifar10; the one in colour shows more.
  reading = sorted((t for t in tasks.TASKS.values() if t.dataset == name), key=lambda task: -task.channels)
  if reading:
    return reading[0]
  with contextlib.suppress(ConfigError):
    return tasks.get_task(name, data_dir)
  parts = [task for task in tasks.TASKS if task.startswith(f'{name}_')]
  if parts:
    raise DataError(f'{name!r} is prepared as several sets; inspect one of {", ".join(parts)}.')
  known = {*tasks.TASKS, *(task.dataset for task in tasks.TASKS.values())}
  raise DataError(
    f'There is no data set or task {name!r}, and no such set in {data_dir}; choose one of `lra-spt list '
    f'tasks`, or name the file that registers it with --register.{nearest(name, known)}'
  )


def inspect_set(
  task: tasks.Task, data_dir, *, protocol: str = 'clean', sample: int | None = None, examples: int = 8
) -> Inspection:
  """Reads the set of a task.

  Args:
    data_dir: folder of prepared sets.
    protocol: 'clean', or 'paper' for the published splits.
    sample: number of examples read of every split; 0 reads all, None reads all of a small set, else `SAMPLE`.
    examples: number of examples to show, see `choose`.

  Raises:
    MissingFile, ConfigError, DataError: the set cannot be opened, see `examples.open_split`.
  """
  if protocol == 'paper':
    task = task.as_published()
  opened, files, metadata = _open(task, data_dir)
  task = task.with_measured(metadata.get('statistics') or {})  # training reads it so
  stored_bytes = sum(metadata['files'].values())
  if sample is None:
    sample = 0 if stored_bytes <= WHOLE_BYTES else SAMPLE
  if not sample:
    fingerprints.check(prepared.dataset_folder(data_dir, task.dataset), metadata)
  rng = np.random.default_rng(SEED)
  positions = {name: _sample(rng, len(split), sample) for name, split in opened.items()}
  contents, shown = {}, {}
  total = sum(map(len, positions.values()))
  with tqdm.tqdm(total=total, desc=f'reading {task.dataset}', unit=' examples', disable=None) as bar:
    for name in positions:
      split = opened.pop(name)  # frees its memory afterwards
      contents[name] = contents_lib.read(split, files[name], positions[name], bar)
      if not shown:
        shown = split.gather(positions[name][choose(task, contents[name].label, examples, rng)])
  by_split = list(contents.values())
  between = [(a, b) for k, b in enumerate(by_split) for a in by_split[:k]]
  return Inspection(
    task=task,
    protocol=protocol,
    folder=prepared.dataset_folder(data_dir, task.dataset),
    stored_bytes=stored_bytes,
    metadata=metadata,
    recomputed=not sample,
    whole=all(len(split) == split.total for split in by_split),
    contents=contents,
    overlaps=[contents_lib.overlap(a, b) for k, b in enumerate(by_split) for a in by_split[: k + 1]],
    documents=[contents_lib.shared_documents(a, b) for a, b in between] if task.documents == 2 else [],
    groups=_groups(by_split, metadata),
    shown=shown,
  )


def _open(task, data_dir):
  """{split: Examples} and {split: stored file} of the splits that have examples, and the metadata."""
  folder = prepared.dataset_folder(data_dir, task.dataset)
  command = tasks.preparation(task, data_dir)
  metadata = prepared.read_metadata(folder, f'make it with `{command}`')
  try:
    places = splits_lib.split_positions(task.splits, metadata)
  except KeyError as error:
    wrong = f'The data set in {folder} has no file {error}, which task {task.name!r} needs.'
    raise DataError(wrong) from None
  filled = [name for name in examples_lib.SPLITS if len(places[name][1])] or ['train']
  opened = {name: examples_lib.open_split(task, name, data_dir) for name in filled}
  return opened, {name: places[name][0] for name in filled}, metadata


def _sample(rng, count, sample):
  if not sample or sample >= count:
    return np.arange(count)
  return np.sort(rng.choice(count, sample, replace=False))


def _groups(by_split, metadata):
  """{split: {(file, number of a group)}}."""
  known = {file: np.cumsum(sizes) for file, sizes in (metadata.get('groups') or {}).items() if len(sizes)}
  return {
    split.split: {
      (split.file, number) for number in np.searchsorted(known[split.file], split.index, 'right').tolist()
    }
    for split in by_split
    if split.file in known
  }


def choose(task: tasks.Task, label, count: int, rng) -> np.ndarray:
  """Chooses examples to show, in the order of their labels.

  Args:
    label: of the examples that were read, [n] or [n, ...].
    count: images of every class, or texts and curves in all, but at least one of every class. For real
      labels the examples are spread from the smallest to the largest (of the first dimension).

  Returns:
    Places in `label`, int64.
  """
  if task.regression:
    first_N = label.reshape(len(label), -1)[:, 0]
    order = np.argsort(first_N, kind='stable')[: np.count_nonzero(~np.isnan(first_N))]
    return order[np.unique(np.linspace(0, len(order) - 1, count).astype(np.int64))]
  if task.per_position or task.multi_label:
    return np.sort(rng.permutation(len(label))[:count])
  each = count if contents_lib.is_image(task) else max(1, count // task.classes)
  of_class = [np.flatnonzero(label == k) for k in range(task.classes)]
  return np.concatenate([np.sort(rng.permutation(places)[:each]) for places in of_class])
