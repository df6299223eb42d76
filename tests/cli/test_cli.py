"""The dispatcher, the commands that need no jax, and how errors reach the user."""

import importlib
import inspect
import os
import subprocess
import sys
import types

import pytest

import lra_spt
from lra_spt.cli import main as cli
from lra_spt.data import tasks
from lra_spt.errors import FileAccessError


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


# --- train
