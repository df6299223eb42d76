"""The official archives: where they are, how large, which checksums; what a folder has of them; downloads.

TFDS's download manager downloads, so sizes and SHA-256 are verified while the bytes arrive. What it is
not made for happens here: an archive gets its official name, nothing half-written stays, and a machine
without a network hears so at once.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import sys
import tarfile
import threading
import warnings
import zipfile

import requests

from data_prep import builders
from lra_spt.errors import MissingFile

with warnings.catch_warnings():
  warnings.simplefilter('ignore', DeprecationWarning)  # raised inside the imported packages
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core.download import checksums, download_manager, downloader


@dataclasses.dataclass(frozen=True)
class Archive:
  """An official file.

  Attributes:
    name: of the file.
    url: where it is.
    size: bytes; exact if `sha256` is known, otherwise about, or None.
    sha256: its checksum in hex; None where nobody publishes one: then a download cannot be verified.
    unpacked: the folder unpacked from it that holds what is imported; '' of a file that is no archive.
    sign: pattern of files that tell such a folder when it has another name.
    members_known: importers know checksums of the files in that folder.
  """

  name: str
  url: str
  size: int | None
  sha256: str | None = None
  unpacked: str = ''
  sign: str = ''
  members_known: bool = False


_IMDB = Archive(
  name='aclImdb_v1.tar.gz',
  url='https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz',
  size=84_125_825,
  sha256='c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe',
  unpacked='aclImdb',
  sign='train/pos',
)
# Of every data set; the first is the one that is downloaded. Checksums and exact sizes are those that TFDS
# ships, of cifar-10-python.tar.gz those of Keras. LRA publishes none, PhysioNet those of the single files.
ARCHIVES = {
  'text': (_IMDB,),
  'text_2048': (_IMDB,),
  'cifar10': (
    Archive(
      name='cifar-10-binary.tar.gz',
      url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
      size=170_052_171,
      sha256='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
      unpacked='cifar-10-batches-bin',
      sign='test_batch.bin',
    ),
    Archive(
      name='cifar-10-python.tar.gz',
      url='https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz',
      size=170_498_071,
      sha256='6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce',
      unpacked='cifar-10-batches-py',
      sign='test_batch',
      members_known=True,
    ),
  ),
  'speech_commands': (
    Archive(
      name='speech_commands_v0.02.tar.gz',
      url='https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz',
      size=2_428_923_189,
      sha256='af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58',
      unpacked='speech_commands_v0.02',
      sign='testing_list.txt',
    ),
  ),
  'retrieval': (
    Archive(
      name='lra_release.gz',
      url='https://storage.googleapis.com/long-range-arena/lra_release.gz',
      size=7_700_000_000,
      unpacked='tsv_data',
      sign='new_aan_pairs.*.tsv',
    ),
  ),
  'bidmc': (
    Archive(
      name='bidmc-ppg-and-respiration-dataset-1.0.0.zip',
      url='https://physionet.org/static/published-projects/bidmc/bidmc-ppg-and-respiration-dataset-1.0.0.zip',
      size=218_000_000,
      unpacked='bidmc_csv',
      sign='bidmc_*_Signals.csv',
      members_known=True,
    ),
    *(
      Archive(
        name=f'BIDMC32{target}_{part}.ts',
        url=f'https://zenodo.org/records/{record}/files/BIDMC32{target}_{part}.ts',
        size=None,
      )
      for target, record in (('HR', 4001456), ('RR', 4001463), ('SpO2', 4001464))
      for part in ('TRAIN', 'TEST')
    ),
  ),
}
# Seconds until a connection must stand, and that it may then be silent.
_CONNECT, _SILENCE = 10, 30


def folder_in(data_dir) -> pathlib.Path:
  """Where the downloads for the sets in data_dir go."""
  return pathlib.Path(data_dir).expanduser() / 'downloads'


def find(dataset: str, folder) -> Archive | None:
  """The first official archive of a data set that lies in a folder under its name, or None."""
  folder = pathlib.Path(folder).expanduser()
  return next((archive for archive in ARCHIVES[dataset] if (folder / archive.name).is_file()), None)


def locate(dataset: str, raw_dir) -> tuple[pathlib.Path, Archive] | None:
  """What there is of a data set in a folder: an official archive, else a folder unpacked from one.

  Args:
    dataset: a key of `ARCHIVES`.
    raw_dir: holds the archive, or the unpacked folder (perhaps in a folder in a folder), or is it; or None.

  Returns:
    the path of the archive or folder, and the archive; None if there is neither.
  """
  if raw_dir is None:
    return None
  raw = pathlib.Path(raw_dir).expanduser()
  packed = [archive for archive in ARCHIVES[dataset] if archive.unpacked]
  plain = [archive for archive in ARCHIVES[dataset] if not archive.unpacked]
  # Of folders those come first whose files can be verified.
  folders = sorted(packed, key=lambda archive: not archive.members_known)
  places = itertools.chain(
    ((raw / archive.name, archive) for archive in packed if (raw / archive.name).is_file()),
    ((folder, archive) for archive in folders for folder in _folders(raw, archive)),
    ((raw / archive.name, archive) for archive in plain if (raw / archive.name).is_file()),
  )
  return next(places, None)


def _folders(raw, archive):
  if raw.is_dir() and (raw.name == archive.unpacked or any(raw.glob(archive.sign))):
    yield raw
  for depth in ('', '*/', '*/*/'):
    yield from (path for path in sorted(raw.glob(depth + archive.unpacked)) if path.is_dir())


def require(dataset: str, raw_dir) -> tuple[pathlib.Path, Archive]:
  """What `locate` finds.

  Raises:
    FileNotFoundError: there is none; says what to do.
  """
  found = locate(dataset, raw_dir)
  if found is None:
    wrong = f'{raw_dir} holds nothing of {dataset!r}' if raw_dir else f'{dataset!r} cannot be generated'
    raise MissingFile(f'{wrong}: {advice(dataset)}.')
  return found


def advice(dataset: str) -> str:
  """How to come by the files of a data set, as a part of a sentence."""
  packed = [archive for archive in ARCHIVES[dataset] if archive.unpacked]
  archives = ' or '.join(f'{archive.name} ({archive.url})' for archive in packed)
  folders = ' or '.join(archive.unpacked for archive in packed)
  return f'put {archives}, or the folder {folders} unpacked from it, into a folder and name it with --raw_dir'


def fetch(dataset: str, folder) -> pathlib.Path:
  """Downloads the official archive of a data set unless it is there already.

  Args:
    dataset: a key of `ARCHIVES`.
    folder: where the archive goes, under its official name; made if missing.

  Returns:
    folder, for an importer's `raw_dir`.

  Raises:
    FileNotFoundError: the archive cannot be had from here (no network, no such file, not the official
      bytes); says which file from where, and what to do. Nothing of it is left.
    ValueError: another process is downloading into the folder.
  """
  folder, archive = pathlib.Path(folder).expanduser(), ARCHIVES[dataset][0]
  with builders.alone(folder, 'downloading to'):
    if find(dataset, folder):
      return folder
    about = '' if archive.sha256 else 'about '
    print(f'Downloading {archive.name} ({about}{archive.size / 1e6:,.1f} MB) from {archive.url}.')
    work = folder / 'unfinished'
    shutil.rmtree(work, ignore_errors=True)
    try:
      os.replace(_download(archive, work), folder / archive.name)
    except (requests.RequestException, _NotOfficial) as error:
      raise MissingFile(
        f'{archive.name} could not be downloaded from {archive.url} ({_reason(error)}); get it by other '
        'means, put it into a folder and name that folder with --raw_dir.'
      ) from None
    finally:
      shutil.rmtree(work, ignore_errors=True)
  return folder


class _NotOfficial(Exception):
  """What came is not the file that was asked for."""


def _download(archive: Archive, work: pathlib.Path) -> pathlib.Path:
  """Downloads into a folder; returns the path, which has a name of TFDS's making."""
  expected = {}
  if archive.sha256:
    expected[archive.url] = checksums.UrlInfo(archive.size, archive.sha256, archive.name)
  tfds.display_progress_bar(sys.stderr.isatty())
  try:
    with _impatient():
      manager = tfds.download.DownloadManager(download_dir=work, url_infos=expected)
      path = pathlib.Path(manager.download(archive.url))
  except download_manager.NonMatchingChecksumError:
    raise _NotOfficial('what came is not the official file') from None
  finally:
    tfds.disable_progress_bar()
  # A page that says "sign in" comes with status 200 too.
  if not archive.sha256 and not (tarfile.is_tarfile(path) or zipfile.is_zipfile(path)):
    raise _NotOfficial('what came is not an archive')
  return path


@contextlib.contextmanager
def _impatient():
  """Makes TFDS's downloader give up in seconds, and stop with us.

  Its own way to open an address tries ten times with growing pauses (minutes until one hears that there is no
  network), waits for ever on a silent connection, and reads on in its thread after an interruption.
  """
  ended = threading.Event()

  @contextlib.contextmanager
  def open_url(url, verify=True):
    with requests.get(url, stream=True, timeout=(_CONNECT, _SILENCE), verify=verify) as response:
      response.raise_for_status()
      yield response, itertools.takewhile(lambda block: not ended.is_set(), response.iter_content(2**16))

  original, downloader._open_url = downloader._open_url, open_url
  try:
    yield
  finally:
    ended.set()
    downloader._open_url = original


def _reason(error: Exception) -> str:
  if isinstance(error, requests.HTTPError):
    return f'the server answers with status {error.response.status_code}'
  if isinstance(error, requests.Timeout):
    return 'the server does not answer in time'
  if isinstance(error, requests.exceptions.ChunkedEncodingError):
    return 'the connection broke off'
  if isinstance(error, requests.ConnectionError):
    return 'no connection to the server'
  return str(error)
