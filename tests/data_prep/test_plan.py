"""`prepare --dry_run`: its estimates hold, and it does nothing. Disks that are too small are noticed."""

import collections
import itertools
import json
import pathlib
import re
import shutil

import pytest

from data_prep import catalogue, downloads, plan, prepare
from lra_spt.cli import main as cli
from lra_spt.data import prepared


def outlook(dataset, data_dir, **options):
  return plan.outlook(catalogue.find(dataset), data_dir, **options)


def lines(tmp_path, dataset, **options):
  """{'source': ..., 'examples': ..., 'disk': ..., 'time': ...} of a dry run, and its first line as ''."""
  head, *rest = str(outlook(dataset, tmp_path, **options)).splitlines()
  return {'': head} | dict(line.split(maxsplit=1) for line in rest)


@pytest.fixture
def disk(monkeypatch):
  """disk(free) makes every disk have so many bytes free."""

  def make(free):
    usage = collections.namedtuple('usage', 'total used free')(free, 0, free)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)

  return make


@pytest.mark.parametrize('dataset', catalogue.SETS)
def test_a_dry_run_does_nothing(tmp_path, capsys, dataset):
  arguments = ['prepare', dataset, '--data_dir', str(tmp_path / 'a' / 'data'), '--dry_run']
  entry = catalogue.SETS[dataset]
  ways = [[]] if entry.archives or entry.generator else []  # other sets need --raw_dir
  if entry.importer is not None:
    ways.append(['--raw_dir', str(tmp_path / 'raw')])
  for options in ways:
    assert cli.main([*arguments, *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ''
    first, *rest = captured.out.splitlines()
    assert first.startswith(f'{dataset} is not prepared yet: {tmp_path}/a/data/')
    assert [line.split()[0] for line in rest] == ['source', 'examples', 'disk', 'time']
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('dataset, examples', [('listops', 2000), ('pathfinder32', 2000), ('stripes', 500)])
def test_sets_become_as_large_as_estimated(tmp_path, capsys, dataset, examples):
  estimate = outlook(dataset, tmp_path, examples=examples)
  # With one worker no process has to start, which would take longer than the work.
  folder = prepare.prepare(dataset, tmp_path, examples=examples, workers=None if dataset == 'stripes' else 1)
  assert capsys.readouterr().out.startswith(f'{dataset} needs about ')  # the estimate comes first
  assert (folder,) == estimate.folders
  assert prepared.read_metadata(folder, '')['counts'] == estimate.counts
  size = sum(path.stat().st_size for path in folder.iterdir())
  # The tolerance is for padding at the end of files.
  assert estimate.result == pytest.approx(size, rel=0.1, abs=2**17 * len(estimate.counts))
  capsys.readouterr()
  prepare.prepare(dataset, tmp_path, examples=examples, dry_run=True)
  assert capsys.readouterr().out.startswith(
    f'{dataset} is already prepared; nothing would be done: {folder}\n'
  )


def test_counts_follow_examples(tmp_path):
  assert lines(tmp_path, 'listops', examples=4800)['examples'] == '4,800 train, 100 validation, 100 test'
  assert lines(tmp_path, 'pathfinder64', examples=70)['examples'] == '70 train'
  assert lines(tmp_path, 'stripes', examples=70)['examples'] == '70 train, 500 validation, 2,000 test'
  assert lines(tmp_path, 'bidmc')['examples'].endswith(' in each')
  with pytest.raises(ValueError, match='at least 1'):
    outlook('listops', tmp_path, examples=0)


def test_sources_are_named(tmp_path):
  archive, data = catalogue.SETS['text'].archives[0], tmp_path / 'data'
  assert lines(data, 'pathfinder32')['source'] == 'generated; nothing is read'
  source = lines(data, 'text')['source']
  assert all(part in source for part in (archive.name, '84.1 MB', archive.url, f'{data}/downloads'))
  assert 'about 7.7 GB' in lines(data, 'retrieval')['source']
  assert outlook('text', data).download == archive.size
  (data / 'downloads').mkdir(parents=True)
  (data / 'downloads' / archive.name).write_bytes(bytes(1_500_000))
  there = lines(data, 'text')['source']
  assert f'{data}/downloads/{archive.name} (1.5 MB' in there
  assert lines(data, 'text_2048')['source'] == there
  assert outlook('text', data).download == 0
  unpacking = outlook('text', tmp_path).seconds - outlook('text', data).seconds
  assert unpacking == pytest.approx((archive.size - 1_500_000) / plan.UNPACKING)
  assert lines(data, 'text', raw_dir=data / 'downloads')['source'] == there


def test_folders_of_official_files_are_found(tmp_path):
  raw = tmp_path / 'raw'
  for folder in ('aclImdb', 'cifar-10-batches-py', 'lra_release/lra_release/tsv_data', 'dataset/bidmc_csv'):
    (raw / folder).mkdir(parents=True)
  (raw / 'lra_release' / 'pathfinder32').mkdir()
  for dataset, place, start in (
    ('text', 'aclImdb', ''),
    ('text', 'aclImdb', 'aclImdb'),
    ('cifar10', 'cifar-10-batches-py', ''),
    ('retrieval', 'lra_release/lra_release/tsv_data', ''),
    ('bidmc', 'dataset/bidmc_csv', 'dataset'),
    ('pathfinder32', 'lra_release/pathfinder32', ''),
  ):
    source = lines(tmp_path, dataset, raw_dir=raw / start)['source']
    assert source.startswith(f'{raw / place} (there); checksums of its files')
  for dataset, missing in (
    ('speech_commands', 'speech_commands_v0.02.tar.gz'),
    ('listops', 'lra_release.gz'),
    ('pathfinder64', 'pathfinder64'),
  ):
    source = lines(tmp_path, dataset, raw_dir=raw)['source']
    assert source.startswith(f'{raw} (there) has no')
    assert missing in source


def test_little_is_known_of_a_users_files(tmp_path):
  unknown = plan.outlook(catalogue.find('npz', 'mine'), tmp_path / 'data', raw_dir=tmp_path)
  assert unknown.needed == 0
  assert str(tmp_path) in str(unknown)


def test_space_and_time_add_up(tmp_path, change_entry, disk):
  counts = {'train': 2_000_000, 'test': 1_000_000}
  cost = catalogue.Cost(stored=100, seconds=1e-3, drawn=4e-3, unfinished=50, from_files=2e-3)
  change_entry('pathfinder64', counts=counts, cost=cost)
  disk(500_000_000)
  drawn = outlook('pathfinder64', tmp_path, workers=2)
  assert (drawn.result, drawn.unfinished, drawn.needed) == (300_000_000, 150_000_000, 450_000_000)
  assert drawn.seconds == pytest.approx(3000 + 12_000 / 2)
  shown = lines(tmp_path, 'pathfinder64', workers=2)
  assert re.findall(r'[\d.]+ MB', shown['disk']) == ['300.0 MB', '150.0 MB', '500.0 MB']
  assert '2.5 h on 2 cores' in shown['time']
  left = tmp_path / 'pathfinder64' / 'unfinished' / 'settings'
  left.mkdir(parents=True)
  (left / 'chunk').write_bytes(bytes(1_000_000))
  assert outlook('pathfinder64', tmp_path).unfinished == 149_000_000
  change_entry('bidmc', counts={'train': 10}, cost=catalogue.Cost(stored=100, seconds=1.0))
  three = outlook('bidmc', tmp_path, raw_dir=tmp_path)
  assert (three.result, three.seconds, len(three.folders)) == (3000, 10, 3)
  from_files = outlook('pathfinder64', tmp_path, raw_dir=tmp_path)
  assert (from_files.needed, from_files.cores) == (300_000_000, 1)
  assert from_files.seconds == pytest.approx(6000)


def test_the_received_part_of_a_download_is_not_counted_again(tmp_path):
  """A part of a download counts where a note names its file, since the next download continues it."""
  whole = outlook('text', tmp_path).download
  archive = catalogue.SETS['text'].archives[0]
  part = downloads.folder_in(tmp_path) / f'{archive.name}.part'
  part.parent.mkdir(parents=True)
  part.write_bytes(bytes(1_000_000))
  assert outlook('text', tmp_path).download == whole
  part.with_name(f'{part.name}.json').write_text(json.dumps({'url': archive.url, 'validator': '"1"'}))
  assert outlook('text', tmp_path).download == whole - 1_000_000


@pytest.mark.parametrize('dataset, free', [('stripes', 1_000_000), ('text', 100_000_000)])
def test_too_small_a_disk_is_refused_before_anything_happens(tmp_path, capsys, disk, dataset, free):
  disk(free)
  data = pathlib.Path(tmp_path, 'data')
  assert cli.main(['prepare', dataset, '--data_dir', str(data)]) == 2
  captured = capsys.readouterr()
  assert captured.out == ''
  assert captured.err.startswith(f"lra-spt: Preparing '{dataset}' needs about 1")
  assert f'but only {free / 1e6:.1f} MB are free at {data}; make room' in captured.err
  assert captured.err.count('\n') == 1
  assert not data.exists()


def test_files_taken_as_they_are_may_be_few(tmp_path, disk):
  disk(1_000_000)
  for file, name in itertools.product(('train', 'test'), ('neg/1_2', 'pos/2_9')):
    path = tmp_path / 'aclImdb' / file / f'{name}.txt'
    path.parent.mkdir(parents=True)
    path.write_text('abc')
  with pytest.raises(ValueError, match='only 1.0 MB are free'):
    prepare.prepare('text', tmp_path, raw_dir=tmp_path)
  prepare.prepare('text', tmp_path, raw_dir=tmp_path, accept_unverified=True, accept_incomplete=True)


def test_a_set_that_is_there_needs_no_space(tmp_path, capsys, disk):
  folder = prepare.prepare('stripes', tmp_path, examples=5)
  disk(0)
  assert prepare.prepare('stripes', tmp_path, examples=5) == folder
  assert 'is already prepared' in capsys.readouterr().out
