"""The dispatcher, the commands that need no jax, and how errors reach the user."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import types

import pytest

import lra_spt
from configs import rows
from lra_spt.cli import main as cli
from lra_spt.config import loading, schema
from lra_spt.data import tasks
from lra_spt.errors import FileAccessError, NonFiniteError


@pytest.fixture
def fake_command(monkeypatch):
  """install(main): replaces the module of `train` by one with this main."""

  def install(main):
    monkeypatch.setattr(importlib, 'import_module', lambda name: types.SimpleNamespace(main=main))

  return install


@pytest.fixture
def lra_spt_process(repository):
  """Runs the command line in a process of its own, from a folder."""

  def run(*arguments, cwd, script='-m lra_spt', **environment):
    return subprocess.run(
      [sys.executable, *script.split(' ', 1), *arguments]
      if script.startswith('-m')
      else [sys.executable, '-c', script, *arguments],
      cwd=cwd,
      env=os.environ | {'PYTHONPATH': str(repository)} | environment,
      capture_output=True,
      text=True,
      timeout=120,
    )

  return run


@pytest.mark.parametrize('script', ['-m lra_spt', '-m lra_spt.cli'])
def test_packages_of_a_user_are_not_taken_for_ours(lra_spt_process, tmp_path, script):
  """`python -m` searches the working directory first."""
  for name in ('configs', 'data_prep'):
    (tmp_path / name).mkdir()
    (tmp_path / name / '__init__.py').write_text(f'raise SystemExit("the user\'s {name}")')
  file = 'from data_prep import catalogue\n\ncatalogue.register_set(catalogue.npz_set("waves"))\n'
  (tmp_path / 'sets.py').write_text(file)
  done = lra_spt_process('list', '--register=sets.py', cwd=tmp_path, script=script)
  assert (done.returncode, done.stderr) == (0, '')
  assert 'waves ' in done.stdout


@pytest.mark.parametrize('command', cli.COMMANDS)
def test_commands_exist_and_explain_themselves(command, capsys):
  with pytest.raises(SystemExit) as stop:
    cli.main([command, '--help'])
  assert stop.value.code == 0
  assert capsys.readouterr().out.startswith(f'usage: lra-spt {command}')


def test_version(capsys):
  with pytest.raises(SystemExit) as stop:
    cli.main(['--version'])
  assert stop.value.code == 0
  assert capsys.readouterr().out.strip() == f'lra-spt {lra_spt.__version__}'


def test_alone_it_prints_help(capsys):
  assert cli.main([]) == 0
  printed = capsys.readouterr().out
  assert all(f'  {name} ' in printed for name in cli.COMMANDS)


def test_unknown_command_lists_the_known(capsys):
  assert cli.main(['nothing']) == 2
  message = capsys.readouterr().err
  assert all(command in message for command in ["'nothing'", *cli.COMMANDS])


def test_arguments_are_passed_on_untouched(fake_command):
  seen = []
  fake_command(seen.extend)
  assert cli.main(['train', '--config=a.py:model=s4', '--help', '--config.seed', '3']) == 0
  assert seen == ['--config=a.py:model=s4', '--help', '--config.seed', '3']


def test_status_of_the_command_is_returned(fake_command):
  fake_command(lambda argv: 7)
  assert cli.main(['train']) == 7


# --- errors


def test_a_user_error_becomes_one_sentence(fake_command, capsys):
  fake_command(lambda argv: tasks.get_task('no such task'))
  assert cli.main(['train']) == 2
  captured = capsys.readouterr()
  assert captured.err.startswith('lra-spt: ')
  assert 'no such task' in captured.err
  assert 'Traceback' not in captured.err
  assert captured.out == ''


@pytest.mark.parametrize(
  'error', [ValueError('a'), FileNotFoundError('b'), FloatingPointError('c'), KeyError('d')]
)
def test_any_other_error_keeps_its_traceback(fake_command, error):
  """The type decides, not the message or the place."""

  def defect(argv):
    raise error

  fake_command(defect)
  with pytest.raises(type(error)) as raised:
    cli.main(['train'])
  assert raised.value is error


def test_what_the_system_refuses_is_a_sentence_where_files_are_touched(fake_command, capsys, tmp_path):
  from lra_spt import errors

  def read(argv):
    with errors.touching(tmp_path / 'absent', 'read'):
      (tmp_path / 'absent').read_text()

  fake_command(read)
  assert cli.main(['train']) == 2
  assert f'{tmp_path / "absent"} could not be read: it does not exist' in capsys.readouterr().err
  with pytest.raises(FileAccessError):
    read([])


TRAIN = ['train', '--config={tiny}:regime=masked', '--workdir={tmp}/W', '--config.runtime.data_dir={data}']
ROOMS = {  # room: its module, a function there, and a command that calls the function
  'config': ('lra_spt.config.loading', '_override', ['config', 'configs/image.py', '--config.seed=1']),
  'configs': ('configs.common', 'from_row', ['config', 'configs/image.py']),
  'data': ('lra_spt.data.examples', 'open_split', TRAIN),
  'models': ('lra_spt.models.registry', 'make_mixer', TRAIN),
  'objectives': ('lra_spt.objectives.registry', 'get_objective', TRAIN),
  'training': ('lra_spt.training.optimizer', 'initial_control', TRAIN),
  'build': ('lra_spt.runs.stage', 'Built.check', TRAIN),
  'planning': ('lra_spt.runs.plan', 'identity_of', TRAIN),
  'experiment': ('lra_spt.runs.experiment', 'train_stage', TRAIN),
  'report': ('lra_spt.report.runs.run', 'read_run', ['report', '--workdir={tmp}']),
  'inspection': (
    'lra_spt.report.datasets.contents',
    'read',
    ['inspect', 'tiny_listops', '--data_dir={data}'],
  ),
  'fit': ('lra_spt.runs.aot.compile', 'compile_step', ['compile', '--config={tiny}', '--topology=cpu:1']),
  'studies': ('lra_spt.runs.kernels', 'compute', ['kernels', '--workdir={tmp}']),
  'data_prep': ('data_prep.sources.stripes', 'prepare_stripes', ['prepare', 'stripes', '--data_dir={tmp}']),
}


@pytest.mark.parametrize('room', ROOMS)
def test_a_defect_in_any_room_keeps_its_traceback(room, monkeypatch, tiny_data, repository, tmp_path):
  """The defect is planted as code of the room's file, so that only its type differs from a user's mistake."""
  module_name, function, command = ROOMS[room]
  tiny = repository / 'tests' / 'tiny_config.py'
  (tmp_path / 'config.json').write_text('{}')
  (tmp_path / 'result.json').write_text('{}')
  if room == 'inspection':
    cli.main(['list', f'--register={tiny}'])
  module = importlib.import_module(module_name)
  owner = module
  for name in function.split('.'):
    owner = inspect.unwrap(getattr(owner, name))
  planted = {}
  exec(compile('def planted(*args, **kwargs):\n  first, second = [1]', module.__file__, 'exec'), planted)
  monkeypatch.setattr(owner, '__code__', planted['planted'].__code__)
  monkeypatch.setattr(owner, '__kwdefaults__', None)
  with pytest.raises(ValueError, match='not enough values to unpack') as raised:
    cli.main([part.format(tiny=tiny, data=tiny_data, tmp=tmp_path) for part in command])
  assert type(raised.value) is ValueError
  assert raised.traceback[-1].path.samefile(module.__file__)


def test_a_planted_defect_in_a_process(lra_spt_process, tmp_path):
  script = (
    'import sys\nfrom lra_spt.cli import main as cli\nfrom lra_spt.config import loading\n'
    ''
    'def planted(*args): list(zip([1], [1, 2], strict=True))\n'
    'loading._override.__code__ = planted.__code__\nsys.exit(cli.main())'
  )
  done = lra_spt_process('config', 'configs/image.py', '--config.seed=1', cwd=tmp_path, script=script)
  assert done.returncode == 1
  assert done.stderr.startswith('Traceback')
  assert 'zip() argument 2 is longer' in done.stderr


def test_traceback_on_request(fake_command, monkeypatch):
  monkeypatch.setenv('LRA_SPT_TRACEBACK', '1')
  fake_command(lambda argv: tasks.get_task('no such task'))
  with pytest.raises(ValueError, match='no such task'):
    cli.main(['train'])


def test_interruption_has_its_own_status(fake_command):
  def interrupted(argv):
    raise KeyboardInterrupt

  fake_command(interrupted)
  assert cli.main(['train']) == 130


def test_a_reader_that_goes_away_is_no_error(repository, tmp_path):
  """The case of `lra-spt list configs | head -1`."""
  reading, writing = os.pipe()
  os.close(reading)
  done = subprocess.run(
    [sys.executable, '-m', 'lra_spt', 'list', 'configs'],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(repository)},
    stdout=writing,
    stderr=subprocess.PIPE,
    text=True,
    timeout=120,
  )
  os.close(writing)
  assert done.returncode == 141
  assert done.stderr == ''


def test_what_answers_at_once_imports_neither_jax_nor_numpy(lra_spt_process, tmp_path):
  """Help, wrong flags and config files, in one process, which has no docstrings and no assertions."""
  script = """
import contextlib, io, sys
from lra_spt.cli import main as cli
lines = [[], ['--help'], *([command, '--help'] for command in cli.COMMANDS)]
lines += [['list', 'models'], ['list', 'configs'], ['list', 'studies']]
lines += [['config', 'configs/pathx.py:model=s5', '--config.seed=3'], ['train', '--confg=a.py'], ['compile']]
for line in lines:
  with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    cli.main(line)
  if heavy := {'jax', 'numpy', 'flax', 'matplotlib', 'grain'} & set(sys.modules):
    raise SystemExit(f'{line} {heavy}')
print('looked at', len(lines))
"""
  done = lra_spt_process(cwd=tmp_path, script=script, PYTHONOPTIMIZE='2')
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('looked at')


# --- list, config


def test_list_shows_every_kind(capsys):
  assert cli.main(['list']) == 0
  printed = capsys.readouterr().out
  for kind, name in [
    ('tasks', 'image'),
    ('models', 's4d'),
    ('sets', 'cifar10'),
    ('configs', 'configs/image.py'),
  ]:
    assert f'{kind}:\n' in printed
    assert f'\n  {name} ' in printed
  assert 'Image (LRA): grayscale CIFAR-10' in printed


def test_list_of_parameters_has_names_for_patterns(capsys):
  assert cli.main(['list', '--parameters=configs/demo.py:regime=masked']) == 0
  *rows, head = capsys.readouterr().out.splitlines()
  names = [row.split()[0] for row in rows]
  assert 'blocks/mixer/query/kernel' in names
  assert 'embed/bias' in names
  assert rows[names.index('embed/bias')].split()[1:] == ['64', '64']
  assert head == 'The head has 260 more and always trains.'


def test_list_of_one_kind_knows_what_a_file_registers(capsys, tmp_path):
  (tmp_path / 'mine.py').write_text(
    'import dataclasses\nfrom lra_spt.data import tasks\n'
    "tasks.register_task(dataclasses.replace(tasks.get_task('listops'), name='listed_here'))\n"
  )
  assert cli.main(['list', 'tasks', f'--register={tmp_path}/mine.py']) == 0
  printed = capsys.readouterr().out
  assert '\n  listed_here ' in printed
  assert 'models:' not in printed
  tasks.TASKS.pop('listed_here')


def test_config_prints_every_value_with_its_origin(capsys):
  arguments = ['configs/image.py:model=s4', '--config.finetune.optimizer.lr', '0.5', '--config.seed=3']
  assert cli.main(['config', *arguments]) == 0
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert ['seed', '3', 'command', 'line'] in lines
  assert ['protocol', 'clean', 'ours'] in lines
  section = lines[lines.index(['[finetune]']) :]
  assert ['optimizer.lr', '0.5', 'command', 'line'] in section
  assert ['batch_size', '512', 'paper'] in section
  assert ['mixer.state_size', '64', 'code'] in lines
  ours = loading.load('configs/image.py:model=s4')
  assert len([line for line in lines if len(line) > 1]) == len(loading.keys(ours))


def test_every_key_says_what_it_means(capsys):
  """Every key of every config has a meaning, and every meaning a key; options of mixers are left out."""
  assert cli.main(['config', 'configs/image.py:model=s4', '--about']) == 0
  printed = capsys.readouterr().out
  assert re.search('^patience +0 +code +validations without improvement', printed, re.MULTILINE)
  files = ['image.py:model=s4', 'listops.py', 'bidmc.py', 'pythia.py:task=image', 'image.py:regime=mixture']
  files += [f'image.py:model={name}' for name in rows.other_models()]
  used = {key for file in files for key in loading.keys(loading.load(f'configs/{file}'))}
  used = {key for key in used if not key.startswith('model.mixer.') or key == 'model.mixer.name'}
  assert used - schema.meanings().keys() == set()
  assert schema.meanings().keys() - used == set()


# --- train


@pytest.fixture
def runs(monkeypatch):
  """The runs that `train` would start: (seed, workdir, pretrained, max_steps, progress) of each."""
  from lra_spt.runs import experiment

  calls = []

  def run(requests, *, stages, arm, announce):
    announce('told')
    for each in requests:
      seed, steps, progress = (
        each.spec.seed,
        each.spec.stages['finetune'].max_steps,
        each.spec.runtime.progress,
      )
      calls.append((seed, each.workdir, each.pretrained, steps, progress))
    return [{'metric': 'accuracy', 'metrics': {'test': {'accuracy': 0.5}}}] * len(requests)

  monkeypatch.setattr(experiment, 'run_together', run)
  return calls


def test_a_run_per_seed(runs, capsys):
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--seeds=3..5']) == 0
  assert [(seed, workdir) for seed, workdir, *_ in runs] == [(3, 'W/seed3'), (4, 'W/seed4'), (5, 'W/seed5')]
  assert capsys.readouterr().out == 'told\n' * 3


@pytest.mark.parametrize(
  'flags, times, names',
  [
    (['--config.runtime.members=2'], 1, ['seed0', 'seed1']),
    (['--config.seed=3', '--config.runtime.members=2'], 1, ['seed3', 'seed4']),
    (['--seeds=3..5', '--config.runtime.members=2'], 2, ['seed3', 'seed4', 'seed5']),
    (
      ['--seeds=1,2', '--config.finetune.optimizer.lr=[1e-3, 1e-2]', '--config.runtime.members=4'],
      1,
      [f'seed{seed},finetune.optimizer.lr={rate}' for seed in (1, 2) for rate in ('1e-3', '1e-2')],
    ),
    (
      ['--config.finetune.optimizer.lr=0.1,0.2', '--config.finetune.optimizer.weight_decay=0,1'],
      4,
      [f'finetune.optimizer.lr={a},finetune.optimizer.weight_decay={b}' for a in (0.1, 0.2) for b in (0, 1)],
    ),
  ],
)
def test_runs_that_train_together(runs, capsys, flags, times, names):
  """Every seed runs with every listed value, as many at a time as there are members."""
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', *flags]) == 0
  assert [workdir for _, workdir, *_ in runs] == [f'W/{name}' for name in names]
  assert capsys.readouterr().out == 'told\n' * times


def test_rates_that_diverge_end_no_others(runs, monkeypatch, capsys):
  from lra_spt.runs import experiment

  run = experiment.run_together  # the fixture's

  def diverging(requests, **options):
    if requests[0].spec.stages['finetune'].optimizer.lr > 0.1:
      raise NonFiniteError('step 3: the loss is nan')
    return run(requests, **options)

  monkeypatch.setattr(experiment, 'run_together', diverging)
  rates = '--config.finetune.optimizer.lr=0.2,0.1,0.3'
  assert cli.main(['train', '--config=configs/demo.py', '--workdir=W', rates]) == 2
  assert [workdir for _, workdir, *_ in runs] == ['W/finetune.optimizer.lr=0.1']
  printed = capsys.readouterr()
  assert 'lra-spt: W/finetune.optimizer.lr=0.2: step 3: the loss is nan' in printed.out
  assert printed.err.count('step 3: the loss is nan') == 2
  monkeypatch.setenv('LRA_SPT_TRACEBACK', '1')
  with pytest.raises(NonFiniteError, match='^step 3: the loss is nan$'):
    cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--config.finetune.optimizer.lr=0.2'])


def test_seeds_may_each_have_a_pretraining(runs, tmp_path):
  (tmp_path / 'seed1').mkdir()
  assert (
    cli.main(['train', '--config=configs/demo.py', '--workdir=W', '--seeds=0,1', f'--pretrained={tmp_path}'])
    == 0
  )
  assert [pretrained for _, _, pretrained, *_ in runs] == [str(tmp_path), str(tmp_path / 'seed1')]


def test_smoke_and_quiet(runs, capsys):
  assert cli.main(['train', '--config=configs/demo.py', '--workdir', 'W', '--smoke', '--quiet']) == 0
  assert runs == [(0, 'W', None, loading.SMOKE_STEPS['max_steps'], False)]
  assert capsys.readouterr().out == 'W: test accuracy 0.5000\n'


def test_dry_run_says_what_would_be_run_and_writes_nothing(tiny_data, repository, tmp_path, capsys):
  tiny = repository / 'tests' / 'tiny_config.py'
  arguments = [f'--config={tiny}:regime=masked', f'--workdir={tmp_path}/W', '--dry_run']
  assert cli.main(['train', *arguments, f'--config.runtime.data_dir={tiny_data}']) == 0
  printed = capsys.readouterr().out
  assert 'transformer on tiny_listops, regime masked, protocol clean, seed 0' in printed
  assert f'{tmp_path}/W (new)' in printed
  assert '96 train, 20 validation, 24 test' in printed
  assert printed.count(' parameters, at most 18 steps of 16 (3 epochs)') == 2
  assert printed.count('encoder/embed') == 1
  assert list(tmp_path.iterdir()) == []
