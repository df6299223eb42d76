"""Pathfinder from trees in the official layout: tiny ones, damaged ones, and eight of the official images."""

import io
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from data_prep.pathfinder import generated, released
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared as storage
from tests.data_prep.raw_sets import ACCEPT, nothing_is_left

REFUSE = dict.fromkeys(ACCEPT, False)
# (metadata file, image, label); file 10 comes after file 2, and lines are not in the order of names.
ROWS = [(batch, number, (batch + number) % 2) for batch in (0, 2, 10) for number in (11, 2, 0, 5)]


def pixels(batch, number, resolution=32):
  rng = np.random.default_rng(1000 * batch + number)
  return rng.integers(0, 256, (resolution, resolution)).astype(np.uint8)


def line(batch, number, label):
  return f'imgs/{batch} sample_{number}.png {number} {label} 1.0 14 4 2 0.5 1 1'


def text_of(batch):
  return '\n'.join(line(*row) for row in ROWS if row[0] == batch).encode()


def write(tree, resolution=32, mode='L'):
  """A tree like LRA's; returns the folder of its hardest difficulty."""
  folder = tree / 'curv_contour_length_14'
  (folder / 'metadata').mkdir(parents=True)
  for batch, number, _ in ROWS:
    (folder / 'imgs' / str(batch)).mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(batch, number, resolution)).convert(mode)
    image.save(folder / 'imgs' / str(batch) / f'sample_{number}.png')
  for batch in (10, 0, 2):
    (folder / 'metadata' / f'{batch}.npy').write_bytes(text_of(batch))
  (folder / 'metadata' / '._0.npy').write_bytes(b'\0')
  other = tree / 'curv_baseline' / 'imgs' / '0'
  other.mkdir(parents=True)
  (other / 'sample_172.png').write_bytes(b'')  # as in the release; it is not read
  return folder


def prepare(tmp_path, raw, resolution=32, **options):
  return released.prepare_pathfinder(
    tmp_path / 'data', resolution=resolution, raw_dir=raw, **ACCEPT | options
  )


def stored(tmp_path, folder, count, resolution=32):
  """Images [n, R, R] and labels in the order of the set."""
  source = examples_lib.open_source(str(folder), 'train')
  assert len(source) == count
  images = np.stack([source[i]['inputs'] for i in range(count)])
  return images.reshape(count, resolution, resolution), [source[i]['label'] for i in range(count)]


@pytest.mark.parametrize(
  'inside, named, mode',
  [
    ('pathfinder32', '.', 'L'),
    ('pathfinder32', 'pathfinder32', 'RGB'),
    ('lra_release/pathfinder32', '.', 'L'),
    ('lra_release/lra_release/pathfinder32', '.', 'L'),
    ('lra_release/lra_release/pathfinder32', 'lra_release', 'L'),
    ('pathfinder/pathfinder32/pathfinder32', '.', 'L'),
    ('mine', 'mine', 'L'),
  ],
)
def test_trees_are_found_and_kept_in_the_order_of_metadata(tmp_path, inside, named, mode):
  write(tmp_path / 'raw' / inside, mode=mode)
  folder = prepare(tmp_path, tmp_path / 'raw' / named)
  images, labels = stored(tmp_path, folder, len(ROWS))
  assert labels == [label for *_, label in ROWS]
  assert np.array_equal(images, [pixels(batch, number) for batch, number, _ in ROWS])
  metadata = storage.read_metadata(folder, '')
  assert (metadata['verified'], metadata['left_out']) == (False, 0)
  assert metadata['verification'] == '12 images (no official checksums exist)'


@pytest.mark.parametrize('resolution', [64, 128, 256])
def test_other_resolutions(tmp_path, resolution):
  write(tmp_path / f'pathfinder{resolution}', resolution)
  folder = prepare(tmp_path, tmp_path, resolution)
  assert folder.parent.name == f'pathfinder{resolution}'
  images, _ = stored(tmp_path, folder, len(ROWS), resolution)
  assert np.array_equal(images[3], pixels(*ROWS[3][:2], resolution))


def test_binary_metadata_is_read_but_never_unpickled(tmp_path):
  folder = write(tmp_path / 'pathfinder32') / 'metadata'
  rows = [row.split() for row in text_of(2).decode().splitlines()]
  np.save(folder / '2.npy', np.array(rows))
  np.save(folder / '10.npy', np.array([row.split() for row in text_of(10).decode().splitlines()], 'S'))
  labels = stored(tmp_path, prepare(tmp_path, tmp_path), len(ROWS))[1]
  assert labels == [label for *_, label in ROWS]
  whole = io.BytesIO()
  np.save(whole, np.array(rows))
  whole = whole.getvalue()
  evil = io.BytesIO()
  np.save(evil, np.array([[_Evil(tmp_path / 'evil')] * 4], object), allow_pickle=True)
  huge = whole.replace(b'(4, 11)', b'(9999999999, 11)', 1)
  for content in (evil.getvalue(), whole[:-5], whole[:40], huge, whole.replace(b'<U', b'<f', 1)):
    with pytest.raises(ValueError, match=r'^x\.npy is not a readable array of rows of strings; get it again'):
      released.parse_metadata(content, 'x.npy')
  assert not (tmp_path / 'evil').exists()


class _Evil:
  """Makes a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), 'w')


def test_pickles_are_no_metadata():
  with pytest.raises(ValueError, match='row 1, does not begin with imgs'):
    released.parse_metadata(pickle.dumps([['imgs/0', 'sample_0.png', '0', '1']]), 'x.npy')


@pytest.mark.parametrize(
  'row',
  [
    'imgs/0 sample_0.png 0',
    'imgs/0 sample_0.png 0 2 1.0',
    'imgs/0 sample_0.png 0 1.0 1.0',
    'imgs/0 ../../x.png 0 1',
    'imgs/.. sample_0.png 0 1',
    '../imgs/0 sample_0.png 0 1',
    '/etc/passwd sample_0.png 0 1',
    'imgs/0 sample_0.jpg 0 1',
    '\xff\xfe',
    '',
  ],
)
def test_malformed_metadata_is_named_with_its_row(tmp_path, row):
  folder = write(tmp_path / 'pathfinder32') / 'metadata'
  (folder / '2.npy').write_bytes(text_of(2) + b'\n' + row.encode('latin-1') + b'\n')
  with pytest.raises(ValueError, match=rf'^{folder}/2\.npy, row 5, does not begin with imgs') as raised:
    prepare(tmp_path, tmp_path)
  assert '\n' not in str(raised.value)
  assert nothing_is_left(tmp_path)


def test_other_wrong_metadata_is_named(tmp_path):
  folder = write(tmp_path / 'pathfinder32') / 'metadata'
  (folder / '2.npy').write_bytes(text_of(2) + b'\n' + text_of(0))
  with pytest.raises(ValueError, match=r'2\.npy, row 5, lists imgs/0/sample_11\.png a second time'):
    prepare(tmp_path, tmp_path)
  (folder / '2.npy').write_bytes(b'')
  with pytest.raises(ValueError, match=r'2\.npy is empty'):
    prepare(tmp_path, tmp_path)
  (folder / '2.npy').rename(folder / 'two.npy')
  with pytest.raises(ValueError, match=r'two\.npy is not called <number>\.npy'):
    prepare(tmp_path, tmp_path)
  shutil.rmtree(folder)
  folder.mkdir()
  with pytest.raises(FileNotFoundError, match=r'metadata has no \.npy files'):
    prepare(tmp_path, tmp_path)
  folder.rmdir()
  with pytest.raises(FileNotFoundError, match='no pathfinder32/curv_contour_length_14/metadata in .*unpack'):
    prepare(tmp_path, tmp_path)
  with pytest.raises(ValueError, match='no Pathfinder of 48 pixels'):
    prepare(tmp_path, tmp_path, 48)
  assert nothing_is_left(tmp_path)


def damage(path, how):
  content = path.read_bytes()
  if how == 'missing':
    path.unlink()
  else:
    changed = bytearray(content)
    changed[60] ^= 0xFF
    path.write_bytes({'empty': b'', 'cut': content[:300], 'text': b'hello', 'changed': bytes(changed)}[how])


@pytest.mark.parametrize('how', ['missing', 'empty', 'cut', 'text', 'changed'])
def test_damaged_images_are_named_or_left_out(tmp_path, monkeypatch, capsys, how):
  folder = write(tmp_path / 'pathfinder32')
  path = folder / 'imgs' / '2' / 'sample_0.png'
  damage(path, how)
  monkeypatch.setattr(released, 'IMAGES', len(ROWS))
  reason = 'missing or empty' if how in ('missing', 'empty') else r'not a readable PNG \(.*\)'
  with pytest.raises(ValueError, match=f'^{path} is {reason}; get it again, or pass --accept_incomplete'):
    prepare(tmp_path, tmp_path, **REFUSE)
  assert nothing_is_left(tmp_path)
  prepared = prepare(tmp_path, tmp_path)
  assert f'1 of 12 images are missing, empty or unreadable (first: {path})' in capsys.readouterr().out
  images, labels = stored(tmp_path, prepared, len(ROWS) - 1)
  readable = [row for row in ROWS if row[:2] != (2, 0)]
  assert labels == [label for *_, label in readable]
  assert np.array_equal(images, [pixels(batch, number) for batch, number, _ in readable])
  assert storage.read_metadata(prepared, '')['left_out'] == 1


def test_a_tree_without_readable_images_is_refused(tmp_path):
  shutil.rmtree(write(tmp_path / 'pathfinder32') / 'imgs')
  with pytest.raises(ValueError, match='has no readable image of the 12 that it lists; get it again'):
    prepare(tmp_path, tmp_path)
  assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
  'size, mode, what',
  [
    ((64, 64), 'L', 'gray pixels of 8 bits'),
    ((32, 31), 'L', 'gray pixels of 8 bits'),
    ((32, 32), 'I;16', 'gray pixels of 16 bits'),
    ((32, 32), '1', 'gray pixels of 1 bits'),
    ((32, 32), 'RGBA', 'RGB with alpha pixels of 8 bits'),
  ],
)
def test_other_images_are_never_left_out(tmp_path, size, mode, what):
  path = write(tmp_path / 'pathfinder32') / 'imgs' / '2' / 'sample_0.png'
  Image.new(mode, size).save(path)
  with pytest.raises(
    ValueError, match=f'^{path} has {size[0]} x {size[1]} {what} instead of 32 x 32 gray or'
  ):
    prepare(tmp_path, tmp_path)
  assert nothing_is_left(tmp_path)


def test_another_number_of_images_needs_a_word(tmp_path, monkeypatch):
  folder = write(tmp_path / 'pathfinder32')
  with pytest.raises(ValueError, match=f'^{folder} has 12 of 200,000 train examples; .*--accept_incom'):
    prepare(tmp_path, tmp_path, **REFUSE)
  assert nothing_is_left(tmp_path)
  monkeypatch.setattr(released, 'IMAGES', len(ROWS))
  metadata = storage.read_metadata(prepare(tmp_path, tmp_path, **REFUSE), '')
  assert metadata['verified'] is False
  monkeypatch.setattr(released, 'IMAGES', len(ROWS) - 1)
  with pytest.raises(ValueError, match=f'^{folder} has 12 of 11 train examples; .*--accept_unver'):
    prepare(tmp_path, tmp_path, dataset='other', **REFUSE)


def test_of_several_copies_the_whole_one_is_taken(tmp_path, monkeypatch, capsys):
  """The release holds Path-X twice."""
  outer, inner = tmp_path / 'lra_release/pathfinder32', tmp_path / 'lra_release/lra_release/pathfinder32'
  folder = write(outer)
  write(inner)
  monkeypatch.setattr(released, 'IMAGES', len(ROWS))
  assert released._choose(released._find(tmp_path, 32), 32) == inner
  # A link to a copy is no second copy.
  (tmp_path / 'pathfinder32').symlink_to(outer)
  assert len(released._find(tmp_path, 32)) == 2
  for broken, whole in ((inner, outer), (outer, inner)):
    path = broken / 'curv_contour_length_14' / 'imgs' / '2' / 'sample_5.png'
    content = path.read_bytes()
    path.unlink()
    chosen = released._choose(released._find(tmp_path, 32), 32)
    assert chosen.resolve() == whole
    path.write_bytes(b'')
    assert released._choose(released._find(tmp_path, 32), 32).resolve() == whole
    path.write_bytes(content)
  capsys.readouterr()
  prepare(tmp_path, tmp_path)
  assert f'Of 2 copies of pathfinder32, {inner} is imported.' in capsys.readouterr().out
  (folder / 'metadata' / '2.npy').write_bytes(text_of(2).replace(b' 1 1.0', b' 0 1.0', 1))
  with pytest.raises(ValueError, match='hold images of 32 pixels, but not the same ones; name') as raised:
    prepare(tmp_path, tmp_path, dataset='other')
  assert str(inner) in str(raised.value)
  assert 'pathfinder32 and ' in str(raised.value)
  assert prepare(tmp_path, outer, dataset='other').is_dir()


def test_the_generated_set_is_not_taken_for_the_imported_one(tmp_path):
  write(tmp_path / 'pathfinder32')
  generated.prepare_pathfinder(tmp_path / 'data', examples=10)
  with pytest.raises(ValueError, match='already holds .pathfinder32. made with .*from=generator instead'):
    prepare(tmp_path, tmp_path)


@pytest.mark.parametrize('resolution', [64, 128])
def test_official_images(tmp_path, shared_folder, resolution):
  references = shared_folder / 'reference' / 'pathfinder'
  actual = sorted(references.glob(f'lra_official_pathfinder{resolution}_*.png'))
  if not actual:
    pytest.skip(f'no official Pathfinder images of {resolution} pixels in {references}')
  folder = tmp_path / f'pathfinder{resolution}' / 'curv_contour_length_14'
  (folder / 'imgs' / '0').mkdir(parents=True)
  (folder / 'metadata').mkdir()
  # Four images thrice, because fewer than ten cannot be split.
  names = [f'sample_{i}.png' for i in range(3 * len(actual))]
  for i, name in enumerate(names):
    shutil.copyfile(actual[i % len(actual)], folder / 'imgs' / '0' / name)
  (folder / 'metadata' / '0.npy').write_text('\n'.join(f'imgs/0 {name} 0 1' for name in names))
  images, labels = stored(tmp_path, prepare(tmp_path, tmp_path, resolution), len(names), resolution)
  assert labels == [1] * len(names)
  for image, path in zip(images, actual, strict=False):
    with Image.open(path) as reference:
      assert np.array_equal(image, np.asarray(reference))
    assert image.max() == 255
    assert 5 < image.mean() < 25
