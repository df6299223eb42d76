"""The time of a stage is divided into parts, one of them compiling. Lines of training show speed and MFU."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import chips
from lra_spt.training.monitoring import timing
from lra_spt.training.monitoring.hooks import TrainLog
from lra_spt.training.monitoring.timing import StageTiming, in_words


@pytest.fixture
def clock(monkeypatch):
  """Stands in for the clock: clock.now."""
  actual = types.SimpleNamespace(now=100.0)
  monkeypatch.setattr(timing.time, 'monotonic', lambda: actual.now)
  return actual


def test_every_second_is_in_one_part(clock):
  ledger = StageTiming([50.0])
  with ledger.on('data'):
    clock.now += 2
  with ledger.on('steps'):
    clock.now += 5
    ledger._note('/jax/core/compile/backend_compile_duration', 3.0)
  clock.now += 4
  with contextlib.suppress(OSError), ledger.on('checkpoints'):
    clock.now += 1
    raise OSError
  assert (ledger.seconds, ledger.elapsed) == ([62], 12)
  parts = {'steps': 2, 'data': 2, 'evaluation': 0, 'checkpoints': 1, 'compiling': 3, 'other': 4}
  assert ledger.parts == parts
  assert (
    in_words(parts) == '12 s: 33.3 % other, 25.0 % compiling, 16.7 % steps, 16.7 % data, 8.3 % checkpoints'
  )


def test_runs_that_train_share_the_time(clock):
  """The first of three runs was resumed. One ends after 12 s, the next 8 s later, and the last 5 s later."""
  ledger = StageTiming([50.0, 0.0, 0.0])
  clock.now += 12
  ledger.share_among([True, False, True])
  clock.now += 8
  assert ledger.seconds == [58, 4, 8]
  ledger.share_among([False, False, True])
  clock.now += 5
  ledger.share_among([False] * 3)
  clock.now += 9
  assert (ledger.seconds, ledger.elapsed) == ([58, 4, 13], 34)


def test_compiling_within_compiling_counts_once(clock):
  ledger = StageTiming()
  clock.now = 110.0
  ledger._note('/jax/core/compile/jaxpr_trace_duration', 2.0)  # 108 to 110
  clock.now = 112.0
  ledger._note('/jax/core/compile/jaxpr_trace_duration', 6.0)  # 106 to 112: contains the first
  clock.now = 120.0
  ledger._note('/jax/core/compile/backend_compile_duration', 1.0)
  ledger._note('/jax/checkpoint/write/duration', 9.0)
  assert ledger.parts['compiling'] == 7


def test_it_learns_from_jax_what_is_compiled():
  ledger = StageTiming()
  with ledger.listening(), ledger.on('steps'):
    jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((7, 7))).block_until_ready()
  compiling = ledger.parts['compiling']
  assert compiling > 0
  jax.jit(lambda x: jnp.cos(x) @ x)(jnp.ones((7, 7))).block_until_ready()  # the ledger no longer listens
  assert ledger.parts['compiling'] == compiling


class Lines:
  def __init__(self):
    self.lines = []

  def write_scalars(self, step, scalars):
    self.lines.append(scalars)

  def flush(self):
    pass

  def note(self, step, scalars):
    pass


@pytest.mark.parametrize('kind, mfu', [('cpu', None), ('TPU v5 lite', 0.25)])
def test_lines_have_the_utilisation_where_the_peak_is_known(kind, mfu, clock):
  devices = np.array([types.SimpleNamespace(device_kind=kind)] * 2)
  mesh, writer = types.SimpleNamespace(devices=devices, size=2), Lines()
  member = types.SimpleNamespace(writer=writer, active=True)
  log = TrainLog([member], writer, batch_size=8, every=4, flops=197e12, mesh=mesh)
  records = dict.fromkeys(('loss', 'gradient_norm', 'learning_rate'), np.ones(4, np.float32))
  clock.now += 100  # compiles
  for step in (4, 8):
    log.add(step, 4, records)
    clock.now += 8
    log.write()
    clock.now += 50  # evaluates and saves
    log.restart_clock()
  assert [line.get('mfu') for line in writer.lines] == [mfu] * 2
  assert [line['examples_per_second'] for line in writer.lines] == [4.0] * 2


@pytest.mark.parametrize(
  'kind, peak',
  [
    ('TPU v4', 275e12),
    ('TPU v5', 459e12),
    ('TPU v6 lite', 918e12),
    ('NVIDIA H100 80GB HBM3', 989e12),
    ('NVIDIA H100 PCIe', 756e12),
    ('NVIDIA A100-SXM4-40GB', 312e12),
    ('Tesla T4', 65e12),
    ('NVIDIA L40S', None),
    ('cpu', None),
  ],
)
def test_peaks_of_devices(kind, peak):
  assert chips.peak_flops(kind) == peak
