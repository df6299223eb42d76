"""PPG-DaLiA (Reiss, Indlekofer, Schmidt, Van Laerhoven, Sensors 2019): heart rates in daily life.

https://archive.ics.uci.edu/dataset/495/ppg+dalia holds a pickle for each of 15 subjects, from
PPG_FieldStudy/S1/S1.pkl on, with the signals of a wristband: acceleration in three axes (32 Hz), PPG (`BVP`,
64 Hz), skin conductance and temperature (4 Hz). Labels are heart rates from an ECG, in windows of 8 s that
begin every 2 s.

An example is 780 s of all six signals at 64 Hz, 49,920 positions, and begins every 78 s, as in the code of
Log-NCDE and LinOSS (tk-rusch/linoss at 83e6318, data_dir/process_ppg.py). Slower signals are repeated. Three
things are ours. The label is the mean heart rate of the windows within the example; their code predicts 390
rates. Values are not scaled by the range of each subject. Subjects are kept apart; their code cuts each
subject into training, validation and test parts, at random and without a seed.
"""

import pathlib

import numpy as np
import tqdm

from data_prep import builders, finding, pickles, raw_files, verification
from lra_spt.errors import DataError, MissingFile

SUBJECTS = 15
RATE, LENGTH, STEP = 64, 49_920, 4_992  # samples per second, of an example, and between their beginnings
SIGNALS = {'ACC': (3, 2), 'BVP': (1, 1), 'EDA': (1, 16), 'TEMP': (1, 16)}  # channels, repetitions
WINDOW, SHIFT = 8, 2  # seconds of a heart rate, and between them
MOST = 2**32  # bytes of a file, some four times the largest
DTYPES = ('f8', 'f4', 'i8', 'i4', 'u1')


def read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """One subject: float32 [samples, 6] at 64 Hz, and heart rates float64 [windows].

  Raises:
    DataError: it is no such file; the message says what it holds instead.
  """
  with raw_files.opened(path, MOST) as file:
    try:
      allowed = {'dtypes': DTYPES, 'kind': 'numbers', 'files': 'PPG-DaLiA'}
      content = pickles.load(file, path.stat().st_size, **allowed)
      wrist = _item(_item(content, 'signal'), 'wrist')
      signals = [_numbers(wrist, name, channels) for name, (channels, _) in SIGNALS.items()]
      rates = _numbers(content, 'label', 1)[:, 0]
    except ValueError as error:
      raise DataError(f'{path} is not a file of PPG-DaLiA ({error}); get it again.') from None
  repeated = [np.repeat(x, times, axis=0) for x, (_, times) in zip(signals, SIGNALS.values(), strict=True)]
  lengths = [len(x) for x in repeated]
  if max(lengths) - min(lengths) > WINDOW * RATE:
    seconds = ', '.join(f'{name} {length // RATE:,}' for name, length in zip(SIGNALS, lengths, strict=True))
    raise DataError(f'{path} has signals of differing length, in seconds {seconds}; get it again.')
  return np.concatenate([x[: min(lengths)] for x in repeated], axis=1).astype(np.float32), rates


def _item(content, name):
  if not isinstance(content, dict):
    raise ValueError(f'there is no {name} in it')
  item = content.get(name, content.get(name.encode()))
  if item is None:
    raise ValueError(f'there is no {name} in it')
  return item


def _numbers(content, name, channels):
  """Finite numbers [N, channels]."""
  array = getattr(_item(content, name), 'array', None)
  whole = array is not None and array.ndim and array.size and array.dtype.itemsize >= 4
  if not whole or array.size != len(array) * channels:
    raise ValueError(f'its {name} is no array of real numbers in {channels} channels')
  array = array.reshape(-1, channels).astype(np.float64)
  if not np.isfinite(array).all():
    raise ValueError(f'its {name} has a number that is not finite')
  return array


def examples(values: np.ndarray, rates: np.ndarray):
  """Yields (float32 [49920, 6], mean heart rate) of one subject, from the results of `read`."""
  for start in range(0, len(values) - LENGTH + 1, STEP):
    second = start // RATE
    first, end = -(-second // SHIFT), (second + LENGTH // RATE - WINDOW) // SHIFT + 1
    if end > len(rates):
      return
    yield values[start : start + LENGTH], float(rates[first:end].mean())


def _load(paths):
  subjects = [read(path) for path in tqdm.tqdm(paths, desc='reading subjects', disable=None)]
  sizes = [sum(1 for _ in examples(*subject)) for subject in subjects]
  if not all(sizes):
    raise DataError(f'{paths[sizes.index(0)]} has less than {LENGTH // RATE} s; get it again.')

  def of_all():
    for subject in subjects:
      yield from examples(*subject)

  return builders.Source(
    description='PPG-DaLiA: mean heart rate from 780 s of a wristband.',
    citation='Reiss et al., Deep PPG: Large-Scale Heart Rate Estimation, Sensors 19(14), 2019.',
    files={'train': of_all},
    counts={'train': sum(sizes)},
    classes=0,
    shape=(LENGTH, sum(channels for channels, _ in SIGNALS.values())),
    dtype=np.float32,
    groups={'train': sizes},
    statistics=True,
    origin=f'files {", ".join(path.name for path in paths)}',
    verified=False,
    extra={'verification': 'none'},
  )


def prepare_ppg_dalia(
  data_dir, *, raw_dir=None, accept_unverified: bool = False, accept_incomplete: bool = False
):
  """Imports PPG-DaLiA.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: folder of the files S1.pkl to S15.pkl, or of PPG_FieldStudy.
    accept_unverified: import them although no official checksums are known.
    accept_incomplete: import those that are there.

  Returns:
    The folder of the set, whose groups are the subjects.

  Raises:
    MissingFile: a file is missing.
    UserError: as for `read` and `builders.prepare_set`, or files are not accepted.
  """
  raw = pathlib.Path(raw_dir).expanduser()
  raw = raw / 'PPG_FieldStudy' if (raw / 'PPG_FieldStudy').is_dir() else raw
  files = {f'S{n}.pkl': finding.file(raw, f'S{n}.pkl') for n in range(1, SUBJECTS + 1)}
  paths = [path for path in files.values() if path]
  missing = [name for name, path in files.items() if not path]
  if missing and not (paths and accept_incomplete):
    raise MissingFile(
      f'{raw} lacks {", ".join(missing)}; unpack https://archive.ics.uci.edu/dataset/495/ppg+dalia there, or '
      'pass --accept_incomplete to use what there is.'
    )
  for path in paths:
    verification.check(path, None, accept_unverified)  # no official checksums are known
  request = {'from': 'files', 'subjects': [path.stem for path in paths]}
  return builders.prepare_set('ppg_dalia', data_dir, request, lambda work: _load(paths))
