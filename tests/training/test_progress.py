"""What a stage shows while it trains, and the profile of some of its steps."""

import sys
import time

import jax

from lra_spt.training.monitoring.hooks import Profile, ReportProgress


def test_progress_is_lines_without_a_terminal(capsys, monkeypatch):
  """There is a line at every evaluation, and at least one a minute."""
  now = [100.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  progress = ReportProgress('finetune', total=2000, initial=0, batch_size=4, enabled=True)
  for step, seconds in ((8, 5.0), (16, 10.0), (24, 61.0), (32, 66.0)):
    now[0] = 100.0 + seconds
    progress(step)
    progress.note(step, {'split': 'train', 'loss': 1.7, 'gradient_norm': 1.0})
  progress.note(32, {'split': 'validation', 'loss': 1.5, 'accuracy': 0.41, 'seconds': 2.0})
  progress.close()
  captured = capsys.readouterr()
  assert captured.out.splitlines() == [
    'finetune step 24/2,000: loss 1.7, 1 examples/s, ETA 1.9 h',
    'finetune step 32/2,000: val loss 1.5, val accuracy 0.41, loss 1.7, 4 examples/s, ETA 35 min',
  ]
  assert captured.err == ''


def test_a_stage_that_only_time_ends_shows_no_end(capsys, monkeypatch):
  monkeypatch.setattr(time, 'monotonic', iter([100.0, 105.0, 165.0, 165.0]).__next__)
  progress = ReportProgress('finetune', total=None, initial=0, batch_size=4, enabled=True)
  progress(8)
  progress(24)
  assert capsys.readouterr().out == 'finetune step 24: 1 examples/s\n'


def test_speed_is_that_of_most_lines(capsys, monkeypatch):
  """The speed is 4 examples a second, except for one hour in which the machine sleeps."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  progress = ReportProgress('finetune', total=10_000, initial=0, batch_size=4, enabled=True)
  for step in range(0, 2400, 60):
    now[0] = step + 3600.0 * (step > 600)
    progress(step)
  progress.close()
  lines = capsys.readouterr().out.splitlines()
  assert lines[9] == 'finetune step 600/10,000: 4 examples/s, ETA 2.6 h'
  assert lines[10] == 'finetune step 660/10,000: 4 examples/s, ETA 2.6 h'
  assert lines[-1] == 'finetune step 2,340/10,000: 4 examples/s, ETA 2.1 h'


def test_progress_can_be_switched_off(capsys):
  progress = ReportProgress('finetune', total=10, initial=0, batch_size=4, enabled=False)
  progress(5)
  progress.note(5, {'split': 'validation', 'loss': 1.0, 'seconds': 2.0})
  progress.close()
  captured = capsys.readouterr()
  assert (captured.out, captured.err) == ('', '')


def test_progress_shows_steps_and_metrics(capsys, monkeypatch):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
  progress = ReportProgress('pretrain', total=10, initial=2, batch_size=4, enabled=True)
  progress.note(2, {'split': 'validation', 'loss': 1.25, 'seconds': 2.0})
  for step in (4, 10):
    time.sleep(0.12)  # a bar is drawn at most every 0.1 s
    progress(step)
  progress.close()
  shown = capsys.readouterr().err
  assert '10/10' in shown
  assert 'val loss=1.25' in shown
  assert 'examples/s=' in shown


def test_profile_covers_its_steps(monkeypatch, tmp_path):
  events = []
  monkeypatch.setattr(jax.profiler, 'start_trace', lambda folder: events.append('start'))
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: events.append('stop'))
  profile = Profile(tmp_path, first_step=6, steps=4)
  for step in range(0, 15, 3):
    events.append(step)
    profile(step)
  profile.close()
  assert events == [0, 3, 6, 'start', 9, 12, 'stop']
  Profile(tmp_path, first_step=6, steps=0)(6)
  assert len(events) == 7
