"""BIDMC: heart rate, respiratory rate and SpO2 from 32 s of PPG and ECG (Pimentel et al., 2017).

Three sets, `bidmc_hr`, `bidmc_rr` and `bidmc_spo2`, from one of two official sources: PhysioNet's recordings
as CSV files (here), or the windows that the TSER archive cut from them (`bidmc_ts`). Both hold samples as in
the files, about 0 to 1 (PPG up to 4.0, ECG from -0.5 to 1.5); a task normalises them.

There are 53 recordings of 8 minutes, from 46 patients; the patients are named in the recordings' Fix files
but not in TSER's windows. A window of 32 s begins every 3 s. Its label is the mean of the window's readings
(one per second). This agrees with the rows of TSER that we could compare (two, of RR). A window whose
readings are all missing or 0 has no label and is left out. This gives 7,950 windows for HR and SpO2, and
7,871 for RR. TSER has 7,949 and 7,870; we do not know which window it lacks.
"""

import contextlib
import functools
import hashlib
import io
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tqdm

from data_prep import builders, catalogue, finding, raw_files, verification, zips
from data_prep.sources import bidmc_ts
from lra_spt.errors import DataError, MissingFile, touching

FOLDER = catalogue.SETS['bidmc'].archives[0].unpacked
# SHA-256 of the lines of PhysioNet's SHA256SUMS.txt (version 1.0.0) for the Signals and Numerics files, in
# the order of their names.
CHECKSUMS_SHA256 = '30476b443504dee87407ee36614708212e45446f4bed126e4ec377646a6432e0'
NUMBERS = range(1, 54)
# Recordings with the same "MIMIC II matched wdb ID" in their Fix files: s03386, s11342 and s25323.
SAME_PATIENT = (range(6, 10), range(20, 24), range(38, 40))
RATE = 125  # samples per second
WINDOW = 4000
STRIDE = 375
CHANNELS = ('PLETH', 'II')  # PPG, and the lead of the ECG that every recording has
READINGS = {'HR': 'HR', 'RR': 'RESP', 'SpO2': 'SpO2'}  # columns of the Numerics files
SETS = dict(zip(catalogue.SETS['bidmc'].sets, READINGS, strict=True))
# Number of official windows of WINDOW every STRIDE that have a label.
OFFICIAL = {'HR': 7_950, 'RR': 7_871, 'SpO2': 7_950}
CITATION = (
  'Pimentel et al., Towards a Robust Estimation of Respiratory Rate from Pulse Oximeters, IEEE TBME 64(8), '
  '2017; Goldberger et al., PhysioBank, PhysioToolkit, and PhysioNet, Circulation 101(23), 2000.'
)
_NAME = re.compile(r'bidmc_(\d\d)_(Signals|Numerics)\.csv', flags=re.ASCII)
_KINDS = ('Numerics', 'Signals')  # the files of a recording, in the order of their names
# Largest number of bytes of a file (3 MB) and of a row (some 60).
MOST, LONGEST = 2**24, 2**12


class Recording(NamedTuple):
  """A recording.

  Attributes:
    signals: float32 [samples, 2].
    readings: {target: float64 [seconds]}; NaN for a missing one.
  """

  number: int
  signals: np.ndarray
  readings: Mapping[str, np.ndarray]


def find(raw_dir) -> pathlib.Path | None:
  """The official archive, or the folder with the CSV files, in raw_dir; None if it has neither."""
  path, archive = finding.locate('bidmc', raw_dir) or (None, None)
  return path if path and archive.unpacked else None


@contextlib.contextmanager
def _open(path):
  """{file name: function that reads it} of a folder or of the packed archive."""
  if path.is_dir():
    with touching(path, 'read'):
      names = [entry.name for entry in path.iterdir() if _NAME.fullmatch(entry.name)]
    yield {name: functools.partial(raw_files.read, path / name, MOST) for name in names}
    return
  with contextlib.ExitStack() as stack:
    with zips.naming_damage(f'{path} is not a readable zip archive'):
      archive = stack.enter_context(zips.opened(path))
    files = {}
    for info in archive.infolist():
      inside = pathlib.PurePosixPath(info.filename)
      if inside.parent.name == FOLDER and _NAME.fullmatch(inside.name):
        if inside.name in files:
          raise DataError(f'{path} holds {FOLDER}/{inside.name} twice; get it again.')
        files[inside.name] = functools.partial(_read_member, archive, info, f'{path}/{inside.name}')
    yield files


def _read_member(archive, info, where):
  with zips.naming_damage(f'{where} is not readable'), zips.member(archive, info, where, MOST) as content:
    return content.read()


def read_recordings(
  path: pathlib.Path, accept_unverified: bool, accept_incomplete: bool
) -> tuple[Sequence[Recording], bool]:
  """The recordings by number, and True if they are the official ones.

  Args:
    path: from `find`.
    accept_unverified: also take files that are not the official ones.
    accept_incomplete: also take fewer than all recordings, those that have both files.

  Raises:
    MissingFile: a file is missing and that is not accepted, or there are no recordings.
    DataError: a file is damaged or inconsistent (the message names the row), or not the official one.
  """
  with _open(path) as files:
    names = {number: [f'bidmc_{number:02d}_{kind}.csv' for kind in _KINDS] for number in NUMBERS}
    present = [number for number in NUMBERS if names[number][0] in files and names[number][1] in files]
    if not present:
      raise MissingFile(f'{path} lacks all recordings; get it again.')
    missing = [name for pair in names.values() for name in pair if name not in files]
    if missing and not accept_incomplete:
      raise MissingFile(
        f'{path} lacks {", ".join(missing[:6])}{", ..." * (len(missing) > 6)}; get it again, or pass '
        '--accept_incomplete to use the recordings that have both files.'
      )
    digest, recordings = hashlib.sha256(), []
    for number in tqdm.tqdm(present, desc='reading BIDMC', unit=' recordings', disable=None, mininterval=0.5):
      contents = []
      for name in names[number]:
        contents.append(files[name]())
        digest.update(f'{hashlib.sha256(contents[-1]).hexdigest()} {FOLDER}/{name}\n'.encode())
      recordings.append(parse_recording(number, *contents, str(path)))
  verified = digest.hexdigest() == CHECKSUMS_SHA256
  if not (verified or accept_unverified):
    raise DataError(
      f'The recordings in {path} are not the official ones: their checksums differ from those in '
      "PhysioNet's SHA256SUMS.txt; get them again, or pass --accept_unverified to use them as they are."
    )
  return recordings, verified


def parse_recording(number: int, numerics: bytes, signals: bytes, where: str) -> Recording:
  """A recording from the content of its two files.

  Raises:
    DataError: a column is missing, a cell is no number, the sampling rate differs, or readings end before the
      signals; the message names the file and the row.
  """
  names = {kind: f'{where}/bidmc_{number:02d}_{kind}.csv' for kind in _KINDS}
  time, *samples = _columns(signals, ('Time [s]', *CHANNELS), names['Signals'])
  samples_LC = np.stack(samples, axis=1)
  _complain(~np.isfinite(samples_LC).all(axis=1), names['Signals'], 'has a sample that is not finite')
  # Times have a few digits only: beyond 100 s they are rounded to hundredths.
  wrong = ~(np.abs(time - np.arange(len(time)) / RATE) < 0.0051)
  _complain(
    wrong, names['Signals'], f'is not at the time that {RATE} samples a second, from 0 s on, would have'
  )

  second, *columns = _columns(numerics, ('Time [s]', *READINGS.values()), names['Numerics'])
  # One recording begins a second early, at -1.
  first = min(np.floor(second[0]), 0.0)
  wrong = second != first + np.arange(len(second))
  _complain(wrong, names['Numerics'], 'does not follow one second after the row before, from 0 s on')
  readings_SK = np.stack(columns, axis=1)
  wrong = (readings_SK < 0) | np.isinf(readings_SK)
  _complain(wrong.any(axis=1), names['Numerics'], 'has a reading that is negative or infinite')
  readings_SK = readings_SK[int(-first) :]
  if len(readings_SK) < len(time) // RATE:
    raise DataError(
      f'{names["Numerics"]} has readings of {len(readings_SK)} s, but the signals last '
      f'{len(time) // RATE} s; get it again.'
    )
  readings = dict(zip(READINGS, readings_SK.T, strict=True))
  return Recording(number, samples_LC.astype(np.float32), readings)


def _columns(content, wanted, where):
  """The named columns, float64 [len(wanted), rows]; their order differs between recordings."""
  rows = raw_files.rows(io.BytesIO(content), where, LONGEST)
  lines = [row.decode('latin-1').rstrip('\r\n') for row in rows]
  header = [name.strip() for name in lines[0].split(',')] if lines else []
  missing = [name for name in wanted if name not in header]
  if missing:
    has = raw_files.shown(', '.join(header)) if header else 'no columns'
    raise DataError(f'{where} has no column {", ".join(missing)}; it has {has}; get it again.')
  if not any(lines[1:]):
    raise DataError(f'{where} has no rows; get it again.')
  indices = [header.index(name) for name in wanted]
  try:
    return np.loadtxt(lines[1:], delimiter=',', comments=None, usecols=indices, ndmin=2).T
  except ValueError as error:
    _complain([not _numbers(line, indices) for line in lines[1:]], where, 'has cells that are not numbers')
    raise DataError(f'{where} is not a table of numbers ({error}); get it again.') from None


def _numbers(line, indices):
  cells = line.split(',')
  try:
    return not line or [float(cells[index]) for index in indices]
  except (ValueError, IndexError):
    return False


def _complain(wrong, where, what):
  """Raises a DataError if a row is wrong; row 1 is the header."""
  if np.any(wrong):
    raise DataError(f'{where}, row {int(np.argmax(wrong)) + 2}, {what}; get it again.')


def cut(samples: int, readings: np.ndarray, window: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
  """The windows of a recording that have a label.

  Args:
    samples: number of samples of the recording.
    readings: one for each whole second, [seconds]; NaN for a missing one.
    window, stride: in samples; the stride is whole seconds.

  Returns:
    First samples, int [windows], and labels, float32 [windows].
  """
  starts = np.arange(0, samples - window + 1, stride)
  # The samples may end shortly after the beginning of a second whose reading is missing.
  readings = np.append(readings, np.nan)
  seconds = np.lib.stride_tricks.sliding_window_view(readings, -(-window // RATE))[starts // RATE]
  sums = np.nansum(seconds, axis=1)
  labelled = sums > 0
  counts = np.count_nonzero(~np.isnan(seconds[labelled]), axis=1)
  return starts[labelled], (sums[labelled] / counts).astype(np.float32)


def patient(number: int) -> int:
  """The number of the first recording of the same patient."""
  return next((same[0] for same in SAME_PATIENT if number in same), number)


def source(
  path: pathlib.Path,
  recordings: Sequence[Recording],
  verified: bool,
  target: str,
  *,
  window: int,
  stride: int,
  averaged: int = 1,
  official: Mapping[str, int],
  accept: Mapping[str, bool],
) -> builders.Source:
  """The windows of recordings as the source of a set.

  Args:
    path, recordings, verified: from `find` and `read_recordings`.
    target: a key of `READINGS`.
    window, stride: samples; see `cut`.
    averaged: number of samples whose mean is a position; divides the window.
    official: {target: number of windows of the official recordings}; empty if unknown.
    accept: accept_unverified and accept_incomplete, for `verification.check_counts`.

  Raises:
    DataError: a recording is shorter than a window, no window has a label, or the number of windows differs.
  """
  windows, patients, possible, silent = [], {}, 0, 0
  for recording in recordings:
    samples = len(recording.signals)
    if samples < window:
      raise DataError(
        f'Recording {recording.number} in {path} has {samples:,} samples, but a window has {window:,}; '
        'get it again.'
      )
    starts, labels = cut(samples, recording.readings[target], window, stride)
    windows += [(recording.signals, *item) for item in zip(starts.tolist(), labels.tolist(), strict=True)]
    whose = patient(recording.number)
    patients[whose] = patients.get(whose, 0) + len(starts)
    possible += 1 + (samples - window) // stride
    silent += not len(starts)
  if not windows:
    raise DataError(
      f'{path} has no usable reading of {target}: column {READINGS[target]} of its {len(recordings)} '
      'recordings is empty or 0 throughout, so no window has a label; give recordings with readings.'
    )

  def examples():
    for signals_LC, start, label in windows:
      window_LC = signals_LC[start : start + window]
      yield window_LC.reshape(-1, averaged, len(CHANNELS)).mean(1) if averaged > 1 else window_LC, label

  if official:
    verification.check_counts(path, {target: len(windows)}, {target: official[target]}, **accept)
  left_out, form = possible - len(windows), f'{RATE / averaged:g} Hz, {window / RATE:g} s'
  return builders.Source(
    description=f'Windows of PPG and ECG ({form}) with the mean {target} in each.',
    citation=CITATION,
    files={'train': examples},
    counts={'train': len(windows)},
    classes=0,
    shape=(window // averaged, len(CHANNELS)),
    dtype=np.float32,
    groups={'train': [count for count in patients.values() if count]},
    origin=f'files {path.name}: {len(recordings)} recordings of {len(patients)} patients, {left_out} '
    f'unlabelled windows left out{f" (no label in {silent} of the recordings)" if silent else ""}',
    verified=verified,
    extra={
      'recordings': [recording.number for recording in recordings],
      'left_out': left_out,
      'verification': 'SHA256' if verified else 'none',
    },
  )


def prepare_bidmc(
  data_dir,
  *,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  window: int = WINDOW,
  stride: int = STRIDE,
) -> list[pathlib.Path]:
  """Imports BIDMC, from PhysioNet's recordings or else from TSER's files.

  Every set has one file of examples ('train'): float32 [window, 2], PPG and ECG, and a real label in beats or
  breaths a minute, or per cent. Windows of the recordings are in their order, and the set's groups are the
  patients; TSER's windows have no groups, so they can be split at random only, as published.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: the folder of CSV files; or a folder that holds it, or the official archive, or the .ts files of
      TSER (of one target or more, also in folders of their own).
    accept_unverified: import files that are not the official ones, or cannot be verified.
    accept_incomplete: import fewer than all recordings or windows.
    window, stride: samples; whole seconds.

  Returns:
    The folders of the sets.

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message says where to get a missing file.
  """
  if window % RATE or stride % RATE or min(window, stride) < 1:
    raise DataError(f'Windows of {window} samples every {stride} are not whole seconds of {RATE} samples.')
  accept = {'accept_unverified': accept_unverified, 'accept_incomplete': accept_incomplete}
  path = find(raw_dir)
  files = bidmc_ts.find(raw_dir, SETS.values()) if path is None else {}
  request = {'from': 'PhysioNet', 'window': window, 'stride': stride}
  if files:
    request = {'from': 'TSER', 'window': window}

  @functools.cache
  def sources():
    """All of them, so that a target without windows is noticed before any set is written."""
    if files:
      # TSER has one window less, of each.
      official = {target: count - 1 for target, count in OFFICIAL.items()} if window == WINDOW else {}
      return {t: bidmc_ts.load(files[t], t, window, official, accept, CITATION) for t in files}
    if path is None:
      raise MissingFile(f'BIDMC cannot be generated: {finding.advice("bidmc")}; or {bidmc_ts.ADVICE}.')
    cut = {'window': window, 'stride': stride}
    official = OFFICIAL if (window, stride) == (WINDOW, STRIDE) else {}
    read = read_recordings(path, **accept)
    return {t: source(path, *read, t, **cut, official=official, accept=accept) for t in READINGS}

  return [
    builders.prepare_set(dataset, data_dir, request, lambda work, target=target: sources()[target])
    for dataset, target in SETS.items()
    if not files or target in files
  ]
