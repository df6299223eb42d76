"""Autotune leaves out kernels that raise or are wrong in value or gradient, and chooses the fastest other."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import pallas as pl

from benchmarks.field import options
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.config.protocol import CLEAN
from lra_spt.distributed import sharding
from lra_spt.errors import UserError
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, Model, ModelSpec
from lra_spt.ops import attention as attention_lib
from lra_spt.ops import fft_conv, scan, selection
from lra_spt.ops.attention import Causal, Full, Neighbours, attention
from lra_spt.runs import experiment
from lra_spt.training import autotune


@pytest.fixture(autouse=True)
def _forget():
  yield
  selection.forget()
  jax.clear_caches()


class Clock:
  """A clock that only the planted kernels advance."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    jax.effects_barrier()
    return self.now

  def pass_by(self, seconds):
    self.now += seconds


def planted(clock):
  """An operation whose implementations are named after their defect or speed."""

  @jax.custom_vjp
  def badly_derived(x):
    return jnp.sin(x)

  badly_derived.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.sin(x),))

  def sine(seconds):
    def run(x):
      jax.debug.callback(functools.partial(clock.pass_by, seconds))
      return jnp.sin(x)

    return run

  def raises(x):
    raise NotImplementedError('no lowering for sine\nsecond line')

  runs = {
    'plain': sine(3.0),
    'slow': sine(5.0),
    'fast': sine(1.0),
    'close': lambda x: jnp.sin(x) * 1.01,
    'nan': lambda x: jnp.sin(x) + jnp.nan,
    'badly derived': badly_derived,
    'raises': raises,
  }
  arrays = lambda call: [np.linspace(0, 1, call.batch, dtype=np.float32)]  # noqa: E731
  return autotune.Operation(arrays, lambda call, name: runs[name], 'plain', 1e-3, 'sine')


def call_of(*candidates, batch=5):
  return selection.Call('sine', (('x', (), 'float32', True),), (), batch, candidates, candidates[-1])


def test_findings():
  clock = Clock()
  names = 'raises', 'nan', 'close', 'badly derived', 'slow', 'fast', 'plain'
  findings = autotune.prove(call_of(*names), planted(clock), clock)
  assert [finding.name for finding in findings] == list(names)
  problems = {finding.name: finding.problem for finding in findings if finding.problem}
  assert problems == {
    'raises': 'fails: NotImplementedError: no lowering for sine',
    'nan': 'is off by nan of the largest number',
    'close': 'is off by 0.01 of the largest number',
    'badly derived': f'is off by {findings[3].error:.2g} of the largest number',
  }
  assert findings[3].error > 0.5
  assert [(f.name, f.seconds) for f in findings[4:]] == [('slow', 5.0), ('fast', 1.0), ('plain', 3.0)]
  assert autotune.fastest(findings) == 'fast'
  assert autotune.fastest(findings[:4]) is None
  assert (
    autotune.described(findings[0]) == 'raises fails: NotImplementedError: no lowering for sine: left out'
  )
  assert autotune.described(findings[5]) == 'fast: 1e+03 ms, off by 0'


def test_where_the_plain_route_lacks_memory_fewer_rows_are_tried():
  tried, clock = [], Clock()
  operation = planted(clock)

  def arrays(call):
    tried.append(call.batch)
    if call.batch > 3:
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate')
    return operation.arrays(call)

  small = dataclasses.replace(operation, arrays=arrays)
  findings = autotune.prove(call_of('fast', 'plain', batch=13), small, clock)
  assert tried == [13, 6, 3]
  assert autotune.fastest(findings) == 'fast'

  def nothing(call):
    raise MemoryError

  words = 'sine: x  float32 cannot be checked here: .* one row; name an .* runtime.prove_kernels=false'
  with pytest.raises(UserError, match=words):
    autotune.prove(call_of('fast', 'plain'), dataclasses.replace(operation, arrays=nothing), clock)

  def broken(call):
    raise jax.errors.JaxRuntimeError('INTERNAL: something else')

  with pytest.raises(jax.errors.JaxRuntimeError, match='something else'):
    autotune.prove(call_of('fast', 'plain'), dataclasses.replace(operation, arrays=broken), clock)


def test_choices_are_kept(tmp_path):
  mesh, lines = sharding.make_mesh(devices=jax.devices()[:1]), []
  call = call_of('raises', 'nan', 'plain')
  choose = functools.partial(
    autotune.choose, [call], mesh, tmp_path / 'cache', lines.append, {'sine': planted(Clock())}
  )
  assert choose()['sine: x  float32']['chosen'] == 'plain'
  assert lines[:3] == [
    'trying raises, nan, plain for sine: x  float32',
    '  raises fails: NotImplementedError: no lowering for sine: left out',
    '  nan is off by nan of the largest number: left out',
  ]
  assert selection.select(call_of('raises', 'plain', batch=7)) == 'plain'  # whatever the batch
  assert selection.select(call_of('raises')) == 'raises'  # the chosen one is no candidate here
  (stored,) = json.loads((tmp_path / 'cache' / autotune.FILE).read_text()).values()
  assert stored['sine: x  float32']['chosen'] == 'plain'
  lines.clear()
  selection.forget()
  assert choose()['sine: x  float32']['chosen'] == 'plain'
  assert not lines  # nothing was tried again
  assert selection.select(call) == 'plain'
  (tmp_path / 'cache' / autotune.FILE).write_text('{')
  with pytest.raises(UserError, match='delete it: it is made again'):
    choose()
  (tmp_path / 'cache' / autotune.FILE).write_text('{"cpu": {"sine": 3}}')
  with pytest.raises(UserError, match='is not a choice of kernels; delete it'):
    choose()
  (tmp_path / 'cache' / autotune.FILE).unlink()
  (tmp_path / 'cache').rmdir()
  (tmp_path / 'cache').write_text('a file where a folder should be')
  with pytest.raises(UserError, match='cache'):
    choose()


def test_what_may_be_mended_is_tried_again(tmp_path):
  """A kernel that lacked memory is tried again. So is an operation without a correct kernel, because another
  driver may have one."""
  mesh, lines = sharding.make_mesh(devices=jax.devices()[:1]), []
  sine = planted(Clock())

  def starved(call, name):
    if name == 'fast':
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate')
    return sine.run(call, name)

  def choose(names, operation):
    chosen = autotune.choose([call_of(*names)], mesh, tmp_path, lines.append, {'sine': operation})
    return next(iter(chosen.values()))

  def problems(tried):
    return [finding['name'] for finding in tried['findings'] if finding['problem']]

  first = choose(('fast', 'plain'), dataclasses.replace(sine, run=starved))
  assert (first['chosen'], problems(first)) == ('plain', ['fast'])
  assert problems(choose(('fast', 'plain'), sine)) == []
  (tmp_path / autotune.FILE).unlink()
  with pytest.raises(UserError, match='no implementation'):
    choose(('raises', 'close'), sine)
  assert choose(('raises', 'plain'), sine)['chosen'] == 'plain'


def test_choices_that_another_run_keeps_meanwhile_stay(tmp_path):
  mesh, operation = sharding.make_mesh(devices=jax.devices()[:1]), planted(Clock())
  choose = functools.partial(autotune.choose, mesh=mesh, folder=tmp_path, say=lambda line: None)
  ours, other = call_of('fast', 'plain'), dataclasses.replace(call_of('plain'), operation='another sine')

  def arrays(call):  # while it tries its own
    choose([other], operations={'another sine': operation})
    return operation.arrays(call)

  choose([ours], operations={'sine': dataclasses.replace(operation, arrays=arrays)})
  (stored,) = json.loads((tmp_path / autotune.FILE).read_text()).values()
  assert set(stored) == {ours.text, other.text}


def test_none_is_correct():
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  operations = {'sine': planted(Clock())}
  with pytest.raises(UserError, match='no implementation of sine: x  float32 is correct on this machine'):
    autotune.choose([call_of('raises', 'close')], mesh, say=lambda line: None, operations=operations)


def recorded(function, *arrays):
  with selection.recording() as actual:
    jax.eval_shape(function, *arrays)
  return list(actual)


@pytest.mark.parametrize(
  ('pattern', 'options'),
  [
    (Full(), {}),
    (Causal(), {'kv_lengths_B': np.int32([32, 9])}),
    (Neighbours(16), {'bias_HR': np.ones((2, 5))}),
  ],
)
def test_calls_of_attention_are_run_as_they_were_made(pattern, options, monkeypatch):
  monkeypatch.setitem(attention_lib._PREFERRED, 'cpu', ('splash', 'triton', 'reference', 'blockwise'))
  options = {
    key: jnp.asarray(v, jnp.int32 if 'lengths' in key else jnp.float32) for key, v in options.items()
  }
  q, k, v = (jax.ShapeDtypeStruct((2, 32, 2, 16), jnp.float32) for _ in range(3))
  (call,) = recorded(functools.partial(attention, pattern=pattern, **options), q, k, v)
  assert call.candidates[-2:] == ('reference', 'blockwise')
  assert f'pattern={pattern}' in call.text
  assert 'kv_lengths=True' in call.text if 'kv_lengths_B' in options else 'kv_lengths=False' in call.text
  findings = autotune.prove(call, autotune.OPERATIONS['attention'])
  assert [finding.problem for finding in findings] == [''] * len(call.candidates)


def test_calls_within_a_shard_have_traced_offsets_and_first_keys(monkeypatch):
  monkeypatch.setitem(attention_lib._PREFERRED, 'cpu', ('splash', 'triton', 'blockwise'))
  q, k, v = (jax.ShapeDtypeStruct((2, n, 2, 16), jnp.float32) for n in (16, 32, 32))

  def attend(q, k, v, offset, starts_B):
    return attention(q, k, v, pattern=Neighbours(16), q_offset=offset, kv_starts_B=starts_B)

  numbers = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
  (call,) = recorded(attend, q, k, v, *numbers)
  assert 'kv_starts=True' in call.text
  assert 'q_offset=None' in call.text
  assert len(call.candidates) > 1
  findings = autotune.prove(call, autotune.OPERATIONS['attention'])
  assert [finding.problem for finding in findings] == [''] * len(call.candidates)
  with selection.plainly():
    jax.eval_shape(attend, q, k, v, *numbers)
    assert selection.select(call) == call.plain == 'blockwise'


@pytest.mark.parametrize('varying', [False, True])
def test_calls_of_scans_are_run_as_they_were_made(varying, monkeypatch):
  monkeypatch.setattr(scan, 'platform', lambda: 'gpu')
  x = jax.ShapeDtypeStruct((2, 24, 2, 3), jnp.float32)
  a = x if varying else jax.ShapeDtypeStruct((2, 3), jnp.float32)
  (call,) = recorded(functools.partial(scan.scan_components, reverse=True), a, x)
  assert call.candidates == ('associative', 'pallas', 'chunked', 'sequential')
  findings = autotune.prove(call, autotune.OPERATIONS['linear scan'])
  assert [finding.problem for finding in findings] == [''] * 4
  (named,) = recorded(functools.partial(scan.scan_components, implementation='chunked'), a, x)
  assert named.candidates == ('chunked',)


@pytest.mark.parametrize('directions', [1, 2])
@pytest.mark.parametrize(('where', 'candidates'), [('tpu', ('matmul', 'fft')), ('gpu', ('fft', 'matmul'))])
def test_calls_of_convolutions_are_run_as_they_were_made(where, candidates, directions, monkeypatch):
  monkeypatch.setattr(fft_conv, 'platform', lambda: where)
  u = jax.ShapeDtypeStruct((2, 24, 3), jnp.float32)
  kernel = jax.ShapeDtypeStruct((directions, 3, 24), jnp.float32)
  (call,) = recorded(fft_conv.fft_conv, u, kernel)
  assert call.candidates == candidates
  assert call.text == f'long convolution: u 24 x 3 float32, kernel {directions} x 3 x 24 float32'
  findings = autotune.prove(call, autotune.OPERATIONS['long convolution'])
  assert [finding.problem for finding in findings] == ['', '']
  assert max(finding.error for finding in findings) < 1e-5
  (named,) = recorded(functools.partial(fft_conv.fft_conv, implementation='matmul'), u, kernel)
  assert named.candidates == ('matmul',)
  monkeypatch.setattr(fft_conv, 'platform', lambda: 'cpu')
  assert recorded(fft_conv.fft_conv, u, kernel) == []


def test_every_operation_has_an_option_that_a_config_knows():
  runtime = loading.load('configs/image.py:model=s4').runtime
  assert all(runtime[operation.option] == '' for operation in autotune.OPERATIONS.values())


@pytest.mark.parametrize('mixer', ['s4', 's4d', 'dlr', 'dss', 'sgconv', 'longconv', 'hyena', 'mega', 'spade'])
def test_the_config_names_the_transforms_of_mixers_that_convolve(mixer, monkeypatch):
  monkeypatch.setattr(fft_conv, 'platform', lambda: 'gpu')
  length = 32

  def calls(convolution):
    model = Model(
      ModelSpec(name=mixer, width=8, depth=1, mixer=options(mixer)),
      InputSpec(length, vocabulary=8),
      HeadSpec('linear', 2),
      causal=False,
      protocol=CLEAN,
      execution=ExecutionSpec(convolution=convolution),
      rngs=nnx.Rngs(0),
    )
    graphdef, state = nnx.split(model)
    tokens_BL = jax.ShapeDtypeStruct((2, length), jnp.int32)
    actual = recorded(lambda state, tokens_BL: nnx.merge(graphdef, state)(tokens_BL), state, tokens_BL)
    return [call for call in actual if call.operation == 'long convolution']

  assert calls('')
  assert [call.candidates for call in calls('matmul')] == [('matmul',)]


def test_a_run_trains_with_what_proved_itself(tiny_config, tiny_data, tmp_path, monkeypatch):
  """The first kernel of the platform does not compile here: it is left out, and the run names it."""

  @jax.custom_vjp
  def kernel(q, k, v):
    return pl.pallas_call(lambda *refs: None, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype))(q, k, v)

  kernel.defvjp(lambda *arrays: (kernel(*arrays), arrays), lambda arrays, g: arrays)

  monkeypatch.setattr(autotune, 'wanted', lambda: True)
  planted = lambda q, k, v, **options: kernel(q, k, v)  # noqa: E731
  kernels = {'planted': (planted, lambda *arrays, **options: None), **attention_lib._IMPLEMENTATIONS}
  monkeypatch.setattr(attention_lib, '_IMPLEMENTATIONS', kernels)
  monkeypatch.setitem(attention_lib._PREFERRED, 'cpu', ('planted', 'blockwise'))
  monkeypatch.setattr(autotune, 'ROUNDS', 1)
  runtime = {'runtime.data_dir': str(tiny_data), 'runtime.devices': 2}
  short = {'finetune.max_steps': 2, 'finetune.evaluate_every': 2}
  settings = loading.load(f'{tiny_config}:regime=scratch', runtime | short)
  tried, lines = settings.copy_and_resolve_references(), []
  tried.runtime.prove_kernels = False
  with pytest.raises(ValueError, match='Only interpret mode is supported on CPU'):  # fails unproven
    experiment.run(tried, tmp_path / 'unproven', announce=lines.append)
  result = experiment.run(settings, tmp_path / 'run', announce=lines.append)
  ((call, name),) = result['stages']['finetune']['kernels'].items()
  assert name == 'blockwise'
  assert call.startswith('attention: q 24 x 2 x 8 float32')
  (left_out,) = (line for line in lines if 'planted fails' in line)
  assert left_out.startswith('  planted fails: ValueError: Only interpret mode')
  assert f'finetune: blockwise runs {call}' in lines


def test_command(tiny_config, capsys, monkeypatch, tmp_path):
  path = tmp_path / 'found.json'
  command = [
    'selftest',
    f'--config={tiny_config}:regime=scratch',
    '--config.runtime.devices=1',
    f'--json={path}',
  ]
  assert cli.main(command) == 0
  assert capsys.readouterr().out == 'cpu: everything that this config uses has one implementation here\n'
  monkeypatch.setitem(attention_lib._PREFERRED, 'cpu', ('reference', 'blockwise'))
  monkeypatch.setattr(autotune, 'ROUNDS', 1)
  assert cli.main(command) == 0
  printed = capsys.readouterr().out.splitlines()
  assert printed[0].startswith('trying reference, blockwise for attention: q 24 x 2 x 8 float32')
  assert printed[1].startswith('  reference: ')
  assert printed[-1].startswith(('finetune: reference runs attention', 'finetune: blockwise runs attention'))
  ((call, actual),) = json.loads(path.read_text())['finetune'].items()
  assert printed[-1] == f'finetune: {actual["chosen"]} runs {call}'
  assert [finding['name'] for finding in actual['findings']] == ['reference', 'blockwise']
