"""Recorded predictions become runs that are checked against the prepared set and marked in reports."""

import importlib.util
import io
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from data_prep.sources import stripes
from lra_spt import files, load_run
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.errors import ConfigError, MissingFile
from lra_spt.report.pages import report
from lra_spt.report.runs import run as runs
from lra_spt.report.runs import run_folder
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.record import claim
from lra_spt.report.study.text import text
from lra_spt.studies import records, runner, study
from tests import tiny_study

NO_R2 = 'R2 is not defined over values that do not vary'
WITHOUT_JAX = """
import sys

class Refuse:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in ('jax', 'jaxlib', 'flax', 'optax', 'orbax'):
      raise ImportError(f'{name} is not here')

sys.meta_path.insert(0, Refuse())
"""


def npy(array):
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


@pytest.fixture(scope='module')
def held_out(tiny_config, tiny_data):
  """The test split of the tiny task."""
  loading.load(tiny_config)  # registers its task
  return examples_lib.open_split('tiny_listops', 'test', tiny_data)


@pytest.fixture
def record(held_out, tiny_data, tmp_path, capsys):
  """record(*flags, **changed arrays) -> (status, output, folder)."""

  def run(*flags, out='W', task='tiny_listops', data_dir=tiny_data, **changes):
    path = tmp_path / 'p.npz'
    if changes.get('raw') is not None:
      path.write_bytes(changes['raw'])
    elif changes.get('raw', b'') is not None:
      batch = held_out.gather(range(len(held_out)))
      arrays = {'index': batch['index'], 'label': batch['label'], 'prediction': (batch['label'] + 1) % 10}
      arrays['prediction'][:18] = batch['label'][:18]
      arrays |= changes
      np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    command = ['record', f'--task={task}', '--model=mine', '--regime=masked', f'--predictions={path}']
    status = cli.main([*command, f'--out={tmp_path / out}', f'--data_dir={data_dir}', *flags])
    captured = capsys.readouterr()
    return status, captured.out + captured.err, tmp_path / out

  return run


def test_a_recorded_run(record, held_out):
  flags = (
    '--seed=3',
    '--name=PyTorch, masked',
    '--parameters=1234',
    '--seconds=5.5',
    '--source=github.com/x',
  )
  order = np.random.default_rng(0).permutation(24)
  batch = held_out.gather(order)
  status, message, folder = record(
    *flags,
    index=batch['index'].astype(np.int64),
    label=batch['label'],
    prediction=np.where(order < 18, batch['label'], 9 - batch['label']),
  )
  assert status == 0, message
  assert 'test accuracy 75.0 %' in message
  result = run_folder.read_result(folder)
  wanted = held_out.gather(range(24))
  stored = np.load(folder / 'predictions.npz')
  for name in ('index', 'label'):
    np.testing.assert_array_equal(stored[name], wanted[name], strict=True)
  assert result['metrics']['test']['accuracy'] == np.mean(stored['prediction'] == wanted['label'])
  assert result['metrics']['test']['examples'] == 24
  assert result['fingerprints'] == {'data': held_out.fingerprint, 'splits': held_out.split_fingerprint}
  assert result['recorded'] == {'source': 'github.com/x', 'seconds': 5.5}
  assert (result['seed'], result['arm'], result['parameters']) == (3, 'PyTorch, masked', 1234)
  run = runs.read_run(folder)
  assert (run.total('seconds'), run.total('flops'), run.pretrained) == (5.5, None, True)
  with pytest.raises(MissingFile, match='recorded from elsewhere, without a model'):
    load_run(folder)


def test_of_a_regression_in_groups(record, held_out, tiny_data, monkeypatch):
  label = np.linspace(60, 100, 24, dtype=np.float32)
  beats = tasks.Task(
    'beats_elsewhere',
    'beats',
    tasks.Tokens(24, vocabulary=19),
    tasks.Real(80.0, 10.0, (40.0, 120.0)),
    splits='grouped',
    groups=tasks.Groups('patient', 'windows'),
  )

  class Stored:
    def read(self, indices):
      return [{'inputs': np.zeros(3, np.uint8), 'label': label[index]} for index in indices]

  metadata = held_out.metadata | {'groups': {'test': [4] * 6}}
  examples = examples_lib.Examples(beats, 'test', 'test', Stored(), np.arange(24), metadata, 's')
  monkeypatch.setattr(examples_lib, 'open_split', lambda *_: examples)
  tasks.register_task(beats)
  prediction = label.astype(np.float64) + np.tile([1, -1], 12)
  arrays = {'index': np.arange(24), 'label': label.astype(np.float64)}
  status, message, folder = record(task='beats_elsewhere', **arrays, prediction=prediction)
  assert status == 0, message
  result = run_folder.read_result(folder)
  assert result['metrics']['test'] == pytest.approx(
    {'r2': 1 - 24 / np.sum((label - 80.0) ** 2), 'mae': 1.0, 'rmse': 1.0, 'examples': 24}
  )
  assert result['groups'] == {'name': 'patients', 'members': 'windows'}
  assert np.load(folder / 'predictions.npz')['group'].tolist() == [k // 4 for k in range(24)]
  assert runs.read_run(folder).units.shape == (6,)
  prediction[5] = np.nan
  status, message, _ = record(out='V', task='beats_elsewhere', **arrays, prediction=prediction)
  assert status == 2
  assert 'predicts nan for the example with index 5, but beats_elsewhere asks for a finite number' in message
  label[:] = 97.3
  status, message, folder = record(
    out='U', task='beats_elsewhere', **arrays | {'label': label}, prediction=np.zeros(24)
  )
  assert (status, f'no test R\u00b2: {NO_R2} over 24 examples' in message) == (0, True)
  metrics = run_folder.read_result(folder)['metrics']
  assert (metrics['test']['r2'], metrics['undefined']) == (None, {'test': {'r2': NO_R2}})


WRONG = {
  'lacks': ({'index': np.r_[0:23, 99]}, ['lacks 1 of the 24 test examples (such as 23)', 'names 1 that']),
  'short': ({'prediction': np.zeros(23, int)}, ['three lists of numbers of the same length']),
  'none': (
    {'index': np.zeros(0, int), 'label': np.zeros(0, int), 'prediction': np.zeros(0, int)},
    ['lacks 24 of the 24 test examples'],
  ),
  'twice': ({'index': np.r_[0:23, 5]}, ['index 5 twice']),
  'labels': ({'label': np.full(24, 11)}, ['another label than the prepared set for 24 of 24']),
  'class': ({'prediction': np.full(24, 10)}, ['predicts 10 for the example', 'a class from 0 to 9']),
  'negative': ({'prediction': np.full(24, -1)}, ['predicts -1 for']),
  'shares': ({'prediction': np.full(24, 0.5)}, ['prediction as float64', 'whole numbers']),
  'index': ({'index': np.arange(24.0)}, ['index as float64']),
  'scores': ({'prediction': np.zeros((24, 10))}, ['prediction float64 [24, 10]']),
  'words': ({'prediction': np.array(['a'] * 24)}, ['prediction <U1 [24]']),
  'absent': ({'label': None}, ['has no array label']),
  'objects': ({'label': np.array([{}] * 24)}, ['cannot be read as an .npz file']),
  'no npz': ({'raw': b'no'}, ['cannot be read as an .npz file']),
  'empty': ({'raw': b''}, ['cannot be read as an .npz file']),
  'single': ({'raw': npy(np.arange(24))}, ['p.npz is a single array', 'numpy.savez(FILE, index=']),
  'no file': ({'raw': None}, ['does not exist']),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_does_not_fit_is_refused(record, name):
  changes, sentences = WRONG[name]
  status, message, folder = record(**changes)
  assert status == 2
  assert message.startswith('lra-spt: ')
  assert message.count('\n') == 1
  for sentence in sentences:
    assert sentence in message
  assert not folder.exists()


def test_a_folder_is_no_file_of_predictions(record, tmp_path):
  (tmp_path / 'p.npz').mkdir()
  status, message, _ = record(raw=None)
  assert status == 2
  assert message == f'lra-spt: --predictions is {tmp_path / "p.npz"}, which is a folder; give a .npz file.\n'


@pytest.mark.parametrize(
  ('flags', 'sentences'),
  [
    (['--protocol=papre'], ["'papre'", 'Did you mean paper?']),
    (['--seconds=nan'], ['--seconds', "'nan'"]),
    (['--seconds=-1'], ['--seconds', "'-1'"]),
    (['--parameters=0'], ['--parameters', 'at least 1']),
    (['--parameters=99999999999999999999'], ['--parameters', 'below 2**53']),
    (['--name=two\nlines'], ['--name', 'one line']),
    (['--source='], ['--source is empty']),
  ],
)
def test_wrong_flags(record, flags, sentences):
  status, message, folder = record(*flags)
  assert status == 2
  assert all(sentence in message for sentence in sentences)
  assert not folder.exists()


def test_a_folder_with_a_run_is_refused(record, tmp_path):
  assert record()[0] == 0
  before = (tmp_path / 'W' / 'result.json').read_bytes()
  status, message, folder = record()
  assert (status, message.count('\n')) == (2, 1)
  assert f'--out is {folder}, which already holds a run (result.json)' in message
  assert (folder / 'result.json').read_bytes() == before
  for name in ('config.json', 'predictions.npz'):
    (tmp_path / name).mkdir()
    files.write_json(tmp_path / name / name, {})
    status, message, _ = record(out=name)
    assert status == 2
    assert f'already holds a run ({name})' in message


def test_files_in_the_home_of_the_user(record, tmp_path, tiny_data, repository, monkeypatch, capsys):
  """`--predictions=~/p.npz` works although the shell does not replace ~ there."""
  assert record()[0] == 0
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'mine.py').write_text('from configs.image import get_config')
  about = ['record', '--task=tiny_listops', '--model=mine', '--regime=masked', f'--data_dir={tiny_data}']
  assert cli.main([*about, '--predictions=~/p.npz', '--register=~/mine.py', '--out=~/again']) == 0
  assert (tmp_path / 'again' / 'result.json').exists()
  assert cli.main(['export', '--workdir=~/again', '--format=csv', '--output=~/table.csv']) == 0
  assert (tmp_path / 'table.csv').exists()
  assert cli.main(['train', '--config=~/mine.py:model=no', '--workdir=W', '--dry_run']) == 2
  assert 'model=no is unknown' in capsys.readouterr().err


def test_predictions_may_lie_in_the_folder_of_the_run(record, tmp_path):
  (tmp_path / 'W').mkdir()
  (tmp_path / 'p.npz').symlink_to(tmp_path / 'W' / 'predictions.npz')
  status, message, folder = record()
  assert status == 0, message
  assert (folder / 'result.json').exists()


def test_reports_mark_it(record, tmp_path):
  workdir = tmp_path / 'all'
  record('--source=<b>theirs</b>', out='all/theirs')
  shutil.copytree(workdir / 'theirs', workdir / 'ours')
  result = run_folder.read_result(workdir / 'ours')
  del result['recorded']
  files.write_json(workdir / 'ours' / 'result.json', result | {'model': 'transformer'})
  printed = text(read_any(workdir))
  assert '75.0 % \u2020' in printed
  assert '\u2020 Recorded from predictions made elsewhere (<b>theirs</b>)' in ' '.join(printed.split())
  html = report.write(read_any(workdir), tmp_path / 'r.html').read_text()
  assert '75.0\u00a0% \u2020' in html
  assert 'made elsewhere (&lt;b&gt;theirs&lt;/b&gt;)' in html
  # A recorded run with the model and regime of ours is still another arm.
  result = run_folder.read_result(workdir / 'theirs') | {'model': 'transformer', 'seed': 1}
  files.write_json(workdir / 'theirs' / 'result.json', result)
  assert read_any(workdir).rows == [
    'Transformer, masked self-pretraining',
    'Transformer, masked self-pretraining, recorded',
  ]


def test_a_cell_of_a_study_is_finished_by_it(record, held_out, tmp_path):
  one = tiny_study.get_study('good')
  jobs = study.jobs(one)
  claim(tmp_path, records.record(one, jobs))
  (job,) = (job for job in jobs if job.cell.row == 'masked')
  assert runner.state(tmp_path, job) == runner.WAITING
  status, message, _ = record(out=job.folder)
  assert status == 0, message
  assert runner.state(tmp_path, job) == runner.FINISHED
  table = read_any(tmp_path)
  assert table.cells['masked', 'Trees'].text == '75.0 % \u2020'
  assert table.cells['masked', 'Trees'].state == ''
  assert 'Recorded from predictions made elsewhere' in text(table)
  html = report.write(table).read_text()
  assert '75.0\u00a0% \u2020' in html
  assert 'Recorded from predictions made elsewhere' in html
  before = sorted(path.name for path in (tmp_path / job.folder).iterdir())
  with pytest.raises(ConfigError, match='holds a result that was not trained here'):
    run_folder.claim(tmp_path / job.folder, {})
  assert sorted(path.name for path in (tmp_path / job.folder).iterdir()) == before


def test_beside_the_cells_of_a_study_it_is_a_row(record, tmp_path):
  one = tiny_study.get_study('good')
  jobs = study.jobs(one)
  claim(tmp_path, records.record(one, jobs))
  record(out=jobs[0].folder)
  before = read_any(tmp_path)
  record(out='torch')
  table = read_any(tmp_path)
  assert table.rows == [*before.rows, 'mine, masked self-pretraining']
  assert table.columns == before.columns == ['Trees']
  assert table.cells['mine, masked self-pretraining', 'Trees'].text == '75.0 % \u2020'
  assert 'mine, masked self-pretraining' in report.write(table).read_text()


def in_a_process(code, *arguments, repository, cwd):
  return subprocess.run(
    [sys.executable, '-c', WITHOUT_JAX + code, *map(str, arguments)],
    cwd=cwd,
    env=os.environ | {'PYTHONPATH': str(repository)},
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )


def test_sets_are_read_and_runs_recorded_where_jax_is_not(held_out, tiny_data, tmp_path, repository):
  """Reading a prepared set, recording and reporting in a process where importing jax fails."""
  code = """
import numpy as np
from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.config import loading as config
import lra_spt.data
from lra_spt.data import examples, pipeline, splits, tasks, tokenizers
from lra_spt.data import prepared as storage
data = sys.argv[1]
task = tasks.Task('tiny_listops', 'tiny_listops', tasks.Tokens(24, vocabulary=19), tasks.Classes(10))
tasks.register_task(task)
test = examples.open_split(task, 'test', data)
batch = test.gather(np.arange(len(test)))
print(batch['inputs'].shape, batch['inputs'].dtype)
np.savez('p.npz', index=batch['index'], label=batch['label'], prediction=batch['label'])
flags = ['--model=mine', '--regime=scratch', '--predictions=p.npz', '--out=W/mine', f'--data_dir={data}']
assert cli.main(['record', '--task=tiny_listops', *flags]) == 0
assert cli.main(['report', '--workdir=W']) == 0
print('jax' in sys.modules)
"""
  done = in_a_process(code, tiny_data, repository=repository, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == '(24, 24) uint8'
  assert lines[-1] == 'False'
  assert '100.0 % \u2020' in done.stdout


@pytest.mark.skipif(importlib.util.find_spec('torch') is None, reason='PyTorch is not installed')
def test_a_pytorch_model_joins(tmp_path, repository):
  """The example runs where importing jax fails, and the command that it prints records its predictions."""
  stripes.prepare_stripes(tmp_path / 'data', examples=64)
  code = """
import runpy
runpy.run_path(sys.argv[1] + '/examples/torch_dataloader.py', run_name='example')['main']('data', 'p.npz')
assert 'jax' not in sys.modules
"""
  done = in_a_process(code, repository, repository=repository, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  words = shlex.split(done.stdout.splitlines()[-1])
  assert words[:2] == ['lra-spt', 'record']
  arguments = [word.replace('=runs/', f'={tmp_path}/runs/') for word in words[1:]]
  arguments = [
    word.replace('=data', f'={tmp_path}/data').replace('=p.npz', f'={tmp_path}/p.npz') for word in arguments
  ]
  assert cli.main(arguments) == 0
  run = runs.read_run(tmp_path / 'runs' / 'convolution')
  assert (run.examples, run.recorded['source']) == (2000, 'examples/torch_dataloader.py')
