"""Sets from .ts files: small ones written here, and those of the archives that come with aeon and sktime."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

from data_prep import catalogue, ts_files
from data_prep.sources import linoss
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import prepared, tasks
from lra_spt.data.examples import open_source, open_splits
from lra_spt.data.parts import Classes, Real, Values

HEADER = '@problemName Waves\n@timeStamps false\n'
CLASSES = '@classLabel true calm storm\n'


def write(path, lines, header=HEADER + CLASSES):
  path.write_text(f'# a comment\n#\n{header}@data\n' + ''.join(f'{line}\n' for line in lines), 'utf-8')
  return path


def prepare(tmp_path, *more, train=None, test=None):
  words = ['prepare', 'ts', '--name=waves', f'--data_dir={tmp_path / "data"}', *more]
  words += [f'--{name}={path}' for name, path in (('train', train), ('test', test)) if path]
  return cli.main(words)


def stored(data_dir, file, name='waves'):
  source = open_source(str(prepared.dataset_folder(data_dir, name)), file)
  return [(source[i]['inputs'], source[i]['label']) for i in range(len(source))]


def series(seed, count, channels=2, length=5, names=('calm', 'storm')):
  """Values [count, length, channels], labels, and the lines of a file."""
  rng = np.random.default_rng(seed)
  values = rng.normal(size=(count, length, channels)).astype(np.float32)
  labels = np.arange(count) % len(names)
  channel = [[','.join(map(repr, row.tolist())) for row in x.T] for x in values]
  return values, labels, [f'{":".join(x)}:{names[label]}' for x, label in zip(channel, labels, strict=True)]


def test_a_set_is_made_and_is_a_task(tmp_path, capsys):
  made = {file: series(seed, 20) for seed, file in enumerate(('train', 'test'))}
  paths = {file: write(tmp_path / f'{file}.ts', lines) for file, (_, _, lines) in made.items()}
  assert prepare(tmp_path, **paths) == 0
  assert '20 train, 20 test; 2 classes; own files train.ts, test.ts' in capsys.readouterr().out
  for file, (values, labels, _) in made.items():
    for (actual, label), x, y in zip(stored(tmp_path / 'data', file), values, labels, strict=True):
      np.testing.assert_array_equal(actual, x)
      assert label == y
  task = tasks.get_task('waves', tmp_path / 'data')
  assert (task.inputs, task.labels) == (Values(5, channels=2, dtype='float32', measured=True), Classes(2))
  splits = open_splits('waves', tmp_path / 'data')
  assert {name: len(split) for name, split in splits.items()} == {'train': 16, 'validation': 4, 'test': 20}
  assert sorted(splits['validation'].gather(np.arange(4))['label'].tolist()) == [0, 0, 1, 1]
  metadata = prepared.read_metadata(prepared.dataset_folder(tmp_path / 'data', 'waves'), '')
  assert metadata['class_names'] == ['calm', 'storm']
  np.testing.assert_allclose(
    metadata['statistics']['train']['mean'], made['train'][0].mean((0, 1)), rtol=1e-5
  )
  assert cli.main(['inspect', 'waves', f'--data_dir={tmp_path / "data"}']) == 0
  assert 'storm' in capsys.readouterr().out


def test_a_run_needs_no_python_file(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  paths = {
    file: write(tmp_path / f'{file}.ts', series(seed, 20)[2]) for seed, file in enumerate(('train', 'test'))
  }
  assert prepare(tmp_path, **paths) == 0
  words = ['--config=configs/mini/own.py:task=waves,regime=scratch', '--config.runtime.data_dir=data']
  words += [f'--config.finetune.{key}=4' for key in ('max_steps', 'batch_size')]
  words += ['--config.model.width=8', '--config.model.depth=1', '--config.runtime.devices=1']
  assert cli.main(['train', *words, '--workdir=run', '--quiet']) == 0
  monkeypatch.delenv(tasks.DATA_DIR)  # the run stores the folder of its set
  assert cli.main(['evaluate', '--workdir=run', '--split=test']) == 0
  assert 'Equal' in capsys.readouterr().out


def test_a_regression_of_differing_lengths(tmp_path):
  lines = ['1,2,3:4,5,6:0.5', '1,2:4,5:-1.5', '7,?:8,NaN:2']
  header = HEADER + '@univariate false\n@dimensions 2\n@equalLength false\n@targetLabel true\n'
  assert prepare(tmp_path, train=write(tmp_path / 'a.ts', lines * 5, header)) == 0
  actual = stored(tmp_path / 'data', 'train')
  assert [x.tolist() for x, _ in actual[:3]] == [[[1, 4], [2, 5], [3, 6]], [[1, 4], [2, 5]], [[7, 8]]]
  assert [y for _, y in actual[:3]] == [0.5, -1.5, 2]
  task = tasks.get_task('waves', tmp_path / 'data')
  assert task.inputs == Values(3, channels=2, dtype='float32', measured=True, padded=True)
  assert (task.labels, task.splits) == (Real(measured=True), 'random')


def test_missing_values_are_filled_by_interpolation(tmp_path, capsys):
  lines = ['?,1,nan,3,?:calm', '1,2,3,4,5:storm'] * 5
  path = write(tmp_path / 'a.ts', lines, HEADER + '@missing true\n@equalLength true\n' + CLASSES)
  assert prepare(tmp_path, train=path) == 0
  assert stored(tmp_path / 'data', 'train')[0][0].tolist() == [1, 1, 2, 3, 3]
  assert 'a.ts: 15 missing values filled by interpolation' in capsys.readouterr().out


def test_test_labels_have_the_numbers_of_the_training_file(tmp_path):
  paths = {'train': write(tmp_path / 'a.ts', ['1,2:calm', '3,4:storm'])}
  paths['test'] = write(tmp_path / 'b.ts', ['5,6:STORM'], HEADER + '@classLabel true Storm calm\n')
  assert prepare(tmp_path, **paths) == 0
  assert [label for _, label in stored(tmp_path / 'data', 'test')] == [1]


ROW = 'a.ts, row 7,'  # the first example is in row 7
TRUE = HEADER + CLASSES


@pytest.mark.parametrize(
  ('lines', 'header', 'reason'),
  [
    (['1,2:calm'], TRUE.replace('@time', 'x @time'), 'a.ts has no line @data before its first example'),
    (['1:calm'], HEADER, r'a\.ts has no labels: neither @classLabel true nor @targetLabel true is in its'),
    (['1:calm'], HEADER + '@classLabel true\n', r'row 5: @classlabel names no classes'),
    (['1:calm'], HEADER + '@classLabel true a a\n', r'row 5: @classlabel names a class twice'),
    (['1:calm'], HEADER + '@missing maybe\n' + CLASSES, 'row 5: @missing is maybe; write true or false'),
    (['1:calm'], HEADER + '@dimensions x\n' + CLASSES, 'row 5: @dimensions is x; write a number from 1'),
    (['1:calm'], HEADER.replace('false', 'true') + CLASSES, r'has time stamps \(@timeStamps true\), which'),
    (['1,2:calm', '1,2:3,4:storm'], TRUE, 'row 8, has 2 channels before its label instead of 1'),
    (['1,2:calm'], HEADER + '@dimensions 3\n' + CLASSES, 'row 8, has 1 channels .* instead of 3'),
    (['1,2'], TRUE, f'{ROW} has 0 channels before its label'),
    (['1,2:3:calm'], TRUE, f'{ROW} has channels of 1 and of 2 values; make them equally long'),
    (['1,x,3:calm'], TRUE, rf"{ROW} channel 1, does not hold only numbers \(could not convert string 'x'"),
    (['1,,3:calm'], TRUE, f'{ROW} channel 1, does not hold only numbers'),
    ([':calm'], TRUE, f'{ROW} channel 1, has no values'),
    (['1,inf:calm'], TRUE, f'{ROW} has a value that is not finite'),
    (['1,1e300:calm'], TRUE, f'{ROW} has a value that is not finite, or too large for 32 bits'),
    (['1,2:gale'], TRUE, f'{ROW} has the class gale, which the header does not name'),
    (['1,2:'], TRUE, f'{ROW} has the class nothing, which'),
    (['1,2:x'], HEADER + '@targetLabel true\n', f'{ROW} has the label x, which is no number'),
    (['1,2:nan'], HEADER + '@targetLabel true\n', f'{ROW} has the label nan, which is no number'),
    (['1,?,3:calm'], TRUE, f'{ROW} has missing values, but the header does not say @missing true'),
    (['?,?:1,2:calm'], HEADER + '@missing true\n' + CLASSES, 'row 8, has no value in channel 1'),
    (['?,?:calm'], TRUE, f'{ROW} has no values; leave the example out'),
    (['1,2:calm', '1,2,3:calm'], HEADER + '@equalLength true\n' + CLASSES, 'row 9, has 3 values, but'),
    ([], TRUE, 'a.ts has no examples'),
    (['1,2:calm', '1:calm'], TRUE, 'names the class storm, but has no example of it'),
    (['1,2:calm\xff'], TRUE, f'{ROW} has the class calm\xff, which'),
  ],
)  # fmt: skip
def test_wrong_files_are_named(tmp_path, capsys, lines, header, reason):
  assert prepare(tmp_path, train=write(tmp_path / 'a.ts', lines, header)) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1
  assert re.search(reason, error), error
  assert not [*(tmp_path / 'data').rglob('*')]


def test_lines_have_a_limit_and_must_be_text(tmp_path, capsys, monkeypatch):
  path = write(tmp_path / 'a.ts', ['1,2:calm', f'{"1," * 500}1:storm'])
  monkeypatch.setattr(ts_files, 'LONGEST', 1000)
  assert prepare(tmp_path, train=path) == 2
  assert 'a.ts, row 8, has more than 1,000 bytes' in capsys.readouterr().err
  path.write_bytes(path.read_bytes().replace(b'1,2', b'\xff\xfe'))
  assert prepare(tmp_path, train=path) == 2
  assert 'a.ts is not text' in capsys.readouterr().err


def test_files_of_two_sets_are_refused(tmp_path, capsys):
  train = write(tmp_path / 'a.ts', series(0, 4)[2])
  test = write(tmp_path / 'b.ts', series(0, 4, names='xy')[2], HEADER + '@classLabel true x y\n')
  assert prepare(tmp_path, train=train, test=test) == 2
  assert 'b.ts has the classes x, y, but' in capsys.readouterr().err
  write(test, series(0, 4, channels=3)[2])
  assert prepare(tmp_path, train=train, test=test) == 2
  assert 'b.ts has 3 channels, but' in capsys.readouterr().err


def test_wrong_flags_are_named(tmp_path, capsys):
  assert prepare(tmp_path) == 2
  assert 'needs --train' in capsys.readouterr().err
  assert prepare(tmp_path, train=tmp_path / 'none.ts') == 2
  assert 'none.ts, but there is no such file; give' in capsys.readouterr().err
  train = write(tmp_path / 'a.ts', series(0, 4)[2])
  assert prepare(tmp_path, '--linoss_seed=2345', train=train) == 2
  assert 'give --train and --test' in capsys.readouterr().err
  assert prepare(tmp_path, '--raw_dir=raw', train=train) == 2
  assert 'so --raw_dir has no meaning' in capsys.readouterr().err
  with pytest.raises(errors.ConfigError, match="'image' is a task that reads another set"):
    catalogue.find('ts', 'image')


# By jax 0.10.2 with jax_threefry_partitionable=False, which was the default before 0.5:
# datasetkey = split(PRNGKey(seed), 4)[0]; permutation(split(datasetkey)[0], count)[:7]
PERMUTATIONS = {
  (2345, 7): [5, 0, 4, 1, 6, 2, 3],
  (2345, 561): [96, 129, 318, 480, 232, 439, 326],
  (6789, 378): [120, 104, 64, 61, 107, 67, 97],
  (6789, 2000): [785, 1733, 840, 1947, 351, 1163, 1948],
}


@pytest.mark.parametrize(('seed', 'count'), PERMUTATIONS)
def test_splits_of_linoss_are_permuted_by_the_random_numbers_of_jax(seed, count):
  values = np.arange(count, dtype=np.float32)[:, None, None]
  parts = linoss.split(values, seed)
  order = np.concatenate(list(parts.values()))
  assert order[:7].tolist() == PERMUTATIONS[seed, count]
  assert [len(part) for part in parts.values()] == [
    int(0.7 * count), int(0.85 * count) - int(0.7 * count), count - int(0.85 * count),
  ]  # fmt: skip
  assert sorted(order.tolist()) == list(range(count))


def test_the_split_of_linoss_joins_sorts_and_drops_copies(tmp_path, capsys):
  rows = [f'{x},1:{name}' for x, name in zip([5, 3, 9, 1, 3], 'abaab', strict=True)]
  header = HEADER + '@classLabel true a b\n'
  paths = {
    'train': write(tmp_path / 'a.ts', rows, header),
    'test': write(tmp_path / 'b.ts', ['7,1:b', '2,1:a', '8,1:b'], header),
  }
  assert prepare(tmp_path, '--linoss_seed=2345', **paths) == 0
  assert '1 repeated example left out, as by LinOSS.' in capsys.readouterr().out
  actual = {
    file: [x[0] for x, _ in stored(tmp_path / 'data', file)] for file in ('train', 'validation', 'test')
  }
  ascending = [1, 2, 3, 5, 7, 8, 9]  # the permutation of seven above
  assert sum(actual.values(), []) == [ascending[k] for k in PERMUTATIONS[2345, 7]]
  assert [len(values) for values in actual.values()] == [4, 1, 2]
  assert tasks.get_task('waves', tmp_path / 'data').splits == 'files'


def test_long_series_become_means_of_neighbours(tmp_path, capsys):
  header = HEADER + '@classLabel true a b\n'
  train = write(tmp_path / 'a.ts', ['1,3,5,7,9:a', '2,4,6,8,0:b'], header)
  test = write(tmp_path / 'b.ts', ['1,3,5,7,9:b'], header)
  assert prepare(tmp_path, '--longest=3', train=train, test=test) == 0
  assert 'the mean of 2 neighbours: 5 positions become 3.' in capsys.readouterr().out
  actual = [x.tolist() for file in ('train', 'test') for x, _ in stored(tmp_path / 'data', file)]
  assert actual == [[2, 6, 9], [3, 7, 0], [2, 6, 9]]
  assert prepare(tmp_path, '--longest=5', train=train, test=test) == 2  # the set is there with other settings


def archive(name, part):
  for package in ('aeon', 'sktime'):
    spec = importlib.util.find_spec(package)
    path = spec and pathlib.Path(spec.origin).parent / 'datasets' / 'data' / name / f'{name}_{part}.ts'
    if path and path.is_file():
      return path
  pytest.skip(f'neither aeon nor sktime is installed with {name}')


# Examples of both files, the shortest and the longest, channels, and classes.
REAL = {
  'ACSF1': ((100, 100), (1460, 1460), 1, 10),
  'PLAID': ((537, 537), (100, 1344), 1, 11),
  'JapaneseVowels': ((270, 370), (7, 29), 12, 9),
  'BasicMotions': ((40, 40), (100, 100), 6, 4),
  'OSULeaf': ((200, 242), (427, 427), 1, 6),
  'PickupGestureWiimoteZ': ((50, 50), (29, 361), 1, 10),
  'Covid3Month': ((140, 61), (84, 84), 1, 0),
  'Tecator': ((172, 43), (100, 100), 1, 0),
}


@pytest.mark.parametrize('name', REAL)
def test_files_of_the_archives(tmp_path, name):
  counts, (least, most), channels, classes = REAL[name]
  paths = {file: archive(name, file.upper()) for file in ('train', 'test')}
  assert prepare(tmp_path, **paths) == 0
  metadata = prepared.read_metadata(prepared.dataset_folder(tmp_path / 'data', 'waves'), '')
  assert tuple(metadata['counts'].values()) == counts
  assert (metadata['longest'], metadata['classes']) == (most, classes)
  lengths = [len(x) for file in ('train', 'test') for x, _ in stored(tmp_path / 'data', file)]
  assert (min(lengths), max(lengths)) == (least, most)
  splits = open_splits('waves', tmp_path / 'data')
  assert splits['test'].gather([0])['inputs'].reshape(most, -1).shape == (most, channels)
  if classes:
    label = splits['validation'].gather(np.arange(len(splits['validation'])))['label']
    assert len(np.unique(label)) == classes
