"""benchmarks/first_step.py: the parts of a real start, and what becomes of several."""

import os

from benchmarks import first_step


def test_a_start_says_what_its_parts_took(tiny_config, tiny_data, tmp_path, capfd):
  parts = first_step.start(tiny_config, tiny_data, tmp_path / 'run', tmp_path / 'cache')
  assert list(parts) == [
    'Python',
    'imports',
    'config and shapes',
    'data opened',
    'sizes checked',
    'initial values',
    'folders, files, threads',
    'step compiled',
    'step computed',
  ]
  assert min(parts.values()) >= 0
  assert 1 < sum(parts.values()) < 300
  assert not list((tmp_path / 'run').rglob('result.json'))  # it ended with its first step
  kept = os.environ.get('JAX_COMPILATION_CACHE_DIR') or tmp_path / 'cache'
  assert any('jit_run' in name for name in os.listdir(kept))


def test_the_median_start_is_one_that_was():
  starts = [{'imports': 1.0, 'step': 5.0}, {'imports': 3.001, 'step': 1.0}, {'imports': 2.0, 'step': 9.0}]
  assert first_step.median(starts) == {'parts': {'imports': 1.0, 'step': 5.0}, 'seconds': 6.0}
  assert set(first_step.TARGETS) == {'empty', 'full'}
