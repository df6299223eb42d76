"""How the parts of accelerator.py measure: wall time of a function that waits for its results."""

import statistics
import time

FEWEST_SAMPLES, MOST_SAMPLES, SAMPLING_SECONDS = 5, 200, 1.0


def seconds_of(run, sampling=SAMPLING_SECONDS):
  """Wall seconds of several runs after two that do not count."""
  samples = []
  for _ in range(2):
    run()
  while len(samples) < FEWEST_SAMPLES or (sum(samples) < sampling and len(samples) < MOST_SAMPLES):
    start = time.perf_counter()
    run()
    samples.append(time.perf_counter() - start)
  return samples


def timed(run, sampling=SAMPLING_SECONDS):
  """The columns of a row that say how long `run` takes."""
  seconds = seconds_of(run, sampling)
  return {
    'milliseconds': 1e3 * statistics.median(seconds),
    'fastest_milliseconds': 1e3 * min(seconds),
    'samples': len(seconds),
  }


def not_run(error):
  """The column that says why a case has no result."""
  return {'not_run': ' '.join(f'{type(error).__name__}: {error}'.split())[:300]}
