"""The small sets are built from tiny files in the official layouts, and from the real files."""

import numpy as np
import pytest
from PIL import Image

from data_prep import prepare
from data_prep.sources import mini
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from tests.data_prep import raw_sets


def stored(folder, file):
  """Inputs and labels of a stored file, in order."""
  source = examples_lib.open_source(str(folder), file)
  records = [source[i] for i in range(len(source))]
  return [record['inputs'] for record in records], [record['label'] for record in records]


def made(tmp_path, name, files):
  """Prepares a set from raw files {path: content}."""
  raw_sets.write(tmp_path / 'raw', files)
  return prepare.prepare(name, tmp_path / 'data', raw_dir=tmp_path / 'raw', **raw_sets.ACCEPT)


def averaged(rgb):
  """Averages an official image, uint8 [1024, 3], over 12 x 12 areas in gray, not rounded; float64 [144]."""
  gray = np.asarray(Image.fromarray(rgb.reshape(32, 32, 3)).convert('L'), np.float64)
  for axis in (0, 1):
    whole = np.insert(np.cumsum(gray, axis), 0, 0, axis)
    edges = np.apply_along_axis(lambda at: np.interp(np.linspace(0, 32, 13), np.arange(33), at), axis, whole)
    gray = np.diff(edges, axis=axis) * 12 / 32
  return gray.reshape(-1)


def test_images_are_the_first_and_the_last_in_gray_and_small(tmp_path, change_entry):
  change_entry('image_mini', counts={'train': 4, 'validation': 3, 'test': 2})
  files = raw_sets.cifar_files('bin')
  folder = made(tmp_path, 'image_mini', files)
  official = made(tmp_path, 'cifar10', {})
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['counts'], metadata['shape'], metadata['classes']) == (
    {'train': 4, 'validation': 3, 'test': 2},
    [144],
    10,
  )
  assert (metadata['verified'], metadata['class_names'][3]) == (False, 'cat')
  for file, place, part in (
    ('train', 'train', slice(4)),
    ('validation', 'train', slice(7, 10)),
    ('test', 'test', slice(2)),
  ):
    images, labels = stored(official, place)
    small, same = stored(folder, file)
    assert same == labels[part]
    exact = np.stack([averaged(image) for image in images[part]])
    assert np.abs(np.stack(small) - exact).max() < 0.5 + 1e-6
    assert np.stack(small).dtype == np.uint8


def test_images_that_copies_hold_differently_are_left_out(tmp_path, change_entry, monkeypatch):
  change_entry('image_mini', counts={'train': 4, 'validation': 3, 'test': 1})
  monkeypatch.setattr(mini, 'LEFT_OUT', {'train': (1, 8), 'test': (0,)})
  folder, official = (
    made(tmp_path, name, files)
    for name, files in (('image_mini', raw_sets.cifar_files('bin')), ('cifar10', {}))
  )
  for file, place, numbers in (
    ('train', 'train', [0, 2, 3, 4]),
    ('validation', 'train', [6, 7, 9]),
    ('test', 'test', [1]),
  ):
    images, labels = stored(official, place)
    small, same = stored(folder, file)
    assert same == [labels[number] for number in numbers]
    exact = np.stack([averaged(images[number]) for number in numbers])
    assert np.abs(np.stack(small) - exact).max() < 0.5 + 1e-6


def test_too_few_examples_are_not_taken_twice(tmp_path, change_entry):
  change_entry('image_mini', counts={'train': 8, 'validation': 3, 'test': 2})
  with pytest.raises(ValueError, match='There are 10 training images in .*-bin, but .* 8 to train and 3 oth'):
    made(tmp_path, 'image_mini', raw_sets.cifar_files('bin'))
  assert list((tmp_path / 'data').rglob('*')) == []


def test_texts_are_the_first_and_the_last_of_each_class(tmp_path, change_entry):
  change_entry('text_mini', counts={'train': 4, 'validation': 2, 'test': 6})
  files = raw_sets.text_files()
  files['aclImdb/train/neg/1_2.txt'] = b'a' * 200 + b'z' * 100
  folder = made(tmp_path, 'text_mini', files)
  metadata = prepared.read_metadata(folder, '')
  assert metadata['counts'] == {'train': 4, 'validation': 2, 'test': 6}
  assert (metadata['longest'], metadata['class_names']) == (256, ['negative', 'positive'])
  # Only these characters occur 15 times in the kept training texts.
  assert metadata['vocabulary'] == ['<mask>', '<pad>', '<unk>', '<eos>', 'a', 'z', ' ']
  inputs, labels = stored(folder, 'train')
  assert labels == [0, 0, 1, 1]
  assert inputs[1].tolist() == [4] * 200 + [5] * 55 + [3]
  assert stored(folder, 'validation')[1] == [0, 1]
  assert stored(folder, 'test')[1] == [0, 0, 0, 1, 1, 1]


def test_pulses_are_means_of_four_samples(tmp_path, change_entry):
  change_entry('pulse_mini', counts={'train': 4})
  files = raw_sets.bidmc_files(seconds=12)
  folder = made(tmp_path, 'pulse_mini', files)
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['counts'], metadata['groups'], metadata['shape'], metadata['dtype']) == (
    {'train': 4},
    {'train': [2, 2]},
    [256, 2],
    'float32',
  )
  assert metadata['source'].endswith('2 recordings of 2 patients, 0 unlabelled windows left out')
  inputs, labels = stored(folder, 'train')
  # Readings rise by 1 a second from 90, and 9 of them are within a window of 8.192 s.
  assert labels == [94, 97, 94, 97]
  rows = files['bidmc_csv/bidmc_01_Signals.csv'].decode().splitlines()[1:]
  samples = np.array([row.split(',') for row in rows], np.float64)[375 : 375 + 1024, [2, 3]]
  np.testing.assert_allclose(inputs[1], samples.reshape(256, 4, 2).mean(1), atol=1e-6)


def test_pulses_need_files_that_tell_patients(tmp_path):
  with pytest.raises(FileNotFoundError, match="holds nothing of 'pulse_mini': put bidmc-ppg-.*physionet"):
    made(tmp_path, 'pulse_mini', raw_sets.ts_files())


@pytest.mark.slow
def test_real_images_have_the_constants_of_the_task(tmp_path, unpacked):
  raw = unpacked('cifar10')
  arguments = ['prepare', 'image_mini', '--data_dir', str(tmp_path), '--raw_dir', str(raw)]
  assert cli.main(arguments) == 2
  assert cli.main([*arguments, '--accept_unverified']) == 0
  parts = {split: examples_lib.open_split('image_mini', split, tmp_path) for split in examples_lib.SPLITS}
  assert [len(part) for part in parts.values()] == [5_000, 2_000, 9_980]
  batches = {split: part.gather(np.arange(len(part))) for split, part in parts.items()}
  values, inputs = batches['train']['inputs'] / 255, tasks.get_task('image_mini').inputs
  assert (values.mean(), values.std()) == pytest.approx((inputs.mean[0], inputs.std[0]), abs=5e-5)


@pytest.mark.slow
def test_real_reviews_have_the_vocabulary_of_the_task(tmp_path, unpacked):
  raw = unpacked('aclImdb')
  arguments = ['prepare', 'text_mini', '--data_dir', str(tmp_path), '--raw_dir', str(raw)]
  assert cli.main(arguments) == 2
  assert cli.main([*arguments, '--accept_unverified']) == 0
  metadata = prepared.read_metadata(prepared.dataset_folder(tmp_path, 'text_mini'), '')
  assert len(metadata['vocabulary']) == tasks.get_task('text_mini').vocabulary
  parts = {split: examples_lib.open_split('text_mini', split, tmp_path) for split in examples_lib.SPLITS}
  batches = {split: part.gather(np.arange(len(part))) for split, part in parts.items()}
  assert {split: np.bincount(batch['label']).tolist() for split, batch in batches.items()} == {
    'train': [2_500, 2_500],
    'validation': [1_000, 1_000],
    'test': [12_500, 12_500],
  }
  films = {}
  for label in ('neg', 'pos'):
    addresses = (raw / 'aclImdb' / 'train' / f'urls_{label}.txt').read_text().split()
    films[label] = set(addresses[:2_500]), set(addresses[-1_000:])
  trained, validated = (set.union(*sets) for sets in zip(*films.values(), strict=True))
  assert (len(trained), len(validated), len(trained & validated)) == (709, 377, 0)


@pytest.mark.slow
def test_real_recordings_have_the_constants_of_the_task(tmp_path, unpacked):
  prepare.prepare('pulse_mini', tmp_path, raw_dir=unpacked('bidmc'))
  parts = {split: examples_lib.open_split('pulse_mini', split, tmp_path) for split in examples_lib.SPLITS}
  train, task = parts['train'], tasks.get_task('pulse_mini')
  assert [len(part) for part in parts.values()] == [6_004, 948, 1_422]
  sizes = np.array(train.metadata['groups']['train'])
  patients = np.repeat(np.arange(len(sizes)), sizes)
  assert [len(set(patients[part.indices].tolist())) for part in parts.values()] == [34, 6, 6]
  batch = train.gather(np.arange(len(train)))
  values, labels = batch['inputs'].astype(np.float64), batch['label'].astype(np.float64)
  assert values.mean((0, 1)) == pytest.approx(task.inputs.mean, abs=1e-5)
  assert values.std((0, 1)) == pytest.approx(task.inputs.std, abs=1e-5)
  assert (labels.mean(), labels.std()) == pytest.approx((task.labels.mean, task.labels.std), abs=1e-4)
  assert (labels.min(), labels.max()) == pytest.approx(task.labels.range, abs=1e-3)
