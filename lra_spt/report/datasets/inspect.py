"""The command `lra-spt inspect`: what is in a prepared set, as split by the task that reads it.

A set of at most `WHOLE_BYTES` on disk is read completely. Of a larger one a random sample of every split is
read, and everything that is reported says so. With --out the same tables become a page with charts and
examples.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tqdm

from lra_spt.data import examples as examples_lib
from lra_spt.data import fingerprints, prepared, tasks
from lra_spt.data import splits as splits_lib
from lra_spt.errors import DataError, nearest
from lra_spt.report.datasets import contents as contents_lib

WHOLE_BYTES = 2 * 2**30
SAMPLE = 5_000
SEED = 0


@dataclasses.dataclass(frozen=True)
class Findings:
  """Everything that tables and pictures are made of.

  Attributes:
    task: as the protocol splits it.
    protocol: 'clean' or 'paper'.
    folder, stored_bytes, metadata: of the set.
    whole: whether everything was read.
    recomputed: whether the fingerprint was worked out again from all that is stored.
    contents: of every split that has examples; what is said of training is said of the first of them.
    overlaps: within and between splits.
    documents: of pairs.
    groups: {split: (file, number) of the groups that it has examples of}; empty where the set knows none.
    evaluated: {split: (ListOps expressions that were evaluated again, of these another value than the label,
      not whole)}.
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
  evaluated: Mapping[str, tuple[int, int, int]]
  shown: Mapping[str, np.ndarray]

  @property
  def first(self) -> contents_lib.Contents:
    """Of the training split, or the first that has examples."""
    return next(iter(self.contents.values()))


def find_task(name: str) -> tasks.Task:
  """The task of that name, or the one that shows most of the data set of that name.

  Raises:
    DataError: there is neither.
  """
  if name in tasks.TASKS:
    return tasks.TASKS[name]
  # cifar10 serves two tasks: colour shows more than gray.
  reading = sorted((t for t in tasks.TASKS.values() if t.dataset == name), key=lambda task: -task.channels)
  if reading:
    return reading[0]
  parts = [task for task in tasks.TASKS if task.startswith(f'{name}_')]
  if parts:
    raise DataError(f'{name!r} is prepared as several sets; inspect one of {", ".join(parts)}.')
  known = sorted({*tasks.TASKS, *(task.dataset for task in tasks.TASKS.values())})
  raise DataError(
    f'There is no data set or task {name!r}; choose one of {", ".join(known)}, or name the file that '
    f'registers it with --register.{nearest(name, known)}'
  )


def inspect_set(
  task: tasks.Task, data_dir, *, protocol: str = 'clean', sample: int | None = None, examples: int = 8
) -> Findings:
  """Reads a prepared set and counts.

  Args:
    task: that reads it.
    data_dir: folder given to `lra-spt prepare`.
    protocol: 'paper' for the published splits where those are others.
    sample: examples read of every split; 0 for all, None for all of a small set and else `SAMPLE`.
    examples: how many to show, see `choose`.

  Raises:
    MissingFile, ConfigError, DataError: as `examples.open_split`, or numbers that make no sense.
  """
  if protocol not in ('clean', 'paper'):
    raise DataError(f'There is no protocol {protocol!r}: choose clean or paper.')
  if examples < 1 or (sample is not None and sample < 0):
    raise DataError('Ask for at least 1 example to see, and for a sample of 0 (all) or more.')
  if protocol == 'paper':
    task = task.as_published()
  opened, files, metadata = _open(task, data_dir)
  measured = (metadata.get('statistics') or {}).get('train')
  if measured and isinstance(task.inputs, tasks.Values) and task.inputs.measured:
    task = task.with_measured(measured)  # as training does
  stored_bytes = sum(metadata['files'].values())
  if sample is None:
    sample = 0 if stored_bytes <= WHOLE_BYTES else SAMPLE
  if not sample:
    fingerprints.check(prepared.dataset_folder(data_dir, task.dataset), metadata)
  rng = np.random.default_rng(SEED)
  positions = {name: _sample(rng, len(split), sample) for name, split in opened.items()}
  contents, evaluated, shown = {}, {}, {}
  total = sum(map(len, positions.values()))
  with tqdm.tqdm(total=total, desc=f'reading {task.dataset}', unit=' examples', disable=None) as bar:
    for name in positions:
      split = opened.pop(name)  # with its copy in memory
      contents[name] = contents_lib.read(split, files[name], positions[name], bar)
      if '[SM' in metadata.get('vocabulary', ()):
        evaluated[name] = contents_lib.evaluate_again(split, _sample(rng, len(split), contents_lib.EVALUATED))
      if not shown:
        shown = split.gather(positions[name][choose(task, contents[name].label, examples, rng)])
  by_split = list(contents.values())
  between = [(a, b) for k, b in enumerate(by_split) for a in by_split[:k]]
  return Findings(
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
    evaluated=evaluated,
    shown=shown,
  )


def _open(task, data_dir):
  """{split: its Examples} and {split: stored file} of the splits that have examples, and the metadata."""
  folder = prepared.dataset_folder(data_dir, task.dataset)
  command = task.preparation(data_dir)
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
  """{split: numbers of the groups that it has examples of}; a group is known by its file and number."""
  known = {file: np.cumsum(sizes) for file, sizes in (metadata.get('groups') or {}).items() if len(sizes)}
  return {
    split.split: {
      (split.file, number) for number in np.searchsorted(known[split.file], split.index, 'right').tolist()
    }
    for split in by_split
    if split.file in known
  }


def choose(task: tasks.Task, label, count: int, rng) -> np.ndarray:
  """Which examples are shown: `count` images of every class; of all else `count`, but one of every class.

  Args:
    label: of what was read [n].
    count: see above; a regression gets labels from the least to the largest.

  Returns:
    int64: places in `label`, by class or value.
  """
  if task.regression:
    order = np.argsort(label, kind='stable')
    return order[np.unique(np.linspace(0, len(order) - 1, count).astype(np.int64))]
  each = count if contents_lib.is_image(task) else max(1, count // task.classes)
  of_class = [np.flatnonzero(label == k) for k in range(task.classes)]
  return np.concatenate([np.sort(rng.permutation(found)[:each]) for found in of_class])
