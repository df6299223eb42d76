"""A set of your own from .ts files, such as those of the UCR, UEA and TSER archives; `data_prep.ts_files`
describes the format and says what happens to missing values.

    lra-spt prepare ts --name=acsf1 --train=ACSF1_TRAIN.ts --test=ACSF1_TEST.ts --data_dir=data

Files are read twice, line by line, and hold one example in memory. Values are stored as float32. Series of
the same length make a set of fixed length, others one of differing lengths. Classes keep the names and the
order of the training file's header. `--longest` makes all series shorter: each value becomes the mean of k
neighbours. k is the smallest number with which the longest training series has at most that length.
"""

import dataclasses
import functools
import pathlib

import numpy as np
import tqdm

from data_prep import builders, raw_files, ts_files, verification
from data_prep.sources import linoss
from lra_spt.errors import ConfigError, DataError, MissingFile, counted


@dataclasses.dataclass(frozen=True)
class _Part:
  """A file that was read once: its labels [N], lengths [N], channels, and the number of filled values."""

  path: pathlib.Path
  header: ts_files.Header
  labels: np.ndarray
  lengths: np.ndarray
  channels: int
  filled: int


def _read(path, header, classes):
  """The `_Part` of a file; shows a progress bar."""
  labels, lengths, filled, channels = [], [], 0, 0
  bar = {'desc': f'checking {path.name}', 'unit': ' examples', 'disable': None}
  for example in tqdm.tqdm(ts_files.examples(path, header, classes), **bar):
    labels.append(example.label)
    lengths.append(len(example.values))
    channels = example.values.shape[1]
    filled += example.filled
  if not labels:
    raise DataError(f'{path} has no examples; get it again.')
  return _Part(path, header, np.asarray(labels), np.asarray(lengths), channels, filled)


def _parts(paths) -> tuple[tuple[str, ...], dict[str, _Part]]:
  """Names of the classes, and the checked files."""
  headers = {file: ts_files.read_header(path) for file, path in paths.items()}
  classes, train = headers['train'].classes, paths['train']
  for file, header in headers.items():
    if sorted(map(str.casefold, header.classes)) != sorted(map(str.casefold, classes)):
      theirs, ours = (raw_files.shown(', '.join(names)) or 'none' for names in (header.classes, classes))
      raise DataError(f'{paths[file]} has the classes {theirs}, but {train} {ours}; give files of one set.')
  parts = {file: _read(path, headers[file], classes) for file, path in paths.items()}
  for part in parts.values():
    if part.channels != parts['train'].channels:
      raise DataError(
        f'{part.path} has {counted(part.channels, "channel")}, but {train} {parts["train"].channels}; give '
        'files of one set.'
      )
    if part.filled:
      values = counted(part.filled, 'missing value')
      print(f'{part.path.name}: {values} filled by interpolation within their channels.')
  return classes, parts


def _load(paths, dataset, linoss_seed, longest):
  classes, parts = _parts(paths)
  absent = [name for number, name in enumerate(classes) if number not in parts['train'].labels]
  if absent and linoss_seed is None:
    raise DataError(
      f'{paths["train"]} names the class {raw_files.shown(absent[0])}, but has no example of it; give it '
      'one, or take it out of @classLabel.'
    )
  most = int(parts['train'].lengths.max())
  step = -(-most // (longest or most))
  if step > 1:
    print(f'Each value is the mean of {step} neighbours: {most:,} positions become {-(-most // step):,}.')
  lengths = -(-np.concatenate([part.lengths for part in parts.values()]) // step)
  channels, fixed = parts['train'].channels, bool((lengths == lengths[0]).all())
  shape = (int(lengths[0]), *([channels] if channels > 1 else [])) if fixed else (0, channels)

  def examples(part):
    for example in ts_files.examples(part.path, part.header, classes):
      values = _means(example.values, step)
      yield values[:, 0] if shape == (lengths[0],) else values, example.label

  files = {file: functools.partial(examples, part) for file, part in parts.items()}
  counts = {file: len(part.labels) for file, part in parts.items()}
  if linoss_seed is not None:
    if not fixed:
      raise DataError(f'{paths["train"]} has series of differing lengths, which LinOSS does not split.')
    files, counts = _as_linoss(files, linoss_seed)
  labels = [part.labels for part in parts.values()]
  stratified = classes and 'validation' not in counts
  return builders.Source(
    description=f'{dataset}: a set of the user, from an archive of time series.',
    citation='',
    files=files,
    counts=counts,
    classes=len(classes),
    class_names=classes,
    shape=shape,
    dtype=np.float32,
    statistics=True,
    origin=f'own files {", ".join(path.name for path in paths.values())}',
    verified=False,
    extra={
      'verification': 'none',
      'distinct_labels': len(np.unique(np.concatenate(labels))),
      **({'train_labels': parts['train'].labels.tolist()} if stratified else {}),
    },
  )


def _means(values_LC, step):
  """Returns the means of every `step` positions, the last one of those that are left, float32
  [ceil(L / step), C]."""
  begins = np.arange(0, len(values_LC), step)
  counts = np.diff(begins, append=len(values_LC))[:, None]
  return (np.add.reduceat(values_LC.astype(np.float64), begins) / counts).astype(np.float32)


def _as_linoss(files, seed):
  """Files and counts of the joined examples, split as by LinOSS with this seed."""
  joined = [example for of_file in files.values() for example in of_file()]
  values_NLC = np.stack([values for values, _ in joined])
  split = linoss.split(values_NLC, seed)
  if repeated := len(joined) - sum(map(len, split.values())):
    print(f'{counted(repeated, "repeated example")} left out, as by LinOSS.')
  readers = {
    file: functools.partial(map, joined.__getitem__, positions.tolist()) for file, positions in split.items()
  }
  return readers, {file: len(positions) for file, positions in split.items()}


def prepare_ts(
  data_dir,
  *,
  dataset: str,
  train,
  validation=None,
  test=None,
  linoss_seed: int | None = None,
  longest: int | None = None,
):
  """Imports .ts files.

  Args:
    data_dir: folder for prepared sets.
    dataset: name of the set.
    train: file of the training examples.
    validation: file of validation examples; None: the task of the set takes a share of the training examples.
    test: file of test examples; None: likewise.
    linoss_seed: join `train` and `test` and split them as `sources.linoss` does with this seed.
    longest: the most positions that the longest training series may have; None: as many as in the file.

  Returns:
    The folder of the set.

  Raises:
    MissingFile: there is no such file.
    ConfigError: linoss_seed is given, but the files are not exactly `train` and `test`.
    UserError: as for `ts_files` and `builders.prepare_set`, or the files do not fit together.
  """
  given = {'train': train, 'validation': validation, 'test': test}
  paths = {file: pathlib.Path(path).expanduser() for file, path in given.items() if path is not None}
  if linoss_seed is not None and paths.keys() != {'train', 'test'}:
    raise ConfigError(
      '--linoss_seed joins and splits two files: give --train and --test, and no --validation.'
    )
  for file, path in paths.items():
    if not path.exists():
      raise MissingFile(f'--{file} is {path}, but there is no such file; give the path of a .ts file.')
  request = {
    'from': 'ts',
    'files': {file: verification.digest(path, 'SHA256') for file, path in paths.items()},
    **({'linoss_seed': linoss_seed} if linoss_seed is not None else {}),
    **({'longest': longest} if longest is not None else {}),
  }
  return builders.prepare_set(
    dataset, data_dir, request, lambda work: _load(paths, dataset, linoss_seed, longest)
  )
