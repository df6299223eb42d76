"""BIDMC from the windows of the TSER archive."""

import numpy as np
import pytest

from data_prep import catalogue
from data_prep.sources import bidmc, bidmc_ts
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from tests.data_prep.bidmc_sets import RATE, REFUSE, prepare
from tests.data_prep.raw_sets import ACCEPT, nothing_is_left

TS_HEADER = [
  *('# Windows of BIDMC', '@problemName BIDMC32HR', '@timeStamps false', '@missing false'),
  *('@univariate false', '@dimensions 2', '@equalLength true', '@targetlabel true', '@data'),
]

TS = {
  'TRAIN': ['0.1,0.2,0.3:1,-0.5,1.5:93.875', '0.2,0.3,0.4:-0.5,1.5,1e-1:94', '0.3,0.4,0.5:0,0,0:21.25'],
  'TEST': ['0.9,0.8,0.7:0.6,0.5,0.4:60.03125', '', '4.002,0,0:1,2,3:61'],
}


@pytest.fixture
def windows(tmp_path):
  """Writes TSER's two files of a target and returns raw_dir."""

  def write(target, folder='.', **changed):
    raw = tmp_path / 'raw'
    (raw / folder).mkdir(parents=True, exist_ok=True)
    for part, lines in (TS | changed).items():
      path = raw / folder / f'BIDMC32{target}_{part}.ts'
      path.write_text('\n'.join([*TS_HEADER, *lines, '']))
    return raw

  return write


def test_windows_of_tser_come_in_the_order_of_the_published_split(tmp_path, windows):
  windows('HR')
  raw = windows('SpO2', 'BIDMC32SpO2')
  with pytest.raises(ValueError, match=r'BIDMC32HR_TRAIN\.ts and .* cannot be verified .*--accept'):
    prepare(tmp_path, raw, **REFUSE)
  # The set has windows of whole seconds only, so the windows of 3 values here are refused.
  with pytest.raises(ValueError, match='row 10, dimension 1, has 3 numbers instead of 250'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)
  expected = [
    [np.array(series.split(','), np.float32) for series in line.split(':')]
    for part in TS.values()
    for line in part
    if line
  ]
  for target in ('HR', 'SpO2'):
    paths = bidmc_ts.find(raw, [target])[target]
    source = bidmc_ts.load(paths, target, 3, {'SpO2': 6}, ACCEPT, '')
    assert (source.counts, source.groups, source.shape) == ({'train': 5}, None, (3, 2))
    examples = list(source.files['train']())
    assert len(examples) == 5
    for (inputs, label), (ppg, ecg, mean) in zip(examples, expected, strict=True):
      assert inputs.dtype == np.float32
      assert np.array_equal(inputs, np.stack([ppg, ecg], axis=1))
      assert np.float32(label) == mean.item()


def test_sets_of_tser_have_no_groups_and_are_not_taken_for_those_of_physionet(tmp_path, windows, monkeypatch):
  lines = [','.join(['0.5'] * 125) + ':' + ','.join([str(i / 10)] * 125) + f':{i}' for i in range(1, 11)]
  raw = windows('RR', 'RR', TRAIN=lines, TEST=lines)
  (folder,) = prepare(tmp_path, raw, window=125)
  metadata = prepared.read_metadata(folder, '')
  assert (folder.parent.name, metadata['counts'], metadata['verified']) == ('bidmc_rr', {'train': 20}, False)
  task = tasks.get_task('bidmc_rr').with_inputs(length=125)
  with pytest.raises(ValueError, match='protocol=paper'):
    examples_lib.open_split(task, 'train', tmp_path / 'data')
  task = task.as_published()
  parts = [examples_lib.open_split(task, split, tmp_path / 'data') for split in examples_lib.SPLITS]
  assert [len(part) for part in parts] == [14, 3, 3]
  batch = parts[1].gather([0, 1, 2])
  assert batch['inputs'].shape == (3, 125, 2)
  assert np.array_equal(batch['label'], batch['index'] % 10 + 1)
  monkeypatch.setattr(bidmc, 'SETS', {'bidmc_rr': 'RR'})
  with pytest.raises(ValueError, match='made with from=TSER instead of from=PhysioNet'):
    prepare(tmp_path, None, window=125)


@pytest.mark.parametrize(
  'part, line, reason',
  [
    ('TEST', '0.9,0.8,0.7:0.6,0.5,0.4', 'row 10, has 2 parts between colons instead of 2 dimensions'),
    ('TEST', '1,2,3:4,5,6:7,8,9:60', 'row 10, has 4 parts'),
    ('TRAIN', '0.9,0.8,0.7:0.6,0.5:60', 'row 10, dimension 2, has 2 numbers instead of 3'),
    ('TRAIN', '0.9,0.8,0.7,1:0.6,0.5,0.4:60', 'row 10, dimension 1, has 4 numbers instead of 3'),
    ('TRAIN', '0.9,?,0.7:0.6,0.5,0.4:60', 'row 10, dimension 1, does not hold only numbers'),
    ('TRAIN', '0.9,,0.7:0.6,0.5,0.4:60', 'row 10, dimension 1, does not hold only numbers'),
    ('TRAIN', '0.9,0.1,0.7:0.6,NaN,0.4:60', 'row 10, dimension 2, has a number that is not finite'),
    ('TRAIN', '0.9,0.1,0.7:0.6,0.5,0.4:', 'row 10, the label, has 0 numbers instead of 1'),
    ('TRAIN', '0.9,0.1,0.7:0.6,0.5,0.4:?', 'row 10, the label, does not hold only numbers'),
    ('TRAIN', '0.9,0.1,0.7:0.6,0.5,0.4:nan', 'row 10, the label, has a number that is not finite'),
    ('TRAIN', '0.9,0.1,0.7:0.6,0.5,0.4:60,61', 'row 10, the label, has 2 numbers instead of 1'),
  ],
)
def test_damaged_windows_of_tser_are_named(windows, part, line, reason):
  raw = windows('HR', **{part: [line]})
  source = bidmc_ts.load(bidmc_ts.find(raw, ['HR'])['HR'], 'HR', 3, {}, ACCEPT, '')
  with pytest.raises(ValueError, match=f'^{raw}/BIDMC32HR_{part}.ts, {reason}') as raised:
    list(source.files['train']())
  assert '\n' not in str(raised.value)


def test_damaged_files_of_tser_are_named(tmp_path, windows):
  raw = windows('HR', TEST=[])
  with pytest.raises(ValueError, match=r'BIDMC32HR_TEST\.ts has no windows'):
    prepare(tmp_path, raw)
  path = raw / 'BIDMC32HR_TEST.ts'
  path.write_text('<html>Not found</html>')
  with pytest.raises(ValueError, match=f'{path} has no line @data'):
    prepare(tmp_path, raw)
  path.write_bytes(b'@data\n\x1f\x8b\xff')
  with pytest.raises(ValueError, match=f'{path} is not text'):
    prepare(tmp_path, raw)
  path.unlink()
  with pytest.raises(FileNotFoundError, match=r'has BIDMC32HR_TRAIN\.ts only; get .*/records/4001456'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)


@pytest.mark.slow
def test_real_recordings_give_the_windows_of_tser_and_little_more(unpacked):
  raw = unpacked('bidmc')
  recordings, verified = bidmc.read_recordings(bidmc.find(raw), **REFUSE)
  assert verified
  assert [recording.number for recording in recordings] == list(range(1, 54))
  assert {recording.signals.shape for recording in recordings} == {(60_001, 2)}
  least, most = (
    np.array([extreme(recording.signals, axis=0) for recording in recordings]) for extreme in (np.min, np.max)
  )
  assert np.allclose(least.min(0), [0, -0.50196])
  assert np.allclose(most.max(0), [4.002, 1.5039])

  cuts = {
    target: [
      bidmc.cut(60_001, recording.readings[target], bidmc.WINDOW, bidmc.STRIDE) for recording in recordings
    ]
    for target in bidmc.READINGS
  }
  # TSER has 7,949, 7,870 and 7,949.
  assert {target: sum(len(labels) for _, labels in actual) for target, actual in cuts.items()} == {
    'HR': 7950,
    'RR': 7871,
    'SpO2': 7950,
  }
  labels = {target: np.concatenate([labels for _, labels in actual]) for target, actual in cuts.items()}
  ranges = {'HR': (56.03125, 128.25), 'RR': (2 / 13, 27.375), 'SpO2': (83.875, 100)}
  for target, expected in ranges.items():
    assert (labels[target].min(), labels[target].max()) == pytest.approx(expected)
  # Two windows of BIDMC32RR_TRAIN.ts, found in the recordings by their samples.
  starts, rates = cuts['RR'][0]
  assert rates[np.isin(starts, [141 * RATE, 144 * RATE])].tolist() == [21.15625, 21.25]

  fixed = {}
  for number in range(1, 54):
    text = (raw / 'dataset' / 'bidmc_csv' / f'bidmc_{number:02d}_Fix.txt').read_text()
    fixed.setdefault(text.split('matched wdb ID: ')[1].split()[0], []).append(number)
  same = [numbers for numbers in fixed.values() if len(numbers) > 1]
  assert same == [list(numbers) for numbers in bidmc.SAME_PATIENT]
  assert len(fixed) == 46


@pytest.mark.slow
def test_real_recordings_split_by_patient_and_as_published(tmp_path, unpacked):
  bidmc.prepare_bidmc(tmp_path / 'data', raw_dir=unpacked('bidmc'))
  seventy = 5565, 1192, 1193
  for name, sizes in (('bidmc_hr', seventy), ('bidmc_rr', (5509, 1181, 1181)), ('bidmc_spo2', seventy)):
    clean = tasks.get_task(name)
    parts = {split: examples_lib.open_split(clean, split, tmp_path / 'data') for split in examples_lib.SPLITS}
    sizes_of_groups = np.array(parts['train'].metadata['groups']['train'])
    assert len(sizes_of_groups) == 46
    patients = np.repeat(np.arange(46), sizes_of_groups)
    of = {split: set(patients[part.indices].tolist()) for split, part in parts.items()}
    assert {split: len(actual) for split, actual in of.items()} == {'train': 34, 'validation': 6, 'test': 6}
    assert set.union(*of.values()) == set(range(46))
    batch = parts['test'].gather([0, 100])
    assert (batch['inputs'].shape, batch['inputs'].dtype) == ((2, 4000, 2), np.float32)
    labels = parts['train'].gather(np.arange(len(parts['train'])))['label']
    assert (labels.mean(), labels.std()) == pytest.approx((clean.labels.mean, clean.labels.std), rel=1e-5)
    paper = clean.as_published()
    parts = [examples_lib.open_split(paper, split, tmp_path / 'data') for split in examples_lib.SPLITS]
    assert tuple(len(part) for part in parts) == sizes
    assert sizes_of_groups.tolist() == list(catalogue.SETS['bidmc'].groups[name])
    batch = parts[0].gather(np.arange(len(parts[0])))
    labels, values = batch['label'], batch['inputs'].reshape(-1, 2)
    assert (labels.min(), labels.max()) == pytest.approx(paper.labels.range, abs=1e-3)
    ends = zip(values.min(0), values.max(0), strict=True)
    assert np.array(list(ends)) == pytest.approx(np.array(paper.published.input_range), abs=1e-5)
