"""The cheapest run that writes everything a run writes: both stages, `latest` and `best`, TensorBoard.

  lra-spt train --config=tests/faults/tiny_run.py --workdir=W --config.runtime.data_dir=D

D holds stripes, of few examples. Most of its time goes into tracing, so its mixer does nothing.
"""

from flax import nnx

import lra_spt
from configs import demo


@lra_spt.register_mixer('nothing', row={'model.position': 'none'})
class Nothing(nnx.Module):
  """The identity."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    return x_BLD


def get_config(arg=''):
  """Each stage: 3 steps of 10; evaluated at 2 and 3, saved also at 1."""
  config = demo.get_config(','.join(filter(None, ('model=nothing', arg))))
  config.model.update(width=4, depth=1, feed_forward=4)
  for stage in ('pretrain', 'finetune'):
    if stage in config:
      config[stage].update(batch_size=10, max_steps=3, evaluate_every=2)
      config[stage].schedule.warmup_steps = 0
  config.runtime.update(steps_per_dispatch=1, log_every=1, checkpoint_every=1, threads=1, tensorboard=True)
  config.runtime.update(check_mixer=False, scan_layers='never')
  return config
