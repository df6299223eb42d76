"""BIDMC from tiny copies of both official layouts, from damaged ones, and from the real recordings."""

import hashlib
import math
import shutil
import statistics
import zipfile

import numpy as np
import pytest

from data_prep.sources import bidmc
from lra_spt.data import prepared
from tests.data_prep.bidmc_sets import RATE, REFUSE, SETS, WINDOW, prepare, stored
from tests.data_prep.raw_sets import nothing_is_left

SECONDS = 6
# Recordings 6 and 7 are of one patient. Readings of recording 52 begin and end one second early.
HEADERS = {
  1: 'Time [s], RESP, PLETH, V, AVR, II',
  6: 'Time [s], II, ABP, PLETH',
  7: 'Time [s], PLETH, RESP, II',
  52: 'Time [s], V, RESP, II, AVR, PLETH',
}
NUMERICS = {
  1: '94,93,25,97 94,93,25,97 95,94,24,96 95,NaN,24,NaN 96,95,23,95 97,95,22,94 97,95,22,94'.split(),
  6: '60,61,0,99 61,61,0,99 62,61,NaN,99 62,61,NaN,98 62,61,12,98 63,61,13,98 63,61,13,98'.split(),
  7: '70,70,10,NaN 70,70,11,NaN 70,70,12,NaN 71,71,13,90 71,71,14,91 72,71,15,92 72,1,1,93'.split(),
  52: '1,1,1,1 80,80,8,80 81,80,9,81 82,80,10,82 83,80,11,83 84,80,12,84 85,80,13,85'.split(),
}
ARCHIVE = 'bidmc-ppg-and-respiration-dataset-1.0.0.zip'


def signal(number, column):
  """The values of recording `number` in `column`, as text."""
  generator = np.random.default_rng([number, *column.encode()])
  return [f'{value:.5g}' for value in generator.uniform(-0.5, 1.5, SECONDS * RATE + 1)]


def numeric(number, column):
  position = ['HR', 'PULSE', 'RESP', 'SpO2'].index(column)
  readings = [float(line.split(',')[position]) for line in NUMERICS[number]]
  return readings[1:] if number == 52 else readings


def reference(column):
  """Computes ([(inputs, label) of every window], [windows of each patient]) with plain loops."""
  windows, patients = [], []
  for number in HEADERS:
    ppg, ecg = (list(map(float, signal(number, name))) for name in ('PLETH', 'II'))
    readings, labelled = numeric(number, column), 0
    for second in range(SECONDS - 1):
      there = [value for value in readings[second : second + 2] if not math.isnan(value)]
      if there and any(there):
        first = second * RATE
        pair = zip(ppg[first : first + WINDOW], ecg[first : first + WINDOW], strict=True)
        windows.append((np.asarray(list(pair), np.float32), statistics.fmean(there)))
        labelled += 1
    if number == 7:
      patients[-1] += labelled
    else:
      patients.append(labelled)
  return windows, patients


@pytest.fixture
def layout(tmp_path):
  """Writes the recordings as PhysioNet has them, unpacked or packed, and returns raw_dir."""

  def write(packed=False):
    raw = tmp_path / 'raw'
    folder = raw / 'dataset' / 'bidmc_csv'
    folder.mkdir(parents=True)
    for number, header in HEADERS.items():
      columns = [signal(number, name.strip()) for name in header.split(',')[1:]]
      # Times beyond 100 s have two decimals; here beyond 3 s.
      times = [f'{i / RATE:.{3 if i < 3 * RATE else 2}f}' for i in range(SECONDS * RATE + 1)]
      lines = [header, *(','.join(cells) for cells in zip(times, *columns, strict=True))]
      (folder / f'bidmc_{number:02d}_Signals.csv').write_text('\n'.join(lines) + '\n')
      begin = -1 if number == 52 else 0
      lines = [f'{begin + i},{line}' for i, line in enumerate(NUMERICS[number])]
      text = '\n'.join(['Time [s], HR, PULSE, RESP, SpO2', *lines]) + '\n'
      (folder / f'bidmc_{number:02d}_Numerics.csv').write_text(text)
      (folder / f'bidmc_{number:02d}_Breaths.csv').write_text('breaths')
    if packed:
      pack(raw)
      folder.rename(tmp_path / 'elsewhere')
    return raw

  return write


def pack(raw):
  with zipfile.ZipFile(raw / ARCHIVE, 'w', zipfile.ZIP_DEFLATED) as archive:
    for path in sorted((raw / 'dataset').rglob('*.csv')):
      archive.write(path, f'bidmc-ppg-and-respiration-dataset-1.0.0/bidmc_csv/{path.name}')


@pytest.mark.parametrize('packed', [False, True])
def test_both_layouts_give_three_sets(tmp_path, layout, packed):
  folders = prepare(tmp_path, layout(packed))
  assert [folder.parent.name for folder in folders] == list(SETS)
  for folder, column in zip(folders, ('HR', 'RESP', 'SpO2'), strict=True):
    windows, patients = reference(column)
    metadata = prepared.read_metadata(folder, '')
    assert metadata['counts'] == {'train': len(windows)}
    assert metadata['groups'] == {'train': patients}
    assert metadata['left_out'] == 20 - len(windows) == {'HR': 0, 'RESP': 3, 'SpO2': 2}[column]
    assert (metadata['classes'], metadata['dtype'], metadata['shape']) == (0, 'float32', [WINDOW, 2])
    assert (metadata['verified'], metadata['recordings']) == (False, [1, 6, 7, 52])
    examples = stored(folder)
    assert len(examples) == len(windows)
    for (inputs, label), (expected, mean) in zip(examples, windows, strict=True):
      assert inputs.dtype == np.float32
      assert np.array_equal(inputs, expected)
      assert label == np.float32(mean)


def test_sets_that_are_there_are_kept(tmp_path, layout, capsys):
  raw = layout()
  folders = prepare(tmp_path, raw)
  before = [(folder / 'metadata.json').stat().st_mtime_ns for folder in folders]
  capsys.readouterr()
  assert prepare(tmp_path, None) == folders
  assert capsys.readouterr().out.count('is already prepared') == 3
  assert before == [(folder / 'metadata.json').stat().st_mtime_ns for folder in folders]
  with pytest.raises(ValueError, match='made with stride=125 instead of stride=250'):
    prepare(tmp_path, raw, stride=250)
  with pytest.raises(ValueError, match='Windows of 200 samples every 125 are not whole seconds'):
    prepare(tmp_path, raw, window=200)


def test_official_recordings_are_known_by_their_checksums(tmp_path, layout, monkeypatch):
  raw = layout()
  missing = r'bidmc_02_Numerics\.csv, bidmc_02_Signals\.csv, .*, \.\.\.'
  with pytest.raises(FileNotFoundError, match=f'lacks {missing}'):
    prepare(tmp_path, raw, **REFUSE)
  monkeypatch.setattr(bidmc, 'NUMBERS', tuple(HEADERS))
  with pytest.raises(ValueError, match='not the official ones: their checksums differ'):
    prepare(tmp_path, raw, **REFUSE)
  assert nothing_is_left(tmp_path)
  # The format is that of `sha256sum`, but with one blank.
  paths = sorted((raw / 'dataset' / 'bidmc_csv').glob('*[ls].csv'))
  lines = [
    f'{hashlib.sha256(path.read_bytes()).hexdigest()} bidmc_csv/{path.name}\n'
    for path in paths
    if 'Breaths' not in path.name
  ]
  assert len(lines) == 8
  monkeypatch.setattr(bidmc, 'CHECKSUMS_SHA256', hashlib.sha256(''.join(lines).encode()).hexdigest())
  pack(raw)
  for folder in prepare(tmp_path, raw, **REFUSE):
    metadata = prepared.read_metadata(folder, '')
    assert (metadata['verified'], metadata['verification']) == (True, 'SHA256')
    assert metadata['source'].startswith(f'files {ARCHIVE}: 4 recordings of 3 patients')


def without(raw, number, column):
  """Empties a column of the readings of a recording."""
  path = raw / 'dataset' / 'bidmc_csv' / f'bidmc_{number:02d}_Numerics.csv'
  header, *rows = (line.split(',') for line in path.read_text().splitlines())
  for row in rows:
    row[[name.strip() for name in header].index(column)] = 'NaN'
  path.write_text('\n'.join(map(','.join, [header, *rows])) + '\n')


@pytest.mark.parametrize('packed, target, column', [(False, 'HR', 'HR'), (True, 'SpO2', 'SpO2')])
def test_recordings_without_any_usable_reading_are_refused(tmp_path, layout, packed, target, column):
  raw = layout()
  for number in HEADERS:
    without(raw, number, column)
  if packed:
    pack(raw)
    shutil.rmtree(raw / 'dataset')
  message = f'{raw}.* has no usable reading of {target}: column {column} of its 4 recordings is empty or 0'
  with pytest.raises(ValueError, match=message):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)  # no set of another target either


def test_recordings_without_a_reading_are_counted(tmp_path, layout, capsys):
  raw = layout()
  without(raw, 7, 'RESP')
  prepare(tmp_path, raw)
  _, rr, _ = (line for line in capsys.readouterr().out.splitlines() if line.startswith('Prepared'))
  assert '8 unlabelled windows left out (no label in 1 of the recordings)' in rr


def test_missing_files_are_named_with_their_source(tmp_path, layout, monkeypatch):
  for raw in (None, tmp_path):
    with pytest.raises(FileNotFoundError, match=r'put bidmc-ppg-.*physionet.*or the files BIDMC32.*zenodo'):
      prepare(tmp_path, raw)
  raw = layout()
  (raw / 'dataset' / 'bidmc_csv' / 'bidmc_07_Numerics.csv').unlink()
  monkeypatch.setattr(bidmc, 'NUMBERS', tuple(HEADERS))
  with pytest.raises(FileNotFoundError, match=r'bidmc_csv lacks bidmc_07_Numerics\.csv; get it again'):
    prepare(tmp_path, raw, **REFUSE)
  assert nothing_is_left(tmp_path)
  (raw / 'dataset' / 'bidmc_csv' / 'bidmc_52_Signals.csv').unlink()
  assert prepared.read_metadata(prepare(tmp_path, raw)[0], '')['recordings'] == [1, 6]


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize(
  'kind, old, new, reason',
  [
    ('Signals', 'PLETH', 'PPG', r'has no column PLETH; it has Time \[s\], RESP, PPG, V, AVR, II'),
    ('Signals', 'II', 'I', 'has no column II'),
    ('Signals', '\n0.032,', '\n0.040,', ', row 6, is not at the time that 125 samples a second'),
    ('Signals', '\n0.016,', '\n0.02,', None),  # a time with fewer digits
    ('Signals', '\n0.024,', '\n0.024,1,x', ', row 5, has cells that are not numbers'),
    ('Signals', '\n0.024,', '\n0.024,1,1_0,', 'is not a table of numbers'),
    ('Signals', '\n0.024,', '\n0.024\n', ', row 5, has cells that are not numbers'),
    ('Signals', '\n0.024,', '\n0.024,1,nan,', ', row 5, has a sample that is not finite'),
    ('Signals', '\n0.024,', '\n0.024,1,inf,', ', row 5, has a sample that is not finite'),
    ('Signals', None, '', r'has no column Time \[s\], PLETH, II; it has no columns'),
    ('Signals', None, 'Time [s], PLETH, II\n', 'has no rows'),
    ('Numerics', 'SpO2', 'PULSE2', 'has no column SpO2'),
    ('Numerics', '\n2,95,', '\n2,high,', ', row 4, has cells that are not numbers'),
    ('Numerics', '\n2,95,', '\n2,,', ', row 4, has cells that are not numbers'),
    ('Numerics', '\n2,95,', '\n2,-1,', ', row 4, has a reading that is negative or infinite'),
    ('Numerics', '\n3,', '\n4,', ', row 5, does not follow one second after'),
    ('Numerics', '\n0,94,93,25,97\n', '\n', ', row 2, does not follow one second after'),
    ('Numerics', '\n5,97,95,22,94\n6,97,95,22,94', '', 'has readings of 5 s, but the signals last 6 s'),
    ('Numerics', '\n6,97,95,22,94', '', None),  # readings may end with the signals
  ],
)
def test_damaged_recordings_are_named(tmp_path, layout, packed, kind, old, new, reason):
  raw = layout()
  path = raw / 'dataset' / 'bidmc_csv' / f'bidmc_01_{kind}.csv'
  text = path.read_text()
  assert old is None or text.count(old) >= 1
  path.write_text(new if old is None else text.replace(old, new, 1))
  where = path
  if packed:
    pack(raw)
    where = raw / ARCHIVE / path.name
  if reason is None:
    assert len(bidmc.read_recordings(bidmc.find(raw), True, True)[0]) == 4
    return
  with pytest.raises(ValueError, match=f'^{where} ?{reason}') as raised:
    prepare(tmp_path, raw)
  assert '\n' not in str(raised.value)
  assert nothing_is_left(tmp_path)


def test_short_recordings_and_unreadable_files_are_named(tmp_path, layout):
  raw = layout()
  with pytest.raises(ValueError, match='Recording 1 in .* has 751 samples, but a window has 4,000'):
    prepare(tmp_path, raw, window=4000, stride=375)
  path = raw / 'dataset' / 'bidmc_csv' / 'bidmc_06_Signals.csv'
  path.unlink()
  path.mkdir()
  with pytest.raises(ValueError, match=r'bidmc_06_Signals\.csv could not be read: it is a folder'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)
