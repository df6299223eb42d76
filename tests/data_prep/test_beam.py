"""Apache Beam makes the same chunks. It runs in separate processes because it warns."""

import functools
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from data_prep import chunks
from data_prep.pathfinder import generated
from data_prep.sources import listops
from lra_spt.data import prepared

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec('apache_beam') is None, reason="needs Apache Beam: pip install 'lra_spt[beam]'"
)
THREADS = '--direct_running_mode=multi_threading'  # starts sooner than processes
CHUNKS = """
import functools, pathlib, sys
from data_prep import chunks
from data_prep.pathfinder import generated

if __name__ == '__main__':
  parts = chunks.divide(pathlib.Path(sys.argv[1]), 40, size=8)
  draw = functools.partial(generated._draw, 32, 6, 0)
  chunks.make_chunks(draw, parts, workers=2, runner='beam', beam_options=sys.argv[2])
"""
SETS = """
import sys
from data_prep.pathfinder import generated
from data_prep.sources import listops

if __name__ == '__main__':
  generated._CHUNK_BYTES, generated._CHUNK_IMAGES, listops._CHUNK = 1, 16, 500
  making = {'workers': 2, 'runner': 'beam', 'beam_options': sys.argv[2]}
  generated.prepare_pathfinder(sys.argv[1], examples=40, **making)
  sizes = {'train': 1000, 'validation': 100, 'test': 100}
  listops.prepare_listops(sys.argv[1], sizes=sizes, **making)
"""


@pytest.fixture
def run_script(tmp_path, repository):
  """run_script(program, *arguments) -> the finished process."""

  def run(program, *arguments):
    (tmp_path / 'script.py').write_text(program)
    return subprocess.run(
      [sys.executable, tmp_path / 'script.py', *arguments],
      env={**os.environ, 'PYTHONPATH': str(repository)},
      capture_output=True,
      text=True,
      check=False,
      timeout=200,
    )

  return run


def test_beam_makes_what_is_missing_and_the_same(tmp_path, run_script):
  draw = functools.partial(generated._draw, 32, 6, 0)
  folder = chunks.open_folder(tmp_path / 'work', {})
  parts = chunks.divide(folder, 40, size=8)
  chunks.make_chunks(draw, parts[:2], workers=1)
  times = parts[0].path.stat().st_mtime_ns
  parts[1].path.write_bytes(b'half')
  run = run_script(CHUNKS, folder, '')
  assert run.returncode == 0, run.stderr
  assert parts[0].path.stat().st_mtime_ns == times
  assert sorted(folder.iterdir()) == [part.path for part in parts]
  for part in parts:
    expected = draw(part.start, part.stop)
    actual = chunks.read(part)
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[key], expected[key]) for key in expected)


def test_sets_are_those_of_local_processes(tmp_path, run_script):
  run = run_script(SETS, tmp_path / 'beam', THREADS)
  assert run.returncode == 0, run.stderr
  sizes = {'train': 1000, 'validation': 100, 'test': 100}
  local = [
    generated.prepare_pathfinder(tmp_path / 'local', examples=40, workers=1),
    listops.prepare_listops(tmp_path / 'local', sizes=sizes, workers=1),
  ]
  for folder in local:
    beam = tmp_path / 'beam' / folder.relative_to(tmp_path / 'local')
    fingerprints = [prepared.read_metadata(path, '')['fingerprint'] for path in (beam, folder)]
    assert fingerprints[0] == fingerprints[1]


def test_an_error_ends_the_pipeline_and_keeps_finished_chunks(tmp_path, run_script):
  folder = chunks.open_folder(tmp_path / 'work', {})
  run = run_script(CHUNKS.replace('32, 6, 0', '33, 6, 0'), folder, THREADS)
  assert run.returncode != 0
  assert 'resolution 33 is unknown' in run.stderr
  assert not list(folder.iterdir())
