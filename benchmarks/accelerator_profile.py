"""A part of accelerator.py: which kernels the time of a training step goes to, as the profiler sees them."""

import collections
import gzip
import json
import pathlib
import tempfile

import jax

from lra_spt import config as config_lib

CONFIGS = ('configs/image.py:model=transformer_rotary', 'configs/image.py:model=s4')
LOOPS = {'': {}, ', layers in a loop': {'runtime.scan_layers': 'always'}}
STEPS, MOST = 8, 12  # of a dispatch; kernels of a row


def profile(options, known):
  """A row per config and way of running its layers: milliseconds of a step by kernel, the largest of them."""
  for spec in ('configs/demo.py:model=transformer',) if options.tiny else CONFIGS:
    for name, overrides in LOOPS.items():
      case = f'{spec}, bfloat16{name}'
      if case not in known:
        config = config_lib.load(f'{spec},regime=scratch', overrides | {'runtime.precision': 'bfloat16'})
        yield {'case': case} | kernels_of(config)


def kernels_of(config) -> dict:
  """Milliseconds of a finetuning step on random bytes: in all, and of the kernels that take most."""
  from benchmarks import accelerator_parts

  with accelerator_parts.finetuning(config, STEPS) as (dispatch, state, chunk):
    state, _ = jax.block_until_ready(dispatch(state, chunk))  # which compiles
    with tempfile.TemporaryDirectory() as folder:
      with jax.profiler.trace(folder, create_perfetto_trace=True):
        jax.block_until_ready(dispatch(state, chunk))
      (path,) = pathlib.Path(folder).rglob('perfetto_trace.json.gz')
      with gzip.open(path, 'rt') as file:
        found = kernel_times(json.load(file))
  most = {
    name: round(found[name] / 1e3 / STEPS, 3) for name in sorted(found, key=found.get)[: -MOST - 1 : -1]
  }
  return {'milliseconds': round(sum(found.values()) / 1e3 / STEPS, 3), 'kernels': most}


def kernel_times(trace) -> dict[str, float]:
  """Microseconds by name of what ran on the streams of a device, in a trace of Perfetto; {} of a CPU's."""
  events = trace['traceEvents'] if isinstance(trace, dict) else trace
  threads = {
    (event['pid'], event['tid']): event['args']['name']
    for event in events
    if event.get('ph') == 'M' and event['name'] == 'thread_name'
  }
  times = collections.Counter()
  for event in events:
    if event.get('ph') == 'X' and 'Stream' in threads.get((event['pid'], event['tid']), ''):
      times[event['name']] += event['dur']
  return dict(times)
