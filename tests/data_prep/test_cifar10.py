"""CIFAR-10 from tiny copies of the official layouts, from damaged ones, and from the real images."""

import hashlib
import os
import pickle
import tarfile

import numpy as np
import pytest

from data_prep.sources import cifar10
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared
from tests.data_prep.raw_sets import ACCEPT

PER_BATCH = 4


def official_rows():
  """{batch: (uint8 [n, 3072] in channel, row, column order, labels)}."""
  rng = np.random.default_rng(0)
  return {
    name: (rng.integers(0, 256, (PER_BATCH, 3072)).astype(np.uint8), rng.integers(0, 10, PER_BATCH).tolist())
    for name in (*cifar10.TRAIN, cifar10.TEST)
  }


def binary_form(rows, labels):
  return np.concatenate([np.asarray(labels, np.uint8)[:, None], rows], axis=1).tobytes()


def python_form(rows, labels):
  return pickle.dumps(
    {b'batch_label': b'one', b'labels': labels, b'data': rows, b'filenames': [b'x'] * 4}, protocol=2
  )


FORMS = {'bin': ('.bin', binary_form), 'py': ('', python_form)}


@pytest.fixture
def layout(tmp_path):
  """Writes one of the four official layouts and returns raw_dir."""

  def write(form, packed):
    raw = tmp_path / 'raw'
    folder = raw / f'cifar-10-batches-{form}'
    folder.mkdir(parents=True)
    suffix, encode = FORMS[form]
    for name, (rows, labels) in official_rows().items():
      (folder / f'{name}{suffix}').write_bytes(encode(rows, labels))
    (folder / 'readme.html').write_text('hello')
    if packed:
      with tarfile.open(raw / f'cifar-10-{"binary" if form == "bin" else "python"}.tar.gz', 'w:gz') as tar:
        tar.add(folder, folder.name)
      for path in folder.iterdir():
        path.unlink()
      folder.rmdir()
    return raw

  return write


def check_content(data_dir):
  """The prepared set holds the rows of `official_rows` as pixels, in order."""
  batches = official_rows()
  parts = {'train': [batches[name] for name in cifar10.TRAIN], 'test': [batches[cifar10.TEST]]}
  for file, part in parts.items():
    source = examples_lib.open_source(str(prepared.dataset_folder(data_dir, 'cifar10')), file)
    rows = np.concatenate([rows for rows, _ in part])
    labels = [label for _, labels in part for label in labels]
    assert len(source) == len(rows)
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
      assert source[i]['label'] == label
      channels = [source[i]['inputs'][:, channel].reshape(32, 32) for channel in range(3)]
      assert np.array_equal(channels, row.reshape(3, 32, 32))


def fingerprint():
  """Computes the SHA-256 over the examples in order, independently of the package."""
  digest, batches = hashlib.sha256(), official_rows()
  for file, names in (('train', cifar10.TRAIN), ('test', (cifar10.TEST,))):
    rows = np.concatenate([batches[name][0] for name in names])
    labels = [label for name in names for label in batches[name][1]]
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
      digest.update(f'{file}:{i}:{label}:(1024, 3):'.encode() + row.reshape(3, 1024).T.tobytes())
  return digest.hexdigest()


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('form', ['bin', 'py'])
def test_every_official_layout_gives_the_same_set(tmp_path, layout, form, packed):
  raw = layout(form, packed)
  with pytest.raises(ValueError, match='--accept_unverified'):
    cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw)
  folder = cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  check_content(tmp_path / 'data')
  metadata = prepared.read_metadata(folder, '')
  assert metadata['verified'] is False
  assert metadata['fingerprint'] == fingerprint()


def test_raw_dir_may_be_the_folder_itself(tmp_path, layout):
  raw = layout('bin', packed=False)
  cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw / 'cifar-10-batches-bin', **ACCEPT)
  check_content(tmp_path / 'data')


def test_an_official_checksum_verifies(tmp_path, layout, monkeypatch):
  raw = layout('py', packed=False)
  content = {name: (raw / 'cifar-10-batches-py' / name).read_bytes() for name in cifar10.MEMBERS_MD5}
  sums = {name: hashlib.md5(data).hexdigest() for name, data in content.items()}
  monkeypatch.setattr(cifar10, 'MEMBERS_MD5', sums)
  with pytest.raises(ValueError, match='has 4 of 10,000 data_batch_1, 4 of .*--accept_incomplete'):
    cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw)
  monkeypatch.setattr(cifar10, 'BATCH', PER_BATCH)
  folder = cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw)
  assert prepared.read_metadata(folder, '')['verified'] is True


def test_a_missing_file_is_named(tmp_path, layout):
  raw = layout('bin', packed=False)
  (raw / 'cifar-10-batches-bin' / 'data_batch_3.bin').unlink()
  with pytest.raises(FileNotFoundError, match=r'lacks data_batch_3\.bin'):
    cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw, **ACCEPT)


@pytest.mark.parametrize(
  'damage, reason',
  [
    (lambda content: content[:-1], r'data_batch_2\.bin.* has 12,291 bytes.*truncated'),
    (lambda content: b'', 'has 0 bytes'),
    (lambda content: content[:3073] + b'\x0a' + content[3074:], 'image 1 has label 10'),
  ],
)
def test_damaged_binary_files_are_named(tmp_path, layout, damage, reason):
  raw = layout('bin', packed=False)
  path = raw / 'cifar-10-batches-bin' / 'data_batch_2.bin'
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match=reason):
    cifar10.prepare_cifar10(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  assert not prepared.dataset_folder(tmp_path / 'data', 'cifar10').exists()


class Evil:
  def __reduce__(self):
    return os.system, ('touch evil',)


def one_image(labels, dtype=np.uint8, **content):
  return pickle.dumps(
    {b'labels': labels, b'data': np.zeros((1, 3072), dtype)} | {k.encode(): v for k, v in content.items()},
    protocol=2,
  )


def of_two(value, levels=60):
  """A tuple holds a tuple twice, which holds another twice, and so on. Hashing or printing it has no end."""
  for _ in range(levels):
    value = (value, value)
  return value


@pytest.mark.parametrize(
  'content, reason',
  [
    (one_image(Evil()), 'asks for (posix|nt).system'),
    (one_image([1], data=np.array([Evil()], object)), "an array of 'O8' instead of bytes"),
    # The bytes would be read as pointers, which NumPy would follow.
    (one_image([1], np.int64).replace(b'i8', b'O8'), "an array of 'O8' instead of bytes"),
    (one_image([1], np.int64), "an array of 'i8' instead of bytes"),
    (one_image([1], data=np.zeros(())), "an array of 'f8' instead of bytes"),
    (one_image([1], data=b'0' * 3072), "its b'data' is not an array of bytes"),
    (one_image([1, 2]), 'as many labels'),
    (one_image([11]), 'label 11'),
    (one_image([2**70]), 'labels of CIFAR-10 run from 0 to 9'),
    (one_image(['1']), 'not a list of whole numbers'),
    (one_image([True]), 'not a list of whole numbers'),
    (one_image([1]).replace(b'M\x00\x0c', b'M\xff\x0c'), 'an array of shape'),
    # A memo of 2^31 entries would be 16 GB.
    (b'\x80\x02]r\xff\xff\xff\x7f.', 'it numbers its 2,147,483,647th object in 9 bytes'),
    (pickle.dumps({b'data': np.zeros((1, 3072), np.uint8)}, protocol=5), 'which no CIFAR-10 file needs'),
    (pickle.dumps(of_two(1), protocol=2), 'it holds a tuple twice'),
    (pickle.dumps([of_two('x')], protocol=4), 'it holds a tuple twice'),
    (pickle.dumps(of_two(1), protocol=0), 'it holds a tuple twice'),
    (b'\x80\x02N\x85q\x00q\x01h\x01\x86.', 'it holds a tuple twice'),
    (b'\x80\x04Nq\x00q\x00\x85\x94h\x01\x86.', 'it holds a tuple twice'),
    (b'\x80\x02}N' + 60 * b'2\x86' + b'Ns.', 'it holds a tuple twice'),
    (b'\x80\x02}N' + 60 * b'N0q\x00h\x00\x86' + b'Ns.', 'it holds a tuple twice'),
    (pickle.dumps({b'labels': [1]}), 'not a CIFAR-10 batch'),
    (pickle.dumps([1, 2]), 'not a CIFAR-10 batch'),
    (b'no pickle', 'not a CIFAR-10 batch'),
  ],
)
def test_foreign_pickles_are_refused_and_run_nothing(tmp_path, monkeypatch, content, reason):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=reason):
    cifar10.parse_python(content, 'data_batch_1')
  assert not (tmp_path / 'evil').exists()


@pytest.mark.slow
def test_real_images_become_the_paper_s_splits(tmp_path, unpacked):
  raw = unpacked('cifar10')
  arguments = ['prepare', 'cifar10', '--data_dir', str(tmp_path), '--raw_dir', str(raw)]
  assert cli.main(arguments) == 2
  assert cli.main([*arguments, '--accept_unverified', '--accept_incomplete']) == 0
  image = {split: examples_lib.open_split('image', split, tmp_path) for split in examples_lib.SPLITS}
  assert {split: len(part) for split, part in image.items()} == {
    'train': 45_000,
    'validation': 5_000,
    'test': 10_000,
  }
  test = image['test'].gather(np.arange(10_000))
  assert np.array_equal(np.bincount(test['label']), np.full(10, 1000))
  train = image['train'].gather(np.arange(45_000))['inputs'] / 255
  # The constants of the paper's code are those of the gray training images.
  assert abs(train.mean() - 122.6 / 255) < 0.01
  assert abs(train.std() - 61 / 255) < 0.01
