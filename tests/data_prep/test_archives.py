"""Tar archives that are whole, damaged at every place, or made to be large."""

import bz2
import contextlib
import gzip
import io
import tarfile
import tracemalloc

import numpy as np
import pytest

from data_prep import archives
from lra_spt import errors

MOST = 5_000
FILES = {f'folder/{name}.txt': name.encode() * 700 for name in ('one', 'two', 'three')}


def tar_of(files=FILES, form=tarfile.GNU_FORMAT, **header):
  """A tar archive of files {name: content}; header: attributes of the first member."""
  raw = io.BytesIO()
  with tarfile.open(fileobj=raw, mode='w', format=form) as tar:
    for position, (name, content) in enumerate(files.items()):
      info = tarfile.TarInfo(name)
      info.size = len(content)
      for key, value in header.items() if position == 0 else ():
        setattr(info, key, value)
      tar.addfile(info, io.BytesIO(content) if info.size == len(content) else None)
  return raw.getvalue()


@pytest.fixture
def read(tmp_path):
  """read(content of an archive) -> {name: content} of its wanted files, which are the .txt files."""

  def read(content, most=MOST):
    (tmp_path / 'x.tar').write_bytes(content)
    return dict(archives.contents(tmp_path / 'x.tar', lambda name: name.endswith('.txt'), most))

  return read


@pytest.mark.parametrize('form', [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize('compress', [bytes, gzip.compress])
def test_whole_archives_are_read(read, form, compress):
  names = ['./a.txt', 'b/' * 100 + 'b.txt', 'c.dat', 'd.txt']
  files = {name: name.encode() * 5 for name in names}
  whole = compress(tar_of(files, form))
  assert read(whole) == {name.removeprefix('./'): files[name] for name in names if name != 'c.dat'}


def test_long_names_are_read(read):
  name = f'{"long/" * 100}\u00e9.txt'
  for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
    assert read(tar_of({name: b'1', 'b.txt': b'2'}, form)) == {name: b'1', 'b.txt': b'2'}


def test_a_size_in_an_extended_header_counts(read):
  assert read(tar_of(form=tarfile.PAX_FORMAT, pax_headers={'size': '2100'}, size=2100)) == FILES


@pytest.mark.parametrize('start', range(0, 512, 8))
def test_damage_in_any_header_is_noticed(read, start):
  """`tarfile` treats a damaged header, here of the second member, as the end of the archive."""
  whole = tar_of()
  for byte in range(start, start + 8):
    for changed in (0x00, 0x41, 0xFF):
      broken = bytearray(whole)
      broken[512 + 2560 + byte] = changed
      if broken != whole:
        # In the field of the checksum, other bytes may have the same meaning.
        with contextlib.suppress(errors.DataError):
          assert read(bytes(broken)) == FILES


@pytest.mark.parametrize('compress', [bytes, gzip.compress])
def test_an_archive_that_ends_early_is_refused(read, compress):
  whole = compress(tar_of())
  # Without compression, zeros may be missing at the end: their number is not known.
  data = len(whole) if compress is gzip.compress else len(whole.rstrip(b'\0')) // 512 * 512 + 512
  for end in {*range(0, data, 512), *range(100, data, 37), data - 1}:
    with pytest.raises(errors.DataError, match='is not a readable tar archive'):
      read(whole[:end])


@pytest.mark.parametrize('position', [512 + 700, 3072, 3072 + 200])
def test_headers_of_zeros_are_no_end(read, position):
  broken = bytearray(tar_of())
  broken[position // 512 * 512 : position // 512 * 512 + 512] = bytes(512)
  if position < 3072:
    assert read(bytes(broken)) != FILES  # without compression no checksum guards contents
  else:
    with pytest.raises(errors.DataError, match='something follows its end mark'):
      read(bytes(broken))


@pytest.mark.parametrize('position', range(-8, 0))
def test_checksums_of_gzip_are_checked(read, position):
  broken = bytearray(gzip.compress(tar_of()))
  broken[position] ^= 1
  with pytest.raises(errors.DataError, match='is not a readable tar archive'):
    read(bytes(broken))


def test_what_follows_the_archive_is_refused(read):
  for more in (tar_of(), b'x'):
    with pytest.raises(errors.DataError, match='is not a readable tar archive'):
      read(tar_of() + more)
    with pytest.raises(errors.DataError, match='is not a readable tar archive'):
      read(gzip.compress(tar_of()) + more)
  assert read(tar_of() + bytes(700)) == FILES
  with pytest.raises(errors.DataError, match='is not a readable tar archive'):
    read(bz2.compress(tar_of()))


@pytest.mark.parametrize(
  'files, header, reason',
  [
    ({'a.txt': b'1', './a.txt': b'2'}, {}, 'holds a.txt twice'),
    ({'a.txt': b'1', '/b/../a.txt': b'2'}, {}, 'holds /b/../a.txt twice'),
    ({'a.txt': bytes(5_001)}, {}, 'a.txt has 5,001 bytes, but such a file has at most 5,000'),
    ({'a.txt': b''}, {'size': 2**63}, 'a.txt has 9,223,372,036,854,775,808 bytes, but such a file has'),
    ({'a.dat': b''}, {'size': 2**63}, 'it ends too early'),
    ({'a.txt': b''}, {'size': -(2**40)}, 'a header declares a negative size'),
    ({'a.txt': b''}, {'type': tarfile.FIFOTYPE}, 'a.txt is a pipe instead of a plain file'),
    ({'a.txt': b''}, {'type': tarfile.CHRTYPE}, 'a.txt is a device instead'),
    ({'a.txt': b''}, {'type': tarfile.SYMTYPE, 'linkname': '/etc/passwd'}, 'a.txt is a link instead'),
    ({'a.txt': b''}, {'type': tarfile.LNKTYPE, 'linkname': 'b.txt'}, 'a.txt is a link instead'),
    ({'a.txt': b''}, {'type': tarfile.DIRTYPE}, 'a.txt is a folder instead'),
    ({'a.txt': b''}, {'type': b'V'}, 'a.txt is of an unknown kind instead'),
    ({'a.txt': b''}, {'type': tarfile.GNUTYPE_SPARSE}, 'it holds a sparse file'),
    ({'a' * 1025 + '.txt': b''}, {}, 'aaa... has an invalid name of 1,029 characters'),
    ({'a\nb.txt': b''}, {}, 'a b.txt has an invalid name of 7 characters'),
    ({'a' * 2**16 + '.txt': b''}, {}, 'a header declares a name or attributes of 65,541 bytes'),
  ],
)
def test_hostile_members_are_refused(read, files, header, reason):
  with pytest.raises(errors.DataError) as raised:
    read(tar_of(files, **header))
  assert reason in str(raised.value)
  assert '\n' not in str(raised.value)
  assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
  'attributes', [b'x', b'99999 path=a\n', b'0 a=b\n', b'6 path\n', b'9 path=a\xff', b'-1 a=\n']
)
def test_damaged_attributes_are_refused(read, attributes):
  raw = io.BytesIO()
  with tarfile.open(fileobj=raw, mode='w') as tar:
    info = tarfile.TarInfo('attributes')
    info.size, info.type = len(attributes), tarfile.XHDTYPE
    tar.addfile(info, io.BytesIO(attributes))
  with pytest.raises(errors.DataError, match='an extended header is damaged'):
    read(raw.getvalue() + tar_of())


def test_large_and_many_members_take_no_memory(read):
  """The archive has a member that is not read, of 64 MB in 300 kB, and 2,000 others."""
  files = {'zeros.dat': bytes(64 * 2**20)} | {f'{i}.dat': b'' for i in range(2_000)}
  whole = gzip.compress(tar_of(files), 1)
  del files
  tracemalloc.start()
  try:
    assert read(whole) == {}
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
  finally:
    tracemalloc.stop()


def test_copies_elsewhere_must_be_equal(tmp_path):
  one, two = b'1\n2\n3', np.random.default_rng(0).bytes(3 * 2**20)
  path = tmp_path / 'x.tar'
  files = {'a/data/one': one, 'a/data/two': two, 'data/one': one, 'one': b'elsewhere', 'b/data/two': two}
  path.write_bytes(gzip.compress(tar_of(files), 1))
  assert archives.members(path, 'data', ['two', 'one'], 2**22) == {'two': two, 'one': one}
  actual = list(archives.rows(path, 'data', ['one'], 10, 2))
  assert [(name, row) for name, _, row in actual] == [('one', b'1\n'), ('one', b'2\n'), ('one', b'3')]
  path.write_bytes(tar_of(files | {'data/one': b'1\n2\n4'}))
  with pytest.raises(errors.DataError, match='holds both a/data/one and data/one, which differ'):
    archives.members(path, 'data', ['one', 'two'], 2**22)
  with pytest.raises(errors.DataError, match='has no data/three; get it again'):
    archives.members(path, 'data', ['three'], 10)
  with pytest.raises(errors.DataError, match=r'x\.tar/data/two, row \d+, has more than 100 bytes'):
    list(archives.rows(path, 'data', ['two'], 2**22, 100))
