"""Attention and whole train steps compile for a TPU slice, ahead of time and on a CPU (libtpu needs no TPU).

Each program of tpu_programs.py is compiled in a process of its own: these tests want a TPU compiler and one
CPU device, the others 8 CPU devices. Continuous integration fails when one of them is skipped.
"""

import importlib.util
import json
import math
import pathlib
import platform
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
  sys.platform != 'linux' or platform.machine() != 'x86_64', reason='libtpu exists for Linux on x86-64 only'
)

PROGRAMS = pathlib.Path(__file__).parents[2] / 'tpu_programs.py'


@pytest.fixture(scope='module')
def compiled(for_tpus):
  """The JSON of tpu_programs.py about a program on 4 chips."""
  assert importlib.util.find_spec('libtpu'), "libtpu is missing: pip install -e '.[test]' brings it"

  def compile(name, topology='v5e:2x2'):
    command = [sys.executable, PROGRAMS, name, topology]
    run = subprocess.run(command, env=for_tpus, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.split('\n')[-2])

  return compile


@pytest.mark.parametrize(
  ('program', 'length', 'heads', 'topology'),
  [
    pytest.param('causal', 4096, 8, 'v5e:2x2', marks=pytest.mark.slow),
    ('blocks_causal', 16384, 8, 'v4:2x2x1'),
    pytest.param('full', 4096, 8, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('table', 4096, 8, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('table', 4096, 8, 'v4:2x2x1', marks=pytest.mark.slow),
    pytest.param('blocks', 16384, 4, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('blocks_odd', 16000, 4, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('blocks', 16384, 4, 'v4:2x2x1', marks=pytest.mark.slow),
    pytest.param('blocks_causal', 16384, 8, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('blocks_long', 65536, 4, 'v5e:2x2', marks=pytest.mark.slow),
    pytest.param('blocks_long', 65536, 4, 'v4:2x2x1', marks=pytest.mark.slow),
  ],
)
def test_attention(compiled, program, length, heads, topology):
  """Attention compiles to the TPU's kernels, splits rows without communication, and needs linear memory."""
  report = compiled(f'attention_{program}', topology)
  kind = {'v5e:2x2': 'TPU v5 lite', 'v4:2x2x1': 'TPU v4'}[topology]
  assert (report['device_kind'], report['devices']) == (kind, 4)
  assert report['platform'] == 'tpu'  # kernels are chosen for what is compiled for, not for this machine
  assert [re.match('splash_mha_[a-z]+', name).group() for name in report['kernels']] == [
    'splash_mha_dkv',
    'splash_mha_dq',
    'splash_mha_fwd',
  ]
  assert report['gathers'] == []
  rows_per_chip = 2
  # One row of scores would be 8 KiB and more. Kernels fill heads and statistics up to 128 lanes.
  assert report['temporary_bytes'] < 2048 * rows_per_chip * heads * length


@pytest.mark.parametrize(
  ('program', 'length'),
  [
    ('pretrain_image', 1024),
    pytest.param('finetune_image_s5', 1024, marks=pytest.mark.slow),
    pytest.param('finetune_listops', 2048, marks=pytest.mark.slow),
    pytest.param('finetune_image_s4', 1024, marks=pytest.mark.slow),
  ],
)
def test_train_step(compiled, program, length):
  """Parameters are gathered and activations are not. A gathered array has the shape of a parameter or of a
  block's part of it, or is too small (logits) to hold all positions."""
  report = compiled(program)
  assert report['gathers']  # parameters are sharded over the axis fsdp
  shapes = {_without_ones(shape[first:]) for shape in report['parameters'] for first in (0, 1)}
  large = [shape for shape in report['gathers'] if math.prod(shape) >= length]
  assert [shape for shape in large if _without_ones(shape) not in shapes] == []
  assert report['temporary_bytes'] < 2**30


def _without_ones(shape):
  return tuple(n for n in shape if n != 1)


@pytest.mark.parametrize(
  ('kind', 'examples', 'row'),
  [
    ('pairs', 147_088, 8064),
    pytest.param('signals', 80_000, 4 * 8064, marks=pytest.mark.slow),
    pytest.param('bytes', 45_000, 1024, marks=pytest.mark.slow),
    pytest.param('sound', 24_484, 2 * 16_000, marks=pytest.mark.slow),
  ],
)
def test_resident_set(compiled, kind, examples, row):
  """Each chip holds its quarter, which no step copies, and only rows of the batch move, 8 of them."""
  report = compiled(f'resident_{kind}')
  assert report['gathers'] == []
  assert report['argument_bytes'] == pytest.approx(examples // 4 * row, rel=0.02)  # labels and lengths too
  assert report['temporary_bytes'] < 8 * 4 * row
