"""What every mixer of the tree keeps, in each form that it has: a new one is tested as soon as its file is
there. Its options are those of its row, made small where SMALL knows their names."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt import mixer_rows
from lra_spt.errors import ConfigError
from lra_spt.models.registry import make_mixer, mixer_class
from lra_spt.protocol import CLEAN

ROWS, LENGTH, WIDTH, VALID = 2, 12, 8, 7
NAMES = sorted(mixer_rows.in_the_tree(mixer_rows.FOLDER))
SMALL = {'heads': 2, 'state_size': 8, 'blocks': 2, 'head_dim': 4, 'block': 3, 'window': 4, 'chunk': 4}
X = np.random.default_rng(0).normal(size=(2, ROWS, LENGTH, WIDTH)).astype(np.float32)
COTANGENT = np.random.default_rng(1).normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
FULL, CUT = np.int32([LENGTH, LENGTH]), np.int32([VALID, LENGTH])


def options_of(name):
  cls, row = mixer_class(name), mixer_rows.in_the_tree(mixer_rows.FOLDER)[name]
  options = {key.removeprefix('model.mixer.'): row[key] for key in row if key.startswith('model.mixer.')}
  known = {*options}
  for part in (cls, getattr(cls, 'kernel_type', cls)):
    known |= set(inspect.signature(part.__init__).parameters)
  return options | {key: value for key, value in SMALL.items() if key in known}


class Form:
  """A mixer in one form, with parameters of which none is 0, and the compiled loss of its valid positions."""

  def __init__(self, name, causal):
    self.common = {'options': options_of(name), 'length': LENGTH, 'causal': causal, 'protocol': CLEAN}
    self.name = name
    mixer = make_mixer(name, WIDTH, rngs=nnx.Rngs(0), **self.common)
    self.graphdef, self.params, self.rest = nnx.split(mixer, nnx.Param, ...)
    rng = np.random.default_rng(2)
    self.params = jax.tree.map(lambda v: v + (0.1 * rng.normal(size=v.shape)).astype(np.float32), self.params)

    def loss(params, x_BLD, lengths_B):
      y_BLD = nnx.merge(self.graphdef, params, self.rest)(x_BLD, lengths_B=lengths_B)
      valid_BL = jnp.arange(x_BLD.shape[1])[None] < lengths_B[:, None]
      cotangent_BLD = COTANGENT[:, : x_BLD.shape[1]] * valid_BL[..., None]
      return jnp.sum(y_BLD.astype(jnp.float32) * cotangent_BLD), y_BLD

    self.run = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))

  def in_bfloat16(self):
    """The output, or None of a mixer without dtype."""
    if 'dtype' not in inspect.signature(mixer_class(self.name).__init__).parameters:
      return None
    options = self.common['options'] | {'dtype': jnp.bfloat16}
    abstract = nnx.eval_shape(
      lambda: make_mixer(self.name, WIDTH, rngs=nnx.Rngs(0), **(self.common | {'options': options}))
    )
    graphdef, _ = nnx.split(abstract)
    call = jax.jit(lambda params, x: nnx.merge(graphdef, params, self.rest)(x, lengths_B=jnp.asarray(FULL)))
    return call(self.params, X[0])


def forms_of(name):
  """{causal: Form}; a form that a mixer refuses with a sentence is one that it has not."""
  forms = {}
  for causal in (False, True):
    try:
      forms[causal] = Form(name, causal)
    except ConfigError as refusal:
      assert 'causal' in str(refusal) or 'bidirectional' in str(refusal), refusal
  return forms


def close(found, expected, tolerance, scale=None):
  """Whether no number differs by more than this part of the largest."""
  found, expected = np.float64(found), np.float64(expected)
  np.testing.assert_allclose(
    found, expected, rtol=0, atol=tolerance * (np.abs(expected).max() if scale is None else scale) + 1e-30
  )


@pytest.mark.parametrize('name', NAMES)
def test_mixer(name):
  forms = forms_of(name)
  assert forms, 'it has neither a bidirectional nor a causal form'
  for causal, form in forms.items():
    (params, dx), y = form.run(form.params, X[0], FULL)
    assert y.shape == X[0].shape
    for leaf in jax.tree.leaves((params, dx, y)):
      assert np.isfinite(leaf).all()

    if causal:  # its input is another one from position VALID on
      future = np.where(np.arange(LENGTH)[:, None] < VALID, X[0], X[1])
      _, moved = form.run(form.params, future, FULL)
      close(moved[:, :VALID], y[:, :VALID], 1e-5)

    # A row that ends at VALID: in the middle of padding that is far from 0, and by itself.
    padded = np.where(np.arange(LENGTH)[:, None] < VALID, X[0], 30 + X[1])
    padded[1] = X[0, 1]
    (params_padded, dx_padded), y_padded = form.run(form.params, padded, CUT)
    close(y_padded[1], y[1], 1e-5)
    assert not np.any(dx_padded[0, VALID:])
    (params_cut, dx_cut), y_cut = form.run(form.params, X[0, :1, :VALID], CUT[:1])
    (params_other, _), _ = form.run(form.params, X[0, 1:], FULL[1:])
    close(y_padded[0, :VALID], y_cut[0], 1e-5)
    close(dx_padded[0, :VALID], dx_cut[0], 1e-4)
    assert params_padded, params_cut
    assert params_other

  half = form.in_bfloat16()
  if half is not None:
    close(half, y, 0.05)
