"""One run from start to result.json, in this process and on all its devices."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import types

import jax
import numpy as np
import pytest

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError, UserError
from lra_spt.ops import selection
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import in_what_they_differ, settings
from lra_spt.runs import experiment, stage_report
from lra_spt.runs.active_run import ActiveRun
from lra_spt.runs.build import build, resolve
from lra_spt.studies import runner
from lra_spt.training.checkpoints.store import verify
from lra_spt.training.programs import forget_programs
from lra_spt.training.step import train_steps

KEYS = {
  *('task', 'model', 'regime', 'causal', 'protocol', 'seed', 'metric', 'metrics', 'parameters', 'stages'),
  *('hardware', 'versions', 'commit', 'date', 'config', 'origins', 'fingerprints'),
}


@pytest.fixture(scope='module')
def arguments(tiny_data, repository):
  """Arguments of the command for a run from scratch."""
  return [
    'train',
    f'--config={repository}/tests/tiny_config.py:regime=scratch',
    f'--config.runtime.data_dir={tiny_data}',
    '--config.finetune.epochs=2',
  ]


@pytest.fixture(scope='module')
def scratch(arguments, tmp_path_factory):
  """Workdir of a finished run from scratch, given as a relative path as in the README."""
  folder = tmp_path_factory.mktemp('scratch')
  with contextlib.chdir(folder):
    assert cli.main([*arguments, '--workdir=run']) == 0
  return folder / 'run'


@pytest.mark.parametrize(
  'model, flags, used',
  [
    ('transformer', [], ', attention by blockwise'),  # chosen by platform
    ('transformer', ['runtime.attention=reference', 'runtime.scan=pallas'], ', attention by reference'),
    ('s5', [], ''),
    ('s5', ['runtime.scan=chunked', 'runtime.attention=reference'], ', scan by chunked'),
    ('mamba', ['runtime.scan=sequential'], ', scan by sequential'),
    ('s4', ['runtime.convolution=fft'], ', convolution by fft'),
  ],
)
def test_a_stage_says_what_of_the_named_implementations_runs(tiny_config, model, flags, used):
  built = build(resolve(loading.load(f'{tiny_config}:regime=masked,model={model}', flags)), 'finetune')
  assert stage_report._where(built, sharding.make_mesh()).partition(', float32')[2] == used


@pytest.mark.parametrize('task, hidden', [('tiny_listops', True), ('image', False)])
def test_what_a_stage_says_is_what_its_step_calls(tiny_config, task, hidden):
  """Images have no padding, so their attention needs no lengths of keys."""
  built = build(resolve(loading.load(f'{tiny_config}:regime=scratch', [f'task={task}'])), 'finetune')
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh), selection.recording() as step:
    train_steps(built.typical_program).trace(*built.abstract_step(mesh))
  assert set(built.layer_calls(mesh)) == set(step)
  (call,) = step
  assert dict(call.options)['kv_lengths'] is hidden


def test_result_of_a_run_from_scratch(scratch, tiny_data):
  result = run_folder.read_result(scratch)
  assert result.keys() >= KEYS
  assert (result['task'], result['model'], result['regime'], result['causal']) == (
    'tiny_listops',
    'transformer',
    'scratch',
    False,
  )
  assert list(result['stages']) == ['finetune']
  stage = result['stages']['finetune']
  assert stage['diverged'] is False
  assert (stage['steps'], stage['examples'], stage['epochs']) == (12, 192, 2.0)
  assert stage['seconds'] > 0
  assert {'steps', 'data', 'evaluation', 'checkpoints', 'compiling', 'other'} == set(stage['time'])
  assert 0 < sum(stage['time'].values()) <= 1.1 * stage['seconds'] + 10
  # 24 tokens; 2 blocks of 2,048 weights and 2 x 24 x 24 x 16 products of attention; a head of 160 weights.
  forward = 2 * (24 * 2 * 2048 + 2 * 2 * 24 * 24 * 16 + 160)
  assert stage['flops_per_step'] == 3 * forward * 16
  assert result['metrics']['test']['examples'] == 24
  assert result['metrics']['validation'] == stage['metrics']
  assert result['hardware']['devices'] == jax.device_count()
  assert result['versions']['jax'] == jax.__version__
  assert result['origins']['finetune']['epochs'] == 'command line'
  assert 'runtime' not in result['config']
  test = examples_lib.open_split('tiny_listops', 'test', tiny_data)
  assert result['fingerprints'] == {'data': test.fingerprint, 'splits': test.split_fingerprint}


@pytest.fixture
def without_cache():
  names = ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs')
  before = {name: getattr(jax.config, name) for name in names}
  jax.config.update(names[0], None)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.mark.parametrize('variable, folder', [('', 'run/compilation_cache'), ('kept', 'kept'), (' ', None)])
def test_programs_are_kept_for_the_next_start(variable, folder, without_cache, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('LRA_SPT_CACHE', variable)
  experiment.keep_compiled('run')
  actual = pathlib.Path(jax.config.jax_compilation_cache_dir)
  assert actual == tmp_path / (folder or 'run/compilation_cache')
  experiment.keep_compiled('another')  # the first call decides for the whole process
  assert pathlib.Path(jax.config.jax_compilation_cache_dir) == actual


def test_predictions_are_of_the_test_set(scratch, tiny_data):
  predictions = np.load(scratch / 'predictions.npz')
  batch = examples_lib.open_split('tiny_listops', 'test', tiny_data).gather(np.arange(24))
  np.testing.assert_array_equal(predictions['index'], batch['index'])
  np.testing.assert_array_equal(predictions['label'], batch['label'])
  assert predictions['prediction'].dtype == np.int32
  accuracy = np.mean(predictions['prediction'] == predictions['label'])
  result = run_folder.read_result(scratch)
  np.testing.assert_allclose(result['metrics']['test']['accuracy'], accuracy, rtol=1e-6)
  assert result['metrics']['test']['majority'] == np.bincount(batch['label']).max() / 24
  assert 'group' not in predictions


def test_folders_of_a_run_from_scratch(scratch):
  """There is no folder of a pretraining, and no file beyond those of the contract."""
  (stage,) = (path for path in scratch.iterdir() if path.is_dir())
  assert stage.name.startswith('finetune-')
  names = {path.name for path in scratch.iterdir()}
  assert names == {'config.json', 'result.json', 'predictions.npz', stage.name}
  assert {path.name for path in stage.iterdir()} == {
    *('metrics.jsonl', 'checkpoints', 'computed.json', 'stage.json')
  }


def test_a_finished_run_says_so(scratch, arguments, capsys, file_contents):
  before = file_contents(scratch)
  assert cli.main([*arguments, f'--workdir={scratch}']) == 0
  assert f'{scratch} holds a finished run' in capsys.readouterr().out
  assert file_contents(scratch) == before


def test_what_only_concerns_computing_may_change(scratch, arguments):
  assert cli.main([*arguments, f'--workdir={scratch}', '--config.runtime.steps_per_dispatch=1']) == 0


def test_a_stage_that_is_done_is_not_trained_again(scratch, arguments, capsys, monkeypatch, file_contents):
  """A run was killed between finetuning and its result. The same command only tests, with the same result."""
  before = file_contents(scratch)
  first = run_folder.read_result(scratch)
  (scratch / 'result.json').unlink()
  (scratch / 'predictions.npz').unlink()

  def trained_again(self):
    raise AssertionError('a finished stage is trained again')

  monkeypatch.setattr(experiment.StageLoop, 'run', trained_again)
  assert cli.main([*arguments, f'--workdir={scratch}']) == 0
  assert 'finetune: already done' in capsys.readouterr().out
  second = run_folder.read_result(scratch)
  for key in KEYS - {'date', 'commit'}:
    assert second[key] == first[key], key
  after = file_contents(scratch)
  assert {name for name in before if before[name] != after[name]} <= {'result.json'}


def test_a_process_with_other_settings_trains_the_same_numbers(
  scratch, tiny_config, tiny_data, tmp_path, other_settings
):
  overrides = {'runtime.data_dir': str(tiny_data), 'finetune.epochs': 2}
  config, message = lra_spt.load_config(f'{tiny_config}:regime=scratch', overrides), []
  forget_programs()
  with other_settings():
    result = lra_spt.train(config, tmp_path / 'run', announce=message.append)
  before = run_folder.read_result(scratch)
  assert result['metrics'] == before['metrics']
  (stage,), (stage_before,) = result['stages'].values(), before['stages'].values()
  assert stage['best_digest'] == stage_before['best_digest']
  assert stage['computed']['prng'] == 'threefry2x32'
  assert stage['computed']['settings']['jax_enable_x64'] is False
  assert 'jax_enable_x64=True, jax_threefry_partitionable=False, jax_default_prng_impl=rbg' in message[0]


def test_a_stage_that_goes_on_with_other_settings_says_so(scratch, arguments, capsys, tmp_path):
  shutil.copytree(scratch, tmp_path / 'run')
  for path in (tmp_path / 'run').rglob('*.json'):
    if path.name in (run_folder.RESULT, run_folder.STAGE):
      path.unlink()
  for prng in ('rbg', 'rbg', 'threefry2x32'):
    flags = [f'--workdir={tmp_path / "run"}', f'--config.runtime.prng={prng}']
    assert cli.main([*arguments, *flags]) == 0
    (tmp_path / 'run' / run_folder.RESULT).unlink()
    (path,) = (tmp_path / 'run').glob(f'*/{run_folder.STAGE}')
    report = run_folder.read_stage(path.parent)
    path.unlink()
  assert [each['prng'] for each in report['computed_before']] == ['threefry2x32', 'rbg']
  assert report['computed']['prng'] == 'threefry2x32'
  message = [line.partition(' goes on with ')[2] for line in capsys.readouterr().out.splitlines()]
  assert [line for line in message if line] == [
    'prng rbg instead of threefry2x32',
    'prng threefry2x32 instead of rbg',
  ]


def test_the_failure_of_an_earlier_attempt_is_removed(scratch, tiny_data, repository, tmp_path, monkeypatch):
  """The failure is removed as soon as the run continues. A config without origins gets a result too."""
  shutil.copytree(scratch, tmp_path / 'run')
  for name in ('result.json', 'predictions.npz'):
    (tmp_path / 'run' / name).unlink()
  run_folder.write_failure(tmp_path / 'run', UserError('no space is left on the disk'))
  there = []
  test = experiment.test_runs

  def look(*arguments):
    there.append((tmp_path / 'run' / run_folder.FAILURE).exists())
    return test(*arguments)

  monkeypatch.setattr(experiment, 'test_runs', look)
  overrides = {'finetune.epochs': 2, 'runtime.data_dir': str(tiny_data)}
  config = lra_spt.load_config(f'{repository}/tests/tiny_config.py:regime=scratch', overrides)
  with config.unlocked():
    del config['origins']
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert there == [False]
  assert result['origins'] == {}


def test_masked_run(undisturbed):
  """The reported metrics of each stage are those of its best checkpoint."""
  result = run_folder.read_result(undisturbed)
  assert list(result['stages']) == ['pretrain', 'finetune']
  assert result['regime'] == 'masked'
  for name, stage in result['stages'].items():
    (folder,) = undisturbed.glob(f'{name}-*')
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    accuracies = {line['step']: line['accuracy'] for line in lines if line['split'] == 'validation'}
    assert list(accuracies) == [6, 12, 18]
    assert stage['best_step'] == max(accuracies, key=accuracies.get)
    assert stage['metrics']['accuracy'] == accuracies[stage['best_step']]
    assert run_folder.read_stage(folder) == stage
    assert verify(folder / 'checkpoints' / 'best', stage['best_digest']) == stage['best_step']


def test_only_after_a_pretraining_is_it_advised_to_keep_it():
  run = ActiveRun(spec=None, workdir=None, stages={'finetune': None}, folders={'finetune': None})
  assert run.member('finetune').advice == ''
  run.reports['pretrain'] = {}
  assert '--pretrained=RUN' in run.member('finetune').advice


def test_an_edited_task_is_another_one(tiny_config, tiny_data, tmp_path, monkeypatch):
  """If a user edits a task, neither its finished run nor its pretraining is used for the new one."""
  overrides = {'runtime.data_dir': str(tiny_data)}
  for stage in ('pretrain', 'finetune'):
    overrides |= {f'{stage}.max_steps': 2, f'{stage}.evaluate_every': 2}
  config = loading.load(f'{tiny_config}:regime=masked', overrides)

  def edit(**inputs):
    task = tasks.get_task('listops').with_inputs(length=24, **inputs)
    monkeypatch.setitem(
      tasks.TASKS, 'tiny_listops', dataclasses.replace(task, name='tiny_listops', dataset='tiny_listops')
    )

  def run(workdir, **options):
    message = []
    return experiment.run(config, tmp_path / workdir, announce=message.append, **options), message

  edit()
  result, _ = run('a', stages=tmp_path / 'stages')
  code = run_folder.read_config(tmp_path / 'a')['code']
  assert result['code'] == code
  assert code.keys() == {'task'}
  assert run('a')[0] == result
  job = types.SimpleNamespace(folder=pathlib.PurePosixPath('a'), config=config, place='the study')
  runner.check(tmp_path, [job])
  edit(mask_id=5)
  with pytest.raises(ConfigError, match=r"a belongs to other code of your own; .*\ncode.task: 'fields:"):
    run('a')
  with pytest.raises(ConfigError, match=r'a was trained with your own code \(task\), which has changed'):
    run('b', pretrained=tmp_path / 'a')
  with pytest.raises(ConfigError, match=r"different config than the study has now; .*\ncode.task: 'fields:"):
    runner.check(tmp_path, [job])
  config.seed = 1
  other, message = run('b', stages=tmp_path / 'stages')
  assert not [line for line in message if 'already done' in line]
  assert in_what_they_differ([settings(result), settings(other)]) == ['code.task']


def test_a_task_of_the_package_has_no_digest(tiny_config):
  for task, keys in (('listops', set()), ('tiny_listops', {'task'})):
    assert resolve(loading.load(f'{tiny_config}:regime=masked', [f'task={task}'])).user_code.keys() == keys
