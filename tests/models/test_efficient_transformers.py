"""The Transformers of the Long Range Arena's table: golden values of its code, a float64 reference with
masks, padding, operations, errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.cli.commands.list import models
from lra_spt.config import mixers
from lra_spt.config.loading import load
from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.models import make_mixer
from lra_spt.models.mixers.bigbird import random_table

L, D, H = 22, 8, 2
PUBLISHED = {f'{name}.kernel': f'attn/{name}/kernel' for name in ('query', 'key', 'value', 'out')}


def make(name, causal=False, protocol=CLEAN, width=D, length=L, **options):
  common = {'length': length, 'causal': causal, 'protocol': protocol, 'rngs': nnx.Rngs(0)}
  return make_mixer(name, width, options={'heads': H} | options, **common)


def read(path, array):
  """Reshapes [D, H, K] to [D, H K], and [H, K, D] to [H K, D]."""
  if array.ndim < 3:
    return array
  return array.reshape(-1, array.shape[-1]) if path.startswith('out') else array.reshape(len(array), -1)


@pytest.fixture
def assert_published(golden, assert_golden):
  """check(file, name, options, names=..., **how): compares the bidirectional mixer with a golden file."""

  def check(file, name, protocol=CLEAN, names=PUBLISHED, lengths_B=None, change=None, **options):
    values = golden(file)
    length = int(values.get('max_len', values['x'].shape[1]))
    mixer = make(name, protocol=protocol, width=16, length=length, head_dim=4, **options)
    if change:
      change(mixer, values)
    assert_golden(mixer, values, names, read, lengths_B=lengths_B)

  return check


def test_linformer_is_the_published_one(assert_published):
  """4 rows of the mixtures are not used at 17 positions."""
  assert_published('lra_linformer', 'linformer', names=PUBLISHED | {'mixtures': 'attn/lr_kernel'}, rank=6)


def test_local_in_columns_is_the_published_one(assert_published):
  assert_published('lra_local_full', 'local', protocol=PAPER, block=5)


@pytest.mark.parametrize('kind', ['', '_global'])
def test_longformer_is_the_published_one(kind, assert_published):
  """Without global tokens, the published maps for their queries, keys and values have no gradient."""
  names = {'out.kernel': PUBLISHED['out.kernel']}
  for name in ('query', 'key', 'value'):
    names[f'{name}.kernel'] = f'attn/{name}_sliding_window/kernel'
    if kind:
      names[f'{name}_global.kernel'] = f'attn/{name}_global/kernel'
  options = {'window': 5, 'global_tokens': 1} if kind else {'window': 4}
  assert_published(f'lra_longformer{kind}', 'longformer', names=names, lengths_B=np.int32([17, 9]), **options)


def test_bigbird_is_the_published_one(assert_published):
  options = {'block': 4, 'random_blocks': 2, 'table_seed': 3}
  assert_published('lra_bigbird', 'bigbird', protocol=PAPER, lengths_B=np.int32([37, 26]), **options)


def test_random_blocks_are_the_published_ones(golden):
  tables = golden('lra_bigbird_tables')
  assert len(tables) == 3
  for name, table_HIR in tables.items():
    length, seed = (int(part.strip('Lsed')) for part in name.split('_')[1:])
    np.testing.assert_array_equal(random_table(length // 64, 64, 3, 4, seed), table_HIR)


def test_local_in_columns_sees_what_the_published_mask_shows(golden):
  """In rows with padding, a column has the mask of other positions and sees padding of the code. The
  published code gives a wrong gradient to positions that see none, so only outputs are compared."""
  values = golden('lra_local')
  mixer = make('local', protocol=PAPER, width=16, head_dim=4, block=5)
  for path, name in PUBLISHED.items():
    getattr(mixer, path.split('.')[0]).kernel.set_value(jnp.asarray(read(path, values[f'param:{name}'])))
  lengths_B = jnp.asarray(values['mask'][..., 0].sum(1), jnp.int32)
  y = nnx.jit(lambda mixer, x: mixer(x, lengths_B=lengths_B))(mixer, values['x'])
  np.testing.assert_allclose(y, values['y'], rtol=0, atol=2e-6 * np.abs(values['y']).max())


def masked(mixer, seen_LL, x_LD, names=('query', 'key', 'value')):
  """Attention in float64 with a mask [L, L] or [H, L, L], without the output map: [L, H K]."""
  x = np.float64(x_LD)
  q, k, v = (
    (x @ np.float64(getattr(mixer, name).kernel[...])).reshape(len(x), mixer.heads, -1) for name in names
  )
  y = np.zeros_like(q)
  for h, t in np.ndindex(mixer.heads, len(x)):
    seen = np.broadcast_to(seen_LL, (mixer.heads, len(x), len(x)))[h, t]
    weights = np.exp(k[seen, h] @ q[t, h] / np.sqrt(q.shape[-1]))
    y[t, h] = weights @ v[seen, h] / weights.sum()
  return y.reshape(len(x), -1)


def blocks(mixer, length, block, neighbours):
  t, s = np.ogrid[:length, :length]
  distance = s // block - t // block
  seen = np.abs(distance) <= neighbours
  return seen & (s <= t) if mixer.causal else seen


@pytest.mark.parametrize('causal, neighbours', [(False, 0), (True, 1)])
def test_local_sees_its_block_and_its_neighbours(causal, neighbours, assert_follows_positions):
  mixer = make('local', causal, block=5, neighbours=neighbours, head_dim=3)

  def reference(mixer, x_LD):
    seen = blocks(mixer, len(x_LD), 5, neighbours)
    return masked(mixer, seen, x_LD) @ np.float64(mixer.out.kernel[...])

  assert_follows_positions(mixer, reference, D, (L, 13), 2, 5e-6)
  pairs = blocks(mixer, L, 5, neighbours).sum()
  assert mixer.flops(L) == 4 * H * 3 * pairs


@pytest.mark.parametrize('causal, tokens', [(False, 0), (True, 3), (False, 3)])
def test_longformer_sees_its_window_and_global_tokens(causal, tokens, assert_follows_positions):
  mixer = make('longformer', causal, window=6, global_tokens=tokens)

  def seen(length):
    t, s = np.ogrid[:length, :length]
    window = (-2 <= s - t) & (s - t <= 3) | (s < tokens)
    return [(rows & (s <= t)) if causal else rows for rows in (window, np.full_like(window, True))]

  def reference(mixer, x_LD):
    window, everything = seen(len(x_LD))
    y = masked(mixer, window, x_LD)
    if tokens:
      names = ('query_global', 'key_global', 'value_global')
      y[:tokens] = masked(mixer, everything, x_LD, names)[:tokens]
    return y @ np.float64(mixer.out.kernel[...])

  assert_follows_positions(mixer, reference, D, (L, 13, 2), 2, 5e-6)
  window, everything = seen(L)
  # Global tokens have separate queries; the queries of the window that they replace are computed too.
  pairs = window.sum() + everything[:tokens].sum()
  spared = 2 * (L - tokens) * D * D if tokens else 0
  assert mixer.flops(L) == 4 * D * pairs - spared


@pytest.mark.parametrize('causal, shared', [(False, False), (True, False), (False, True)])
def test_bigbird_sees_its_blocks(causal, shared, assert_follows_positions):
  options = {'block': 2, 'random_blocks': 2, 'shared_table': shared}
  mixer = make('bigbird', causal, length=21, **options)
  drawn = random_table(11, 2, 2, H, 0, causal)

  def seen(head, length):
    t, s = np.ogrid[:length, :length]
    i, j = np.broadcast_arrays(t // 2, s // 2)
    near = (j == 0) | ((0 <= i - j) & (i - j <= 1))
    if not causal:
      near = near | (j - i == 1) | (j == 10) | (i == 0) | (i == 10)
    rows = drawn[0 if shared else head]
    random = np.vectorize(lambda i, j: 0 < i <= len(rows) and j in rows[i - 1])(i, j)
    return (near | random) & ((s <= t) | (not causal))

  def reference(mixer, x_LD):
    seen_HLL = np.stack([seen(head, len(x_LD)) for head in range(H)])
    return masked(mixer, seen_HLL, x_LD) @ np.float64(mixer.out.kernel[...])

  assert_follows_positions(mixer, reference, D, (21, 12), 2, 5e-6)
  assert mixer.flops(21) == 4 * (D // H) * sum(seen(head, 21).sum() for head in range(H))
  assert all(len(row) == min(2, max(i - 2, 0)) for i, row in enumerate(drawn[0], 1)) or not causal
  assert shared or drawn[0] != drawn[1]


def test_linformer_ignores_padding(assert_follows_positions):
  """Only valid positions are mixed, by the first rows; there are 8 r operations per number of q."""
  mixer = make('linformer', rank=3)

  def reference(mixer, x_LD):
    x, mixtures = np.float64(x_LD), np.float64(mixer.mixtures[...])[: len(x_LD)]
    q, k, v = (
      (x @ np.float64(getattr(mixer, name).kernel[...])).reshape(len(x), H, -1)
      for name in ('query', 'key', 'value')
    )
    k, v = (np.einsum('lr,lhk->rhk', mixtures, z) for z in (k, v))
    weights = np.exp(np.einsum('lhk,rhk->lhr', q, k) / np.sqrt(D // H))
    y = np.einsum('lhr,rhk->lhk', weights / weights.sum(-1, keepdims=True), v)
    return y.reshape(len(x), D) @ np.float64(mixer.out.kernel[...])

  assert_follows_positions(mixer, reference, D, (L, 13), 2, 5e-6)
  assert mixer.flops(L) == 8 * L * 3 * D


def test_linformer_has_no_causal_form():
  """Configs and `make_mixer` refuse it; other mixers have both forms."""
  refused = pytest.raises(ValueError, match="'linformer' has no causal form: choose regime=masked")
  for form in ('regime=causal', 'regime=scratch,causal=true'):
    with refused:
      load(f'configs/image.py:model=linformer,{form}')
  assert load('configs/image.py:model=linformer,regime=masked').model.mixer.rank == 16
  with refused:
    make('linformer', causal=True)
  assert dict(models())['linformer'].endswith(', bidirectional only')
  assert {name for name in mixers.ROWS if not mixers.has_causal_form(name)} == {'linformer'}


@pytest.mark.parametrize(
  'name, options, message',
  [
    ('linformer', {'heads': 3}, 'model.width is 8, which model.mixer.heads=3 does not divide'),
    ('linformer', {'head_dim': -1}, 'heads=2, head_dim=-1; choose'),
  ],
)
def test_options_out_of_range_are_refused(name, options, message):
  with pytest.raises(ValueError, match=message):
    make(name, **options)
