"""Which mixers exist, and the row of each: the values that model=NAME sets on a task whose table has none.

Configs, lists and help ask here, and they start without jax. Options of the package's mixers therefore stand
in this table as data, although most of them repeat a default of the class: a class can only be asked for its
defaults once jax is imported. `tests/models/test_every_mixer.py` compares the table with the classes.
Mixers from outside the package are known once `register_mixer` has run, with the row that they give there.
"""

import re
from collections.abc import Mapping

from lra_spt.errors import ConfigError

SECTIONS = ('model', 'pretrain', 'finetune')
BIDIRECTIONAL_ONLY = {'linformer'}


def _row(others: Mapping = {}, /, **options) -> dict:
  """{dotted key: value} for options of the mixer and for `others`, the keys beside them."""
  return {f'model.mixer.{key}': value for key, value in options.items()} | others


_NO_POSITIONS = {'model.position': 'none'}
_CONVOLUTION = _NO_POSITIONS | {'model.feed_forward': 0, 'model.norm': 'batch'}
_HEADS = {'heads': 4, 'head_dim': 0}
_MAMBA2 = _row(
  _NO_POSITIONS,
  expand=2,
  head_dim=32,
  state_size=64,
  groups=1,
  taps=4,
  dt_min=1e-3,
  dt_max=0.1,
  ssm_lr=0.0,
)

ROWS = {
  # The tables of the paper's models, in configs/, have the options of these.
  **{name: {} for name in ('attention', 'dlr', 'lru', 'none', 's4', 's4d', 's5')},
  'b2s6': _row(
    _CONVOLUTION,  # the block of S4D
    blocks=8,
    state_size=64,
    dt_min=1e-3,
    dt_max=0.1,
    ssm_lr=1e-3,
    dropout=0.0,
    tied_dropout=False,
  ),
  'bigbird': _row(**_HEADS, block=64, random_blocks=3, table_seed=0, shared_table=False),
  'deltanet': _row(_NO_POSITIONS, heads=4, expand_k=1.0, expand_v=1.0, taps=4, negative=False),
  'dss': _row(
    _CONVOLUTION,
    state_size=64,
    version='softmax',
    separate_dt=True,
    dt_min=1e-3,
    dt_max=0.1,
    dt_lr=1e-3,
    lambda_lr=1e-3,
    w_lr=1e-3,
    gate='none',
    dropout=0.0,
    tied_dropout=False,
  ),
  'forgetting_attention': _row(_NO_POSITIONS, heads=4, qk_norm=False, gate=False),
  'gated_deltanet': _row(
    _NO_POSITIONS, heads=4, expand_k=0.75, expand_v=1.5, taps=4, negative=False, ssm_lr=0.0
  ),
  'gated_deltanet2': _row(
    _NO_POSITIONS, heads=4, expand_k=1.0, expand_v=1.0, taps=4, negative=False, ssm_lr=0.0
  ),
  'gated_deltaproduct': _row(
    _NO_POSITIONS, heads=4, factors=2, expand_k=0.75, expand_v=1.5, taps=4, negative=True, ssm_lr=0.0
  ),
  'gla': _row(_NO_POSITIONS, heads=4, expand_k=0.5, expand_v=1.0, rank=16, normalizer=16),
  'hgrn2': _row(_NO_POSITIONS, expand_ratio=4),
  'hyena': _row(_NO_POSITIONS, order=2, taps=3, features=33, hidden=64, filter_lr=1e-3),
  'kda': _row(_NO_POSITIONS, heads=4, expand_k=1.0, expand_v=1.0, taps=4, negative=False, ssm_lr=0.0),
  'linear_transformer': _row(**_HEADS),
  'linformer': _row(**_HEADS, rank=16),
  'linoss': _row(
    _CONVOLUTION,  # the published block has BatchNorm too
    state_size=64,
    discretization='im',
    ssm_lr=0.0,
    dropout=0.0,
    tied_dropout=False,
  ),
  'local': _row(**_HEADS, block=64, neighbours=0),
  'log_linear_mamba2': _MAMBA2,
  'longconv': _row(
    _CONVOLUTION,
    kernels=2,
    threshold=0.003,
    kernel_dropout=0.2,
    init='random',
    kernel_lr=1e-3,
    gate='glu',
    dropout=0.0,
    tied_dropout=True,
  ),
  'longformer': _row(**_HEADS, window=512, global_tokens=0),
  'mamba': _row(_NO_POSITIONS, expand=2, state_size=16, rank=0, taps=4, dt_min=1e-3, dt_max=0.1, ssm_lr=0.0),
  'mamba2': _MAMBA2,
  'mamba3': _row(
    _NO_POSITIONS, expand=2, head_dim=32, state_size=64, groups=1, dt_min=1e-3, dt_max=0.1, ssm_lr=0.0
  ),
  'mega': _row(
    _NO_POSITIONS | {'model.activation': 'silu'},
    z=64,
    v=0,
    h=16,
    function='softmax',
    bias='simple',
    chunk=0,
    truncation=1024,
    dropout=0.0,
    ssm_lr=0.0,
  ),
  'min_lstm': _row(_NO_POSITIONS, expansion=1.0, positive=True),
  'mesanet': _row(_NO_POSITIONS, heads=4, taps=4, steps=30),
  'mingru': _row(_NO_POSITIONS, expansion=1.0, positive=True),
  'mlstm': _row(_NO_POSITIONS, heads=4, taps=4),
  'path_attention': _row(_NO_POSITIONS, heads=4, rank=32, taps=3),
  'performer': _row(**_HEADS, features='relu', random_features=256, redraw=True),
  'reformer': _row(**_HEADS, chunk=64, buckets=0, hashes=1),
  'retnet': _row(_NO_POSITIONS, heads=8, expand_k=1.0, expand_v=2.0),
  'rglru': _row(
    _NO_POSITIONS, lru_width=0, heads=8, taps=4, complex_states=False, r_min=0.9, r_max=0.999, ssm_lr=0.0
  ),
  's4d_dfout': _row(
    _CONVOLUTION,
    state_size=64,
    dt_min=1e-3,
    dt_max=0.1,
    dt_lr=1e-3,
    a_lr=1e-3,
    gate='glu',
    dropout=0.0,
    tied_dropout=False,
  ),
  'rwkv7': _row(_NO_POSITIONS, heads=4, rank=0, gate_rank=0, ssm_lr=0.0),
  'sgconv': _row(
    _CONVOLUTION,
    kernel_dim=32,
    decay_min=2.0,
    decay_max=2.0,
    mode='cat',
    interpolation='linear',
    kernel_lr=1e-3,
    gate='glu',
    dropout=0.0,
    tied_dropout=True,
  ),
  'slstm': _row(_NO_POSITIONS, heads=4, taps=4),
  'spade': _row(
    _NO_POSITIONS, **_HEADS, radius=128, buckets=32, max_distance=128, state_size=64, freeze_s4=True
  ),
  'ttt_linear': _row(_NO_POSITIONS, heads=4, chunk=16),
}
_registered: dict[str, dict] = {}
_registered_bidirectional: set[str] = set()


def add(name: str, row: Mapping, causal: bool = True) -> None:
  """Makes the mixer `name` known with its row, {dotted key of the config: value}; see `register_mixer`. A
  mixer of the package keeps the row of the table unless it is given another.

  Raises:
    ConfigError: a name that could not be written as model=NAME, or a row that sets keys which rows may not.
  """
  if not re.fullmatch(r'\w+', name):
    raise ConfigError(
      f'A mixer is called {name!r}: use letters, digits and _ only, so that model={name} can choose it.'
    )
  for key in row:
    section, dot, _ = key.partition('.')
    if section not in SECTIONS or not dot or key in ('model.name', 'model.mixer', 'model.mixer.name'):
      raise ConfigError(
        f'The row of the mixer {name!r} sets {key!r}: it may only set values below {", ".join(SECTIONS)}, '
        "such as 'model.mixer.state_size' or 'finetune.optimizer.lr', and not names."
      )
  _registered[name] = dict(row) or ROWS.get(name, {})
  if not causal:
    _registered_bidirectional.add(name)


def rows() -> dict[str, dict]:
  """{name: row} of every mixer, those of the package first."""
  return ROWS | _registered


def registered_outside() -> list[str]:
  """Names of the mixers that are not of the package."""
  return [name for name in _registered if name not in ROWS]


def has_causal_form(name: str) -> bool:
  """False for a mixer that is known to be bidirectional only, or a hybrid ('NAME-NAME') with such a mixer."""
  return not {*name.split('-')} & (BIDIRECTIONAL_ONLY | _registered_bidirectional)


def check_form(name: str, causal: bool) -> None:
  """Raises a ConfigError where the causal form of a mixer is asked for that has none."""
  if causal and not has_causal_form(name):
    raise ConfigError(
      f'The mixer {name!r} has no causal form: choose regime=masked, or regime=scratch without causal=true.'
    )
