"""Estimates of a preparation: files, examples, disk space and time, for `prepare --dry_run`."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Mapping

from data_prep import downloads, finding
from data_prep.catalogue import Cost, Entry
from lra_spt.data import prepared
from lra_spt.errors import ConfigError, roughly, touching

# The costs in the catalogue are processor time on one core of an AMD EPYC (2 cores, other programs running),
# 2026-11-21: whole sets of text, cifar10, bidmc (all three), stripes and, a day later, the small ones;
# 100,000 trees (3,000 rows of files), 20,710 pairs of papers, 600 clips, and at least 1,500 images (300 from
# files), from unpacked folders.

# Bytes of a compressed archive that are read per second; 22 MB of reviews and 130 MB of clips were measured.
UNPACKING = 50e6


@dataclasses.dataclass(frozen=True)
class Outlook:
  """The estimate of a preparation; `str()` of it is for people.

  Attributes:
    dataset: name of the set.
    folders: folders of the sets that it makes.
    ready: True if all of them exist.
    source: a sentence on the files that it would read.
    counts: examples per file; empty if they and their cost are not known beforehand.
    download, unfinished, result: bytes that it will add to the disk.
    free: free bytes on that disk.
    seconds: expected time on this machine, without the download.
    cores: number of cores that share the generating.
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
    """Number of bytes that must be free."""
    return 0 if self.ready else self.download + self.unfinished + self.result

  def check_space(self):
    """Raises a ConfigError if the disk has too little space."""
    if self.needed > self.free:
      raise ConfigError(
        f'Preparing {self.dataset!r} needs about {_size(self.needed)}, but only {_size(self.free)} are free '
        f'at {self.folders[0].parent.parent}; make room, or choose another --data_dir.'
      )

  @property
  def in_short(self) -> str:
    """The line that a preparation starts with."""
    loaded = f', {_size(self.download)} of it to be downloaded' if self.download else ''
    return f'{self.dataset} needs about {_size(self.needed)} of the disk{loaded}; {self._duration}'

  @property
  def _duration(self):
    cores = f'{self.cores} core{"s" * (self.cores > 1)}'
    return f'about {roughly(self.seconds)} on {cores}{", and the download" * (self.download > 0)}'

  def __str__(self):
    counts = ', '.join(f'{count:,} {file}' for file, count in self.counts.items())
    parts = {'the set': self.result, 'unfinished work': self.unfinished, 'the download': self.download}
    parts = ', '.join(f'{_size(count)} for {part}' for part, count in parts.items() if count)
    here = 'is already prepared; nothing would be done' if self.ready else 'is not prepared yet'
    each = ' in each' * (len(self.folders) > 1)
    known = bool(self.counts)
    return '\n'.join(
      [
        f'{self.dataset} {here}: {", ".join(map(str, self.folders))}',
        f'  source    {self.source}',
        f'  examples  {f"{counts}{each}" if known else "as many as the files hold"}',
        f'  disk      {f"about {parts}" if known else "not known beforehand"}; {_size(self.free)} are free',
        f'  time      {self._duration if known else "not known beforehand"}',
      ]
    )


def outlook(entry: Entry, data_dir, *, raw_dir=None, examples: int | None = None, workers: int | None = None):
  """The estimate of `prepare.prepare` with these arguments; reads and makes nothing."""
  data_dir, cost = pathlib.Path(data_dir).expanduser(), entry.cost or Cost(0, 0.0)
  folders = tuple(prepared.dataset_folder(data_dir, name) for name in entry.sets)
  counts = entry.counts_for(examples)
  total, cores = sum(counts.values()), workers or os.cpu_count() or 1
  if entry.generator and entry.maker(raw_dir) is entry.importer:
    cost = dataclasses.replace(cost, seconds=cost.from_files, drawn=0.0, unfinished=0)
  source, archive, download = _source(entry, data_dir, raw_dir)
  # The work of an interrupted preparation is used again.
  done = sum(
    path.stat().st_size
    for folder in folders
    for path in (folder.parent / 'unfinished').rglob('*')
    if path.is_file()
  )
  return Outlook(
    dataset=entry.name,
    folders=folders,
    ready=all(folder.exists() for folder in folders),
    source=source,
    counts=counts,
    download=download,
    unfinished=max(0, total * cost.unfinished - done),
    result=total * cost.stored * len(folders),
    free=_free(data_dir),
    seconds=total * (cost.seconds + cost.drawn / cores) + archive / UNPACKING,
    cores=cores if cost.drawn else 1,
  )


def _source(entry, data_dir, raw_dir):
  """A sentence on the files that are read, the bytes of an archive, and those that must be downloaded."""
  if entry.maker(raw_dir) is entry.generator:
    return 'generated; nothing is read', 0, 0
  if not entry.archives:
    return f'files in {raw_dir} ({_presence(raw_dir)}); there is no official copy to check them against', 0, 0
  folder = downloads.folder_in(data_dir) if raw_dir is None else pathlib.Path(raw_dir).expanduser()
  path, archive = finding.locate(entry.name, folder) or (None, None)
  if path is not None and path.is_file():
    size = path.stat().st_size
    return f'{path} ({_size(size)}, there); {_verification(archive)}', size, 0
  if raw_dir is None:
    archive = entry.archives[0]
    size = f'{"" if archive.sha256 else "about "}{_size(archive.size)}' if archive.size else 'of unknown size'
    sentence = f'{archive.name} ({size}), to be downloaded from {archive.url} to {folder}'
    missing = max(0, (archive.size or 0) - downloads.resumable_bytes(archive, folder))
    return f'{sentence}; {_verification(archive)}', archive.size or 0, missing
  if path is not None:
    known = 'are known and checked' if archive.members_known else 'are not known'
    return f'{path} (there); checksums of its files {known}', 0, 0
  names = ', '.join(archive.name for archive in entry.archives if archive.read_packed)
  unpacked = ' or '.join(archive.unpacked for archive in entry.archives if archive.unpacked)
  what = f'none of {names}, and no folder unpacked from one' if names else f'no folder {unpacked}'
  return f'{folder} ({_presence(folder)}) has {what}', 0, 0


def _verification(archive):
  if archive.sha256:
    return 'its checksum is known and checked'
  if archive.members_known:
    return 'no checksum of it is known, but those of the files in it are, and are checked'
  return 'no official checksum of it is known'


def _presence(folder):
  return 'there' if pathlib.Path(folder).expanduser().is_dir() else 'no such folder'


def _free(path):
  """Free bytes on the disk of a folder, which may not exist yet."""
  with touching(path, 'looked at'):
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _size(count):
  return f'{count / 1e9:,.1f} GB' if count >= 1e9 else f'{count / 1e6:,.1f} MB'
