"""A preparation may be refused, interrupted or repeated, and it imports no TensorFlow."""

import dataclasses
import errno
import importlib
import inspect
import io
import itertools
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap

import numpy as np
import pytest

from data_prep import builders, catalogue, downloads, prepare
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared
from tests.data_prep.raw_sets import nothing_is_left

COUNTS = {'train': 30, 'test': 5}


def a_source(**changes):
  def read(file):
    rng = np.random.default_rng(COUNTS[file])
    return ((rng.integers(0, 256, 8).astype(np.uint8), i % 3) for i in range(COUNTS[file]))

  source = builders.Source(
    description='numbers',
    citation='none',
    files={file: (lambda file=file: read(file)) for file in COUNTS},
    counts=COUNTS,
    classes=3,
    shape=(8,),
    origin='here',
    verified=False,
  )
  return dataclasses.replace(source, **changes)


def test_a_source_without_examples_is_refused(tmp_path):
  (tmp_path / 'data').mkdir()
  with pytest.raises(errors.DataError, match=r'No usable example came from here \(looked for: numbers\)'):
    builders.prepare_set(
      'numbers', tmp_path / 'data', {}, lambda work: a_source(counts=dict.fromkeys(COUNTS, 0))
    )
  assert nothing_is_left(tmp_path)


def test_a_set_without_training_examples_says_so(tmp_path, capsys):
  builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source(counts=COUNTS | {'train': 0}))
  assert 'numbers has no training examples, so models can be tested on it' in capsys.readouterr().out


@pytest.mark.parametrize('documents', [1, 2])
def test_examples_of_training_and_test_are_told(tmp_path, capsys, change_entry, documents):
  rows = np.arange(40, dtype=np.uint8).reshape(5, 8)

  def source(train, test, verified=False):
    taken = {'train': train, 'test': test}

    def read(file):
      for i in taken[file]:
        yield rows[i] if documents == 1 else (rows[i], rows[4])[:: 1 if file == 'train' else -1], i % 3

    counts = {file: len(numbers) for file, numbers in taken.items()}
    files = {file: lambda file=file: read(file) for file in taken}
    form = {'documents': documents, 'shape': (8,) if documents == 1 else None, 'verified': verified}
    return a_source(files=files, counts=counts, **form)

  def says(*source_of, name='numbers'):
    for _ in range(2):  # the second time, the set is already prepared
      builders.prepare_set(name, tmp_path / 'data', {}, lambda work: source(*source_of))
      first, *rest = capsys.readouterr().out.splitlines()
    return first if rest else ''

  command = f'see `lra-spt inspect numbers --data_dir={tmp_path / "data"}`.'
  assert says([0, 1, 2], [2, 3, 0]) == (
    f'2 of 3 test examples of numbers have the inputs of a training example; {command}'
  )
  assert says([0, 0, 1], [2], name='apart') == ''
  assert says([0, 0, 1], [], name='one').startswith(
    '1 of 3 examples of one have the inputs of an earlier one'
  )
  official = says([0, 1], [1], True, name='official')
  assert official.startswith('Known of the official files: 1 of 1 test examples of official have')
  change_entry('published', repeated={'test': 1})
  assert says([0, 1], [1], name='published').startswith('Known of the official files: 1 of 1 test examples')


def values(folder, file):
  source = examples_lib.open_source(str(folder), file)
  return np.stack([source[i]['inputs'] for i in range(len(source))])


def test_order_survives_many_shards(tmp_path, monkeypatch):
  monkeypatch.setattr(builders, 'SHARD_BYTES', 50)
  folder = builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
  assert len(list(folder.glob('numbers-train.array_record-*-of-00005'))) == 5
  expected = np.stack([inputs for inputs, _ in a_source().files['train']()])
  assert np.array_equal(values(folder, 'train'), expected)
  assert sorted(prepared.read_metadata(folder, '')['files']) == sorted(
    p.name for p in folder.glob('*array_record*')
  )


def test_a_second_preparation_says_so_and_changes_nothing(tmp_path, capsys):
  folder = builders.prepare_set('numbers', tmp_path, {'seed': 1}, lambda work: a_source())
  before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}

  def not_again(work):
    raise AssertionError('the source was opened again')

  assert builders.prepare_set('numbers', tmp_path, {'seed': 1}, not_again) == folder
  assert 'numbers is already prepared' in capsys.readouterr().out
  with pytest.raises(ValueError, match='made with seed=1 instead of seed=2; choose another data_dir'):
    builders.prepare_set('numbers', tmp_path, {'seed': 2}, not_again)
  assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_leftover_work_of_a_finished_set_is_removed(tmp_path):
  """A process may be killed after it has given the set its name and before it removes its work."""
  folder = builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
  (folder.parent / 'unfinished' / 'chunks').mkdir(parents=True)
  builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
  assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_folders_that_cannot_be_made_are_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(ValueError, match='file/numbers could not be written to: a part of the path'):
    builders.prepare_set('numbers', tmp_path / 'file', {}, lambda work: a_source())


@pytest.mark.parametrize(
  'error', [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError('write: No space left on device')]
)
def test_a_disk_that_becomes_full_is_named(tmp_path, error):
  def read():
    yield np.zeros(8, np.uint8), 0
    raise error

  source = a_source(files={'train': read}, counts={'train': 2})
  with pytest.raises(ValueError, match='could not be written to: no space is left on the disk'):
    builders.prepare_set('numbers', tmp_path, {}, lambda work: source)
  assert list(tmp_path.rglob('*')) == []


def test_a_damaged_set_is_not_overwritten(tmp_path):
  folder = builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
  next(folder.glob('*test*')).write_bytes(b'')
  with pytest.raises(ValueError, match=f'is damaged: .*; remove {folder} and prepare it again.$'):
    builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
  (folder / 'metadata.json').unlink()
  with pytest.raises(FileNotFoundError, match=f'^{folder} is not a prepared set; remove it and'):
    builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'counts': {'train': 31, 'test': 5}}, 'ended after 30 examples, but promised 31'),
    ({'counts': {'train': 29, 'test': 5}}, 'more than the 29 examples'),
    ({'classes': 2}, 'example 2 of train has label 2'),
  ],
)
def test_a_wrong_source_leaves_nothing(tmp_path, changes, reason):
  with pytest.raises(ValueError, match=reason):
    builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source(**changes))
  assert list(tmp_path.iterdir()) == []
  (tmp_path / 'numbers').mkdir()
  with pytest.raises(ValueError, match=reason):
    builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source(**changes))
  assert list(tmp_path.rglob('*')) == [tmp_path / 'numbers']  # the folder existed before


INTERRUPTED = """
  import signal, sys, time
  import numpy as np
  from data_prep import builders

  # A test run that a shell put into the background passes on that it ignores Control-C.
  signal.signal(signal.SIGINT, signal.default_int_handler)

  def read():
    for i in range(2000):
      if i == 1000:
        print('halfway', file=sys.__stdout__, flush=True)
        time.sleep({pause})
      yield np.full(1000, i % 256, np.uint8), i % 3

  source = builders.Source(description='d', citation='c', files=dict(train=read), counts=dict(train=2000),
                           classes=3, shape=(1000,), origin='here', verified=False)
  builders.prepare_set('numbers', sys.argv[1], {{}}, lambda work: source)
"""


def start(tmp_path, repository, pause):
  script = textwrap.dedent(INTERRUPTED.format(pause=pause))
  return subprocess.Popen(
    [sys.executable, '-c', script, str(tmp_path)], cwd=repository, stdout=subprocess.PIPE, text=True
  )


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_preparation_leaves_nothing_that_opens(tmp_path, repository, byte_task_of, end):
  with start(tmp_path, repository, pause=60) as process:
    try:
      assert process.stdout.readline() == 'halfway\n'
      with pytest.raises(ValueError, match=r'Another process \(.*\) is preparing'):
        builders.prepare_set('numbers', tmp_path, {}, lambda work: a_source())
    finally:
      process.send_signal(end)
  assert process.returncode != 0
  task = byte_task_of('numbers', 1000, 3)
  with pytest.raises(FileNotFoundError, match='There is no prepared data set'):
    examples_lib.open_split(task, 'train', tmp_path)
  with start(tmp_path, repository, pause=0) as again:
    assert 'Prepared numbers' in again.stdout.read()
  assert again.returncode == 0
  assert not list(tmp_path.rglob('incomplete.*'))
  batch = examples_lib.open_split(task, 'train', tmp_path).gather(np.arange(1600))
  assert np.array_equal(batch['inputs'][:, 0], batch['index'] % 256)


def test_command_line(tmp_path, capsys):
  arguments = ['--data_dir', str(tmp_path), '--examples', '20', '--workers', '1', '--seed', '4']
  assert cli.main(['prepare', 'pathfinder32', *arguments]) == 0
  assert cli.main(['prepare', 'listops_mini', *arguments]) == 0
  capsys.readouterr()
  assert cli.main(['prepare', 'listops_mini', *arguments[:-1], '5']) == 2
  captured = capsys.readouterr()
  assert captured.out == ''
  assert captured.err.startswith('lra-spt: ')
  assert 'made with seed=4 instead of seed=5' in captured.err
  assert captured.err.count('\n') == 1
  assert len(examples_lib.open_split('listops_mini', 'train', tmp_path)) == 20
  assert len(examples_lib.open_split('pathfinder', 'train', tmp_path)) == 16


@pytest.mark.parametrize(
  'arguments, reason',
  [
    (['bidmc_rr'], 'lra-spt prepare bidmc'),
    (['text', '--name', 'mine'], '--name has no meaning'),
    (['npz', '--raw_dir', 'x'], '--name'),
    (['npz', '--raw_dir', 'x', '--name', 'text'], "a set 'text' of another kind"),
    (['npz', '--raw_dir', 'x', '--name', 'bidmc_hr'], "a set 'bidmc_hr' of another kind"),
    (['npz', '--raw_dir', 'x', '--name', '../x'], "'../x'"),
    (['npz', '--name', 'mine'], '--raw_dir'),
    (['npz', '--name', 'mine', '--raw_dir', 'x'], 'no folder x'),
    (['cifar10'], 'could not be downloaded from https://www.cs.toronto.edu/'),
    (['text_2048'], 'could not be downloaded from https://ai.stanford.edu/'),
    (['retrieval'], 'could not be downloaded from https://storage.googleapis.com/'),
    (['bidmc'], 'could not be downloaded from https://physionet.org'),
    (['speech_commands'], '--raw_dir'),
    (['text', '--raw_dir', '/nonexistent'], 'put aclImdb_v1.tar.gz ('),
    (['listops', '--raw_dir', '/nonexistent'], 'put lra_release.gz ('),
    (['pathfinder32', '--raw_dir', '/nonexistent'], '/nonexistent'),
    (['text', '--runner', 'beam'], '--runner has no meaning'),
    (['pathfinder32', '--raw_dir', 'x', '--workers', '2'], '--workers has no meaning'),
    (['pathfinder32', '--accept_unverified'], '--accept_unverified has no meaning'),
    (['stripes', '--dry_run', '--workers', '2'], '--workers has no meaning'),
    (['cifar10', '--examples', '5', '--seed', '1'], '--examples and --seed have no meaning'),
    (['listops', '--raw_dir', 'x', '--seed', '5'], '--seed has no meaning'),
    (['pathfinder32', '--dry_run', '--examples', '-5'], 'at least 1'),
    (['listops', '--dry_run', '--runner', 'spark'], "'spark'"),
    (['pathfinder32', '--examples', '3'], 'at least 10'),
    (['listops', '--workers', '0'], 'at least 1'),
  ],
)
def test_wrong_commands_get_one_sentence(tmp_path, capsys, arguments, reason):
  assert cli.main(['prepare', *arguments, '--data_dir', str(tmp_path)]) == 2
  error = capsys.readouterr().err
  assert reason in error
  assert error.count('\n') == 1


@pytest.mark.parametrize('option', [{'examples': 0}, {'workers': 0}, {'seed': -1}])
def test_wrong_numbers_are_refused_before_anything_happens(tmp_path, option):
  with pytest.raises(errors.ConfigError, match='at least 1|must not be negative'):
    prepare.prepare('listops', tmp_path, **option)
  assert list(tmp_path.iterdir()) == []


def test_makers_know_their_flags():
  entries = [*catalogue.SETS.values(), catalogue.npz_set('mine')]
  makers = [maker for entry in entries for maker in (entry.importer, entry.generator) if maker]
  for maker in makers:
    module = importlib.import_module(f'data_prep.{maker.function.module}')
    known = inspect.signature(getattr(module, maker.function.function)).parameters
    assert set(known).issuperset({'data_dir', *maker.flags, *maker.settings}), maker


@pytest.mark.parametrize(
  'options, module, function, expected',
  [
    (['text_2048', '--raw_dir', 'r'], 'sources.text', 'prepare_text',
     {'dataset': 'text_2048', 'length': 2048, 'raw_dir': 'r'}),
    (['retrieval', '--raw_dir', 'r', '--accept_unverified', '--accept_incomplete'],
     'sources.retrieval', 'prepare_retrieval',
     {'raw_dir': 'r', 'accept_unverified': True, 'accept_incomplete': True}),
    (['pathfinder128', '--raw_dir', 'r'], 'pathfinder.released', 'prepare_pathfinder',
     {'resolution': 128, 'raw_dir': 'r'}),
    (['pathfinder128'], 'pathfinder.generated', 'prepare_pathfinder', {'resolution': 128}),
    (['pathfinder256', '--examples', '20', '--seed', '3', '--workers', '2'],
     'pathfinder.generated', 'prepare_pathfinder',
     {'resolution': 256, 'examples': 20, 'seed': 3, 'workers': 2}),
    (['listops', '--examples', '9600', '--runner', 'beam', '--beam_options=--x=1'],
     'sources.listops', 'prepare_listops',
     {'examples': 9600, 'runner': 'beam', 'beam_options': '--x=1'}),
    (['listops', '--raw_dir', 'r'], 'sources.listops', 'prepare_listops', {'raw_dir': 'r'}),
    (['bidmc', '--raw_dir', 'r'], 'sources.bidmc', 'prepare_bidmc', {'raw_dir': 'r'}),
  ],
)  # fmt: skip
def test_every_command_finds_its_module(tmp_path, monkeypatch, options, module, function, expected):
  calls = []
  module = importlib.import_module(f'data_prep.{module}')
  monkeypatch.setattr(module, function, lambda data_dir, **given: calls.append((data_dir, given)))
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'r').mkdir()
  assert cli.main(['prepare', *options, '--data_dir', str(tmp_path)]) == 0
  assert calls == [(str(tmp_path), expected)]


def test_what_is_not_there_is_downloaded_once(tmp_path, monkeypatch, capsys):
  asked = []

  def download(part):
    asked.append(part.archive.name)
    with tarfile.open(part.path, 'w:gz') as tar:
      for file, name in itertools.product(('train', 'test'), ('neg/1_2', 'neg/2_2', 'pos/1_9', 'pos/2_9')):
        member = tarfile.TarInfo(f'aclImdb/{file}/{name}.txt')
        member.size = 5
        tar.addfile(member, io.BytesIO(b'abcde'))

  monkeypatch.setattr(downloads, '_download', download)
  monkeypatch.setattr(downloads, '_check', lambda part: None)
  with pytest.raises(ValueError, match='is not the official file'):
    prepare.prepare('text', tmp_path)
  assert not prepared.dataset_folder(tmp_path, 'text').exists()
  folders = [
    prepare.prepare(name, tmp_path, accept_unverified=True, accept_incomplete=True)
    for name in ('text', 'text_2048')
  ]
  assert folders == [prepared.dataset_folder(tmp_path, name) for name in ('text', 'text_2048')]
  assert prepared.read_metadata(folders[1], '')['counts'] == {'train': 4, 'test': 4}
  (tmp_path / 'downloads' / 'aclImdb_v1.tar.gz').unlink()
  assert prepare.prepare('text', tmp_path) == folders[0]
  assert asked == ['aclImdb_v1.tar.gz']
  assert 'text is already prepared' in capsys.readouterr().out


def test_the_temporary_folder_stays_empty(tmp_path, monkeypatch):
  (tmp_path / 'temporary').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
  prepare.prepare('stripes', tmp_path / 'data', examples=5)
  assert list((tmp_path / 'temporary').iterdir()) == []


def test_preparing_and_reading_import_no_tensorflow(tmp_path, repository):
  script = """
    import sys
    from lra_spt import errors
    from lra_spt.cli import main as cli
    from lra_spt.data import examples as examples_lib
    assert cli.main(['prepare', 'listops', '--data_dir', sys.argv[1], '--examples', '5']) == 0
    examples_lib.open_split('listops', 'train', sys.argv[1]).gather([0])
    print(sorted(m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'apache_beam', 'torch')))
  """
  result = subprocess.run(
    [sys.executable, '-c', textwrap.dedent(script), str(tmp_path)],
    cwd=repository,
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  assert result.stdout.splitlines()[-1] == '[]'
  assert 'listops' not in result.stderr  # no progress bar off a terminal
