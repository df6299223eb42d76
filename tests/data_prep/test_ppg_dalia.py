"""PPG-DaLiA from small files of its layout, and pickles that it refuses."""

import io
import os
import pickle
import struct

import numpy as np
import pytest

from data_prep.sources import ppg_dalia
from lra_spt import errors
from lra_spt.data import fitting, prepared, tasks
from lra_spt.data.examples import open_source
from tests.data_prep.raw_sets import ACCEPT

SECONDS = 40


@pytest.fixture
def small(monkeypatch):
  """Examples of 10 s that begin every 4 s, of three subjects."""
  monkeypatch.setattr(ppg_dalia, 'LENGTH', 640)
  monkeypatch.setattr(ppg_dalia, 'STEP', 256)
  monkeypatch.setattr(ppg_dalia, 'SUBJECTS', 3)


def subject(seed, **changes):
  rng = np.random.default_rng(seed)
  wrist = {'ACC': (32, 3), 'BVP': (64, 1), 'EDA': (4, 1), 'TEMP': (4, 1)}
  wrist = {name: rng.normal(size=(rate * SECONDS, channels)) for name, (rate, channels) in wrist.items()}
  chest = {'ECG': rng.normal(size=(10, 1)), 'Resp': rng.normal(size=(10, 1)).astype(np.float32)}
  content = {
    'signal': {'wrist': wrist, 'chest': chest},
    'label': rng.uniform(50, 150, (SECONDS - 8) // 2 + 1),
    'rpeaks': np.arange(5),
    'questionnaire': {'AGE': 30, 'HEIGHT': 180.5, 'Gender': ' f'},
    'subject': f'S{seed}',
  }
  return content | changes


class Python2(pickle._Pickler):
  """Writes text and bytes as Python 2 does, as strings of one byte a character."""

  dispatch = dict(pickle._Pickler.dispatch)

  def save_string(self, text):
    content = text.encode('latin1') if isinstance(text, str) else text
    self.write(b'T' + struct.pack('<i', len(content)) + content)
    self.memoize(text)

  dispatch[str] = dispatch[bytes] = save_string


def of_python_2(content):
  Python2(file := io.BytesIO(), protocol=2).dump(content)
  return file.getvalue().replace(b'numpy._core', b'numpy.core')


def write(raw, contents, dump=lambda content: pickle.dumps(content, protocol=2)):
  for number, content in enumerate(contents, start=1):
    folder = raw / 'PPG_FieldStudy' / f'S{number}'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'S{number}.pkl').write_bytes(content if isinstance(content, bytes) else dump(content))
  return raw


@pytest.mark.usefixtures('small')
@pytest.mark.parametrize('dump', [of_python_2, pickle.dumps])
def test_windows_and_their_mean_heart_rate(tmp_path, dump):
  contents = [subject(n) for n in (1, 2, 3)]
  raw = write(tmp_path / 'raw', contents, dump)
  folder = ppg_dalia.prepare_ppg_dalia(tmp_path / 'data', raw_dir=raw, accept_unverified=True)
  metadata = prepared.read_metadata(folder, '')
  count = (SECONDS - 10) // 4 + 1
  assert metadata['groups'] == {'train': [count] * 3}
  assert metadata['counts'] == {'train': 3 * count}
  source = open_source(str(folder), 'train')
  for place in (0, 1, count - 1, count, 3 * count - 1):
    content, start = contents[place // count], place % count * 4
    wrist = content['signal']['wrist']
    actual = source[place]
    time = start + np.arange(640) / 64  # in seconds; a signal gives its latest value
    np.testing.assert_array_equal(actual['inputs'][:, :3], wrist['ACC'][(time * 32).astype(int)].astype('f4'))
    for channel, (name, rate) in enumerate({'BVP': 64, 'EDA': 4, 'TEMP': 4}.items(), start=3):
      wanted = wrist[name][(time * rate).astype(int), 0].astype('f4')
      np.testing.assert_array_equal(actual['inputs'][:, channel], wanted)
    within = [rate for n, rate in enumerate(content['label']) if start <= 2 * n <= start + 2]
    assert actual['label'] == pytest.approx(np.mean(within), rel=1e-6)
  fitting.check_fits(tasks.get_task('ppg_dalia').with_inputs(length=640), metadata, folder)


@pytest.mark.usefixtures('small')
def test_missing_and_unverified_files_are_named(tmp_path):
  raw = write(tmp_path / 'raw', [subject(1), subject(2)])
  with pytest.raises(errors.MissingFile, match=r'lacks S3\.pkl; unpack https://archive\.ics\.uci\.edu'):
    ppg_dalia.prepare_ppg_dalia(tmp_path, raw_dir=raw, accept_unverified=True)
  with pytest.raises(errors.DataError, match=r'S1\.pkl cannot be verified'):
    ppg_dalia.prepare_ppg_dalia(tmp_path, raw_dir=raw, accept_incomplete=True)
  folder = ppg_dalia.prepare_ppg_dalia(tmp_path, raw_dir=raw, **ACCEPT)
  assert len(prepared.read_metadata(folder, '')['groups']['train']) == 2


class Evil:
  def __reduce__(self):
    return os.system, ('touch evil',)


def without(name):
  content = subject(1)
  del content[name]
  return content


def with_wrist(**changes):
  content = subject(1)
  content['signal']['wrist'] |= changes
  return content


@pytest.mark.usefixtures('small')
@pytest.mark.parametrize(
  ('content', 'reason'),
  [
    (Evil(), r'S1\.pkl is not a file of PPG-DaLiA \(it asks for (posix|nt)\.system, which no PPG-DaLiA'),
    (subject(1, questionnaire=Evil()), 'it asks for'),
    (subject(1, label=np.array([Evil()], object)), "an array of 'O8' instead of numbers"),
    # The bytes would be read as pointers, which NumPy would follow.
    (pickle.dumps(subject(1), protocol=2).replace(b'f8', b'O8'), "an array of 'O8' instead of numbers"),
    (b'\x80\x02]r\xff\xff\xff\x7f.', 'it numbers its 2,147,483,647th object in 9 bytes'),
    (pickle.dumps(subject(1))[:-50], r'S1\.pkl is not a file of PPG-DaLiA'),
    (b'no pickle', r'S1\.pkl is not a file of PPG-DaLiA'),
    ([1, 2], 'there is no signal in it'),
    (without('label'), 'there is no label in it'),
    (with_wrist(ACC=np.zeros((9, 2))), 'its ACC is no array of real numbers in 3 channels'),
    (with_wrist(BVP='text'), 'its BVP is no array of real numbers in 1 channels'),
    (with_wrist(EDA=np.full((4 * SECONDS, 1), np.nan)), 'its EDA has a number that is not finite'),
    (with_wrist(TEMP=np.zeros((4, 1))), r'has signals of differing length, in seconds ACC 40, .* TEMP 1;'),
    (subject(1, label=np.array([60.0])), r'S1\.pkl has less than 10 s'),
  ],
)  # fmt: skip
def test_foreign_files_are_refused_and_run_nothing(tmp_path, monkeypatch, content, reason):
  monkeypatch.chdir(tmp_path)
  raw = write(tmp_path / 'raw', [content, subject(2), subject(3)])
  with pytest.raises(errors.DataError, match=reason):
    ppg_dalia.prepare_ppg_dalia(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  assert not (tmp_path / 'evil').exists()
  assert not [*(tmp_path / 'data').rglob('*')]
