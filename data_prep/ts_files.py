"""Files of the UCR, UEA and TSER archives (.ts), read line by line.

Lines that begin with # are comments. Lines `@key value` say what follows, up to `@data`. Then each line is an
example: values separated by commas, channels by colons, and behind the last colon the label
(https://www.aeon-toolkit.org/en/stable/api_reference/file_specifications/ts.html).

A missing value is written ? or NaN. Where all channels end in missing values, the series ends before them,
unless the header says @equalLength true. Other missing values are refused unless the header says
@missing true. They are then filled by linear interpolation within their channel, and at its ends by the
nearest value. A channel without any value is refused.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from data_prep import raw_files
from lra_spt.errors import DataError

LONGEST = 2**26  # bytes of a line, some ten times those of the longest example of the archives


@dataclasses.dataclass(frozen=True)
class Header:
  """The lines of a file before its data.

  Attributes:
    rows: their number, with that of `@data`.
    classes: names of the classes; empty for a regression.
    channels: number of channels, if the header gives it.
    missing: True if values may be missing.
    equal: True if all series have the same length.
  """

  rows: int
  classes: tuple[str, ...]
  channels: int | None
  missing: bool
  equal: bool


@dataclasses.dataclass(frozen=True)
class Example:
  """A series: values float32 [L, C], its label (number of the class, or a real number), and the number of
  values that were missing."""

  values: np.ndarray
  label: int | float
  filled: int


def read_header(path: pathlib.Path) -> Header:
  """Reads the lines of a file up to `@data`.

  Raises:
    DataError: it is no .ts file, has time stamps or no labels, or a line is wrong.
    FileAccessError: it cannot be read.
  """
  header, rows = {}, 0
  for number, row in _rows(path):
    line = row.removeprefix(b'\xef\xbb\xbf').strip()
    if not line or line[:1] in b'#%':
      continue
    key, *words = _text(line, path).split()
    if not key.startswith('@'):
      break
    key = key[1:].lower()
    if key == 'data':
      rows = number
      break
    header[key] = (f'{path}, row {number}: @{key}', words)
  if not rows:
    raise DataError(
      f'{path} has no line @data before its first example, so it is not a .ts file; get it again.'
    )
  if _flag(header, 'timestamps'):
    raise DataError(
      f'{path} has time stamps (@timeStamps true), which are not read; give values without them.'
    )
  return Header(
    rows,
    () if _flag(header, 'targetlabel') else _classes(header, path),
    1 if _flag(header, 'univariate') else _count(header, 'dimensions') or _count(header, 'dimension'),
    _flag(header, 'missing'),
    _flag(header, 'equallength'),
  )


def examples(path: pathlib.Path, header: Header, classes: tuple[str, ...]) -> Iterator[Example]:
  """Yields the examples of a file.

  Args:
    path: the file.
    header: from `read_header`.
    classes: names of the labels 0, 1, ...; empty for a regression.

  Raises:
    DataError: an example is wrong; the message names the row.
  """
  # Readers of the archives ignore case, so files may differ in it.
  alike = str.casefold if len({*map(str.casefold, classes)}) == len(classes) else str
  numbers = {alike(name): number for number, name in enumerate(classes)}
  channels, length = header.channels, None
  for row, line in _rows(path):
    if row <= header.rows or not line.strip() or line.startswith(b'#'):
      continue
    where = f'{path}, row {row},'
    *series, label = _text(line, path).split(':')
    channels = channels or len(series)
    if len(series) != channels or not series:
      raise DataError(
        f'{where} has {len(series)} channels before its label instead of {channels or 1}; correct it.'
      )
    values_LC = _series(series, where)
    if not header.equal:
      values_LC = values_LC[: np.flatnonzero(~np.isnan(values_LC).all(1)).max(initial=-1) + 1]
      if not len(values_LC):
        raise DataError(f'{where} has no values; leave the example out.')
    elif len(values_LC) != (length := length or len(values_LC)):
      raise DataError(
        f'{where} has {len(values_LC):,} values, but earlier ones have {length:,}, and the header says '
        '@equalLength true; correct one of the two.'
      )
    missing = int(np.isnan(values_LC).sum())
    if missing and not header.missing:
      raise DataError(
        f'{where} has missing values, but the header does not say @missing true; write that, and they are '
        'filled by interpolation, or fill them.'
      )
    if missing:
      values_LC = _filled(values_LC, where)
    if not np.isfinite(values_LC).all():
      raise DataError(f'{where} has a value that is not finite, or too large for 32 bits; correct it.')
    yield Example(values_LC, _label(alike(label.strip()), numbers, where), missing)


def _rows(path):
  """Yields (number from 1, line)."""
  with raw_files.opened(path) as file:
    yield from enumerate(raw_files.rows(file, path, LONGEST), start=1)


def _text(line, path):
  try:
    return line.decode('utf-8')
  except UnicodeDecodeError:
    raise DataError(f'{path} is not text, so it is damaged or not a .ts file; get it again.') from None


def _flag(header, key) -> bool:
  where, words = header.get(key, ('', ['false']))
  if not words or words[0].lower() not in ('true', 'false'):
    raise DataError(f'{where} is {raw_files.shown(" ".join(words)) or "empty"}; write true or false.')
  return words[0].lower() == 'true'


def _count(header, key) -> int | None:
  where, words = header.get(key, ('', None))
  if words is None:
    return None
  if len(words) != 1 or not words[0].isdecimal() or not 0 < int(words[0]) < 2**20:
    raise DataError(f'{where} is {raw_files.shown(" ".join(words)) or "empty"}; write a number from 1.')
  return int(words[0])


def _classes(header, path) -> tuple[str, ...]:
  if not _flag(header, 'classlabel'):
    raise DataError(
      f'{path} has no labels: neither @classLabel true nor @targetLabel true is in its header; add labels.'
    )
  where, (_, *names) = header['classlabel']
  if not names or len({*names}) < len(names):
    what = 'names a class twice' if names else 'names no classes'
    raise DataError(f'{where} {what}; write each name once, behind true.')
  return tuple(names)


def _series(series, where):
  """Values of an example with NaN where one is missing, float32 [L, C]."""
  channels = [_numbers(text, f'{where} channel {channel},') for channel, text in enumerate(series, start=1)]
  if len(lengths := {*map(len, channels)}) > 1:
    raise DataError(
      f'{where} has channels of {min(lengths):,} and of {max(lengths):,} values; make them equally long.'
    )
  return np.stack(channels, axis=1)


def _numbers(text, where):
  if not text.strip():
    raise DataError(f'{where} has no values; correct it.')
  try:
    numbers = np.loadtxt([text.replace('?', 'nan')], delimiter=',', comments=None, ndmin=1)
  except ValueError as error:
    reason = raw_files.shown(str(error).partition(' at row')[0])
    raise DataError(f'{where} does not hold only numbers ({reason}); correct it.') from None
  with np.errstate(over='ignore'):
    return numbers.astype(np.float32)


def _filled(values_LC, where):
  places = np.arange(len(values_LC))
  filled_LC = values_LC.copy()
  for channel, values_L in enumerate(values_LC.T):
    there = ~np.isnan(values_L)
    if not there.any():
      raise DataError(f'{where} has no value in channel {channel + 1}; leave the example or the channel out.')
    filled_LC[~there, channel] = np.interp(places[~there], places[there], values_L[there])
  return filled_LC


def _label(text, numbers, where):
  if not numbers:
    try:
      label = float(text)
    except ValueError:
      label = np.nan
    if not abs(label) <= np.finfo(np.float32).max:
      raise DataError(
        f'{where} has the label {raw_files.shown(text) or "nothing"}, which is no number; correct it.'
      )
    return label
  if text not in numbers:
    raise DataError(
      f'{where} has the class {raw_files.shown(text) or "nothing"}, which the header does not name; add it '
      'to @classLabel, or correct it.'
    )
  return numbers[text]
