"""The dispatcher: what it lists, what it passes on, and how errors reach the user."""

import importlib
import types

import pytest

import lra_spt
from lra_spt import cli
from lra_spt.data import tasks


@pytest.fixture
def fake_command(monkeypatch):
  """Replaces the module of `train` by one whose main does what the test says."""

  def install(main):
    monkeypatch.setattr(importlib, 'import_module', lambda name: types.SimpleNamespace(main=main))

  return install


@pytest.mark.parametrize('command', cli.COMMANDS)
def test_commands_exist(command):
  assert callable(importlib.import_module(cli.COMMANDS[command][0]).main)


def test_version(capsys):
  with pytest.raises(SystemExit) as stop:
    cli.main(['--version'])
  assert stop.value.code == 0
  assert capsys.readouterr().out.strip() == f'lra-spt {lra_spt.__version__}'


def test_unknown_command_lists_the_known(capsys):
  assert cli.main(['trian']) == 2
  message = capsys.readouterr().err
  assert message.count('\n') == 1
  assert all(command in message for command in ["'trian'", *cli.COMMANDS])


def test_arguments_are_passed_on_untouched(fake_command):
  seen = []
  fake_command(seen.extend)
  assert cli.main(['train', '--config=a.py:model=s4', '--help', '--config.seed', '3']) == 0
  assert seen == ['--config=a.py:model=s4', '--help', '--config.seed', '3']


def test_status_of_the_command_is_returned(fake_command):
  fake_command(lambda argv: 7)
  assert cli.main(['train']) == 7


def test_own_error_becomes_one_sentence(fake_command, capsys):
  fake_command(lambda argv: tasks.get_task('no such task'))
  assert cli.main(['train']) == 2
  captured = capsys.readouterr()
  assert captured.err.startswith('lra-spt: ')
  assert 'no such task' in captured.err
  assert 'Traceback' not in captured.err
  assert captured.out == ''


def test_missing_file_becomes_one_sentence(fake_command, capsys, tmp_path):
  fake_command(lambda argv: (tmp_path / 'absent').read_text())
  assert cli.main(['train']) == 2
  assert str(tmp_path / 'absent') in capsys.readouterr().err


def test_defect_keeps_its_traceback(fake_command):
  """A ValueError raised elsewhere (here: in this test) is no sentence for users."""
  fake_command(lambda argv: int('many'))
  with pytest.raises(ValueError, match='many'):
    cli.main(['train'])


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
