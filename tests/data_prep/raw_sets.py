"""Tiny raw sets of every form that is imported, and ways to damage them.

A set is made in layers: files, then archives of them, then their compression. Any layer can be damaged. The
outer layers are then made around the damage, with right checksums, as in a file that was made to do harm.
"""

import functools
import gzip
import io
import os
import pathlib
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np

from data_prep.pathfinder import released
from data_prep.sources import bidmc, cifar10, listops, npz, ppg_dalia, retrieval, speech_commands, text, ts

ACCEPT = {'accept_unverified': True, 'accept_incomplete': True}
NUMBERS = [*b'-1 0 99999999999999999999 1e999 nan NaN inf 0x10 1_0 \xd9\xa3'.split(), b'']
WIDE = [2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 0, 1]


def nothing_is_left(tmp_path: pathlib.Path) -> bool:
  """True if a preparation into tmp_path/data left no file and no folder there."""
  return not list((tmp_path / 'data').rglob('*'))


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
  """Returns the content with one to three random changes."""
  content = bytearray(content)
  for _ in range(rng.integers(1, 4)):
    at, other = (int(rng.integers(len(content) + 1)) for _ in range(2))
    span = int(rng.choice([1, 2, 4, 16, 100, 512, 5_000]))
    match int(rng.integers(12)):
      case 0 | 1 if content:
        content[at % len(content)] ^= 1 << int(rng.integers(8))
      case 2 if content:
        content[at % len(content)] = int(rng.integers(256))
      case 3:
        del content[at:]
      case 4:
        content[at:at] = rng.bytes(span)
      case 5:
        del content[at : at + span]
      case 6:
        content[other:other] = content[at : at + span]
      case 7:
        content[at : at + span], content[other : other + span] = (
          content[other : other + span],
          content[at : at + span],
        )
      case 8:
        content[at : at + 4] = bytes(
          rng.choice([rng.bytes(1), b'\n', b'\t', b',', b':', b'\0', b'\r\n', b' '])
        )
      case 9:
        content[at : at + int(rng.integers(6))] = NUMBERS[int(rng.integers(len(NUMBERS)))]
      case 10:
        size, order = int(rng.choice([2, 4, 8])), str(rng.choice(['little', 'big']))
        number = WIDE[int(rng.integers(len(WIDE)))] % 2 ** (8 * size)
        content[at : at + size] = number.to_bytes(size, order)
      case _:
        content[at:at] = bytes(content[at : at + span]) * int(rng.choice([2, 50, 2_000]))
  return bytes(content[: 2**23])


class Damage:
  """Damage of a raw set: a layer, and the number `chosen` of the part at that layer that is damaged."""

  def __init__(self, layer: str | None, rng: np.random.Generator):
    self.layer, self.rng, self.layers = layer, rng, {}
    self.chosen = None

  def __call__(self, layer: str, content: bytes) -> bytes:
    """Returns the content, damaged if it is the chosen part. Counts the parts of each layer in `layers`."""
    number = self.layers[layer] = self.layers.get(layer, 0) + 1
    if layer == self.layer and number - 1 == self.chosen:
      return damaged(content, self.rng)
    return content


def tar(files, damage, compress=True):
  """A tar archive of {name: content}, whose headers have right checksums even where they are damaged."""
  parts = []
  for name, content in files.items():
    info = tarfile.TarInfo(name)
    info.size = len(content)
    form = tarfile.PAX_FORMAT if len(parts) % 2 else tarfile.GNU_FORMAT
    header = bytearray(damage('header', info.tobuf(form))[:512].ljust(512, b'\0'))
    header[148:156] = b' ' * 8
    header[148:156] = b'%06o\0 ' % sum(header)
    parts += [bytes(header), content, bytes(-len(content) % 512)]
  whole = damage('tar', b''.join(parts) + bytes(1024))
  return damage('gzip', gzip.compress(whole, 1)) if compress else whole


def packed(files, damage):
  """A zip archive of {name: content}."""
  with zipfile.ZipFile(file := io.BytesIO(), 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in files.items():
      archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
  return damage('zip', file.getvalue())


def of_files(files, damage):
  return {name: damage('file', content) for name, content in files.items()}


def listops_files():
  rows = [
    '( ( ( [MAX 4 ) ( ( ( [SM 2 ) 9 ) ] ) ) ] )\t4',
    '( ( ( [MIN 1 ) 2 ) ] )\t1',
    '( ( ( [MED 5 ) 8 ) ] )\t6',
  ]
  return {
    f'listops-1000/basic_{part}.tsv': '\n'.join(['Source\tTarget', *rows, '']).encode()
    for part in ('train', 'val', 'test')
  }


def retrieval_files():
  rows = ''.join(f'{i % 2}.0\tP{i}\tP{i + 1}\ta paper \u00e9 of {i}\tand "another {i}\n' for i in range(6))
  return {f'tsv_data/new_aan_pairs.{part}.tsv': rows.encode() for part in ('train', 'eval', 'test')}


def text_files():
  return {
    f'aclImdb/{file}/{label}/{i}_{rating}.txt': f'review {i} \u2014 of {rating} stars'.encode()
    for file in ('train', 'test')
    for label, rating in (('neg', 2), ('pos', 9))
    for i in range(3)
  }


def cifar_files(form):
  rng = np.random.default_rng(0)
  files = {}
  for name in (*cifar10.TRAIN, cifar10.TEST):
    rows, labels = rng.integers(0, 256, (2, 3072)).astype(np.uint8), [3, 7]
    if form == 'bin':
      files[f'cifar-10-batches-bin/{name}.bin'] = b''.join(
        bytes([label]) + row.tobytes() for row, label in zip(rows, labels, strict=True)
      )
    else:
      batch = {b'batch_label': b'one', b'labels': labels, b'data': rows}
      files[f'cifar-10-batches-py/{name}'] = pickle.dumps(batch, protocol=2)
  return files


def speech_files():
  rng = np.random.default_rng(0)
  files = {}
  for i, name in enumerate(
    ('yes/a_nohash_0.wav', 'bed/b_nohash_0.wav', 'zero/c_nohash_1.wav', 'yes/d_nohash_0.wav')
  ):
    frames = rng.integers(-(2**15), 2**15, 200 + i).astype('<i2').tobytes()
    form = struct.pack('<HHIIHH', 1, 1, 16_000, 32_000, 2, 16)
    body = b'WAVEfmt ' + struct.pack('<I', 16) + form + b'data' + struct.pack('<I', len(frames)) + frames
    files[f'speech_commands_v0.02/{name}'] = b'RIFF' + struct.pack('<I', len(body)) + body
  files['speech_commands_v0.02/validation_list.txt'] = b'bed/b_nohash_0.wav\n'
  files['speech_commands_v0.02/testing_list.txt'] = b'zero/c_nohash_1.wav\n'
  return files


def bidmc_files(seconds=3):
  rng = np.random.default_rng(0)
  samples = rng.uniform(-0.5, 1.5, (seconds * 125 + 1, 3)).round(4).tolist()
  signals = [
    'Time [s], RESP, PLETH, II',
    *(f'{i / 125:.3f},{a},{b},{c}' for i, (a, b, c) in enumerate(samples)),
  ]
  numerics = [
    'Time [s], HR, PULSE, RESP, SpO2',
    *(f'{i},{90 + i},91,{20 + i},97' for i in range(seconds + 1)),
  ]
  return {
    f'bidmc_csv/bidmc_{number:02d}_{kind}.csv': '\n'.join([*lines, '']).encode()
    for number in (1, 2)
    for kind, lines in (('Signals', signals), ('Numerics', numerics))
  }


def ts_files():
  rng = np.random.default_rng(0)
  rows = [
    ':'.join(','.join(f'{x:.4f}' for x in row) for row in rng.uniform(0, 1, (2, 125))) + f':{i}.5'
    for i in range(3)
  ]
  content = '\n'.join(['# Windows', '@problemName BIDMC32HR', '@dimensions 2', '@data', *rows, '']).encode()
  return {f'BIDMC32HR_{part}.ts': content for part in ('TRAIN', 'TEST')}


def archive_files():
  """A set of an archive of time series: two channels, differing lengths, and a missing value."""
  rows = ['1,2,3:4,5,6:a', '1,?,3,4:5,6,7,8:b', '2.5,1:0,-1e3:a']
  header = ['@timeStamps false', '@missing true', '@dimensions 2', '@classLabel true a b', '@data']
  content = '\n'.join(['# Two channels', *header, *rows, '']).encode()
  return {f'Waves_{part}.ts': content for part in ('TRAIN', 'TEST')}


def ppg_files():
  """One subject of PPG-DaLiA."""
  rng, seconds = np.random.default_rng(0), 790
  wrist = {'ACC': (32, 3), 'BVP': (64, 1), 'EDA': (4, 1), 'TEMP': (4, 1)}
  wrist = {name: rng.normal(size=(rate * seconds, channels)) for name, (rate, channels) in wrist.items()}
  content = {'signal': {'wrist': wrist}, 'label': rng.uniform(50, 150, seconds // 2 - 3)}
  return {'S1/S1.pkl': pickle.dumps(content, protocol=2)}


def npz_parts(damage):
  """Training examples as .npy files, test examples as two parts."""
  whole = np.random.default_rng(0).normal(0, 1, (6, 8)).astype(np.float32)
  files = {}
  for name, array in {'inputs': whole, 'labels': np.arange(6) % 2}.items():
    np.save(file := io.BytesIO(), array)
    files[f'train/{name}.npy'] = damage('array', file.getvalue())
  for part in (0, 1):
    contents = {}
    for name, array in {'inputs': whole[part::2], 'labels': np.arange(3) % 2}.items():
      np.save(file := io.BytesIO(), array)
      contents[f'{name}.npy'] = damage('array', file.getvalue())
    files[f'test/{part}.npz'] = packed(contents, damage)
  return files


def npz_files(damage, tokens):
  rng = np.random.default_rng(0)
  labels = np.arange(6) % 2
  if tokens:
    arrays = {
      'inputs': rng.integers(2, 9, 20),
      'offsets': np.array([0, 3, 5, 9, 11, 15, 20]),
      'labels': labels,
    }
  else:
    arrays = {'inputs': rng.normal(0, 1, (6, 8)).astype(np.float32), 'labels': labels}
  contents = {}
  for name, array in arrays.items():
    np.save(file := io.BytesIO(), array)
    contents[f'{name}.npy'] = damage('array', file.getvalue())
  return {f'{file}.npz': packed(contents, damage) for file in ('train', 'test')}


def png(damage, seed):
  rng = np.random.default_rng(seed)
  rows = b''.join(b'\0' + row.tobytes() for row in rng.integers(0, 256, (32, 32)).astype(np.uint8))
  chunks = [
    (b'IHDR', struct.pack('>IIBBBBB', 32, 32, 8, 0, 0, 0, 0)),
    (b'IDAT', zlib.compress(damage('rows', rows))),
    (b'IEND', b''),
  ]
  parts = b'\x89PNG\r\n\x1a\n'
  for kind, content in chunks:
    content = damage('chunk', content)
    parts += struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))
  return damage('image', parts)


def pathfinder_files(damage, binary):
  folder = 'pathfinder32/curv_contour_length_14'
  files = {}
  for batch in (0, 1):
    rows = [f'imgs/{batch} sample_{i}.png {i} {i % 2} 1.0 14 4' for i in range(3)]
    content = '\n'.join(rows).encode()
    if binary:
      np.save(file := io.BytesIO(), np.array([row.split() for row in rows]))
      content = file.getvalue()
    files[f'{folder}/metadata/{batch}.npy'] = damage('metadata', content)
    for i in range(3):
      files[f'{folder}/imgs/{batch}/sample_{i}.png'] = png(damage, 10 * batch + i)
  return files


def _archived(name, files, prefix=''):
  return lambda damage: {
    name: tar({f'{prefix}{path}': content for path, content in of_files(files(), damage).items()}, damage)
  }


def _plain(name, files):
  return lambda damage: {name: tar(of_files(files(), damage), damage, compress=False)}


def _clips(damage):
  files = {
    f'./{name.partition("/")[2]}': content for name, content in of_files(speech_files(), damage).items()
  }
  return {'speech_commands_v0.02.tar.gz': tar(files, damage)}


def _zipped(damage):
  name = 'bidmc-ppg-and-respiration-dataset-1.0.0.zip'
  return {
    name: packed(
      {f'bidmc/{path}': content for path, content in of_files(bidmc_files(), damage).items()}, damage
    )
  }


_bidmc = functools.partial(bidmc.prepare_bidmc, window=250, stride=125, **ACCEPT)
_pathfinder = functools.partial(released.prepare_pathfinder, resolution=32, **ACCEPT)
_listops = functools.partial(listops.prepare_listops, **ACCEPT)
_retrieval = functools.partial(retrieval.prepare_retrieval, **ACCEPT)
_text = functools.partial(text.prepare_text, minimum=1, **ACCEPT)
_cifar10 = functools.partial(cifar10.prepare_cifar10, **ACCEPT)
_speech = functools.partial(speech_commands.prepare_speech_commands, **ACCEPT)
_npz = functools.partial(npz.prepare_npz, dataset='mine')
_ppg = functools.partial(ppg_dalia.prepare_ppg_dalia, **ACCEPT)


def _ts(data_dir, raw_dir):
  train, test = (raw_dir / f'Waves_{part}.ts' for part in ('TRAIN', 'TEST'))
  return ts.prepare_ts(data_dir, dataset='mine', train=train, test=test)


# {form: (makes {path: content} of the raw folder, imports it)}
FORMS = {
  'listops tsv': (lambda damage: of_files(listops_files(), damage), _listops),
  'listops archive': (_archived('lra_release.gz', listops_files, 'lra_release/'), _listops),
  'retrieval tsv': (lambda damage: of_files(retrieval_files(), damage), _retrieval),
  'retrieval archive': (_archived('lra_release.gz', retrieval_files), _retrieval),
  'text folder': (lambda damage: of_files(text_files(), damage), _text),
  'text archive': (_archived('aclImdb_v1.tar.gz', text_files), _text),
  'text plain tar': (_plain('aclImdb_v1.tar.gz', text_files), _text),
  'cifar10 binary': (lambda damage: of_files(cifar_files('bin'), damage), _cifar10),
  'cifar10 python': (lambda damage: of_files(cifar_files('py'), damage), _cifar10),
  'cifar10 archive': (_archived('cifar-10-python.tar.gz', functools.partial(cifar_files, 'py')), _cifar10),
  'speech_commands wav': (lambda damage: of_files(speech_files(), damage), _speech),
  'speech_commands archive': (_clips, _speech),
  'bidmc csv': (lambda damage: of_files(bidmc_files(), damage), _bidmc),
  'bidmc zip': (_zipped, _bidmc),
  'bidmc ts': (lambda damage: of_files(ts_files(), damage), functools.partial(_bidmc, window=125)),
  'npz values': (functools.partial(npz_files, tokens=False), _npz),
  'npz tokens': (functools.partial(npz_files, tokens=True), _npz),
  'npz parts': (npz_parts, _npz),
  'ts': (lambda damage: of_files(archive_files(), damage), _ts),
  'ppg_dalia': (lambda damage: of_files(ppg_files(), damage), _ppg),
  'pathfinder': (functools.partial(pathfinder_files, binary=False), _pathfinder),
  'pathfinder arrays': (functools.partial(pathfinder_files, binary=True), _pathfinder),
}
SPECIAL = ('pipe', 'folder', 'socket', 'device', 'dangling', 'empty', 'missing')


def write(raw: pathlib.Path, files):
  for name, content in files.items():
    (raw / name).parent.mkdir(parents=True, exist_ok=True)
    (raw / name).write_bytes(content)


def replace(path: pathlib.Path, kind: str):
  """Replaces a file by something else."""
  path.unlink()
  match kind:
    case 'pipe':
      os.mkfifo(path)
    case 'folder':
      path.mkdir()
    case 'socket':
      os.mknod(path, 0o140600)
    case 'device':
      path.symlink_to('/dev/zero')
    case 'dangling':
      path.symlink_to('nowhere')
    case 'empty':
      path.touch()
