"""Speech Commands 0.02 (Warden, 2018): one of 35 spoken words, as 16,000 samples of sound.

As in the published code, all 35 words are used, the official lists name the clips of validation and test, all
other clips are for training, and clips shorter than a second are padded with silence. The few longer clips
are cut, and background noise is left out.

The archive holds its files in no particular order and is read once: samples go to an unnamed temporary file
in the folder of the set (3.4 GB of disk, which the system frees whatever happens), names stay in memory.
Within a file of the set, clips are ordered by (word, file name).
"""

import functools
import io
import pathlib
import re
import tempfile
import wave

import numpy as np
import tqdm

from data_prep import archives, builders, catalogue, finding, raw_files, verification
from lra_spt.errors import DataError

WORDS = catalogue.SETS['speech_commands'].class_names  # a label is the position of a word
NOISE = '_background_noise_'
LISTS = {'validation': 'validation_list.txt', 'test': 'testing_list.txt'}
CLIPS = sum(catalogue.SETS['speech_commands'].counts.values())
RATE = LENGTH = 16_000
# Largest number of bytes of a list (0.3 MB) or of a clip (almost all have 32,044).
MOST = 2**20
_NAME = re.compile(rf'({"|".join(WORDS)})/[^/\0]+\.wav')


def _wanted(name: str) -> bool:
  folder, _, base = name.rpartition('/')
  return base in LISTS.values() if not folder else folder != NOISE and not base.startswith('.')


def _contents(path: pathlib.Path):
  """Yields (name relative to the folder, content) of lists and clips."""
  if path.is_file():
    yield from archives.contents(path, _wanted, MOST)
    return
  for file in [*path.glob('*.txt'), *path.glob('*/*')]:
    name = file.relative_to(path).as_posix()
    if _wanted(name):
      yield name, raw_files.read(file, MOST)


def parse_list(content: bytes, where: str) -> frozenset[str]:
  """The clips that one of the official lists names.

  Args:
    content: of the list.
    where: the file, for messages.

  Returns:
    {'<word>/<name>.wav'}.

  Raises:
    DataError: a row names no clip; the message names the file and the row, from 1.
  """
  names = content.decode('utf-8', 'replace').splitlines()
  for number, name in enumerate(names, 1):
    if not _NAME.fullmatch(name):
      raise DataError(f'{where}, row {number}, does not name a clip as <word>/<name>.wav; get it again.')
  return frozenset(names)


def parse_clip(content: bytes, where: str) -> np.ndarray:
  """The samples of a clip, int16 [samples].

  Raises:
    DataError: it is no WAV file of uncompressed 16-bit mono sound at 16 kHz, truncated or empty; the message
      names the file.
  """
  try:
    with wave.open(io.BytesIO(content)) as clip:
      kind = clip.getnchannels(), clip.getsampwidth() * 8, clip.getframerate()
      promised = clip.getnframes()
      frames = clip.readframes(promised)
  except (wave.Error, EOFError, RuntimeError) as error:  # EOFError: a block is too long
    reason = str(error) or 'it ends too early'
    raise DataError(f'{where} is not a readable WAV file ({reason}); get it again.') from None
  if kind != (1, 16, RATE):
    raise DataError(
      f'{where} has {kind[0]} channel(s) of {kind[1]} bits at {kind[2]:,} Hz, but clips of Speech Commands '
      'have one of 16 bits at 16,000 Hz; get it again.'
    )
  if len(frames) != 2 * promised or not promised:
    raise DataError(
      f'{where} is truncated or empty: it holds {len(frames) // 2:,} of {promised:,} samples; get it again.'
    )
  return np.frombuffer(frames, '<i2').astype(np.int16)


def _read(path, spool):
  """Reads all files in their stored order, and writes the samples to a file.

  Returns:
    {file: clips in its list}, {name of a clip: its row}, and lengths of the clips before padding.
  """
  listed, rows, lengths = {}, {}, []
  files = {name: file for file, name in LISTS.items()}
  with tqdm.tqdm(total=CLIPS, desc=f'reading {path.name}', unit=' clips', disable=None) as bar:
    for name, content in _contents(path):
      where = f'{path}/{name}'
      if name in files:
        listed[files[name]] = parse_list(content, where)
        continue
      if not _NAME.fullmatch(name):
        raise DataError(
          f'{where} is not a clip: those are .wav files in folders named after the {len(WORDS)} words; '
          'remove it, or get Speech Commands 0.02 again.'
        )
      samples = parse_clip(content, where)
      row = np.zeros(LENGTH, np.int16)
      row[: len(samples)] = samples[:LENGTH]
      spool.write(row)
      rows[name] = len(lengths)
      lengths.append(len(samples))
      bar.update()
  return listed, rows, lengths


def _divide(path, listed, rows, accept_incomplete) -> dict[str, list[str]]:
  """Names of the clips of every file, in order."""
  for file, name in LISTS.items():
    if file not in listed:
      raise DataError(f'{path} has no {name}, which says which clips belong to {file}; get it again.')
  if both := listed['validation'] & listed['test']:
    raise DataError(f'Both lists of {path} name {min(both)}; get them again.')
  if not rows:
    raise DataError(f'{path} has no clips; get it again.')
  missing = [name for file in LISTS for name in sorted(listed[file] - rows.keys())]
  if missing:
    problem = f'{path} lacks {len(missing):,} of the clips that its lists name (first: {missing[0]})'
    if not accept_incomplete:
      raise DataError(f'{problem}; get it again, or pass --accept_incomplete to use what there is.')
    print(f'{problem}.')
  names = sorted(rows)
  held = {file: [name for name in names if name in listed[file]] for file in LISTS}
  return {'train': [name for name in names if name not in listed['validation'] | listed['test']], **held}


def _load(raw_dir, accept_unverified, accept_incomplete, folder):
  path, archive = finding.require('speech_commands', raw_dir)
  verified = verification.check(path, archive.sha256 if path.is_file() else None, accept_unverified)
  with tempfile.TemporaryFile(dir=folder) as spool:
    listed, rows, lengths = _read(path, spool)
    clips = _divide(path, listed, rows, accept_incomplete)
    spool.flush()
    samples = np.memmap(spool, np.int16, 'r').reshape(-1, LENGTH)

  def read(file):
    for name in clips[file]:
      yield samples[rows[name]], WORDS.index(name.split('/')[0])

  counts = {file: len(names) for file, names in clips.items()}
  verification.check_counts(
    path,
    counts,
    catalogue.SETS['speech_commands'].counts,
    accept_unverified=accept_unverified,
    accept_incomplete=accept_incomplete,
  )
  lengths = np.asarray(lengths)[list(rows.values())]
  return builders.Source(
    description='One-second clips of 35 spoken words, 16,000 samples of 16 bits; label: which word.',
    citation='Warden, Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition, 2018.',
    files={file: functools.partial(read, file) for file in clips},
    counts=counts,
    classes=len(WORDS),
    shape=(LENGTH,),
    dtype=np.int16,
    statistics=True,
    origin=f'files {path.name}',
    verified=verified,
    extra={
      'verification': 'SHA256' if verified else 'none',
      'missing': {file: len(listed[file] - rows.keys()) for file in LISTS},
      'padded': int((lengths < LENGTH).sum()),
      'cut': int((lengths > LENGTH).sum()),
    },
  )


def prepare_speech_commands(
  data_dir,
  *,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  dataset: str = 'speech_commands',
):
  """Imports Speech Commands 0.02: int16 [16,000] per clip, label 0 to 34.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: folder that holds the official archive or the unpacked folder, or is the unpacked folder.
    accept_unverified: import an archive that is not the official one, or the folder, whose files have no
      official checksums.
    accept_incomplete: import fewer clips than the official ones. Clips that the lists name may then be
      missing (metadata.json counts them), and a split may be empty: `open_split` refuses to open that one.
    dataset: name of the set.

  Returns:
    The folder of the set. Its metadata.json also has: statistics (of the training clips, if there are any),
    missing (number of missing listed clips, by file), padded and cut (number of clips shorter and longer than
    a second).

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message names the file and its error.
  """
  return builders.prepare_set(
    dataset,
    data_dir,
    {'from': 'files'},
    lambda work: _load(raw_dir, accept_unverified, accept_incomplete, work.parent),
  )
