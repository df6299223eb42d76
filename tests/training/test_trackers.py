"""Trackers get what a stage writes, and a tracker that fails does not end the run."""

import importlib.util
import json
import time

import pytest

from lra_spt.config import loading, runtime
from lra_spt.errors import ConfigError, UserError
from lra_spt.runs.build import resolve, stages_of
from lra_spt.training.monitoring import metric_writers, trackers

ABOUT = {'stage': 'finetune', 'optimizer': {'lr': 0.001}, 'mixer': {}}
LINES = [(5, {'split': 'train', 'loss': 0.5}), (6, {'split': 'validation', 'accuracy': 0.25})]


def needs(name, reason):
  return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason)


def write(directory, tracked, lines=LINES):
  writer = metric_writers.create_writer(directory, 0, False, tracked, ABOUT)
  for step, scalars in lines:
    writer.write_scalars(step, scalars)
    writer.flush()
  writer.close()


class Recording:
  """A tracker that keeps what it gets."""

  made = []

  def __init__(self, directory, about):
    self.directory, self.about, self.lines, self.closed = directory, about, [], False
    self.made.append(self)

  def write_scalars(self, step, scalars):
    self.lines.append({'step': step, **scalars})

  def flush(self):
    pass

  def close(self):
    self.closed = True


class Refusing(Recording):
  def flush(self):
    raise OSError('no route\nto host')


@pytest.fixture
def recordings(monkeypatch):
  names = {'json': Recording, 'csv': Refusing}  # trackers must be importable modules
  monkeypatch.setattr(trackers, 'TRACKERS', names)
  monkeypatch.setattr(runtime, 'TRACKERS', tuple(names))
  monkeypatch.setattr(Recording, 'made', [])
  return Recording.made


def test_a_stage_tells_trackers_what_it_writes(make_stage, recordings, tmp_path):
  stage = make_stage(tmp_path / 'finetune-01', finetune__max_steps=4, runtime__trackers='json')
  stage.run()
  (tracker,) = recordings
  lines = [json.loads(line) for line in (tmp_path / 'finetune-01' / 'metrics.jsonl').read_text().splitlines()]
  assert tracker.lines == lines
  assert {line['split'] for line in lines} == {'train', 'validation'}
  assert tracker.closed
  assert tracker.directory == tmp_path / 'finetune-01'
  assert tracker.about['stage'] == 'finetune'
  assert tracker.about['optimizer']['lr'] == 3e-3
  assert tracker.about['model']['mixer']['name'] == 'attention'
  assert json.loads(json.dumps(tracker.about)) is not None


def test_a_tracker_that_fails_gets_no_more(recordings, tmp_path, capsys):
  write(tmp_path, ('json', 'csv'))
  sentence = 'csv did not accept metrics: no route to host. It gets no more in this stage; metrics.jsonl has'
  assert capsys.readouterr().err == f'{sentence} them all.\n'
  assert [len(tracker.lines) for tracker in recordings] == [2, 1]
  assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 2


def test_a_tracker_that_cannot_begin_ends_the_stage(monkeypatch, tmp_path):
  def begin(directory, about):
    raise ValueError('no account')

  monkeypatch.setattr(trackers, 'TRACKERS', {'json': begin})
  with pytest.raises(
    UserError, match=r'json cannot be used: no account\. Set it up, or leave it out of runtime'
  ):
    write(tmp_path, ['json'])


def test_what_is_unknown_or_missing_is_said_before_the_run(tiny_config, monkeypatch):
  def built(names):
    return stages_of(resolve(loading.load(tiny_config, {'runtime.trackers': names})))['finetune']

  with pytest.raises(ConfigError, match=r"runtime\.trackers has 'tensorbord'; choose among wandb, mlflow"):
    built('wandb,tensorbord')
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  stage = built('wandb')
  with pytest.raises(ConfigError, match=r'runtime\.trackers has wandb, which is not installed: pip install'):
    stage.check(None, None)


@needs('mlflow', "needs mlflow: pip install 'lra_spt[mlflow]'")
def test_runs_that_start_together_make_one_experiment(monkeypatch, tmp_path):
  """The second run finds no experiment, and the first creates it before the second can."""
  from mlflow.tracking import MlflowClient

  monkeypatch.setenv('MLFLOW_TRACKING_URI', (tmp_path / 'store').as_uri())
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  write(tmp_path / 'run' / 'pretrain-1', ['mlflow'])
  find, asked = MlflowClient.get_experiment_by_name, []

  def find_late(client, name):
    asked.append(name)
    return None if len(asked) == 1 else find(client, name)

  monkeypatch.setattr(MlflowClient, 'get_experiment_by_name', find_late)
  write(tmp_path / 'run' / 'finetune-1', ['mlflow'])
  client = MlflowClient()
  (experiment,) = [one for one in client.search_experiments() if one.name == 'lra_spt']
  assert len(client.search_runs([experiment.experiment_id])) == 2


@needs('mlflow', "needs mlflow: pip install 'lra_spt[mlflow]'")
def test_mlflow_keeps_one_run_per_stage(monkeypatch, tmp_path):
  from mlflow.tracking import MlflowClient

  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'file:{tmp_path / "store"}')
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')  # else mlflow asks for a database
  write(tmp_path / 'run' / 'pretrain-1', ['mlflow'])
  write(tmp_path / 'run' / 'pretrain-1', ['mlflow'], [(7, {'split': 'train', 'loss': 0.25})])
  write(tmp_path / 'run' / 'finetune-1', ['mlflow'])
  client = MlflowClient()
  experiment = client.get_experiment_by_name('lra_spt').experiment_id
  runs = {run.info.run_name: run for run in client.search_runs([experiment])}
  assert sorted(runs) == ['run/finetune-1', 'run/pretrain-1']
  run = runs['run/pretrain-1']
  assert run.data.params == {'stage': 'finetune', 'optimizer.lr': '0.001'}
  losses = client.get_metric_history(run.info.run_id, 'train/loss')
  assert [(metric.step, metric.value) for metric in losses] == [(5, 0.5), (7, 0.25)]
  assert run.data.metrics['validation/accuracy'] == 0.25
  assert run.info.status == 'FINISHED'


@needs('wandb', "needs wandb: pip install 'lra_spt[wandb]'")
def test_wandb_keeps_one_run_per_stage(monkeypatch, tmp_path):
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')
  monkeypatch.setenv('WANDB_CACHE_DIR', str(tmp_path / 'cache'))
  folder = tmp_path / 'run' / 'pretrain-1'
  write(folder, ['wandb'])
  time.sleep(1.1)  # names of offline folders have seconds
  write(folder, ['wandb'], [(7, {'split': 'train', 'loss': 0.25})])
  files = sorted((folder / 'wandb').glob('offline-run-*/*.wandb'))
  assert len({path.name for path in files}) == 1
  runs, history = [], []
  for record in (record for path in files for record in records(path)):
    kind = record.WhichOneof('record_type')
    if kind == 'run':
      runs.append((record.run.display_name, record.run.run_group, record.run.project))
    elif kind == 'history':
      values = {
        item.key or '.'.join(item.nested_key): json.loads(item.value_json) for item in record.history.item
      }
      history.append({key: value for key, value in values.items() if not key.startswith('_')})
  assert set(runs) == {('run/pretrain-1', 'run', 'lra_spt')}
  assert history == [
    {'step': 5, 'train/loss': 0.5},
    {'step': 6, 'validation/accuracy': 0.25},
    {'step': 7, 'train/loss': 0.25},
  ]


def records(path):
  """Yields the records of a .wandb file: LevelDB's log format, blocks of 32 KiB, records in parts."""
  from wandb.proto import wandb_internal_pb2

  data, at, parts = path.read_bytes(), 7, b''  # after W&B's header
  while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
      at += 32768 - at % 32768
      continue
    size, kind = int.from_bytes(data[at + 4 : at + 6], 'little'), data[at + 6]
    parts += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # whole, or the last part
      yield wandb_internal_pb2.Record.FromString(parts)
      parts = b''
