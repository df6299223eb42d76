"""Which positions spans, completion and mixtures hide: exact counts, never padding, and one key per row."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.config import loading
from lra_spt.config.protocol import CLEAN
from lra_spt.config.regimes import REGIMES
from lra_spt.data.tasks import Bytes, Classes, Task, Tokens
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError
from lra_spt.objectives import (
  Mixture,
  PrefixCompletion,
  SpanDenoising,
  SuffixCompletion,
  get_objective,
  options,
)
from lra_spt.runs.build import build, resolve

L = 40
TOKENS = Task('tokens', 'none', Tokens(L, vocabulary=9), Classes(4))
BYTES = Task('bytes', 'none', Bytes(L), Classes(4))
LENGTHS = st.lists(st.integers(1, L), min_size=1, max_size=4)
KINDS = {
  'spans': SpanDenoising(TOKENS, mask_rate=0.3, span_lengths=(2, 7)),
  'suffix': SuffixCompletion(TOKENS, hidden_share=(0.2, 0.6)),
  'prefix': PrefixCompletion(TOKENS, hidden_share=(0.2, 0.6)),
  'mixture': Mixture(TOKENS, mask_rate=0.3, span_lengths=(2, 7), hidden_share=(0.2, 0.6)),
}


def make_batch(task, lengths):
  rng = np.random.default_rng(0)
  rows = len(lengths)
  return {
    'inputs': rng.integers(2, task.vocabulary or 256, (rows, L)).astype(np.uint8),
    'lengths': np.asarray(lengths, np.int32),
    'label': np.zeros(rows, np.int32),
    'weight': np.ones(rows, np.float32),
    'index': np.arange(rows, dtype=np.int32),
  }


def keys(rows, seed=0):
  return jax.random.split(jax.random.key(seed), rows)


def valid_of(lengths):
  return np.arange(L)[None] < np.asarray(lengths)[:, None]


@functools.partial(jax.jit, static_argnums=0)
def hidden(objective, valid_RL, keys_R):
  return objective.hidden(valid_RL, keys_R)


def count(share, n):
  """round(share * n), half up, but at least 1 and at most n - 1 where there are two."""
  return min(max(int(np.floor(share * n + 0.5)), 1), max(n - 1, 1))


def spans_of(objective, valid, key):
  """The mask of a row from the same draws, built span by span in NumPy."""
  length_key, place_key = jax.random.split(key)
  numbers = np.asarray(jax.random.randint(length_key, (L,), 0, len(objective.span_lengths)))
  places = np.asarray(jax.random.uniform(place_key, (L,)), np.float64)
  left = count(objective.mask_rate, valid)
  items = [(places[position], position, False) for position in range(left, valid)]
  for span, number in enumerate(numbers):
    size = min(objective.span_lengths[number], left)
    items += [(places[span], -L + span, True)] * size
    left -= size
  mask = np.array([is_hidden for _, _, is_hidden in sorted(items)])
  return np.pad(mask, (0, L - valid))


@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.integers(0, 1000))
def test_spans_are_those_of_the_reference(lengths, seed):
  objective = KINDS['spans']
  rows = lengths + [L] * (4 - len(lengths))  # one shape, one program
  actual = hidden(objective, valid_of(rows), keys(4, seed))
  expected = [spans_of(objective, n, key) for n, key in zip(rows, keys(4, seed), strict=True)]
  np.testing.assert_array_equal(actual, expected)
  np.testing.assert_array_equal(actual.sum(1), [count(0.3, n) for n in rows])


@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.integers(0, 1000), st.sampled_from(['suffix', 'prefix']))
def test_completion_hides_one_end(lengths, seed, side):
  rows = lengths + [L] * (4 - len(lengths))
  for mask, n in zip(np.asarray(hidden(KINDS[side], valid_of(rows), keys(4, seed))), rows, strict=True):
    number = mask.sum()
    assert count(0.2, n) <= number <= count(0.6, n)
    start = n - number if side == 'suffix' else 0
    np.testing.assert_array_equal(np.flatnonzero(mask), np.arange(start, start + number))


def test_lengths_of_spans_and_shares_are_drawn_evenly():
  valid = np.ones((4000, L), bool)
  one_span = SpanDenoising(TOKENS, mask_rate=0.1, span_lengths=(4,))
  masks = np.asarray(hidden(one_span, valid, keys(4000)))
  starts = np.bincount(masks.argmax(1), minlength=L)
  assert not starts[L - 3 :].any()
  np.testing.assert_allclose(starts[: L - 3], 4000 / (L - 3), atol=5 * np.sqrt(4000 / (L - 3)))
  numbers = np.bincount(np.asarray(hidden(KINDS['suffix'], valid, keys(4000))).sum(1), minlength=L + 1)
  assert numbers[8:25].sum() == 4000
  np.testing.assert_allclose(numbers[8:25], 4000 / 17, atol=5 * np.sqrt(4000 / 17))


def test_a_row_of_weight_0_may_be_empty():
  for name in ('spans', 'suffix', 'prefix'):
    mask = np.asarray(hidden(KINDS[name], valid_of([0, 1, 2, L]), keys(4)))
    np.testing.assert_array_equal(mask.sum(1)[:3], [0, 1, 1])


@pytest.mark.parametrize('name', KINDS)
def test_a_row_depends_on_its_key_alone_on_any_mesh(name):
  """The same key and example give the same row in another batch, and on eight devices."""
  objective, lengths = KINDS[name], np.random.default_rng(1).integers(2, L + 1, 16)
  batch, keys_R = make_batch(TOKENS, lengths), keys(16)
  prepare = jax.jit(lambda batch, keys_R: objective.prepare(batch, keys_R))
  whole, again = prepare(batch, keys_R), prepare(batch, keys_R)
  other = prepare(batch, keys(16, seed=1))
  jax.tree.map(np.testing.assert_array_equal, whole, again)
  assert not np.array_equal(whole.weights, other.weights)
  turned = prepare({key: x[::-1] for key, x in batch.items()}, keys_R[::-1])
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[::-1]), whole, turned)
  mesh = sharding.make_mesh(2, 2, 2, devices=jax.devices())
  rows = sharding.rows_sharding(mesh)
  with jax.set_mesh(mesh):
    split = prepare(jax.device_put(batch, rows), jax.device_put(keys_R, rows))
  jax.tree.map(np.testing.assert_array_equal, whole, split)
  assert not np.asarray(whole.weights)[~valid_of(lengths)].any()
  seen = np.asarray(whole.inputs) == TOKENS.inputs.mask_id
  np.testing.assert_array_equal(seen, np.asarray(whole.weights) > 0)


def test_a_mixture_is_its_parts_in_proportion():
  parts = 'masked', 'spans', 'suffix'
  mixture = Mixture(BYTES, CLEAN, mask_rate=0.5, mixture=parts, mixture_weights=(1, 3, 4))
  batch, keys_R = make_batch(BYTES, [L] * 2000), keys(2000)
  mixed = mixture.prepare(batch, keys_R)
  assert mixed.inputs.shape == (2000, L, 2)
  part_keys_R = jax.vmap(jax.random.split)(keys_R)[:, 1]
  of_parts = [part.prepare(batch, part_keys_R) for part in mixture.parts]
  same = np.array([(mixed.inputs == part.inputs).all((1, 2)) for part in of_parts])
  assert same.any(0).all()  # of one part, or by chance of several
  np.testing.assert_allclose(same.mean(1), [1 / 8, 3 / 8, 4 / 8], atol=0.05)
  for row, chosen in enumerate(same.argmax(0)[:100]):
    np.testing.assert_array_equal(mixed.weights[row], of_parts[chosen].weights[row])


def test_a_causal_part_makes_the_mixture_causal():
  mixture = Mixture(BYTES, mask_rate=0.5, mixture=('causal', 'suffix'), mixture_weights=(1.0, 1.0))
  assert mixture.needs_causal_form
  assert mixture.least_length == 2
  assert not KINDS['mixture'].needs_causal_form
  prepared = mixture.prepare(make_batch(BYTES, [L] * 64), keys(64))
  is_causal = np.asarray(prepared.inputs)[:, :, 1].sum(1) == 0
  assert 10 < is_causal.sum() < 54
  np.testing.assert_array_equal(np.asarray(prepared.weights).sum(1)[is_causal], L - 1)
  config = loading.load('configs/image.py:regime=mixture', {'pretrain.mixture': ('causal', 'spans')})
  with config.unlocked():
    config.pretrain.mixture_weights = (1.0, 1.0)
  with pytest.raises(
    ConfigError, match="regime mixture pretrains on 'mixture', whose answers a bidirectional"
  ):
    build(resolve(config), 'pretrain')


WRONG = [
  ('spans', {'mask_rate': 0.3, 'span_lengths': ()}, r'pretrain.span_lengths is \(\), but spans have'),
  ('spans', {'mask_rate': 0.3, 'span_lengths': (3, 0)}, r'pretrain.span_lengths is \(3, 0\), but'),
  ('spans', {'mask_rate': 1.0}, 'pretrain.mask_rate is 1.0'),
  ('suffix', {'hidden_share': (0.5, 0.2)}, r'pretrain.hidden_share is \(0.5, 0.2\); give the smallest'),
  ('prefix', {'hidden_share': (0.5, 1.0)}, r'pretrain.hidden_share is \(0.5, 1.0\); give'),
  ('mixture', {'mixture_weights': (1.0,)}, 'names 4 objectives, but pretrain.mixture_weights has 1 numbers'),
  ('mixture', {'mixture_weights': (1.0, 0.0, 1.0, 1.0)}, "but that of 'spans' must be above 0; raise it, or"),
  ('mixture', {'mixture_weights': (1.0, 1.0, 1.0, -2.0)}, "but that of 'prefix' must be above 0"),
  ('mixture', {'mixture_weights': (1.0, 1.0, 1.0, np.nan)}, "but that of 'prefix' must be above 0"),
  ('mixture', {'mixture': ('spans',) * 4}, "pretrain.mixture names 'spans' twice"),
  ('mixture', {'mixture': ('masked', 'spans', 'suffix', 'sufix')}, "no pretraining objective 'sufix'"),
  ('mixture', {'mixture': ('masked', 'spans', 'suffix', 'mixture')}, "has 'mixture', which cannot be a part"),
  ('mixture', {'span_lengths': (0,)}, 'pretrain.span_lengths is'),
]


@pytest.mark.parametrize('name, values, message', WRONG)
def test_wrong_options_get_a_sentence(name, values, message):
  values = ({'mask_rate': 0.3} if name == 'mixture' else {}) | values
  with pytest.raises(ConfigError, match=message):
    get_objective(name)(TOKENS, CLEAN, **values)


def test_regimes_have_the_options_of_their_objectives():
  """Configs hold them, with the defaults of the class; other regimes do not."""
  for name in KINDS:
    fields = options(REGIMES[name].objective)
    of_regime = REGIMES[name].options
    assert of_regime.keys() == fields.keys() - {'mask_rate'}
    assert all(fields[key].default == value for key, value in of_regime.items())
    for file in ('image', 'demo'):
      config = loading.load(f'configs/{file}.py:regime={name}')
      assert {key: config.pretrain[key] for key in of_regime} == of_regime
      assert resolve(config).stages['pretrain'].options.keys() == fields.keys()
  assert not {*REGIMES['mixture'].options} & {*loading.load('configs/image.py:regime=masked').pretrain}
  assert loading.load('configs/demo.py:regime=spans', ['pretrain.span_lengths=5']).pretrain.span_lengths == (
    5,
  )
