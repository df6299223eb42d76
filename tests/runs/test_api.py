"""The public API: names without jax, models with their weights, predictions equal to those of the run."""

import dataclasses
import json
import pathlib
import pydoc
import re
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict, FrozenConfigDict
from ml_collections.config_dict import required_placeholder

import lra_spt
from data_prep.sources import stripes
from lra_spt.config import loading
from lra_spt.data.examples import open_split
from lra_spt.data.tasks import Real, Values, get_task
from lra_spt.errors import CheckpointError, ConfigError, MissingFile
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.runs import api
from lra_spt.runs.build import build, resolve
from lra_spt.training.monitoring import hooks


def test_names_are_there_without_jax():
  program = (
    'import sys, lra_spt; assert set(lra_spt.__all__) <= set(dir(lra_spt)); '
    "heavy = {'jax', 'flax', 'numpy', 'ml_collections'} & set(sys.modules); assert not heavy, heavy; "
    "lra_spt.register_regime, lra_spt.Task, lra_spt.register_task; assert 'jax' not in sys.modules"
  )
  subprocess.run([sys.executable, '-c', program], check=True)
  with pytest.raises(AttributeError, match="module 'lra_spt' has no attribute 'load_rnu'"):
    _ = lra_spt.load_rnu


def test_models_are_those_of_a_process_without_other_settings(finetuned, config, other_settings, tiny_data):
  inputs = np.ones((2, 24), np.int32)

  def numbers():
    run = lra_spt.load_run(finetuned.workdir, data_dir=str(tiny_data))
    fresh = lra_spt.build_model(config)
    return jax.device_get(
      (run.evaluate('test'), run.predict('test').probabilities, run.model(inputs), fresh(inputs))
    )

  plain = numbers()
  with other_settings():
    again = numbers()
  jax.tree.map(np.testing.assert_array_equal, again, plain)
  assert {x.dtype for x in jax.tree.leaves(again[1:])} == {np.dtype(np.float32)}


def test_help_is_a_page():
  page = pydoc.plain(pydoc.render_doc(lra_spt))
  for name in lra_spt.__all__:
    documented = getattr(lra_spt, name)
    assert name in page
    assert len(documented.__doc__.split()) > 8, name
  assert "run = lra_spt.load_run('runs/demo')" in page
  assert 'CheckpointError: nothing was evaluated yet' in page  # docstrings of functions are on it


def test_the_package_says_that_it_is_typed(repository):
  assert (repository / 'lra_spt' / 'py.typed').exists()
  assert "'lra_spt': ['py.typed']" in (repository / 'setup.py').read_text()


def test_predictions_are_those_of_the_run(finetuned, undisturbed):
  answers = finetuned.predict('test')
  stored = np.load(undisturbed / 'predictions.npz')
  for name in ('index', 'label', 'prediction'):
    np.testing.assert_array_equal(getattr(answers, name), stored[name], strict=True)
  assert answers.probabilities.shape == (24, 10)
  np.testing.assert_allclose(answers.probabilities.sum(1), 1, rtol=1e-5)
  np.testing.assert_array_equal(answers.probabilities.argmax(1), answers.prediction)
  accuracy = (answers.prediction == answers.label).mean()
  assert accuracy == pytest.approx(finetuned.result['metrics']['test']['accuracy'], abs=1e-6)
  assert finetuned.step == finetuned.result['stages']['finetune']['best_step']
  assert (finetuned.stage, finetuned.task.name) == ('finetune', 'tiny_listops')
  assert repr(finetuned).endswith('finetune of transformer on tiny_listops)')


def test_a_run_computes_in_the_precision_that_it_was_tested_in(undisturbed, monkeypatch):
  result = run_folder.read_result(undisturbed)
  result['runtime']['precision'] = 'bfloat16'
  monkeypatch.setattr(run_folder, 'read_result', lambda folder: result)
  run = lra_spt.load_run(undisturbed)
  assert run.config.runtime.precision == 'bfloat16'
  assert 'bf16' in str(jax.make_jaxpr(run.model)(jnp.zeros((1, 24), jnp.int32)))


def test_arrays_get_the_answers_of_their_examples(finetuned):
  batch = finetuned.examples('test').gather(range(5))
  expected = finetuned.predict('test').probabilities[:5]
  answers = finetuned.predict(batch['inputs'], batch['lengths'])
  assert answers.label is None
  np.testing.assert_array_equal(answers.index, np.arange(5))
  np.testing.assert_allclose(answers.probabilities, expected, atol=1e-5)
  np.testing.assert_allclose(finetuned.predict(batch['inputs']).probabilities, expected, atol=1e-5)
  longest = batch['lengths'].max()  # padding may be left out
  shorter = finetuned.predict(batch['inputs'][:, :longest].astype(np.int64).tolist(), batch['lengths'])
  np.testing.assert_allclose(shorter.probabilities, expected, atol=1e-5)
  ids_BL, lengths_B = jnp.asarray(batch['inputs'], jnp.int32), jnp.asarray(batch['lengths'])
  outputs = nnx.jit(lambda model, x_BL, n_B: model(x_BL, lengths_B=n_B))(finetuned.model, ids_BL, lengths_B)
  np.testing.assert_allclose(jax.nn.softmax(outputs), expected, atol=1e-5)


def test_a_pretrained_model_restores_what_validation_hid(config, undisturbed):
  pretrained = lra_spt.load_run(undisturbed, 'pretrain')
  restored = pretrained.predict('validation')
  examples = pretrained.examples('validation').gather(range(20))
  np.testing.assert_array_equal(restored.index, examples['index'])
  np.testing.assert_array_equal(restored.target, examples['inputs'])
  assert not restored.asked[np.arange(24)[None] >= examples['lengths'][:, None]].any()
  assert restored.probabilities.shape == (20, 24, 19)
  hits = (restored.prediction == restored.target)[restored.asked].mean()
  noted = pretrained.result['stages']['pretrain']['metrics']
  assert hits == pytest.approx(noted['accuracy'], abs=1e-6)
  loss = -np.log(np.take_along_axis(restored.probabilities, restored.target[..., None], 2)[..., 0])
  assert loss[restored.asked].mean() == pytest.approx(noted['loss'], rel=1e-4)


def test_a_model_before_training(config):
  model = lra_spt.build_model(config)
  ids_BL = jnp.arange(48, dtype=jnp.int32).reshape(2, 24) % 19
  call = nnx.jit(lambda model, ids_BL: model(ids_BL))
  assert call(model, ids_BL).shape == (2, 10)
  np.testing.assert_array_equal(call(model, ids_BL), call(lra_spt.build_model(config), ids_BL))
  denoising = lra_spt.build_model(config, 'pretrain')
  assert nnx.eval_shape(lambda: denoising(ids_BL)).shape == (2, 24, 19)


@pytest.mark.parametrize(
  ('spec', 'overrides'), [('regime=masked', {}), ('model=s4,regime=causal', {'model.mixer.copies': 8})]
)
def test_the_code_of_the_reference_trains_and_steps(spec, overrides, repository, tmp_path, monkeypatch):
  """The model is untrained, because the test replaces `load_run`."""
  config = lra_spt.load_config(f'configs/demo.py:{spec}', {'model.width': 8} | overrides)
  stripes.prepare_stripes(tmp_path, examples=64)
  run = types.SimpleNamespace(
    model=lra_spt.build_model(config, 'pretrain'),
    task=get_task('stripes'),
    examples=lambda split: open_split('stripes', split, tmp_path),
  )
  monkeypatch.setattr(lra_spt, 'load_run', lambda workdir, stage: run)
  page = (repository / 'docs' / 'api.md').read_text(encoding='utf-8')
  training, stepping = re.findall(r'```python\n(.*?)```', page, flags=re.DOTALL)
  names = {}
  before = np.asarray(run.model.encoder.embed.kernel[...])
  with jax.numpy_dtype_promotion('standard'):  # the default outside tests; optax.adamw needs it
    exec(training, names)
  assert names['features_BLD'].shape == (50, 64, 8)
  assert np.isfinite(names['loss'])
  assert not np.array_equal(before, run.model.encoder.embed.kernel[...])
  with pytest.raises(ConfigError, match=r'shape \(50, 64, 7\), but this model takes \[B, L, '):
    run.model.encoder(jnp.zeros((50, 64, 7)))
  if 'causal' in spec:
    names['x_BLD'] = names['features_BLD'][:2]
    exec(stepping, names)
    whole_BLD = names['mixer'](names['x_BLD'], lengths_B=None, deterministic=True, rngs=None)
    np.testing.assert_allclose(np.stack(names['steps'], axis=1), whole_BLD, atol=1e-4)


def test_a_regression_answers_in_units_of_its_label(config, tmp_path):
  inputs = Values(24, mean=(5.0,), std=(2.0,), dtype='float32', scale=1.0)
  lra_spt.register_task(lra_spt.Task('beats', 'beats', inputs, Real(80.0, 10.0, (40.0, 120.0))))
  ours = config.copy_and_resolve_references()
  with ours.unlocked():
    ours.task = 'beats'
  built = build(resolve(ours), 'finetune')
  state = built.fresh_state(api.one_device())
  run = lra_spt.Run(tmp_path, ours, built, 0, state['params'], state['stats'], None)
  x_BL = np.random.default_rng(0).normal(5, 2, (19, 24))
  answers = run.predict(x_BL)
  assert answers.probabilities is None
  x_BL1 = jnp.asarray((x_BL - 5) / 2, jnp.float32)[..., None]
  outputs = nnx.jit(lambda model, x_BL1: model(x_BL1)[:, 0])(run.model, x_BL1)
  np.testing.assert_allclose(answers.prediction, 80 + 10 * outputs, rtol=1e-5)
  with pytest.raises(ConfigError, match='for padded inputs, but those of beats are full; leave them out'):
    run.predict(x_BL, np.full(19, 24))
  with pytest.raises(ConfigError, match=r'does not say where its data are; write load_run\(workdir,'):
    run.predict('test')


def test_wrong_calls_get_a_sentence(config, finetuned, undisturbed, tiny_data, tmp_path):
  batch = finetuned.examples('test').gather(range(2))
  ids = batch['inputs']
  for arguments, message in (
    ((ids[0],), r"inputs are of shape \(24,\), but tiny_listops reads \('N', 24\), or fewer than 24"),
    ((np.zeros((2, 25), int),), r'inputs are of shape \(2, 25\)'),
    ((ids + 0.5,), 'inputs are not of the stored dtype, uint8; give them before any normalisation'),
    ((ids * 0 + 19,), 'inputs hold the id 19, but tiny_listops has 19 ids'),
    ((ids, [3]), r'lengths are of shape \(1,\), but these inputs have lengths of \(2,\)'),
    ((ids, [3, 25]), 'whole numbers from 1 to the 24 positions of the inputs, but are int64 from 3 to 25'),
    ((ids, [0, 3]), 'whole numbers from 1 to the 24 positions'),
    ((ids, [3.5, 3]), 'whole numbers .* but are float64'),
    ((ids, ['3', '4']), 'lengths are of dtype <U1, but they are numbers of positions: give numbers'),
    ((ids, [[3], [3, 4]]), 'lengths make no array'),
    ((['[MAX 1 2]'],), 'inputs are of dtype <U9, but tiny_listops reads token ids: give numbers'),
    ((b'abc',), 'inputs are of dtype .S3'),
    ((ids > 3,), 'inputs are of dtype bool'),
    ((ids.astype(object),), 'inputs are of dtype object'),
    ((None,), 'inputs are of dtype object'),
    ((ids + 0j,), 'inputs are of dtype complex128'),
    (([[3, 4], [3]],), 'inputs make no array .* fill shorter rows up'),
    (([],), r'inputs are of shape \(0,\)'),
    ((ids[:0],), r'inputs are of shape \(0, 24\)'),
    ((ids.astype(int) - 100,), 'inputs hold the id -'),
    ((ids.astype(int) + 256,), 'inputs hold the id 2'),
    ((np.where(ids == ids.max(), np.nan, ids),), 'inputs are not of the stored dtype'),
  ):
    with pytest.raises(ConfigError, match=message):
      finetuned.predict(*arguments)
  for size in (-1, 2.5, '2', None):
    with pytest.raises(ConfigError, match=f'batch_size is {size!r}; choose at least 1, or 0 for that of'):
      finetuned.predict(ids, batch_size=size)
  with pytest.raises(MissingFile, match='holds no run'):
    lra_spt.load_run(tmp_path)
  for nothing in (None, 5, b'run'):
    with pytest.raises(ConfigError, match='workdir is .* give the path of a folder as a text'):
      lra_spt.load_run(nothing)
    with pytest.raises(ConfigError, match='The config file is .* give its path as a text'):
      lra_spt.load_config(nothing)
    with pytest.raises(ConfigError, match='not a ConfigDict: take it from lra_spt.load_config'):
      lra_spt.train(nothing, tmp_path)
  with pytest.raises(ConfigError, match="has no stage 'pretrian'; choose one of pretrain, finetune"):
    lra_spt.load_run(undisturbed, 'pretrian')
  with pytest.raises(ConfigError, match="the config has no stage 'test'; choose one of pretrain, finetune"):
    lra_spt.build_model(config, 'test')
  several = lra_spt.load_config('configs/demo.py', {'runtime.members': 3})
  with pytest.raises(ConfigError, match='runtime.members is 3, but this call trains one run: .* --seeds'):
    lra_spt.train(several, tmp_path / 'several')
  stored = json.loads((undisturbed / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps(stored))
  with pytest.raises(CheckpointError, match='has no finetune stage of its own yet'):
    lra_spt.load_run(tmp_path)


def test_numbers_of_other_dtypes_are_the_same_inputs(finetuned):
  ids = finetuned.examples('test').gather(range(2))['inputs']
  expected = finetuned.predict(ids).probabilities
  for other in (ids.astype(np.int64), ids.astype(np.float32), ids.tolist(), jnp.asarray(ids)):
    np.testing.assert_array_equal(finetuned.predict(other, batch_size=np.int64(2)).probabilities, expected)


def test_a_config_in_any_form_is_the_same_run(config):
  plain = config.to_dict()
  mixed = plain | {name: FrozenConfigDict(plain[name]) for name in ('model', 'runtime')}
  mixed['seed'] = np.int64(plain['seed'])
  mixed['finetune'] = plain['finetune'] | {'batch_size': np.int32(plain['finetune']['batch_size'])}
  expected = resolve(config)
  for form in (plain, mixed, FrozenConfigDict(config), ConfigDict(mixed)):
    run = resolve(form)
    assert (run.values, run.stages) == (expected.values, expected.stages)
    assert loading.digest(run.identity) == loading.digest(expected.identity)
  path = resolve(plain | {'runtime': plain['runtime'] | {'data_dir': pathlib.Path('data')}})
  assert path.runtime.data_dir == 'data'
  for wrong, words in (
    ({3: 4}, 'The config has the key 3 in it, but keys are texts'),
    ({'model': plain['model'] | {3: 4}}, 'The config has the key 3 in model, but keys are texts'),
    ({'finetune.epochs': 4}, 'The config has the key finetune.epochs, .* write finetune as a section'),
    ({'finetune': None}, 'finetune is a section: give its keys'),
    ({'seed': None}, 'seed takes int, not None'),
    ({'seed': required_placeholder(int)}, 'The config has a placeholder as seed: give it a value'),
  ):
    form = ConfigDict(plain | wrong) if 'seed' in wrong else plain | wrong
    with pytest.raises(ConfigError, match=words):
      resolve(form)


def test_a_program_without_streams_trains_and_predicts(config, finetuned, monkeypatch, tmp_path):
  """A service may run without stdout and stderr, and pythonw sets both to None."""
  monkeypatch.setattr(sys, 'stdout', None)
  monkeypatch.setattr(sys, 'stderr', None)
  with pytest.raises(ConfigError, match='seed takes int'):
    lra_spt.train(config.to_dict() | {'seed': None}, tmp_path)
  sys.stderr.close()
  finetuned.examples('test')
  for stream in (sys.stdout, sys.stderr):
    assert not stream.closed
    stream.close()
  sys.stderr = types.SimpleNamespace(write=len, flush=len)  # a logger as a stream has no isatty
  hooks.ReportProgress('finetune', total=1, initial=0, batch_size=1, enabled=True).close()


def test_data_that_are_not_here_are_said_so(finetuned):
  there = dataclasses.replace(finetuned, data_dir='elsewhere')
  with pytest.raises(
    MissingFile, match=r'trained on data in elsewhere, which is not a folder here.*--data_dir='
  ):
    there.predict('test')


def test_a_stage_before_its_first_validation(undisturbed, tmp_path, config):
  folder = shutil.copytree(undisturbed, tmp_path / 'W')
  (stage,) = folder.glob('finetune-*')
  shutil.rmtree(stage / 'checkpoints' / 'best')
  with pytest.raises(CheckpointError, match='has no checkpoint of its best validation; restore'):
    lra_spt.load_run(folder)
  (stage / 'stage.json').unlink()
  with pytest.raises(CheckpointError, match='has no checkpoint yet; the first validation writes one'):
    lra_spt.load_run(folder)


def test_other_data_are_refused(finetuned, tmp_path):
  stored = run_folder.read_config(finetuned.workdir)
  stored['fingerprints']['data'] = 'another'
  checksums.write(tmp_path / 'config.json', stored)
  with pytest.raises(
    ConfigError, match=r'is not the one that .* was trained on; give load_run the data_dir of that'
  ):
    dataclasses.replace(finetuned, workdir=tmp_path).predict('test')
