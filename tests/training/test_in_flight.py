"""The steps that are dispatched ahead are bounded by time, and a run says early how long it takes."""

import json
import os
import signal
import sys
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import processes
from lra_spt.errors import Interrupted
from lra_spt.training import duration, evaluate, in_flight, loop
from lra_spt.training.monitoring import hooks


class Device:
  """A device whose steps take `step_seconds` of a fake clock. The clock advances when the host sleeps."""

  def __init__(self, monkeypatch, step_seconds):
    self.now, self.free, self.step_seconds, self.most = 0.0, 0.0, step_seconds, 0.0
    monkeypatch.setattr(in_flight.time, 'monotonic', lambda: self.now)
    monkeypatch.setattr(in_flight.time, 'sleep', self._sleep)

  def _sleep(self, seconds):
    self.now += seconds

  def dispatch(self, steps):
    self.free = end = max(self.now, self.free) + steps * self.step_seconds
    self.most = max(self.most, self.free - self.now)
    return types.SimpleNamespace(is_ready=lambda: self.now >= end)


@pytest.mark.parametrize(
  'step_seconds, most, at_once',
  [(7.0, 7.0, 1), (0.9, 2.0, 1), (0.28, 2.0, 3), (0.01, 2.0, 8)],
)
def test_no_more_is_in_flight_than_a_step_or_two_seconds(monkeypatch, step_seconds, most, at_once):
  """A fast device never waits for the host. A slow device gets its steps one by one."""
  device, ahead = Device(monkeypatch, step_seconds), in_flight.InFlight('training steps')
  for i in range(60):
    steps = ahead.at_once(8)
    ahead.wait_for_room(steps)
    before = device.free - device.now
    ahead.add(device.dispatch(steps), steps)
    if i > 5 and step_seconds < 1:
      assert before > -0.06  # the device is idle for one poll of the host at most
  assert device.most <= most * 1.2
  assert ahead.at_once(8) == at_once
  assert ahead.seconds == pytest.approx(step_seconds, rel=0.2)
  ahead.wait()
  assert device.now >= device.free


def test_the_first_step_is_left_out_of_the_speed(monkeypatch):
  device, ahead = Device(monkeypatch, 3.0), in_flight.InFlight('training steps')
  ahead.add(device.dispatch(1), 1)
  ahead.wait()
  assert ahead.seconds == pytest.approx(3.0, rel=0.1)
  assert not ahead.warm
  device.step_seconds = 0.5
  for _ in range(2):
    ahead.add(device.dispatch(1), 1)
    ahead.wait()
    assert ahead.seconds == pytest.approx(0.5, rel=0.2)
    assert ahead.warm


def test_slow_steps_change_no_number(make_stage, monkeypatch, tmp_path):
  """If chunks are dispatched step by step, lines and parameters are the same bit for bit."""
  lines, states = [], []
  for name, at_once in (('fast', lambda self, most: most), ('slow', lambda self, most: 1)):
    monkeypatch.setattr(in_flight.InFlight, 'at_once', at_once)
    (member,) = make_stage(tmp_path / name, runtime__steps_per_dispatch=3, runtime__log_every=2).run()
    states.append(member.state)
    text = (tmp_path / name / 'metrics.jsonl').read_text()
    lines.append([json.loads(line) for line in text.splitlines()])
  for line in (line for file in lines for line in file):
    for clock in ('seconds', 'examples_per_second'):
      line.pop(clock, None)
  assert lines[0] == lines[1]
  fast, slow = (loop.jax.tree.leaves(state['params']) for state in states)
  assert all(np.array_equal(a, b) for a, b in zip(fast, slow, strict=True))


def test_a_signal_waits_for_one_slow_step(make_stage, monkeypatch, tmp_path, capfd):
  """The step in flight is finished, and none starts after the signal. The message names these steps."""
  given = []

  def dispatch(state, chunk, count, key):
    given.append(int(count))
    if len(given) == 4:
      os.kill(os.getpid(), signal.SIGTERM)
    names = ('loss', 'gradient_norm', 'learning_rate')
    records = dict.fromkeys(names, jnp.zeros(chunk['weight'].shape[0]))
    return state | {'step': state['step'] + count}, records

  monkeypatch.setattr(loop, 'train_steps', lambda program: dispatch)
  monkeypatch.setattr(in_flight.InFlight, 'at_once', lambda self, most: 1)
  stage = make_stage(tmp_path, runtime__steps_per_dispatch=8, runtime__checkpoint_every=0)
  with processes.heeding_signals(), pytest.raises(Interrupted, match='stopped at step 4'):
    stage.run()
  assert given == [1] * 4
  assert 'saves its state and ends after the training steps in progress (about 2 s)' in capfd.readouterr().err


@pytest.mark.parametrize(
  'batches, where', [(2, 'stopped at step 6'), (6, 'stopped at step 18'), (8, 'on the validation split')]
)
def test_a_validation_ends_when_asked_and_is_made_up_for(make_stage, monkeypatch, tmp_path, batches, where):
  """The resumed stage starts with this validation, so its lines are those of an uninterrupted stage."""
  limits = {'finetune__evaluate_every': 6, 'finetune__patience': 3}
  (alone,) = make_stage(tmp_path / 'alone', **limits).run()
  asked = []
  with monkeypatch.context() as patch:
    patch.setattr(evaluate.processes, 'asked_to_end', lambda: in_validation(asked) >= batches)
    with pytest.raises(Interrupted, match=where):
      make_stage(tmp_path / 'ended', **limits).run()
  (ended,) = make_stage(tmp_path / 'ended', **limits).run()
  assert ended.metrics == alone.metrics
  lines = []
  for name in ('alone', 'ended'):
    text = (tmp_path / name / 'metrics.jsonl').read_text().splitlines()
    actual = [line for line in map(json.loads, text) if line['split'] == 'validation']
    lines.append([{key: value for key, value in line.items() if key != 'seconds'} for line in actual])
  assert lines[0] == lines[1]


def in_validation(asked):
  """Counts the questions of evaluations whether to end; returns 0 to the loop, so that it continues."""
  if sys._getframe(2).f_code.co_name == 'of_each':
    asked.append(1)
    return len(asked)
  return 0


def stage_of(steps, flops, max_seconds=0.0):
  spec = types.SimpleNamespace(
    batch_size=10,
    evaluate_every=0,
    max_seconds=max_seconds,
    data_fraction=1.0,
    total_steps=lambda examples: steps,
  )
  return types.SimpleNamespace(spec=spec, flops_per_step=flops)


def test_the_first_line_is_about_the_whole_run(capsys, monkeypatch):
  """The estimate has this stage, the next one and the validations. max_seconds bounds its stage."""
  stages = [stage_of(100, 30), stage_of(50, 60)]
  # Of 100 examples one epoch has 10 steps; a validation of 20 examples costs 20 forward passes.
  first, second = 100 * 30 + 10 * 20 * 1, 50 * 60 + 5 * 20 * 2
  assert duration.seconds(stages, 100, 20, 2.0) == pytest.approx([(first + second) / 15] * 2)
  assert duration.seconds(stages, 100, 20, 2.0, done=50) == pytest.approx([(first / 2 + second) / 15] * 2)
  endless = stage_of(duration.NO_LIMIT, 60, max_seconds=7.0)
  assert duration.seconds([stages[0], endless], 100, 20, 2.0) == pytest.approx((first / 15 + 7, float('inf')))
  short = duration.sentence('pretrain', 3600.0, 86400 * 9, 7.0, True)
  assert short == (
    'pretrain: the run takes about 60 min from here, at 7 s a step; max_seconds ends it early, all steps '
    'would take 9 days'
  )
  long = duration.sentence('pretrain', 4 * 86400, 4 * 86400, 7.0, True)
  assert long.startswith('pretrain: the run takes about 4 days from here, at 7 s a step. This takes days on')
  assert 'CPU' not in duration.sentence('pretrain', 4 * 86400, 4 * 86400, 7.0, False)
  line = hooks.ReportProgress(
    'pretrain', total=9, initial=0, batch_size=1, enabled=True, estimate=lambda step, s: f'{step}: {s}'
  )
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  for step in range(1, 9):
    line(step, 0.5 if step > 1 else None)
    now[0] += 0.5
  assert capsys.readouterr().out == '5: 0.5\n'


def test_no_speed_counts_compilation(capsys, monkeypatch):
  """The first ETA does not count it either, though a validation was compiled before that line."""
  now, compiled = [0.0], [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  progress = hooks.ReportProgress(
    'finetune', total=100, initial=0, batch_size=4, enabled=True, compiling=lambda: compiled[0]
  )
  now[0] = compiled[0] = 30.0
  progress(1)
  now[0] += 90.0 + 9.0
  compiled[0] += 90.0
  progress.note(10, {'split': 'validation', 'loss': 1.0, 'seconds': 2.0})
  assert capsys.readouterr().out == 'finetune step 10/100: val loss 1, 4 examples/s, ETA 2 min\n'
