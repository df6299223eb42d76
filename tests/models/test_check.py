"""The check of a mixer before it trains: ours pass, and every broken one gets its own error."""

import jax
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec, MixerSpec, ModelSpec, check
from lra_spt.training.checkpoints import digests
from tests.models.broken_mixers import BROKEN


def spec(name, *, causal=False, protocol=CLEAN, length=40, precision='float32', **options):
  model = ModelSpec(name=name, width=8, depth=2, mixer={'name': name, **options})
  return MixerSpec(model, length, causal, protocol, ExecutionSpec(precision=precision))


@pytest.mark.parametrize(
  'name, causal, options',
  [('none', False, {}), ('mingru', True, {})],  # test_every_mixer.py checks all
)
def test_the_check_says_what_it_did(name, causal, options):
  """Bidirectional forms are checked under the clean protocol, causal forms under the published one."""
  protocol = PAPER if causal else CLEAN
  actual = check.check_mixer(spec(name, causal=causal, protocol=protocol, **options))
  shape, numbers, rows, last = actual
  assert shape == 'float32 of the shape of the input, [B, 40, 8]'
  assert numbers == 'output and gradient finite, and the same for the same keys'
  assert rows == 'rows of a batch independent'
  expected = 'no look-ahead over 40 positions' if causal else 'padding ignored (21 of 40 positions are valid)'
  assert last == expected


@pytest.mark.parametrize('name, causal', BROKEN)
def test_the_error_names_the_mistake_of_a_mixer(name, causal):
  with pytest.raises(ConfigError, match=BROKEN[name, causal]):
    check.check_mixer(spec(name, causal=causal))


@pytest.mark.parametrize('length', [300, 2000])
def test_a_mixer_that_looks_ahead_within_its_blocks_is_refused(length):
  """Its blocks are longer than a few positions."""
  with pytest.raises(ConfigError, match="'sums_blocks' looks ahead: its output before position 255 changes"):
    check.check_mixer(spec('sums_blocks', causal=True, length=length))


def test_keys_in_a_mixer_become_numbers():
  """Checksums and checkpoints need numbers."""
  actual = spec('recurrent', causal=True)
  check.check_mixer(actual)
  arrays = nnx.to_pure_dict(nnx.state(actual.make(nnx.Rngs(0)), nnx.RngState))
  assert {str(leaf.dtype) for leaf in jax.tree.leaves(arrays)} == {'uint32'}
  assert digests.digests(arrays).shape == (4,)


def test_a_mixer_may_gate_its_residual():
  assert len(check.check_mixer(spec('gates', causal=True))) == 5


@pytest.mark.parametrize('name', ['masks_keys', 'masks_by_a_number'])
def test_masks_that_leave_a_softmax_finite_pass(name):
  assert len(check.check_mixer(spec(name))) == 4


def test_a_mixer_that_draws_by_row_passes():
  assert check.check_mixer(spec('row_dropout'))[2] == 'rows of a batch independent'


def test_a_mixer_may_declare_what_its_rows_share():
  rows = check.check_mixer(spec('shares_on_purpose'))[2]
  assert rows == 'rows of a batch independent, except that they share the positions that it drops'


def test_only_demands_of_the_form_and_the_protocol_are_checked():
  """A norm over the batch in training is allowed."""
  assert len(check.check_mixer(spec('normalises', protocol=PAPER))) == 3
  assert len(check.check_mixer(spec('ignores_causal', protocol=PAPER))) == 3
  assert len(check.check_mixer(spec('ignores_lengths', protocol=PAPER))) == 3


def test_a_mixer_is_checked_at_the_first_length_that_it_takes():
  *_, padding = check.check_mixer(spec('needs_blocks', length=96))
  assert padding == 'padding ignored (49 of 96 positions are valid)'


def test_a_mixer_is_checked_once(monkeypatch):
  actual = check.check_mixer(spec('good', causal=True))
  assert len(actual) == 5
  monkeypatch.setattr(check, '_check_shape', lambda spec: pytest.fail('checked again'))
  assert check.check_mixer(spec('good', causal=True)) == actual
  with pytest.raises(pytest.fail.Exception):
    check.check_mixer(spec('good', causal=False))


def test_precision_is_that_of_the_run_for_dtypes_only():
  options = {'precision': 'bfloat16', 'heads': 2}
  assert check.check_mixer(spec('attention', **options))[0].startswith('bfloat16')
