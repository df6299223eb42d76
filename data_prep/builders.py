"""Makes a prepared set from a source of examples: the TFDS builder and the rules around it.

A set is written into TFDS's temporary `incomplete.*` folder, metadata last, and gets its name by one rename.
An interrupted preparation therefore leaves nothing that opens; `prepare_set` removes such leftovers when it
starts.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import pathlib
import shutil
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tqdm

from data_prep import catalogue, labels
from lra_spt import files
from lra_spt.data import fingerprints, parts, prepared
from lra_spt.data.fingerprints import FILE_ORDER, Fingerprint
from lra_spt.errors import DataError, MissingFile, counted, touching

with warnings.catch_warnings():
  warnings.simplefilter('ignore', DeprecationWarning)  # the imported packages raise it
  import tensorflow_datasets as tfds

SHARD_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Source:
  """The examples of a set and their description.

  Attributes:
    description, citation: for dataset_info.json.
    files: {'train' | 'validation' | 'test': function that returns an iterator of (inputs, label)}; inputs are
      an array of `shape` and `dtype`, or a pair of arrays for two documents. Further files are longer test
      splits.
    counts: examples per file.
    classes: number of labels; 0 for labels that are finite real numbers.
    class_names: names of the labels, if the files name them.
    per_position: True if a label is an array of a class for each position, -1 where it does not count.
    unlabelled: True if training examples may have no label: -1, or NaN of real numbers.
    label_width: K if a label is an array [K], of 0 or 1 for each of several labels (then K = classes), or of
      real numbers; 0 for one label.
    shape: shape of the inputs of every example; None for tokens and (0, channels) for values of differing
      lengths.
    dtype: dtype of inputs: uint8, int16 or float32.
    documents: 1, or 2 for examples that are pairs.
    groups: {file: sizes of groups}, which are consecutive examples, such as the windows of one patient; None
      if they are not known or have no meaning.
    origin: one line that names the generator with its settings, or the files.
    verified: True if the raw files equal the official ones as far as those are known; False for generated
      data.
    statistics: True if the metadata should hold mean and standard deviation of the training inputs.
    extra: further metadata, JSON (vocabulary, kind of verification, settings of a generator).
  """

  description: str
  citation: str
  files: Mapping[str, Callable[[], Iterator[tuple[np.ndarray, int]]]]
  counts: Mapping[str, int]
  classes: int
  shape: tuple[int, ...] | None
  origin: str
  verified: bool
  dtype: type = np.uint8
  documents: int = 1
  class_names: Sequence[str] = ()
  per_position: bool = False
  unlabelled: bool = False
  label_width: int = 0
  groups: Mapping[str, Sequence[int]] | None = None
  statistics: bool = False
  extra: Mapping = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if not any(self.counts.values()):
      raise DataError(
        f'No usable example came from {self.origin} (looked for: {self.description.rstrip(".")}); give '
        'another source.'
      )
    for file, sizes in (self.groups or {}).items():
      if sum(sizes) != self.counts[file]:
        raise DataError(f'The groups of {file} have {sum(sizes):,} examples, not {self.counts[file]:,}.')


class _Moments:
  """Running mean and standard deviation over positions and examples, per channel."""

  def __init__(self):
    self.count, self._mean, self._squares = 0, 0.0, 0.0  # squares of differences from the mean

  def add(self, x_LC: np.ndarray):
    """Adds an example of shape [L] or [L, C]."""
    x_LC = x_LC.reshape(len(x_LC), -1).astype(np.float64)
    mean_C = x_LC.mean(0)
    apart, count = mean_C - self._mean, self.count + len(x_LC)
    self._squares += ((x_LC - mean_C) ** 2).sum(0) + apart**2 * self.count * len(x_LC) / count
    self._mean += apart * len(x_LC) / count
    self.count = count

  def summary(self) -> dict[str, list[float]]:
    """{'mean', 'std'} of stored values, per channel."""
    return {'mean': self._mean.tolist(), 'std': np.sqrt(self._squares / self.count).tolist()}


class _Info(tfds.core.DatasetInfo):
  def initialize_from_bucket(self):
    """Does nothing, because these sets are in no bucket, and a look there would leave a temporary folder."""

  def write_to_directory(self, dataset_info_dir, all_metadata=True):
    """Writes the last files and syncs the set to the disk before it gets its name."""
    super().write_to_directory(dataset_info_dir, all_metadata)
    prepared.seal(pathlib.Path(dataset_info_dir))
    files.sync(dataset_info_dir)


class SequenceBuilder(tfds.core.ShardBasedBuilder, skip_registration=True):
  """TFDS builder of labelled sequences, in ArrayRecord files that keep the order of the source.

  It writes shard by shard, because TFDS's usual writer holds up to 1 GB of a split in memory and needs
  TensorFlow for more.
  """

  name = 'sequences'
  VERSION = tfds.core.Version(prepared.VERSION)
  RELEASE_NOTES = {prepared.VERSION: 'First version.'}

  def __init__(self, *, dataset: str, source: Source, request: Mapping, data_dir):
    self.name = dataset
    self._origin = source
    self._request = dict(request)
    self._fingerprint = Fingerprint()
    self._keys = {}
    self._longest = 0
    self._moments, self._labels = _Moments(), []
    self._labelled = []  # positions of training examples that have a label
    self._entry = catalogue.owner(dataset) or catalogue.Entry(dataset)
    names, classes = self._entry.class_names, source.classes
    if names and len(names) != classes:
      raise DataError(
        f'The set {dataset!r} has {classes} classes, but {len(names)} class names were registered for it; '
        'correct the names.'
      )
    super().__init__(data_dir=str(files.literal(data_dir)), file_format='array_record')

  @property
  def data_path(self):
    return files.literal(super().data_path)

  def _info(self):
    origin = self._origin
    shape = tuple(size or None for size in origin.shape or (0,))
    inputs = tfds.features.Tensor(shape=shape, dtype=origin.dtype, encoding=tfds.features.Encoding.BYTES)
    label = tfds.features.ClassLabel(num_classes=origin.classes) if origin.classes else np.float32
    if origin.per_position or origin.label_width:
      kind = np.int32 if origin.per_position else np.bool_ if origin.classes else np.float32
      label = tfds.features.Tensor(
        shape=(origin.label_width or None,), dtype=kind, encoding=tfds.features.Encoding.BYTES
      )
    # A pair is stored as one sequence with the position of its second document.
    pair = {'second_begins': np.int32} if origin.documents == 2 else {}
    return _Info(
      builder=self,
      description=origin.description,
      citation=origin.citation,
      disable_shuffling=True,
      metadata=tfds.core.MetadataDict(),
      features=tfds.features.FeaturesDict({'inputs': inputs, 'label': label, **pair}),
    )

  def _make_download_manager(self, **_):
    # Nothing is downloaded. TFDS's manager would make folders and needs a package that TFDS does not require.
    return types.SimpleNamespace(downloaded_size=0)

  def _shard_iterators_per_split(self, dl_manager):
    width = int(np.prod([size or 2048 for size in self._origin.shape or (0,)]))
    width *= np.dtype(self._origin.dtype).itemsize * self._origin.documents
    shards = {}
    for file in fingerprints.in_order(self._origin.counts):
      count = self._origin.counts[file]
      examples = enumerate(self._examples(file))
      size = -(-count // -(-count * width // SHARD_BYTES))
      shards[file] = [
        functools.partial(itertools.islice, examples, min(size, count - start))
        for start in range(0, count, size)
      ]
    return shards

  def _examples(self, file):
    """Yields TFDS examples of one file, fingerprints them and checks the promises of the source."""
    count, promised = 0, self._origin.counts[file]
    examples = iter(self._origin.files[file]())
    for inputs, label in examples:
      where = f'{self.name}: example {count} of {file}'
      documents = inputs if self._origin.documents == 2 else (inputs,)
      documents = [np.ascontiguousarray(document, self._origin.dtype) for document in documents]
      if self._origin.dtype == np.float32 and not all(np.isfinite(document).all() for document in documents):
        raise DataError(f'{where} holds a number that is not finite; correct the files it comes from.')
      may_lack = self._origin.unlabelled and file == 'train'
      label, known = labels.checked(self._origin, label, len(documents[0]), where, may_lack)
      if known and file == 'train':
        self._labelled.append(count)
      self._fingerprint.add(file, count, label, documents)
      key = fingerprints.input_key(map(fingerprints.digest, documents))
      self._keys.setdefault(file, []).append(key)
      if file == 'train' and self._origin.statistics:
        self._moments.add(documents[0])
      if file == 'train' and not self._origin.classes:
        self._labels.append(label)
      if file in FILE_ORDER:  # tasks have a length of their own for longer test splits
        self._longest = max(self._longest, *map(len, documents))
      count += 1
      self._bar.update()
      # Checked before the last example is yielded, because nobody asks for one more.
      if count == promised and next(examples, None) is not None:
        raise DataError(
          f'{self.name}: the source of {file} has more than the {promised:,} examples it promised.'
        )
      pair = {'second_begins': len(documents[0])} if len(documents) == 2 else {}
      inputs = np.concatenate(documents) if pair else documents[0]
      yield {'inputs': inputs, 'label': label, **pair}
    if count < promised:
      raise DataError(
        f'{self.name}: the source of {file} ended after {count:,} examples, but promised {promised:,}.'
      )

  def _download_and_prepare(self, dl_manager, download_config=None):
    total = sum(self._origin.counts.values())
    with tqdm.tqdm(total=total, desc=f'writing {self.name}', unit=' examples', disable=None) as self._bar:
      super()._download_and_prepare(dl_manager, download_config)
    self.info.metadata.update(
      source=self._origin.origin,
      verified=self._origin.verified,
      fingerprint=self._fingerprint.hex(),
      counts=dict(self._origin.counts),
      classes=self._origin.classes,
      repeated=fingerprints.repeated(self._keys),
      longest=self._longest,
      **({'per_position': True} if self._origin.per_position else {}),
      **({'label_width': self._origin.label_width} if self._origin.label_width else {}),
      **({'labelled': self._labelled} if len(self._labelled) < self._origin.counts.get('train', 0) else {}),
      shape=list(self._origin.shape) if self._origin.shape else None,
      dtype=np.dtype(self._origin.dtype).name,
      documents=self._origin.documents,
      groups={file: list(sizes) for file, sizes in (self._origin.groups or {}).items()},
      request=self._request,
      class_names=list(self._entry.class_names or self._origin.class_names),
      published_vocabulary=self._entry.published_vocabulary,
      statistics=self._statistics(),
      **self._origin.extra,
    )

  def _statistics(self) -> dict:
    """Statistics of the training file: of its values, and of its labels if they are real numbers."""
    inputs = {'train': self._moments.summary()} if self._moments.count else {}
    return inputs | ({'labels': labels.statistics(self._labels)} if self._labels else {})


def _difference(before: Mapping, asked: Mapping) -> str:
  keys = [key for key in sorted({*before, *asked}) if before.get(key) != asked.get(key)]
  return ', '.join(f'{key}={before.get(key)} instead of {key}={asked.get(key)}' for key in keys)


def prepare_set(
  dataset: str, data_dir, request: Mapping, load: Callable[[pathlib.Path], Source]
) -> pathlib.Path:
  """Makes a set unless it exists.

  Args:
    dataset: its name; the set goes to <data_dir>/<dataset>/<version>/.
    data_dir: folder for prepared sets, created if missing.
    request: everything that determines the examples (JSON); an existing set must have an equal request.
    load: opens the source. Its argument is a folder for unfinished work, which survives an interruption and
      is removed at the end.

  Returns:
    The folder of the set.

  Raises:
    DataError: a damaged set or one of another request exists, or the source is wrong. Nothing is overwritten.
    InUse: another process is preparing the set.
    MissingFile: the source is missing.
  """
  folder = prepared.dataset_folder(data_dir, dataset)
  with _removed_if_empty(folder.parent), files.owned(folder.parent, f'preparing {dataset!r} in'):
    return _prepare_owned(dataset, data_dir, folder, json.loads(json.dumps(request)), load)


@contextlib.contextmanager
def _removed_if_empty(folder):
  """Removes a folder that the context created, if the context fails and the folder is empty."""
  there = folder.exists()
  try:
    yield
  except BaseException:
    if not there:
      with contextlib.suppress(OSError):
        folder.rmdir()
    raise


def _prepare_owned(dataset, data_dir, folder, request, load):
  work = folder.parent / 'unfinished'
  if folder.exists():
    try:
      metadata = prepared.read_metadata(folder, 'prepare it again')
    except FileNotFoundError:
      raise MissingFile(f'{folder} is not a prepared set; remove it and prepare it again.') from None
    if metadata['request'] != request:
      raise DataError(
        f'{folder} already holds {dataset!r} made with {_difference(metadata["request"], request)}; '
        'choose another data_dir, or remove that folder to make it again.'
      )
    shutil.rmtree(work, ignore_errors=True)  # left by a process that ended after the set got its name
    _tell_of_contents(dataset, data_dir, metadata)
    print(f'{dataset} is already prepared in {folder} ({_summary(metadata)}).')
    return folder
  with touching(folder.parent, 'written to'):
    for leftover in folder.parent.glob('incomplete.*'):
      shutil.rmtree(leftover)
    source = load(work)
    tfds.disable_progress_bar()
    builder = SequenceBuilder(dataset=dataset, source=source, request=request, data_dir=folder.parent.parent)
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces downloads that do not happen
      builder.download_and_prepare()
  shutil.rmtree(work, ignore_errors=True)
  metadata = prepared.read_metadata(folder, 'prepare it again')
  _tell_of_contents(dataset, data_dir, metadata)
  print(f'Prepared {dataset} in {folder} ({_summary(metadata)}).')
  return folder


def _tell_of_contents(dataset, data_dir, metadata):
  """Prints what a user should know of a set before training: channels that never vary, files without
  examples to train on, and examples that are also training examples."""
  if not metadata['counts'].get('train'):
    print(f'{dataset} has no training examples, so models can be tested on it, but not trained.')
  if known := len(metadata.get('labelled', ())):
    print(
      f'{known:,} of {metadata["counts"]["train"]:,} training examples of {dataset} have a label: '
      'pretraining reads all, finetuning these.'
    )
  measured = metadata.get('statistics', {}).get('train')
  if measured and (constant := np.flatnonzero(parts.never_vary(measured)).tolist()):
    which = f'Channel {constant[0]}'
    if len(constant) > 1:
      which = f'Each of the channels {", ".join(map(str, constant))}'
    print(
      f'{which} of {dataset} never varies in the training file: normalised, it is 0 and tells a model '
      'nothing.'
    )
  _tell_of_repeated(dataset, data_dir, metadata)


def _tell_of_repeated(dataset, data_dir, metadata):
  """Prints how many examples have the inputs of a training example. For official files it says that this is
  known."""
  counts, repeated = metadata['counts'], metadata.get('repeated', {})
  shared = {file: repeated[file] for file in FILE_ORDER[1:] if repeated.get(file)}
  says = ''
  if shared:
    numbers = ' and '.join(f'{count:,} of {counts[file]:,} {file}' for file, count in shared.items())
    says = f'{numbers} examples of {dataset} have the inputs of a training example'
  elif repeated.get('train') and not counts.get('test'):
    says = (
      f'{repeated["train"]:,} of {counts["train"]:,} examples of {dataset} have the inputs of an earlier '
      'one, so a split of them can have the same inputs in training and test'
    )
  if says:
    entry = catalogue.owner(dataset) or catalogue.Entry(dataset)
    official = metadata['verified'] or (shared and shared == dict(entry.repeated))
    origin = 'Known of the official files: ' if official else ''
    print(f'{origin}{says}; see `lra-spt inspect {dataset} --data_dir={data_dir}`.')


def _summary(metadata):
  pieces = [', '.join(f'{count:,} {name}' for name, count in metadata['counts'].items())]
  if distinct := metadata.get('distinct_labels'):
    values = counted(distinct, 'distinct value')
    pieces.append(f'{metadata["classes"]} classes' if metadata['classes'] else f'regression on {values}')
  if metadata['source'].startswith(('own files', 'generated')):  # there is no official copy
    return '; '.join([*pieces, metadata['source']])
  checked = metadata.get('verification', 'verified') if metadata['verified'] else 'not an official copy'
  return '; '.join([*pieces, metadata['source'], checked])
