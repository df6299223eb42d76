"""Whole PNGs are decoded, and a PNG with any changed bit is refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from data_prep.pathfinder import png

IMAGE = ((np.random.default_rng(0).random((32, 32)) > 0.9) * 200).astype(np.uint8)


def encoded(image, **options):
  image.save(file := io.BytesIO(), 'PNG', **options)
  return file.getvalue()


CONTENT = encoded(Image.fromarray(IMAGE))


def chunk(kind, content):
  return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))


def made(width=32, height=32, rows=None, bits=8, kind=0, interlaced=0, before=b''):
  """A PNG with right checksums, whatever it holds."""
  header = struct.pack('>IIBBBBB', width, height, bits, kind, 0, 0, interlaced)
  rows = b''.join(b'\0' + row.tobytes() for row in IMAGE) if rows is None else rows
  parts = chunk(b'IHDR', header) + before + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
  return b'\x89PNG\r\n\x1a\n' + parts


def test_images_are_decoded():
  for mode in ('L', 'RGB'):
    assert np.array_equal(png.decode(encoded(Image.fromarray(IMAGE).convert(mode)), 32), IMAGE.reshape(-1))
  assert np.array_equal(png.decode(made(), 32), IMAGE.reshape(-1))


def test_no_bit_can_be_changed():
  """Pillow alone would read 67 of these as other images."""
  for position in range(8 * len(CONTENT)):
    changed = bytearray(CONTENT)
    changed[position // 8] ^= 1 << position % 8
    with pytest.raises(ValueError):
      png.decode(bytes(changed), 32)


def test_no_part_can_be_missing():
  for end in range(len(CONTENT)):
    with pytest.raises(ValueError):
      png.decode(CONTENT[:end], 32)


@pytest.mark.parametrize(
  'content, reason',
  [
    (made(rows=bytes(33 * 31)), 'it does not have the 1,056 bytes of pixels that it declares'),
    (made(rows=bytes(33 * 32 + 1)), 'it does not have the 1,056 bytes'),
    (made(rows=bytes(10**8)), 'it does not have the 1,056 bytes'),
    (made(before=chunk(b'IHDR', struct.pack('>IIBBBBB', 2**31 - 1, 2**31 - 1, 8, 0, 0, 0, 0))), 'a header'),
    (CONTENT[:8] + chunk(b'IDAT', b'') + CONTENT[8:], 'it does not begin with a header'),
    (CONTENT[:8] + struct.pack('>I', 2**32 - 1) + CONTENT[12:], 'it ends too early'),
  ],
)
def test_wrong_chunks_are_refused(content, reason):
  with pytest.raises(ValueError, match=reason):
    png.decode(content, 32)


@pytest.mark.parametrize(
  'content, what',
  [
    (made(width=2**31 - 1, height=2**31 - 1), '2,147,483,647 x 2,147,483,647 gray pixels of 8 bits'),
    (made(interlaced=1), '32 x 32 interlaced gray pixels of 8 bits'),
    (made(kind=9), '32 x 32 unknown pixels of 8 bits'),
    (made(bits=16), '32 x 32 gray pixels of 16 bits'),
  ],
)
def test_other_images_are_known_by_their_header(content, what):
  with pytest.raises(png.OtherImage, match=f'^has {what} instead of 32 x 32 gray or RGB ones of 8 bits$'):
    png.decode(content, 32)
