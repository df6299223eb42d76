"""minLSTM: an LSTM whose gates see only the input (Feng et al. 2024, arXiv 2410.01201; checked against the
code of a third party, not of the authors: `lucidrains/minGRU-pytorch`, commit 38b26e1, `minLSTM.py`).
"""

import jax

from lra_spt.models.mixers.mingru import MinGRU
from lra_spt.models.registry import register_mixer


@register_mixer('min_lstm')
class MinLSTM(MinGRU):
  """The recurrence of minGRU with two gates that are divided by their sum, with [c, f', i'] = W x:

      h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) g(c_t), f_t = sigmoid(f'_t), i_t = sigmoid(i'_t).

  Everything else, and the options, are those of `MinGRU`: g, W_o, and the bidirectional form, which is ours.
  """

  maps = 3
  operations = 16

  def _input_gate(self, f_BLE, i_BLE):
    """i / (f + i) is the sigmoid of log i - log f."""
    return jax.nn.log_sigmoid(i_BLE) - jax.nn.log_sigmoid(f_BLE)
