"""What preparing a set would take: files, examples, space on the disk, time. For `prepare --dry_run`."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Mapping

from data_prep import downloads
from lra_spt.data import storage
from lra_spt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Cost:
  """What one example costs.

  Attributes:
    counts: examples per file of the published set.
    stored: bytes in the prepared set, which is compressed.
    seconds: of reading it from the official files, if it comes from these, and writing it, by one process.
    drawn: seconds of generating it, which cores share.
    unfinished: bytes that are kept on the disk until the set is written.
  """

  counts: Mapping[str, int]
  stored: int
  seconds: float
  drawn: float = 0.0
  unfinished: int = 0


_IMDB = {'train': 25_000, 'test': 25_000}
_LISTOPS = {'train': 96_000, 'validation': 2_000, 'test': 2_000}
_PAIRS = {'train': 147_086, 'validation': 18_090, 'test': 17_437}
_CLIPS = {'train': 84_843, 'validation': 9_981, 'test': 11_005}
_IMAGES = {'train': 200_000}
# Processor time on one core of an AMD EPYC (2 cores, other programs running), 2026-11-21: whole sets of text,
# cifar10, bidmc (all three) and stripes, 100,000 trees, 20,710 pairs of papers, 600 clips, and at least 1,500
# images, from unpacked folders.
COSTS = {
  'listops': Cost(_LISTOPS, stored=680, seconds=5e-5, drawn=5e-5, unfinished=580),
  'text': Cost(_IMDB, stored=830, seconds=7.2e-5),
  'text_2048': Cost(_IMDB, stored=760, seconds=5.6e-5),
  'retrieval': Cost(_PAIRS, stored=3_450, seconds=1.4e-4),
  'cifar10': Cost({'train': 50_000, 'test': 10_000}, stored=2_950, seconds=5.6e-5),
  'speech_commands': Cost(_CLIPS, stored=22_400, seconds=8.7e-4, unfinished=32_000),
  'bidmc': Cost({'train': 7_950}, stored=17_300, seconds=1.2e-3),
  'pathfinder32': Cost(_IMAGES, stored=580, seconds=1e-4, drawn=3.8e-4, unfinished=390),
  'pathfinder64': Cost(_IMAGES, stored=1_450, seconds=3e-4, drawn=8.8e-3, unfinished=1_100),
  'pathfinder128': Cost(_IMAGES, stored=2_900, seconds=3e-4, drawn=6.1e-3, unfinished=2_850),
  'pathfinder256': Cost(_IMAGES, stored=2_600, seconds=5e-4, drawn=1.5e-3, unfinished=3_100),
  'stripes': Cost({'train': 4_000, 'validation': 500, 'test': 2_000}, stored=200, seconds=1.6e-4),
}
# The seconds of sets that are generated above, when they are read from LRA's files instead: 3,000 rows of
# ListOps, 300 images of each size.
SECONDS_FROM_FILES = {
  'listops': 1.9e-4,
  'pathfinder32': 2.1e-4,
  'pathfinder64': 2.7e-4,
  'pathfinder128': 4.2e-4,
  'pathfinder256': 6.8e-4,
}
# Bytes of a compressed archive that are read in a second, about: 22 MB of reviews, 130 MB of clips.
UNPACKING = 50e6
# Sets that one command makes, where these are not the one of its name.
SETS = {'bidmc': ('bidmc_hr', 'bidmc_rr', 'bidmc_spo2')}


@dataclasses.dataclass(frozen=True)
class Outlook:
  """What a preparation would take; `str()` of it is for people.

  Attributes:
    dataset: its name.
    folders: of the sets that it makes.
    ready: they are all there.
    source: what it would read, as a sentence.
    counts: examples per file.
    download, unfinished, result: bytes on the disk that will come.
    free: bytes that are free there.
    seconds: expected time on this machine without the download.
    cores: that share the generating.
  """

  dataset: str
  folders: tuple[pathlib.Path, ...]
  ready: bool
  source: str
  counts: Mapping[str, int]
  download: int
  unfinished: int
  result: int
  free: int
  seconds: float
  cores: int

  @property
  def needed(self) -> int:
    """Bytes that must be free."""
    return 0 if self.ready else self.download + self.unfinished + self.result

  def check_space(self):
    """Raises ValueError if the disk has too little of it."""
    if self.needed > self.free:
      raise ConfigError(
        f'Preparing {self.dataset!r} needs about {_size(self.needed)}, but only {_size(self.free)} are free '
        f'at {self.folders[0].parent.parent}; make room, or choose another --data_dir.'
      )

  def __str__(self):
    counts = ', '.join(f'{count:,} {file}' for file, count in self.counts.items())
    parts = {'the set': self.result, 'unfinished work': self.unfinished, 'the download': self.download}
    parts = ', '.join(f'{_size(count)} for {part}' for part, count in parts.items() if count)
    here = 'is there already; nothing would be done' if self.ready else 'is not there yet'
    cores = f'{self.cores} core{"s" * (self.cores > 1)}'
    each = ' in each' * (len(self.folders) > 1)
    return '\n'.join(
      [
        f'{self.dataset} {here}: {", ".join(map(str, self.folders))}',
        f'  source    {self.source}',
        f'  examples  {counts}{each}',
        f'  disk      about {parts}; {_size(self.free)} are free',
        f'  time      about {_time(self.seconds)} on {cores}{", and the download" * (self.download > 0)}',
      ]
    )


def outlook(dataset: str, data_dir, *, raw_dir=None, examples: int | None = None, workers: int | None = None):
  """What `prepare.prepare` would do with these arguments; reads and makes nothing.

  Args: as there.
  """
  data_dir, cost = pathlib.Path(data_dir).expanduser(), COSTS[dataset]
  names = SETS.get(dataset, (dataset,))
  folders = tuple(storage.dataset_folder(data_dir, name) for name in names)
  counts = _counts(dataset, examples)
  total, cores = sum(counts.values()), workers or os.cpu_count() or 1
  if raw_dir is not None and dataset in SECONDS_FROM_FILES:
    cost = dataclasses.replace(cost, seconds=SECONDS_FROM_FILES[dataset], drawn=0.0, unfinished=0)
  source, archive, download = _source(dataset, data_dir, raw_dir)
  # What an interrupted preparation left is used again.
  kept = sum(
    path.stat().st_size
    for folder in folders
    for path in (folder.parent / 'unfinished').rglob('*')
    if path.is_file()
  )
  return Outlook(
    dataset=dataset,
    folders=folders,
    ready=all(folder.exists() for folder in folders),
    source=source,
    counts=counts,
    download=download,
    unfinished=max(0, total * cost.unfinished - kept),
    result=total * cost.stored * len(folders),
    free=shutil.disk_usage(_existing(data_dir)).free,
    seconds=total * (cost.seconds + cost.drawn / cores) + archive / UNPACKING,
    cores=cores if cost.drawn else 1,
  )


def _counts(dataset, examples):
  if examples is None:
    return COSTS[dataset].counts
  if dataset == 'listops':
    from data_prep.sources import listops  # compiles on import

    return listops.sizes_for(examples)
  return {**COSTS[dataset].counts, 'train': examples}


def _source(dataset, data_dir, raw_dir):
  """A sentence on what is read, the bytes of the archive if it is one, and how many must be downloaded."""
  if dataset not in downloads.ARCHIVES:
    if raw_dir is None:
      return 'generated; nothing is read', 0, 0
    return f'files in {raw_dir} ({_presence(raw_dir)}); no official checksums of them are known', 0, 0
  folder = downloads.folder_in(data_dir) if raw_dir is None else pathlib.Path(raw_dir).expanduser()
  path, archive = downloads.locate(dataset, folder) or (None, None)
  if path is not None and path.is_file():
    size = path.stat().st_size
    return f'{path} ({_size(size)}, there); {_verification(archive)}', size, 0
  if raw_dir is None:
    archive = downloads.ARCHIVES[dataset][0]
    size = f'{"" if archive.sha256 else "about "}{_size(archive.size)}'
    sentence = f'{archive.name} ({size}), to be downloaded from {archive.url} to {folder}'
    return f'{sentence}; {_verification(archive)}', archive.size, archive.size
  if path is not None:
    known = 'are known and checked' if archive.members_known else 'are not known'
    return f'{path} (there); checksums of its files {known}', 0, 0
  names = ', '.join(archive.name for archive in downloads.ARCHIVES[dataset])
  return f'{folder} ({_presence(folder)}) has none of {names}, and no folder unpacked from one', 0, 0


def _verification(archive):
  if archive.sha256:
    return 'its checksum is known and checked'
  if archive.members_known:
    return 'no checksum of it is known, but those of the files in it are, and are checked'
  return 'no official checksum of it is known'


def _presence(folder):
  return 'there' if pathlib.Path(folder).expanduser().is_dir() else 'no such folder'


def _existing(path):
  """The nearest folder that exists."""
  return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _size(count):
  return f'{count / 1e9:,.1f} GB' if count >= 1e9 else f'{count / 1e6:,.1f} MB'


def _time(seconds):
  if seconds < 90:
    return f'{max(1, round(seconds))} s'
  return f'{seconds / 60:.0f} min' if seconds < 90 * 60 else f'{seconds / 3600:.1f} h'
