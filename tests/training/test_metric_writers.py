"""A restart keeps the lines of a metric file up to its checkpoint; readers find every line once."""

import json
import math
import resource
import struct
import threading

import pytest
from tensorboardX.proto import event_pb2

from lra_spt.errors import FileAccessError
from lra_spt.training.monitoring import hooks, metric_writers, trackers


def write(directory, resume_step, lines, tensorboard=False):
  writer = metric_writers.create_writer(directory, resume_step, tensorboard)
  for step, scalars in lines:
    writer.write_scalars(step, scalars)
    writer.flush()
  writer.close()


def read(directory):
  return [json.loads(line) for line in (directory / 'metrics.jsonl').read_text().splitlines()]


def events(directory):
  """(step, tag, value) of every scalar and (step, 'purge', None) of every start, in the order of writing."""
  actual = []
  for path in sorted(directory.glob('tensorboard/events*')):
    data = path.read_bytes()
    while data:
      (size,) = struct.unpack('<Q', data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + size])
      data = data[16 + size :]
      if event.HasField('session_log'):
        actual.append((event.step, 'purge', None))
      actual += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
  return actual


def test_lines_after_the_checkpoint_are_written_again(tmp_path):
  write(tmp_path, 0, [(step, {'split': 'train', 'loss': 1.0 / step}) for step in (1, 2, 3, 4)])
  write(tmp_path, 2, [(3, {'split': 'train', 'loss': 7.0})])
  assert read(tmp_path) == [
    {'step': 1, 'split': 'train', 'loss': 1.0},
    {'step': 2, 'split': 'train', 'loss': 0.5},
    {'step': 3, 'split': 'train', 'loss': 7.0},
  ]
  assert sorted(path.name for path in tmp_path.iterdir()) == ['metrics.jsonl']


@pytest.mark.parametrize('torn', ['{"step": 3, "spl', '{"step": 3, "split": "train"', '\x00\x00', '{'])
def test_a_torn_last_line_is_dropped(tmp_path, torn):
  write(tmp_path, 0, [(1, {'split': 'train', 'loss': 1.0}), (2, {'split': 'train', 'loss': 2.0})])
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write(torn)
  write(tmp_path, 2, [(3, {'split': 'train', 'loss': 3.0})])
  assert [line['step'] for line in read(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize('damage', [b'{"step": 1, "l\xff', b'[1]', b'', b'{"step": "1"}', b'{"loss": 1.0}'])
def test_a_bad_line_in_the_middle_costs_no_other(tmp_path, capsys, damage):
  write(tmp_path, 0, [(step, {'split': 'train', 'loss': 1.0}) for step in (1, 2, 3)])
  path = tmp_path / 'metrics.jsonl'
  first, _, last = path.read_bytes().splitlines()
  path.write_bytes(b'\n'.join([first, damage, last, b'']))
  write(tmp_path, 3, [(4, {'split': 'train', 'loss': 3.0})])
  assert [line['step'] for line in read(tmp_path)] == [1, 3, 4]
  assert f'{path}, line 2, is damaged and was left out.' in capsys.readouterr().err


def test_floats_are_exact_and_non_finite_ones_are_null(tmp_path):
  values = {'split': 'train', 'a': 0.1 + 0.2, 'b': math.nan, 'c': -math.inf, 'd': 5e-324}
  write(tmp_path, 0, [(1, values)])
  assert read(tmp_path) == [{'step': 1, **values, 'b': None, 'c': None}]
  assert 'NaN' not in (tmp_path / 'metrics.jsonl').read_text()


def test_tensorboard(tmp_path):
  lines = [(5, {'split': 'train', 'loss': 0.5}), (6, {'split': 'validation', 'accuracy': 0.25})]
  write(tmp_path, 0, lines, tensorboard=True)
  actual = events(tmp_path)
  assert (5, 'train/loss', 0.5) in actual
  assert (6, 'validation/accuracy', 0.25) in actual
  assert not [tag for _, tag, _ in actual if 'split' in tag]


def test_a_metric_that_is_not_defined_is_null_and_no_event(tmp_path):
  write(tmp_path, 0, [(1, line := {'split': 'validation', 'loss': 0.5, 'r2': None})], tensorboard=True)
  assert read(tmp_path) == [{'step': 1} | line]
  assert events(tmp_path)[1:] == [(1, 'validation/loss', 0.5)]
  assert trackers._values(line) == {'validation/loss': 0.5}
  assert hooks.mean_of([line, line | {'loss': 1.5}]) == line | {'loss': 1.0}


def test_tensorboard_hides_what_a_killed_process_wrote(tmp_path):
  line = {'split': 'train', 'loss': 0.5}
  write(tmp_path, 0, [(5, line)], True)
  write(tmp_path, 3, [(4, line)], True)
  assert (4, 'purge', None) in events(tmp_path)
  first = tmp_path / 'first'
  write(first, 0, [(5, line)], True)
  write(first, 0, [(1, line)], True)  # killed before the first checkpoint
  assert (1, 'purge', None) in events(first)


def test_other_processes_write_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(metric_writers.jax, 'process_index', lambda: 1)
  write(tmp_path / 'new', 0, [(1, {'split': 'train', 'loss': 1.0})], True)
  assert not (tmp_path / 'new').exists()


def test_a_full_disk_is_a_sentence_and_costs_no_line_before(tmp_path, capfd):
  """Closing does not try again to write the lines that did not fit, and no thread prints an error."""
  threads = threading.active_count()
  writer = metric_writers.create_writer(tmp_path, 0, True)
  assert threading.active_count() == threads
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
  try:
    for step in range(1, 100):
      writer.write_scalars(step, {'split': 'train', 'loss': 1.0 / step})
      try:
        writer.flush()
      except FileAccessError as error:
        sentence = str(error)
        break
    writer.close()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert sentence.startswith(f'{tmp_path}/')
  assert 'could not be written: the file would be larger' in sentence
  write(tmp_path, step - 1, [(step, {'split': 'train', 'loss': 2.0})], True)
  assert [line['step'] for line in read(tmp_path)] == list(range(1, step + 1))
  assert capfd.readouterr().err == ''
