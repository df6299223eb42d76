"""PNG files of grey levels, checked before they are decoded: Pillow skips the checksums of the pixels."""

import io
import zlib

import numpy as np
from PIL import Image

_SIGNATURE = b'\x89PNG\r\n\x1a\n'
_KINDS = {0: 'gray', 2: 'RGB', 3: 'palette', 4: 'gray with alpha', 6: 'RGB with alpha'}
_CHANNELS = {'gray': 1, 'RGB': 3}


class OtherImage(ValueError):
  """A readable PNG has another size, or other pixels than gray or RGB ones of 8 bits."""


def _chunks(content):
  """Yields (kind, content) of every chunk up to the last one, and compares the checksums."""
  if content[:8] != _SIGNATURE:
    raise ValueError('it does not begin as one')
  position = 8
  while True:
    length, kind = int.from_bytes(content[position : position + 4]), content[position + 4 : position + 8]
    end = position + 8 + length
    checksum = content[end : end + 4]
    if len(checksum) < 4:
      raise ValueError('it ends too early')
    if zlib.crc32(content[position + 4 : end]) != int.from_bytes(checksum):
      raise ValueError('a checksum in it is wrong')
    yield kind, content[position + 8 : end]
    if kind == b'IEND':
      return
    position = end + 4


def decode(content: bytes, resolution: int) -> np.ndarray:
  """The gray levels, row by row, uint8 [resolution ** 2].

  Args:
    content: bytes of a PNG, gray or RGB, of 8 bits, not interlaced.
    resolution: pixels per side.

  Raises:
    OtherImage: it is another kind of image.
    ValueError: it is no PNG, or damaged.
  """
  chunks = list(_chunks(content))
  kind, header = chunks[0]
  if kind != b'IHDR' or len(header) != 13 or sum(kind == b'IHDR' for kind, _ in chunks) != 1:
    raise ValueError('it does not begin with a header')
  width, height = int.from_bytes(header[:4]), int.from_bytes(header[4:8])
  bits, kind, interlaced = header[8], _KINDS.get(header[9], 'unknown'), header[12]
  if (width, height) != (resolution, resolution) or bits != 8 or kind not in _CHANNELS or interlaced:
    form = f'{"interlaced " * bool(interlaced)}{kind}'
    raise OtherImage(
      f'has {width:,} x {height:,} {form} pixels of {bits} bits instead of {resolution} x {resolution} gray '
      'or RGB ones of 8 bits'
    )
  size = height * (1 + width * _CHANNELS[kind])  # a row begins with the kind of its filter
  pixels = zlib.decompressobj()
  raw = pixels.decompress(b''.join(part for kind, part in chunks if kind == b'IDAT'), size + 1)
  if len(raw) != size or not pixels.eof:
    raise ValueError(f'it does not have the {size:,} bytes of pixels that it declares')
  with Image.open(io.BytesIO(content), formats=('PNG',)) as image:
    return np.asarray(image.convert('L')).reshape(-1)
