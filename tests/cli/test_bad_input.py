"""Bad input gets one sentence with a remedy and a status other than 0, and overwrites nothing."""

import gc
import json
import shutil

import pytest

from lra_spt.cli import main as cli


@pytest.fixture
def refused(capsys, tiny_data, repository):
  """Runs `lra-spt train`, expects it to refuse, and returns the sentence."""

  def run(workdir, *flags, argument='regime=masked', config=None, data_dir=tiny_data):
    config = config or repository / 'tests' / 'tiny_config.py'
    status = cli.main(
      [
        'train',
        f'--config={config}:{argument}',
        f'--workdir={workdir}',
        f'--config.runtime.data_dir={data_dir}',
        *flags,
      ]
    )
    printed = capsys.readouterr()
    assert status == 2, printed.out
    assert printed.err.startswith('lra-spt: ')
    assert 'Traceback' not in printed.err
    assert len(printed.err) < 1200
    return printed.err.removeprefix('lra-spt: ').rstrip('\n')

  return run


@pytest.mark.parametrize(
  'flags, argument, words',
  [
    (['--config.finetune.lr=1'], 'regime=masked', ['no key finetune.lr', 'finetune.optimizer.lr']),
    (['--config.finetune.optimizer.lr=fast'], 'regime=masked', ['finetune.optimizer.lr', "'fast'"]),
    ([], 'regime=maskd', ['regime=maskd', 'Did you mean masked?']),
    ([], 'model=trnsformer', ['model=trnsformer', 'Did you mean transformer?']),
    (['--config.model.mixer.name=s9'], '', ['model.mixer.name selects', 'model=s9 is unknown']),
    (['--config.model.position=cosine'], '', ["'cosine'", 'sinusoidal']),
    (['--config.task=listopz'], '', ["'listopz'", 'Did you mean listops?']),
    (['--config.protocol=clear'], '', ["'clear'", 'clean', 'paper']),
    (['--config.model.mixer.heads=3'], '', ['16', 'heads=3']),
    (['--config.finetune.batch_size=12'], '', ['finetune.batch_size is 12', '8 devices', 'of 8']),
    (['--config.runtime.microbatches=4'], '', ['pretrain.batch_size is 16', '4 microbatches', 'of 32']),
    (['--config.runtime.evaluation_batch_size=4'], '', ['evaluation_batch_size is 4', 'multiple of 8']),
    (['--config.runtime.mesh.data=3'], '', ['data=3', '8 devices', 'product is 8']),
    (['--config.runtime.mesh.fsdp=0'], '', ['fsdp=0', 'at least 1']),
    (['--config.runtime.devices=5', '--config.runtime.mesh.seq=5'], '', ['mesh.seq is 5', '24 positions']),
    (
      ['--config.runtime.mesh.seq=8', '--config.model.width=20'],
      'model=s4,regime=masked',
      ['model.width 20'],
    ),
    (['--config.runtime.placement=disk'], '', ["'disk'", "'host', 'device'"]),
    (['--config.runtime.steps_per_dispatch=0'], '', ['steps_per_dispatch is 0', 'at least 1']),
    (
      ['--config.finetune.epochs=0', '--config.finetune.max_seconds=0'],
      '',
      ['finetune.epochs is 0', 'max_steps'],
    ),
    (['--config.finetune.schedule.name=cosin'], '', ["'cosin'", 'cosine']),
    (
      ['--config.finetune.schedule.name=cosine', '--config.finetune.schedule.warmup_steps=18'],
      '',
      ['total_steps above warmup_steps', '18'],
    ),
  ],
)
def test_bad_config(refused, tmp_path, flags, argument, words):
  """A refused config does not claim the workdir, so that a correct one can use it."""
  sentence = refused(tmp_path / 'run', *flags, argument=argument)
  assert all(word in sentence for word in words), sentence
  assert '\n' not in sentence
  assert not (tmp_path / 'run').exists()


def test_workdir_in_another_kind_of_bucket(refused):
  assert 'gs://BUCKET/FOLDER' in refused('s3://bucket/run')


def test_missing_config_file(refused, tmp_path):
  assert 'no config file' in refused(tmp_path / 'run', config='configs/absent.py')


def test_missing_data(refused, tmp_path):
  sentence = refused(tmp_path / 'run', data_dir=tmp_path / 'nothing')
  assert f'no prepared data set in {tmp_path}/nothing/tiny_listops' in sentence
  assert f'`lra-spt prepare npz --name tiny_listops --raw_dir RAW --data_dir {tmp_path}/nothing`' in sentence
  assert list(tmp_path.iterdir()) == []


def test_truncated_data(refused, tiny_data, tmp_path):
  shutil.copytree(tiny_data, tmp_path / 'data')
  path = max((tmp_path / 'data').rglob('*array_record*'), key=lambda path: path.stat().st_size)
  path.write_bytes(path.read_bytes()[:-100])
  sentence = refused(tmp_path / 'run', data_dir=tmp_path / 'data')
  assert path.name in sentence
  assert 'is damaged' in sentence
  assert 'remove' in sentence
  assert not (tmp_path / 'run').exists()


SHORT = """
import dataclasses
from lra_spt.config import loading as config
from lra_spt.data import tasks

tasks.register_task(
  dataclasses.replace(tasks.get_task('listops').with_inputs(length=8), name='short', dataset='tiny_listops'))


def get_config(arg=''):
  result = config.load({tiny!r}).unlock()
  result.task = 'short'
  return result.lock()
"""


def test_sequences_longer_than_the_task(refused, repository, tmp_path):
  path = tmp_path / 'short.py'
  path.write_text(SHORT.format(tiny=str(repository / 'tests' / 'tiny_config.py')))
  sentence = refused(tmp_path / 'run', config=path, argument='')
  assert 'reads at most 8' in sentence
  assert 'raise the length of the task' in sentence
  assert not (tmp_path / 'run').exists()


def test_workdir_of_another_config(refused, undisturbed, file_contents):
  """The sentence shows the difference, and nothing in the folder changes."""
  before = file_contents(undisturbed)
  sentence = refused(undisturbed, '--config.finetune.optimizer.lr=0.5', '--config.seed=3')
  assert f'{undisturbed} belongs to another config; choose another --workdir' in sentence
  assert 'finetune.optimizer.lr: 0.003 -> 0.5' in sentence
  assert 'seed: 0 -> 3' in sentence
  assert len(sentence.split('\n')) == 3
  assert file_contents(undisturbed) == before


def truncate(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # Orbax leaves readers open
@pytest.mark.parametrize('stage, kind', [('finetune', 'latest'), ('pretrain', 'best'), ('finetune', 'best')])
def test_corrupt_checkpoint(refused, undisturbed, file_contents, tmp_path, stage, kind):
  """A damaged checkpoint is refused, and the folder of the run stays unchanged."""
  workdir = tmp_path / 'run'
  shutil.copytree(undisturbed, workdir)
  (workdir / 'result.json').unlink()
  (finetune,) = workdir.glob('finetune-*')
  if stage == 'pretrain':
    shutil.rmtree(finetune)
  elif kind == 'latest':
    (finetune / 'stage.json').unlink()
  folder = max(workdir.glob(f'{stage}-*/checkpoints/{kind}/*'), key=lambda path: int(path.name))
  for path in workdir.glob(f'{stage}-*/checkpoints/{kind}/*/**/*'):
    if path.is_file():
      truncate(path)
  before = file_contents(workdir)
  sentence = refused(workdir)
  gc.collect()  # collects the readers here and not in a later test
  assert f'the checkpoint {folder} cannot be read' in sentence
  assert f'delete {folder.parent.parent.parent} to train that stage again' in sentence
  assert '\n' not in sentence
  after = file_contents(workdir)
  assert {name: after[name] for name in before} == before
  new = {name for name in after if name not in before and not name.endswith('metrics.jsonl')}
  assert new == {'failure.json'}


def test_non_finite_numbers(refused, tmp_path):
  """With too large a rate the sentence names step and parameter; the files hold earlier finite values."""
  jump = [
    '--config.finetune.schedule.name=multistep',
    '--config.finetune.schedule.milestones=1,',
    '--config.finetune.schedule.factor=1e35',
    '--config.finetune.schedule.warmup_steps=0',
  ]
  sentence = refused(tmp_path / 'run', *jump, argument='regime=scratch')
  assert 'finetune met a non-finite number at step ' in sentence
  assert ' in encoder/' in sentence or ' in head/' in sentence
  assert 'lower finetune.optimizer.lr' in sentence
  assert '\n' not in sentence
  (stage,) = (tmp_path / 'run').glob('finetune-*')
  assert sorted(path.relative_to(stage).as_posix() for path in stage.glob('checkpoints/*/*')) == [
    'checkpoints/best/6',
    'checkpoints/latest/4',
    'checkpoints/latest/6',
  ]
  assert not (tmp_path / 'run' / 'result.json').exists()
  lines = [json.loads(line) for line in (stage / 'metrics.jsonl').read_text().splitlines()]
  assert max(line['step'] for line in lines if line['split'] == 'validation') == 6
