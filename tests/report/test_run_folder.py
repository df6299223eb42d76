"""A run folder has one owner and one schema, notes failures, and may use the pretraining of another run."""

import errno
import json
import os
import re
import shutil

import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import CheckpointError, ConfigError, DamagedFile, NonFiniteError
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.runs import experiment

RESULT = {
  'task': 'image',
  'model': 's4',
  'regime': 'scratch',
  'causal': False,
  'protocol': 'clean',
  'seed': 0,
  'metrics': {'test': {'accuracy': 0.5, 'examples': 4}},
  'stages': {'finetune': {'steps': 1}},
}


def test_results_are_read_as_they_were_written(tmp_path):
  run_folder.write_failure(tmp_path, ValueError('as it was'))
  run_folder.write_result(tmp_path, RESULT, {'index': np.arange(4)})
  assert run_folder.read_result(tmp_path) == RESULT
  assert {path.name for path in tmp_path.iterdir()} == {run_folder.RESULT, run_folder.PREDICTIONS}


@pytest.mark.parametrize(
  'change, words',
  [
    ({'seed': True}, 'seed .*True'),
    ({'task': None}, 'task .*None'),
    ({'stages': {'finetune': 3}}, 'stages.finetune '),
    ({'metrics': {}}, 'metrics lacks the key test'),
    ({'cautions': 'one'}, "cautions .*'one'"),
  ],
)
def test_results_of_another_form_are_neither_written_nor_read(tmp_path, change, words):
  with pytest.raises(ValueError, match=words):
    run_folder.write_result(tmp_path, RESULT | change, {})
  assert not list(tmp_path.iterdir())
  (tmp_path / run_folder.RESULT).write_text(json.dumps(RESULT | change))
  with pytest.raises(
    DamagedFile, match=f'result.json is not the result of a run .*{words}.*; delete result.json'
  ):
    run_folder.read_result(tmp_path)


CONFIG = {
  'task': 'image',
  'model': {'name': 's4'},
  'protocol': 'clean',
  'regime': 'masked',
  'causal': False,
  'seed': 0,
  'pretrain': {},
  'finetune': {},
  'fingerprints': {'data': 'd', 'splits': 's'},
}
NOTE = {
  'steps': 8,
  'examples': 64,
  'epochs': 0.5,
  'seconds': 1,
  'flops_per_step': 10**12,
  'best_step': 4,
  'metrics': {'loss': 2.5},
  'folder': 'finetune-0a',
}
FILES = {  # name: (content, its reader, changes that are refused)
  run_folder.CONFIG: (
    CONFIG,
    run_folder.read_config,
    [{'task': 3}, {'model': []}, {'model': {}}, {'seed': 0.5}, {'finetune': None}, {'pretrain': 1}]
    + [{'fingerprints': {}}, {'fingerprints': {'data': 'd', 'splits': 1}}, {'pretrained': ['a']}],
  ),
  run_folder.STAGE: (
    NOTE,
    run_folder.read_stage,
    [{'steps': None}, {'steps': True}, {'seconds': '1'}, {'metrics': {'loss': 'low'}}, {'metrics': []}]
    + [{'folder': '../a'}, {'folder': '..'}, {'folder': '/'}, {'folder': ''}, {'best_step': 10**40}],
  ),
  run_folder.RESULT: (
    RESULT,
    run_folder.read_result,
    [
      {'metrics': {'test': {'accuracy': 'high'}}},
      {'stages': {'finetune': {'steps': None}}},
      {'stages': {'finetune': NOTE | {'folder': '/'}}},
      {'fingerprints': {'data': 1}},
      {'pretrained': {'run': None}},
    ],
  ),
  run_folder.FAILURE: ({'error': 'E', 'date': 'd'}, run_folder.read_failure, [{'error': None}, {'date': 3}]),
}
DAMAGES = (b'[1]', b'', b'\0', b'{"task": "ima', bytes(range(256)), b'[' * 100_000, b'{"a": 1e999}')


@pytest.mark.parametrize('name', FILES)
def test_damaged_json_is_one_sentence(tmp_path, name):
  content, read, changes = FILES[name]
  path = tmp_path / name
  files.write_json(path, content)  # as older versions did
  assert read(tmp_path) == content
  damages = [*DAMAGES, *(json.dumps(content | change).encode() for change in changes)]
  needed = set() if name == run_folder.FAILURE else content.keys() - {'pretrain'}
  damages += [json.dumps({k: v for k, v in content.items() if k != key}).encode() for key in needed]
  for damage in damages:
    path.write_bytes(damage)
    with pytest.raises(DamagedFile, match=rf'^{path} is not [^\n]*\); [^\n]*\.$'):
      read(tmp_path)


@pytest.mark.parametrize('name', FILES)
def test_json_edited_since_is_refused(tmp_path, name):
  content, read, _ = FILES[name]
  path = tmp_path / name
  checksums.write(path, content)
  assert read(tmp_path) == content
  written = path.read_text()
  path.write_text(json.dumps(json.loads(written)))  # the same values, formatted otherwise
  assert read(tmp_path) == content
  key, value = next((key, value) for key, value in content.items() if isinstance(value, (str, int)))
  path.write_text(
    json.dumps(json.loads(written) | {key: f'{value}x' if isinstance(value, str) else value + 1})
  )
  with pytest.raises(DamagedFile, match='was edited or damaged'):
    read(tmp_path)


def test_curves_edited_since_are_refused(tmp_path):
  path = tmp_path / run_folder.METRICS
  path.write_text('{"step": 1, "split": "train", "loss": 2.5}\n')
  run_folder.write_stage(tmp_path, NOTE)
  run_folder.check_metrics(tmp_path)
  path.write_text(path.read_text().replace('2.5', '1.5'))
  with pytest.raises(DamagedFile, match=rf'^{path} was edited or damaged .*stage.json'):
    run_folder.check_metrics(tmp_path)
  with pytest.raises(ValueError, match='a stage of another form would be noted: steps .*None'):
    run_folder.write_stage(tmp_path, NOTE | {'steps': None})


def test_a_list_is_no_finished_run(load, tmp_path):
  (tmp_path / run_folder.RESULT).write_text('[1]')
  message = []
  with pytest.raises(DamagedFile, match='delete result.json and run the command of the run again'):
    experiment.run(load('regime=scratch'), tmp_path, announce=message.append)
  assert message == []


@pytest.fixture
def load(tiny_data, repository):
  """load(argument, **overrides) -> the tiny config, on one device."""

  def make(argument, overrides=None):
    path = f'{repository}/tests/tiny_config.py:{argument}'
    runtime = {'runtime.data_dir': str(tiny_data), 'runtime.devices': 1, 'runtime.progress': False}
    return loading.load(path, runtime | (overrides or {}))

  return make


def test_a_workdir_in_use_is_refused(load, tmp_path, tiny_data, repository, capsys, file_contents):
  flags = [f'--config={repository}/tests/tiny_config.py', f'--config.runtime.data_dir={tiny_data}']
  with files.owned(tmp_path, 'training in'):
    before = file_contents(tmp_path)
    assert cli.main(['train', *flags, f'--workdir={tmp_path}']) == 2
    assert file_contents(tmp_path) == before
  error = capsys.readouterr().err
  assert 'Another process (process ' in error
  assert f'is training in {tmp_path}; wait for it to end' in error


def test_of_two_processes_one_trains(start_training, undisturbed, trajectory, tmp_path):
  """Two processes start at once on one workdir. One is refused, and the other trains as if it were alone."""
  both = [start_training(tmp_path / 'run') for _ in range(2)]
  printed = [process.communicate(timeout=300)[0] for process in both]
  codes = [process.returncode for process in both]
  assert 0 in codes, printed
  if not any('holds a finished run' in text for text in printed):  # unless one started after the other's end
    assert sorted(codes) == [0, 2], printed
    refused = printed[codes.index(2)]
    assert 'is training in' in refused
    assert 'Traceback' not in refused
  assert trajectory(tmp_path / 'run') == trajectory(undisturbed)


def test_a_failure_is_noted(load, tmp_path):
  config = load('regime=scratch', {'finetune.optimizer.lr': 1e30})
  with pytest.raises(NonFiniteError, match='finetune met a non-finite number') as raised:
    experiment.run(config, tmp_path, announce=lambda line: None)
  note = json.loads((tmp_path / run_folder.FAILURE).read_text())
  assert (note['error'], note['kind']) == (str(raised.value), 'NonFiniteError')
  assert not (tmp_path / files.LOCK).exists()


def test_a_run_that_diverged_says_so(load, tmp_path, capsys):
  """The loss rises far above its start but is finite, so the run finishes with a caution."""
  settings = {'finetune.optimizer.lr': 100.0, 'finetune.max_steps': 6, 'finetune.evaluate_every': 6}
  message = []
  result = experiment.run(load('regime=scratch', settings), tmp_path, announce=message.append)
  assert run_folder.last_loss(tmp_path / result['stages']['finetune']['folder']) > 2 * np.log(10)
  assert result['stages']['finetune']['diverged'] is True
  (caution,) = result['cautions']
  assert (
    'The finetune stage of regime scratch, seed 0, diverged: its training loss ended above twice' in caution
  )
  assert message[-1] == caution
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0
  assert caution in ' '.join(capsys.readouterr().out.split())
  assert caution in (tmp_path / 'report.html').read_text()


def test_the_last_training_loss_is_found(tmp_path):
  assert run_folder.last_loss(tmp_path) is None
  lines = ['{"step": 1, "split": "train", "loss": 3.5}', '{"step": 2, "split": "train", "loss": 2.5}']
  lines += ['{"step": 2, "split": "validation", "loss": 9.5}', '{"step": 3, "split": "train", "loss": null}']
  (tmp_path / run_folder.METRICS).write_text('\n'.join([*lines, '{"step": 4, "spl']))
  assert run_folder.last_loss(tmp_path) == 2.5


def test_a_stage_of_another_precision_is_named(load, undisturbed, tmp_path):
  config = load('regime=masked', {'runtime.precision': 'bfloat16'})
  result = experiment.run(config, tmp_path / 'run', pretrained=undisturbed, announce=lambda line: None)
  computed = [result['stages'][name]['computed']['precision'] for name in ('pretrain', 'finetune')]
  assert computed == ['float32', 'bfloat16']
  sentence = (
    'After the pretrain stage, or a part of it, the run went on with precision bfloat16 instead of float32.'
  )
  assert sentence in result['cautions']


def test_another_run_s_pretraining_is_finetuned(load, undisturbed, tmp_path, file_contents):
  before = file_contents(undisturbed)
  other = load('regime=masked', {'pretrain.optimizer.lr': 0.7})
  again = experiment.run(other, tmp_path / 'again', pretrained=undisturbed, announce=lambda line: None)
  original = run_folder.read_result(undisturbed)
  assert again['config']['pretrain'] == original['config']['pretrain']  # not 0.7
  assert 'pretrain' not in again['origins']
  assert again.get('cautions', []) == original.get('cautions', [])
  assert again['pretrained']['run'] == str(undisturbed)
  assert again['stages']['pretrain'] == original['stages']['pretrain']
  # The folder is named by pretraining and finetuning, not by the machine, which may round differently.
  assert again['stages']['finetune']['folder'] == original['stages']['finetune']['folder']
  first, second = (run['stages']['finetune']['metrics']['loss'] for run in (again, original))
  np.testing.assert_allclose(first, second, rtol=1e-3)
  assert not list((tmp_path / 'again').glob('pretrain-*'))
  assert file_contents(undisturbed) == before
  with pytest.raises(ConfigError, match='belongs to another config'):
    experiment.run(other, tmp_path / 'again', announce=lambda line: None)
  for there, other in ((True, re.escape(str(undisturbed))), (False, 'that, which its log names')):
    with pytest.raises(ConfigError, match=f'again itself took the pretraining of another run; give {other}$'):
      experiment.run(load('regime=masked'), tmp_path / 'third', pretrained=tmp_path / 'again')
    if there:
      (tmp_path / 'again' / run_folder.RESULT).unlink()


@pytest.mark.parametrize(
  'argument, overrides, words',
  [
    ('regime=scratch', {}, '--pretrained has no meaning with regime=scratch'),
    ('regime=causal', {}, "pretrained for something else.*\nregime: 'masked' -> 'causal'"),
    ('regime=masked', {'model.width': 32}, 'pretrained for something else.*\nmodel.width: 16 -> 32'),
  ],
)
def test_pretraining_of_something_else_is_refused(load, undisturbed, tmp_path, argument, overrides, words):
  with pytest.raises(ConfigError, match=words):
    experiment.run(load(argument, overrides), tmp_path / 'run', pretrained=undisturbed)
  assert not (tmp_path / 'run').exists()


def test_unfinished_pretraining_is_refused(load, tmp_path, undisturbed):
  identity = json.loads((undisturbed / run_folder.CONFIG).read_text())
  (tmp_path / 'begun').mkdir()
  files.write_json(tmp_path / 'begun' / run_folder.CONFIG, identity)
  with pytest.raises(CheckpointError, match='begun has not finished its pretraining'):
    experiment.run(load('regime=masked'), tmp_path / 'run', pretrained=tmp_path / 'begun')


def without_links(monkeypatch, code):
  """Makes symbolic links fail as on exFAT (ENOSYS), Windows shares (EPERM, ENOTSUP), VirtualBox (EROFS)."""

  def refuse(*arguments, **options):
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(os, 'symlink', refuse)


WITHOUT_LINKS = (errno.ENOSYS, errno.EPERM, errno.ENOTSUP, errno.EROFS)


@pytest.mark.parametrize('code', [None, *WITHOUT_LINKS])
def test_a_stage_whose_link_leads_nowhere(tmp_path, monkeypatch, code):
  """The store of stages was moved. Stages are found in the new --stages, or an error names the lost ones."""
  if code is not None:
    without_links(monkeypatch, code)
  old, new, empty = (tmp_path / name for name in ('old', 'new', 'empty'))
  folders = {'pretrain': tmp_path / 'run' / 'pretrain-1'}
  folders['pretrain'].parent.mkdir()
  run_folder.share_stages(folders, old)
  (old / 'pretrain-1' / run_folder.STAGE).write_text('{}')
  old.rename(new)
  with pytest.raises(ConfigError, match='is a link to .*old/pretrain-1, which is gone'):
    run_folder.share_stages(folders, empty)
  assert not empty.exists()  # a refused command changes nothing
  run_folder.share_stages(folders, new)
  assert (run_folder.followed(folders['pretrain']) / run_folder.STAGE).read_text() == '{}'
  run_folder.share_stages(folders, empty)  # existing stages stay
  assert run_folder.followed(folders['pretrain']).resolve() == (new / 'pretrain-1').resolve()
  shutil.rmtree(new / 'pretrain-1')
  run_folder.share_stages(folders, new)  # the stage is gone from the store, so it is trained there again
  assert run_folder.followed(folders['pretrain']).is_dir()


@pytest.mark.parametrize('code', [None, errno.ENOSYS])
def test_runs_and_their_stages_move_together(tmp_path, monkeypatch, code):
  if code is not None:
    without_links(monkeypatch, code)
  run, other = tmp_path / 'study' / 'runs' / 'seed0', tmp_path / 'study' / 'runs' / 'seed1'
  for folder in (run, other):
    folder.mkdir(parents=True)
    files.write_json(folder / run_folder.CONFIG, {})
    run_folder.share_stages({'pretrain': folder / 'pretrain-1'}, tmp_path / 'study' / 'stages')
  (tmp_path / 'study').rename(tmp_path / 'moved [1]')
  moved = tmp_path / 'moved [1]' / 'stages' / 'pretrain-1'
  for name in ('seed0', 'seed1'):
    (stage,) = run_folder.stages_in(tmp_path / 'moved [1]' / 'runs' / name)
    assert stage.resolve() == moved
    assert run_folder.is_shared(stage)
  moved.rmdir()
  run = tmp_path / 'moved [1]' / 'runs' / 'seed0'
  assert run_folder.stages_in(run) == []
  assert [path.resolve() for path in run_folder.stages_in(run, gone=True)] == [moved]
