"""Official archives from the network, several gigabytes each, over unreliable connections.

Downloads use requests with HTTP ranges. pooch and TFDS's manager start from the beginning after every
interruption, which would cost hours for lra_release.gz (7.7 GB). Here the received bytes are in <name>.part,
and the server's identifier of its file is in <name>.part.json. The next attempt requests the rest, on the
condition that the file is still the same. The archive gets its name once size and checksum are right.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import tarfile
import zipfile

import requests
import tqdm

from data_prep import catalogue, finding, verification
from data_prep.official import Archive
from lra_spt import files
from lra_spt.errors import MissingFile, touching

# Largest number of seconds to connect, and of silence after that.
_CONNECT, _SILENCE = 10, 30
# Bytes that are written at once; at most these are lost when a connection breaks.
_BLOCK = 2**16


class _Refused(Exception):
  """The server refuses, or sends another file."""


class _Broken(Exception):
  """The connection ended before the file did."""


def folder_in(data_dir) -> pathlib.Path:
  """The folder of the downloads for the sets in data_dir."""
  return pathlib.Path(data_dir).expanduser() / 'downloads'


def fetch(dataset: str, folder) -> pathlib.Path:
  """Downloads the official archive of a data set unless it exists; resumes an interrupted download.

  Args:
    dataset: a key of `catalogue.SETS`.
    folder: folder of the archive, which keeps its official name; created if missing.

  Returns:
    The folder, for the `raw_dir` of an importer.

  Raises:
    MissingFile: the archive cannot be downloaded (no network, no such file, other bytes). Received bytes stay
      only if they can be resumed.
    InUse: another process is downloading into the folder.
    FileAccessError: the folder cannot be written to, or the disk is full.
  """
  folder, archive = pathlib.Path(folder).expanduser(), catalogue.SETS[dataset].archives[0]
  with files.owned(folder, 'downloading to'):
    if finding.downloaded(dataset, folder):
      return folder
    part = _Part(archive, folder)
    about = '' if archive.sha256 else 'about '
    size = f' ({about}{archive.size / 1e6:,.1f} MB)' if archive.size else ''
    if not part.validator:
      part.forget()
    rest = f', resuming after {part.size / 1e6:,.1f} MB' if part.size else ''
    print(f'Downloading {archive.name}{size} from {archive.url}{rest}.')
    try:
      _download(part)
      _check(part)
      with touching(folder, 'written to'):
        os.replace(part.path, folder / archive.name)
      part.forget()
    except (requests.RequestException, _Broken, _Refused) as error:
      if isinstance(error, _Refused) or not part.validator:
        part.forget()
      resume = 'run the same command again to resume, or ' if part.size else ''
      raise MissingFile(
        f'{archive.name} could not be downloaded from {archive.url} ({_reason(error)}); {resume}get it by '
        'other means, put it into a folder and name that folder with --raw_dir.'
      ) from None
  return folder


def resumable_bytes(archive: Archive, folder: pathlib.Path) -> int:
  """The number of bytes of an interrupted download that the next one can resume."""
  part = _Part(archive, folder)
  return part.size if part.validator else 0


class _Part:
  """The received part of an archive: its bytes, and a note on the file of the server."""

  def __init__(self, archive: Archive, folder: pathlib.Path):
    self.archive = archive
    self.path = folder / f'{archive.name}.part'
    self._note = folder / f'{archive.name}.part.json'

  @property
  def size(self) -> int:
    """Number of received bytes."""
    return self.path.stat().st_size if self.path.exists() else 0

  @property
  def validator(self) -> str:
    """The server's identifier of the file of these bytes; '' if they cannot be resumed."""
    try:
      note = json.loads(self._note.read_text(encoding='utf-8'))
      return note['validator'] if note['url'] == self.archive.url else ''
    except (FileNotFoundError, ValueError, KeyError, TypeError):
      return ''

  def headers(self) -> dict[str, str]:
    """Headers of a request for the rest, on the condition that the file is the same."""
    headers = {'Accept-Encoding': 'identity'}  # ranges count bytes of the unencoded file
    if self.size and (validator := self.validator):
      headers |= {'Range': f'bytes={self.size}-', 'If-Range': validator}
    return headers

  def begin(self, response: requests.Response):
    """Records the identifier of the file. A weak ETag does not promise the same bytes."""
    etag = response.headers.get('ETag', '')
    validator = etag if etag.startswith('"') else response.headers.get('Last-Modified', '')
    if _encoded(response):
      validator = ''
    self.forget()
    files.write_json(self._note, {'url': self.archive.url, 'validator': validator})

  def forget(self):
    """Removes the bytes and the note."""
    for path in (self.path, self._note):
      path.unlink(missing_ok=True)


def _download(part: _Part):
  """Fills the part; requests the rest again as long as every answer adds bytes."""
  furthest = part.size
  while True:
    try:
      with contextlib.closing(
        requests.get(part.archive.url, headers=part.headers(), stream=True, timeout=(_CONNECT, _SILENCE))
      ) as response:
        return _receive(part, response)
    except (requests.RequestException, _Broken):
      if part.size <= furthest:
        raise
      furthest = part.size


def _receive(part, response):
  status = response.status_code
  if status == 416:  # nothing is missing, or the file is shorter now
    if _number(r'bytes \*/(\d+)', response.headers.get('Content-Range')) == part.size:
      return
    raise _Refused('the file on the server has changed since the download began')
  response.raise_for_status()
  if response.headers.get('Content-Type', '').partition(';')[0].strip() == 'text/html':
    raise _Refused('the server sent a web page, not an archive')
  goes_on = status == 206
  if goes_on and _number(r'bytes (\d+)-', response.headers.get('Content-Range')) != part.size:
    raise _Refused('the server sent a different part than was asked for')
  if not goes_on:  # the file changed, or the server has no ranges
    part.begin(response)
  length = _number(r'(\d+)', response.headers.get('Content-Length'))
  total = None if length is None or _encoded(response) else part.size + length
  if part.archive.sha256 and total not in (None, part.archive.size):
    raise _Refused(f'the server offers {total:,} bytes, but the official file has {part.archive.size:,}')
  with (
    touching(part.path, 'written'),
    open(part.path, 'ab') as file,
    tqdm.tqdm(
      total=total, initial=part.size, desc=part.archive.name, unit='B', unit_scale=True,
      disable=not sys.stderr.isatty(),
    ) as bar,
  ):  # fmt: skip
    for block in _blocks(response):
      file.write(block)
      bar.update(len(block))
    file.flush()
    os.fsync(file.fileno())
  if total is not None and part.size < total:
    raise _Broken


def _encoded(response):
  return response.headers.get('Content-Encoding', 'identity') != 'identity'


def _blocks(response):
  """Yields the body in blocks. Errors of the network become _Broken, because they are OSErrors, which
  `touching` takes for errors of a file."""
  try:
    yield from response.iter_content(_BLOCK)
  except requests.RequestException as error:
    raise _Broken(_reason(error)) from error


def _number(pattern, text):
  match = re.match(pattern, text or '')
  return int(match[1]) if match else None


def _check(part):
  """Raises _Refused unless the part is the whole archive."""
  archive = part.archive
  if archive.sha256:
    if part.size != archive.size or verification.digest(part.path, 'SHA256') != archive.sha256:
      raise _Refused('what was downloaded is not the official file')
  # A page that says "sign in" comes with status 200 too.
  elif archive.unpacked and not (tarfile.is_tarfile(part.path) or zipfile.is_zipfile(part.path)):
    raise _Refused('what was downloaded is not an archive')


def _reason(error: Exception) -> str:
  if isinstance(error, requests.HTTPError):
    return f'the server answered with status {error.response.status_code}'
  if isinstance(error, requests.Timeout):
    return 'the server did not answer in time'
  if isinstance(error, (_Broken, requests.exceptions.ChunkedEncodingError)):
    return str(error) if isinstance(error, _Broken) and str(error) else 'the connection broke off'
  if isinstance(error, requests.ConnectionError):
    # urllib3 raises this if a connection falls silent.
    return 'the server did not answer in time' if 'timed out' in str(error) else 'no connection to the server'
  return str(error)
