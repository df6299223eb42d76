"""Speech Commands from tiny copies of the official layouts, from damaged ones, and from real clips."""

import pathlib
import struct
import tarfile

import numpy as np
import pytest

from data_prep.sources import speech_commands
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared
from lra_spt.objectives import normalise
from tests.data_prep.raw_sets import ACCEPT, nothing_is_left

# {clip: samples} in the order of writing. The set is ordered by word and file name.
CLIPS = {
  'yes/b_nohash_0.wav': 16_000,
  'yes/a_nohash_1.wav': 16_000,
  'on/c_nohash_0.wav': 9_000,
  'one/c_nohash_0.wav': 16_500,
  'bed/d_nohash_0.wav': 16_000,
  'zero/d_nohash_0.wav': 1,
  'bed/a_nohash_0.wav': 16_000,
}
LISTS = {
  'validation_list.txt': 'zero/d_nohash_0.wav\nbed/d_nohash_0.wav',
  'testing_list.txt': 'yes/b_nohash_0.wav\none/c_nohash_0.wav\n',
}
ORDER = {
  'train': ['bed/a_nohash_0.wav', 'on/c_nohash_0.wav', 'yes/a_nohash_1.wav'],
  'validation': ['bed/d_nohash_0.wav', 'zero/d_nohash_0.wav'],
  'test': ['one/c_nohash_0.wav', 'yes/b_nohash_0.wav'],
}
ARCHIVE = 'speech_commands_v0.02.tar.gz'
LABELS = {'bed': 0, 'on': 10, 'one': 27, 'yes': 16, 'zero': 34}


def samples(name):
  """Loud noise, from -32,768 to 32,767."""
  seed = list(CLIPS).index(name)
  return np.random.default_rng(seed).integers(-(2**15), 2**15, CLIPS[name]).astype('<i2')


def wav(frames, *, channels=1, bits=16, rate=16_000, kind=1, promised=None):
  """A WAV file, written from its definition."""
  width = channels * bits // 8
  form = struct.pack('<HHIIHH', kind, channels, rate, rate * width, width, bits)
  size = len(frames) if promised is None else promised
  body = b'WAVEfmt ' + struct.pack('<I', 16) + form + b'data' + struct.pack('<I', size) + frames
  return b'RIFF' + struct.pack('<I', len(body)) + body


@pytest.fixture
def raw(tmp_path):
  """raw_dir with the unpacked folder."""
  folder = tmp_path / 'raw' / 'speech_commands_v0.02'
  extra = {
    '_background_noise_/tap.wav': b'not even a sound',
    'README.md': b'hello',
    '.DS_Store': b'\0',
    'yes/._a_nohash_1.wav': b'\0',
  }
  files = {name: wav(samples(name).tobytes()) for name in CLIPS}
  for name, content in (files | {name: text.encode() for name, text in LISTS.items()} | extra).items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
  return folder.parent


def pack(raw, order=sorted):
  """The folder as an archive like the official one: members are called ./yes/a.wav, in any order."""
  folder = raw / 'speech_commands_v0.02'
  with tarfile.open(raw / ARCHIVE, 'w:gz', compresslevel=1) as tar:
    for path in order(path for path in folder.rglob('*') if path.is_file()):
      tar.add(path, f'./{path.relative_to(folder)}')
  folder.rename(raw / 'elsewhere')
  return raw / ARCHIVE


def prepare(tmp_path, raw, **options):
  return speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw, **ACCEPT, **options)


@pytest.mark.parametrize('order', [None, sorted, lambda paths: sorted(paths, reverse=True)])
def test_both_layouts_give_the_same_set_in_any_order(tmp_path, raw, order):
  if order:
    pack(raw, order)
  folder = prepare(tmp_path, raw)
  metadata = prepared.read_metadata(folder, '')
  assert metadata['counts'] == {'train': 3, 'validation': 2, 'test': 2}
  assert (metadata['padded'], metadata['cut'], metadata['dtype']) == (2, 1, 'int16')
  assert metadata['missing'] == {'validation': 0, 'test': 0}
  assert metadata['class_names'] == list(speech_commands.WORDS)
  assert metadata['verified'] is False
  for file, names in ORDER.items():
    examples = examples_lib.open_split('speech_commands', file, tmp_path / 'data')
    batch = examples.gather(np.arange(len(names)))
    assert batch['inputs'].dtype == np.int16
    assert batch['label'].tolist() == [LABELS[name.split('/')[0]] for name in names]
    for name, row in zip(names, batch['inputs'], strict=True):
      clip = samples(name)[:16_000]
      assert np.array_equal(row, np.pad(clip, (0, 16_000 - len(clip))))
  assert [path.name for path in folder.parent.iterdir()] == [prepared.VERSION]


def test_statistics_are_of_the_training_clips_alone(tmp_path, raw):
  metadata = prepared.read_metadata(prepare(tmp_path, raw), '')
  train = np.concatenate([np.pad(samples(name)[:16_000], (0, max(0, 16_000 - CLIPS[name])))
                          for name in ORDER['train']]).astype(np.float64)  # fmt: skip
  assert metadata['statistics'].keys() == {'train'}
  np.testing.assert_allclose(metadata['statistics']['train']['mean'], [train.mean()], rtol=1e-12)
  np.testing.assert_allclose(metadata['statistics']['train']['std'], [train.std()], rtol=1e-12)


def test_without_training_clips_there_are_no_statistics(tmp_path, raw):
  """A copy may hold only test clips, which must not determine the normalisation."""
  lists = raw / 'speech_commands_v0.02'
  (lists / 'validation_list.txt').write_text('')
  (lists / 'testing_list.txt').write_text('\n'.join(CLIPS))
  assert prepared.read_metadata(prepare(tmp_path, raw), '')['statistics'] == {}


def test_the_words_are_those_of_the_published_code():
  assert len(set(speech_commands.WORDS)) == 35
  assert [speech_commands.WORDS.index(word) for word in LABELS] == list(LABELS.values())
  # The words are two alphabetical lists, which begin with `bed` and with `backward`.
  assert speech_commands.WORDS.index('backward') == 17
  assert list(speech_commands.WORDS[:17]) == sorted(speech_commands.WORDS[:17])
  assert list(speech_commands.WORDS[17:]) == sorted(speech_commands.WORDS[17:])


def test_archives_are_verified_and_folders_cannot_be(tmp_path, raw, make_official):
  with pytest.raises(ValueError, match='cannot be verified because no official.*--accept_unverified'):
    speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw)
  archive = pack(raw)
  with pytest.raises(ValueError, match=r'is not the official file .SHA256 [0-9a-f]{64} instead of af14'):
    speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw)
  assert nothing_is_left(tmp_path)
  make_official(archive)
  with pytest.raises(ValueError, match='has 3 of 84,843 train, 2 of 9,981 validation, 2 of 11,005 test'):
    speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw)
  folder = speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw, accept_incomplete=True)
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['verified'], metadata['verification']) == (True, 'SHA256')


def test_listed_clips_that_are_missing_are_named_or_counted(tmp_path, raw, make_official, capsys):
  folder = raw / 'speech_commands_v0.02'
  for name in [*ORDER['train'], *ORDER['validation'], ORDER['test'][0]]:
    (folder / name).unlink()
  archive = pack(raw)
  make_official(archive)
  with pytest.raises(ValueError, match='lacks 3 of the clips .*first: bed/d_nohash_0.wav.; get it again, or'):
    speech_commands.prepare_speech_commands(tmp_path / 'data', raw_dir=raw)
  assert nothing_is_left(tmp_path)
  metadata = prepared.read_metadata(prepare(tmp_path, raw), '')
  assert 'lacks 3 of the clips that its lists name' in capsys.readouterr().out
  assert metadata['missing'] == {'validation': 2, 'test': 1}
  assert metadata['counts'] == {'train': 0, 'validation': 0, 'test': 1}
  assert examples_lib.open_split('speech_commands', 'test', tmp_path / 'data').gather([0])['label'] == [16]
  for split in ('train', 'validation'):
    with pytest.raises(ValueError, match=f'The {split} split of task .* is empty'):
      examples_lib.open_split('speech_commands', split, tmp_path / 'data')


def test_missing_lists_and_clips_are_named(tmp_path, raw):
  folder = raw / 'speech_commands_v0.02'
  for name in LISTS:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f'{folder} has no {name}'):
      prepare(tmp_path, raw)
    (folder / name).write_bytes(content)
  for name in CLIPS:
    (folder / name).unlink()
  with pytest.raises(ValueError, match=f'{folder} has no clips'):
    prepare(tmp_path, raw / folder.name)
  assert nothing_is_left(tmp_path)


SECOND = bytes(32_000)


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize(
  'name, content, reason',
  [
    ('yes/x.wav', b'', r'is not a readable WAV file \(it ends too early\)'),
    ('yes/x.wav', b'hello, this is no sound', r'is not a readable WAV file \(file does not start with RIFF'),
    ('yes/x.wav', wav(SECOND)[:30], 'is not a readable WAV file'),
    ('yes/x.wav', wav(SECOND)[:5_044], 'is truncated or empty: it holds 2,500 of 16,000 samples'),
    ('yes/x.wav', wav(b''), 'is truncated or empty: it holds 0 of 0 samples'),
    ('yes/x.wav', wav(SECOND, rate=44_100), r'has 1 channel\(s\) of 16 bits at 44,100 Hz, but clips'),
    ('yes/x.wav', wav(SECOND, channels=2), r'has 2 channel\(s\) of 16 bits at 16,000 Hz'),
    ('yes/x.wav', wav(SECOND, bits=8), r'has 1 channel\(s\) of 8 bits at 16,000 Hz'),
    ('yes/x.wav', wav(SECOND, kind=3), r'is not a readable WAV file \(unknown format: 3'),
    ('yes/x.mp3', wav(SECOND), r'is not a clip: those are \.wav files in folders named after the 35 words'),
    ('maybe/x.wav', wav(SECOND), 'is not a clip'),
    ('validation_list.txt', b'bed/d_nohash_0.wav\n\n', ', row 2, does not name a clip as <word>/<'),
    ('validation_list.txt', b'bed/../../x.wav', ', row 1, does not name'),
    ('testing_list.txt', b'maybe/x.wav', ', row 1, does not name'),
    ('testing_list.txt', b'\xff\xfe\0', ', row 1, does not name'),
  ],
)
def test_damaged_files_are_named(tmp_path, raw, packed, name, content, reason):
  folder = raw / 'speech_commands_v0.02'
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_bytes(content)
  where = pack(raw) if packed else folder
  with pytest.raises(ValueError, match=f'^{where}/{name},? ?{reason}') as raised:
    prepare(tmp_path, raw)
  assert '\n' not in str(raised.value)
  assert nothing_is_left(tmp_path)


def test_a_clip_in_both_lists_is_refused(tmp_path, raw):
  (raw / 'speech_commands_v0.02' / 'testing_list.txt').write_text(LISTS['validation_list.txt'])
  with pytest.raises(ValueError, match=r'Both lists of .* name bed/d_nohash_0\.wav'):
    prepare(tmp_path, raw)


def test_real_clips(tmp_path, unpacked):
  raw = unpacked('speech')
  folder = raw / 'speech_commands_v0.02'
  metadata = prepared.read_metadata(prepare(tmp_path, raw), '')
  assert metadata['counts'] == {'train': 0, 'validation': 0, 'test': 600}
  # The official lists have 9,981 and 11,005 clips.
  assert metadata['missing'] == {'validation': 9_981, 'test': 11_005 - 600}
  examples = examples_lib.open_split('speech_commands', 'test', tmp_path / 'data')
  batch = examples.gather(np.arange(600))
  paths = sorted(folder.glob('*/*.wav'))
  words = [pathlib.Path(path).parent.name for path in paths]
  assert batch['label'].tolist() == [speech_commands.WORDS.index(word) for word in words]
  for i in (0, 61, 599):
    # These clips have the shortest possible header, 44 bytes.
    assert np.array_equal(batch['inputs'][i], np.frombuffer(paths[i].read_bytes()[44:], '<i2'))
  # Without training clips, no statistics are measured for the normalisation.
  assert metadata['statistics'] == {}
  values = normalise(examples.task, batch['inputs'])
  np.testing.assert_allclose(values[..., 0], batch['inputs'] / 32768, rtol=1e-6)
  assert float(values.std()) == pytest.approx(0.09, abs=0.001)
