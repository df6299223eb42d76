"""Damaged and hostile raw sets of every form give an error of one sentence or a set, and change no file.

The short tests try each form 16 times, and every kind of path that is not a file. The long test (`pytest -m
slow tests/data_prep/test_fuzz.py`) tries each form 130 times, prepares the accepted sets, and measures the
memory of a process for each form.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from data_prep import builders
from tests.data_prep import fuzzing, raw_sets

TRIES, LONG = 16, 130
FEW = sorted(raw_sets.FORMS)


@pytest.fixture
def whole(tmp_path, monkeypatch):
  """whole(form) -> fingerprint of the examples of its undamaged set; sets are read and not written."""
  monkeypatch.setattr(builders, 'prepare_set', fuzzing.consumed)
  monkeypatch.chdir(tmp_path)

  def of(form):
    folder = tmp_path / 'whole'
    raw_sets.write(folder / 'raw', raw_sets.FORMS[form][0](raw_sets.Damage(None, np.random.default_rng(0))))
    return fuzzing.attempt(form, folder / 'raw', folder / 'data', really=False)

  return of


@pytest.mark.parametrize('form', FEW)
def test_damaged_sets_give_a_sentence_or_a_set(tmp_path, whole, form):
  expected = whole(form)
  assert expected
  became = []
  for seed in range(TRIES):
    (tmp_path / str(seed)).mkdir()
    became.append(fuzzing.one_try(form, seed, tmp_path / str(seed), expected))
  assert 'refused' in became or 'another set' in became


@pytest.mark.parametrize('form', FEW)
def test_paths_that_are_no_files_give_a_sentence(tmp_path, whole, form):
  """Missing images, clips and reviews may be left out. A pipe, a socket or a device is always an error."""
  expected = whole(form)
  files = raw_sets.FORMS[form][0](raw_sets.Damage(None, np.random.default_rng(0)))
  for kind in raw_sets.SPECIAL:
    for number, name in enumerate(sorted(files)[:: max(1, len(files) // 3)]):
      folder = tmp_path / kind / str(number)
      raw_sets.write(folder / 'raw', files)
      raw_sets.replace(folder / 'raw' / name, kind)
      actual = fuzzing.attempt(form, folder / 'raw', folder / 'data', really=False)
      assert actual != expected, (kind, name)
      assert actual is None or kind in ('missing', 'dangling', 'empty'), (kind, name)


@pytest.mark.slow
@pytest.mark.parametrize('form', FEW)
def test_many_damaged_sets(tmp_path, repository, form):
  arguments = [form, str(LONG), '1000', str(tmp_path)]
  result = subprocess.run(
    [sys.executable, '-W', 'error', '-m', 'tests.data_prep.fuzzing', *arguments],
    cwd=repository,
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  actual = json.loads(result.stdout.splitlines()[-1])
  assert actual['failures'] == []
  assert sum(actual['counts'].values()) == LONG
  assert actual['memory'] < 500e6
  print(f'{form}: {actual["counts"]}, {actual["memory"] / 1e6:.0f} MB')
