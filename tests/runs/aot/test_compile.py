"""`lra-spt compile` reports memory and traffic, refuses wrong commands, and knows every generation of TPU."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import platform
import subprocess
import sys

import jax
import pytest

from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.config.runtime import MeshSpec
from lra_spt.distributed import sharding
from lra_spt.models import execution as execution_module
from lra_spt.runs.aot import compile, cost_report, program_cost, topologies
from lra_spt.runs.build import build, resolve
from lra_spt.training import state

GIB = 2**30
V5E = topologies.CHIPS['v5e']
needs_libtpu = pytest.mark.skipif(
  sys.platform != 'linux' or platform.machine() != 'x86_64', reason='libtpu exists for Linux on x86-64 only'
)


@pytest.fixture(scope='module')
def built(tiny_config):
  return build(resolve(loading.load(tiny_config)), 'finetune')


@pytest.fixture(scope='module')
def on_two_devices(tiny_config, tmp_path_factory):
  """(printed text, written report) of the command for both stages on two CPU devices."""
  path, printed = tmp_path_factory.mktemp('compile') / 'cost.json', io.StringIO()
  with contextlib.redirect_stdout(printed):
    command = ['compile', f'--config={tiny_config}', '--topology=cpu:2', f'--json={path}']
    assert cli.main([*command, '--config.runtime.microbatches=2']) == 0
  return printed.getvalue(), json.loads(path.read_text())


def test_cpu_memory_is_that_of_the_arrays(on_two_devices, built):
  """Each of two devices holds the whole state and half of the batch."""
  report = on_two_devices[1]['finetune']
  mesh = sharding.make_mesh(devices=jax.devices()[:2])
  leaves = jax.tree.leaves(state.abstract(built.model, built.spec.optimizer, 'max', mesh))
  held = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
  rows = 16 // 2 * (24 + 3 * 4)  # bytes of input, and length, label, weight; nothing reads the index
  assert held + rows <= report['bytes_per_device']['arguments'] <= held + rows + 128
  parts = report['bytes_per_device']
  assert parts['total'] == sum(size for name, size in parts.items() if name != 'total')
  assert parts['temporaries'] > 0
  assert parts['outputs'] < held / 10  # the state is donated


def test_cpu_report_promises_no_speed(on_two_devices):
  printed, reports = on_two_devices
  assert list(reports) == ['pretrain', 'finetune']
  assert not {'hbm', 'fits', 'seconds_at_best', 'smallest'} & reports['finetune'].keys()
  assert printed.count("the CPU program's buffers; a GPU's will differ") == 2
  assert 'at best' not in printed


def test_report_numbers(on_two_devices, built):
  report = on_two_devices[1]['finetune']
  assert report['mesh'] == {'data': 2, 'fsdp': 1, 'seq': 1}
  assert report['microbatches'] == 2
  assert report['parameters'] == built.model.parameter_count
  assert report['flops_per_step'] == 3 * built.model.flops * 16
  assert report['collectives']['all-reduce']['bytes'] >= 4 * report['parameters']  # all gradients, float32
  # XLA counts some loops only once, so only the order of magnitude is the same as in our count.
  assert 0.1 < report['xla_flops_per_step'] / report['flops_per_step'] < 10


def test_runs_that_train_together_exchange_nothing(tiny_config, on_two_devices, tmp_path):
  """Four runs on two devices: each device holds two states, and the batches of both."""
  path, flags = tmp_path / 'cost.json', ['--topology=cpu:2', '--stage=finetune', '--config.runtime.members=4']
  assert cli.main(['compile', f'--config={tiny_config}', f'--json={path}', *flags]) == 0
  report, one = json.loads(path.read_text())['finetune'], on_two_devices[1]['finetune']
  assert report['mesh'] == {'member': 2, 'data': 1, 'fsdp': 1, 'seq': 1}
  assert report['collectives'] == {}
  assert report['flops_per_step'] == 4 * one['flops_per_step']
  rows = 16 // 2 * (24 + 3 * 4)  # of a device, of one run whose batch two devices share
  state = one['bytes_per_device']['arguments'] - rows
  assert report['bytes_per_device']['arguments'] == pytest.approx(2 * state + 4 * rows, rel=0.02)


def test_roofline():
  chip = topologies.Chip('toy', 100, hbm=10, hbm_bandwidth=20, ici_bandwidth=5, slices=('1x1',))
  assert cost_report.roofline(chip, 1000, 100, 20) == {
    'matrix products': 10.0, 'memory': 5.0, 'interconnect': 4.0,
  }  # fmt: skip


def compiled(gib, memory_bytes=V5E.hbm_bandwidth * 1e-3):
  """A made-up result on v5e:2x2: one step moves a millisecond's worth of memory by default."""
  parts = {'arguments': GIB, 'temporaries': int((gib - 1) * GIB), 'outputs': 0, 'program': 0}
  reduced = program_cost.Collective(3, 3 * 2**20, int(V5E.ici_bandwidth * 1e-4))
  cost = program_cost.ProgramCost({'all-reduce': reduced}, int(memory_bytes), 2)
  memory = compile.Memory(int(gib * GIB), parts)
  least = {'state': 2**20, 'batch': 2**20, 'kept': 2 * 2**20}
  return compile.Compiled({'data': 4, 'fsdp': 1, 'seq': 1}, memory, 12.3, cost, least, 1e9)


@pytest.fixture
def printed(tiny_config, built):
  """The table of a made-up result."""

  def show(made_up, **more):
    settings = loading.load(tiny_config)
    result = compile.report(resolve(settings), 'finetune', built, 'v5e:2x2', made_up, V5E)
    return cost_report.table(result) + (cost_report.smallest_table(result | more) if more else '')

  return show


def test_table_of_a_step_that_fits(printed):
  text = printed(compiled(5.75))
  assert text.startswith('finetune: transformer on tiny_listops (masked)\n')
  for line in (
    'in all             5.75 GiB: fits 15.8 GiB, 10 GiB free',
    '4e+09 by XLA',  # of 4 devices
    'MiB per step and device, at least 4 MiB where nothing stays on the chip (2 MiB of it for the backward',
    '3 all-reduce of 3 MiB in all',
    '1 loop(s) of unknown length',  # besides the loop over steps
    '1 ms at best, bound by memory',
    'interconnect 0.1 ms',
  ):
    assert line in text


def test_table_of_a_step_that_does_not_fit(printed):
  smallest = {'slice': 'v5e:4x4', 'tried': {'v5e:2x2': 20 * GIB, 'v5e:4x4': 7 * GIB}, 'estimated': {}}
  too_large = compile.Compiled({'data': 4, 'fsdp': 1, 'seq': 1}, compile.Memory(20 * GIB), 9.0)
  text = printed(too_large, smallest=smallest)
  assert 'does not fit 15.8 GiB by 4.25 GiB' in text
  assert 'smallest slice     v5e:4x4' in text
  assert 'v5e:4x4: 7 GiB, fits' in text
  assert 'at best' not in text


ROW = 128 + 3 * 4  # 24 bytes filled up to 128; length, label, index


def prepared(built, count):
  """A stand-in for a training set: it has a length and no examples."""

  class Prepared(list):
    task = built.task

    def part(self, fraction):
      return Prepared(self[: int(fraction * len(self))])

  return Prepared(range(count))


@pytest.mark.parametrize(
  'placement, hbm, count, expected',
  [
    ('', None, 1000, 0),  # CPU devices
    ('', 4 * 500 * ROW, 999, 500 * ROW),
    ('', 4 * 500 * ROW - 4, 999, 0),
    ('device', None, 999, 500 * ROW),
    ('host', 4 * 500 * ROW, 999, 0),
    ('', 4 * 500 * ROW, None, None),
    ('host', 4 * 500 * ROW, None, 0),
  ],
)
def test_bytes_of_a_training_set_on_two_devices(built, monkeypatch, placement, hbm, count, expected):
  def open_split(task, split, data_dir):
    if count is None:
      raise FileNotFoundError
    return prepared(built, count)

  monkeypatch.setattr(compile.examples_lib, 'open_split', open_split)
  built = dataclasses.replace(built, runtime=dataclasses.replace(built.runtime, placement=placement))
  mesh = sharding.make_mesh(devices=jax.devices()[:2])
  assert compile._set_bytes(built, mesh, hbm) == expected


def test_a_training_set_counts_and_an_unknown_one_is_named(tiny_config, built, printed, monkeypatch):
  """On CPU devices a set of 2^16 examples, 2^15 each."""
  train = prepared(built, 2**16)
  monkeypatch.setattr(compile.examples_lib, 'open_split', lambda task, split, data_dir: train)
  built = dataclasses.replace(built, runtime=dataclasses.replace(built.runtime, placement='device'))
  made = compile.compile_step(built, 'finetune', jax.devices()[:2], {'data': 2, 'fsdp': 1, 'seq': 1})
  assert made.memory.parts['training set'] == 2**15 * ROW
  assert made.memory.total == sum(made.memory.parts.values())
  assert 'training set 4.38 MiB' in printed(made)
  assert 'not prepared here' not in printed(made)
  assert 'without the training set, not prepared here' in printed(dataclasses.replace(made, set_known=False))
  half = dataclasses.replace(built, spec=dataclasses.replace(built.spec, data_fraction=0.5))
  made = compile.compile_step(half, 'finetune', jax.devices()[:2], {'data': 2, 'fsdp': 1, 'seq': 1})
  assert made.memory.parts['training set'] == 2**14 * ROW


def test_the_remat_of_the_platform_is_named(built, on_two_devices, monkeypatch):
  assert 'remat=none' in on_two_devices[0]
  execution = built.mixer.execution
  monkeypatch.setattr(execution_module, 'platform', lambda: 'tpu')
  assert execution_module.chosen_remat(execution) == 'elementwise'
  assert execution_module.chosen_remat(dataclasses.replace(execution, remat='mixers')) == 'mixers'


def test_rows_of_pairs_are_called_so(tiny_config, built):
  pairs = dataclasses.replace(built, task=built.task.with_inputs(documents=2))
  run = resolve(loading.load(tiny_config))
  result = compile.report(run, 'finetune', pairs, 'v5e:2x2', compiled(5.75), V5E)
  assert '16 pairs of rows of 24 positions' in cost_report.table(result)


@pytest.mark.parametrize('first', ['1x1', '2x2', '4x4', '8x8'])
@pytest.mark.parametrize('needed_at_one', [1, 20, 70, 300, 5000])
def test_search_for_the_smallest_slice(first, needed_at_one):
  """The search finds the result of trying all, with few compilations if temporaries shrink with the rows."""
  slices = [topologies.Slice(V5E, shape) for shape in ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8')]

  def memory(s):
    parts = {'arguments': GIB, 'temporaries': int(needed_at_one * GIB / s.size)}
    return compile.Memory(sum(parts.values()), parts)

  known, asked = {topologies.Slice(V5E, first): memory(topologies.Slice(V5E, first))}, []

  def measure(s, open_slices):
    assert open_slices >= 1
    asked.append(s)
    return memory(s)

  actual = compile.smallest_fitting(slices, known, measure)
  assert actual == next((s for s in slices if memory(s).total <= V5E.hbm), None)
  assert len(asked) <= 2
  assert len(set(asked)) == len(asked)


@pytest.mark.parametrize('at_one, actual, about', [(20, 'v5e:4x4', '6 GiB'), (70, None, '9.75 GiB')])
def test_a_search_without_time_for_another_compilation_estimates(built, printed, at_one, actual, about):
  """A compilation takes 12 s, a search at most 10 s."""
  asked = topologies.get_slice('v5e:4x4' if actual else 'v5e:2x2')
  parts = {'arguments': GIB, 'temporaries': at_one * GIB // asked.size}
  made_up = dataclasses.replace(compiled(5.75), memory=compile.Memory(sum(parts.values()), parts))
  smallest = compile._smallest(built, 'finetune', asked, made_up, seconds=10.0)
  assert smallest['slice'] == actual
  assert list(smallest['tried']) == [asked.name]
  text = printed(made_up, smallest=smallest)
  assert f'about {about}, not compiled to save time' in text


@pytest.mark.parametrize(
  'mesh, microbatches, shapes',
  [
    ({'data': -1, 'fsdp': 1, 'seq': 1}, 1, ['1x1', '2x2', '2x4', '4x4']),
    ({'data': -1, 'fsdp': 2, 'seq': 1}, 2, ['2x2', '2x4']),
    ({'data': -1, 'fsdp': 1, 'seq': 2}, 1, ['2x2', '2x4', '4x4', '4x8']),
  ],
)
def test_slices_that_share_16_rows_evenly(mesh, microbatches, shapes, built):
  runtime = dataclasses.replace(built.runtime, mesh=MeshSpec(**mesh), microbatches=microbatches)
  built = dataclasses.replace(built, runtime=runtime)
  candidates = compile._candidates(built, topologies.get_slice('v5e:2x2'))
  assert [s.shape for s in candidates] == shapes


@pytest.mark.parametrize(
  'message, gib',
  [
    ('the total memory required for HLO temporaries (40.25G) exceeds available HBM (15.75G).', 40.25),
    ('Ran out of memory in memory space hbm. Used 18.5G of 15.75G hbm. Exceeded hbm capacity by 3G.', 18.5),
    ('Ran out of memory in memory space vmem. Used 18.5M of 16.00M vmem.', None),
  ],
)  # fmt: skip
def test_reading_the_compilers_refusal(message, gib):
  assert compile._needed_bytes(message) == (None if gib is None else gib * GIB)


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--topology=v9:2x2'], ["'v9:2x2'", 'v4, v5e, v5p, v6e', 'cpu:N']),
    (['--topology=v5e:3x3'], ["'v5e:3x3'", '1x1, 2x2, 2x4, 4x4']),
    (['--topology=1xv5e:2x2'], ["'1xv5e:2x2'", '2x to 64x before v5e:2x2']),
    (['--topology=99xv5e:2x2'], ["'99xv5e:2x2'", '2x to 64x before v5e:2x2']),
    (['--topology=2x'], ["'2x'", 'v4, v5e, v5p, v6e']),
    (['--topology=cpu:0'], ["'cpu:0'", 'cpu:N']),
    (['--topology=cpu:9'], ['8 CPU devices']),
    (['--topology=cpu:2', '--config.finetune.batch_size=3'], ['finetune.batch_size is 3', '2 devices']),
    (['--topology=cpu:2', '--config.runtime.mesh.fsdp=3'], ['fsdp=3', '2 devices']),
    (['--topology=cpu:2', '--config.runtime.placement=foo'], ["placement is 'foo'", "'host', 'device'"]),
  ],
)
def test_errors_are_one_sentence(flags, words, tiny_config, capsys):
  assert cli.main(['compile', f'--config={tiny_config}', '--stage=finetune', *flags]) == 2
  *progress, sentence = capsys.readouterr().err.splitlines()
  assert progress in ([], ['compiling finetune for cpu:2 ...'])
  assert all(word in sentence for word in words)


def test_scratch_has_no_pretraining(tiny_config, capsys):
  command = ['compile', f'--config={tiny_config}:regime=scratch', '--topology=cpu:1', '--stage=pretrain']
  assert cli.main(command) == 2
  assert 'regime=scratch has no pretraining' in capsys.readouterr().err


def test_missing_libtpu_names_the_extra(tiny_config, capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, actual=importlib.util.find_spec: (
    None if name == 'libtpu' else actual(name)))  # fmt: skip
  assert cli.main(['compile', f'--config={tiny_config}', '--topology=v5e:2x2']) == 2
  assert "pip install -e '.[tpu]'" in capsys.readouterr().err


@pytest.fixture
def compile_for(tiny_config, repository, for_tpus, tmp_path):
  """Runs the command in its own process, because libtpu and 8 CPU devices exclude each other."""

  def run(topology, *flags):
    path = tmp_path / 'cost.json'
    command = [sys.executable, '-m', 'lra_spt', 'compile', f'--config={tiny_config}', f'--json={path}']
    done = subprocess.run(
      [*command, f'--topology={topology}', '--stage=finetune', *flags],
      env=for_tpus, cwd=repository, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done, json.loads(path.read_text())['finetune']

  return run


@needs_libtpu
def test_two_tpu_slices(compile_for):
  sharded = ['--config.runtime.mesh.fsdp=4', '--config.model.width=64']  # smaller parameters stay whole
  done, report = compile_for('2xv5e:2x4', '--smallest=false', *sharded)
  assert report['devices'] == 16
  assert report['mesh'] == {'data': 4, 'fsdp': 4, 'seq': 1}
  assert report['topology'] == '2xv5e:2x4'
  assert report['fits']
  assert 0 < report['bytes_per_device']['total'] < 2**28
  # Gradients move between the slices. Each of the 8 devices of a slice moves only its part.
  gradients = 4 * report['parameters']
  assert set(report['between_slices']) == {'all-reduce'}
  assert gradients / 8 <= report['between_slices']['all-reduce']['bytes'] < gradients / 2
  assert 'sent to the network by each device' in done.stdout
  assert report['collectives']['all-gather']['count'] > 0  # parameters are sharded
  assert all(seconds > 0 for seconds in report['seconds_at_best'].values())
  assert report['unknown_loops'] == 0
  assert 'bound by' in done.stdout
  assert 'Traceback' not in done.stderr


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize('topology, smallest', [('v4:2x2x2', 'v4:2x2x1'), ('v5p:2x2x1', 'v5p:2x2x1'),
                                                ('v6e:2x2', 'v6e:1x1'), ('v5e:2x2', 'v5e:1x1')])  # fmt: skip
def test_every_generation(compile_for, topology, smallest):
  _, report = compile_for(topology)
  assert report['fits']
  assert report['smallest']['slice'] == smallest
  assert report['devices'] == topologies.get_slice(topology).size


@needs_libtpu
@pytest.mark.slow
def test_a_step_that_does_not_fit(compile_for):
  done, report = compile_for('v5e:2x2', '--smallest=false', '--config.finetune.batch_size=1048576')
  assert not report['fits']
  assert report['bytes_per_device']['total'] > 100 * GIB
  assert 'does not fit 15.8 GiB by' in done.stdout
  assert 'Traceback' not in done.stderr
