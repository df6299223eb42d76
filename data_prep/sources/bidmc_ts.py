"""BIDMC as the windows of the TSER archive (Tan, Bergmeir, Petitjean, Webb, 2021): text files of about 1 GB.

A .ts file has header lines that begin with @ (or comments, #), the last of them `@data`. Then follows one
line per window, `PPG samples:ECG samples:label`, with samples separated by commas. Nothing says which
recording or patient a window is from.
"""

import pathlib

import numpy as np

from data_prep import builders, finding, official, raw_files, verification
from lra_spt.errors import DataError, MissingFile

PARTS = ('TRAIN', 'TEST')
RECORDS = official.BIDMC_RECORDS
DIMENSIONS = 2
# Largest number of bytes of a file (some 500 MB) and of a row (8,000 samples).
MOST, LONGEST = 2**33, 2**20
ADVICE = 'the files BIDMC32{HR,RR,SpO2}_{TRAIN,TEST}.ts of ' + ', '.join(
  f'https://zenodo.org/records/{record} ({target})' for target, record in RECORDS.items()
)


def find(raw_dir, targets) -> dict[str, list[pathlib.Path]]:
  """{target: (training file, test file)} of the targets with files in raw_dir or a folder of it.

  Raises:
    MissingFile: a target has only one file.
  """
  files = {}
  for target in targets if raw_dir is not None else ():
    names = [f'BIDMC32{target}_{part}.ts' for part in PARTS]
    raw = pathlib.Path(raw_dir).expanduser()
    paths = [path for name in names if (path := finding.file(raw, name))]
    if len(paths) == 1:
      raise MissingFile(
        f'{raw} has {paths[0].name} only; get {" and ".join(names)} from '
        f'https://zenodo.org/records/{RECORDS[target]}.'
      )
    if paths:
      files[target] = paths
  return files


def rows(path: pathlib.Path):
  """Yields (row from 1, line) of the windows in a .ts file.

  Raises:
    DataError: it is another file or damaged.
  """
  data = False
  with raw_files.opened(path, MOST) as file:
    try:
      for number, row in enumerate(raw_files.rows(file, path, LONGEST), start=1):
        line = row.decode('ascii').strip()
        if data and line:
          yield number, line
        elif line and line[0] not in '@#':
          break
        data = data or line.lower() == '@data'
    except UnicodeDecodeError:
      raise DataError(f'{path} is not text, so it is damaged or not a .ts file; get it again.') from None
  if not data:
    raise DataError(
      f'{path} has no line @data before its first window, so it is not a .ts file; get it again.'
    )


def parse_row(line: str, window: int, where: str) -> tuple[np.ndarray, float]:
  """A window and its label.

  Returns:
    float32 [window, 2], and a finite number.

  Raises:
    DataError: the number of dimensions or samples differs, or a sample or the label is no finite number; the
      message begins with `where`.
  """
  *series, label = line.split(':')
  if len(series) != DIMENSIONS:
    raise DataError(
      f'{where}, has {len(series) + 1} parts between colons instead of {DIMENSIONS} dimensions and a label; '
      'get the file again.'
    )
  samples = [
    _numbers(text, window, f'{where}, dimension {channel + 1},') for channel, text in enumerate(series)
  ]
  return np.stack(samples, axis=1), float(_numbers(label, 1, f'{where}, the label,')[0])


def _numbers(text, count, where):
  actual = text.count(',') + 1 if text.strip() else 0
  if actual != count:
    raise DataError(f'{where} has {actual:,} numbers instead of {count:,}; get the file again.')
  try:
    numbers = np.loadtxt([text], np.float32, delimiter=',', comments=None, ndmin=1)
  except ValueError as error:
    raise DataError(f'{where} does not hold only numbers ({error}); get the file again.') from None
  if not np.isfinite(numbers).all():
    raise DataError(f'{where} has a number that is not finite; get the file again.')
  return numbers


def load(paths, target, window, official, accept, citation) -> builders.Source:
  """The source of one target: the training windows, then the test windows, as the published split has it.

  Args:
    paths: training and test file.
    target: 'HR', 'RR' or 'SpO2'.
    window: samples.
    official: {target: windows} of the two files, as far as known.
    accept: accept_unverified, which must be True because these files have no known checksums, and
      accept_incomplete.
    citation: citation of the recordings.

  Raises:
    DataError: `accept_unverified` is False, or see `rows` and, while windows are read, `parse_row`.
  """
  names = ' and '.join(path.name for path in paths)
  if not accept['accept_unverified']:
    raise DataError(
      f'{names} cannot be verified because their checksums are not known here; give the recordings of '
      'PhysioNet instead, or pass --accept_unverified to use them as they are.'
    )
  counts = [sum(1 for _ in rows(path)) for path in paths]
  if not all(counts):
    raise DataError(f'{paths[counts.index(0)]} has no windows; get it again.')
  if target in official:
    verification.check_counts(names, {target: sum(counts)}, {target: official[target]}, **accept)

  def examples():
    for path in paths:
      for number, line in rows(path):
        yield parse_row(line, window, f'{path}, row {number}')

  return builders.Source(
    description=f'Windows of PPG and ECG (TSER, BIDMC32{target}) with the mean {target} in each.',
    citation=f'{citation} Tan et al., Time Series Extrinsic Regression, DMKD 35, 2021.',
    files={'train': examples},
    counts={'train': sum(counts)},
    classes=0,
    shape=(window, DIMENSIONS),
    dtype=np.float32,
    origin=f'files {names}',
    verified=False,
    extra={'verification': 'none'},
  )
