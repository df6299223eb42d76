"""Shell completion with argcomplete, in bash and zsh.

  eval "$(register-python-argcomplete lra-spt)"     # in ~/.bashrc or ~/.zshrc

At every TAB the shell starts `lra-spt` with the line in environment variables; jax is not imported.
"""

import argparse
import importlib
import os

from lra_spt.cli import flags
from lra_spt.cli.commands import COMMANDS


def requested() -> bool:
  """True if a shell started this process to complete a line."""
  return '_ARGCOMPLETE' in os.environ


def complete() -> None:
  """Writes the words that can follow to the shell and ends the process."""
  import argcomplete

  parser = argparse.ArgumentParser('lra-spt')
  commands = parser.add_subparsers(parser_class=_parser)
  for name, meaning in COMMANDS.items():
    commands.add_parser(name, help=meaning)
  argcomplete.autocomplete(parser)


def _parser(prog):
  command = prog.split()[-1]
  parser = importlib.import_module(f'lra_spt.cli.commands.{command}').parser()
  for action in parser.flags():
    if action.dest == 'config' or (command, action.dest) == ('config', 'file'):
      action.completer = _configs
    elif action.dest == 'file':
      action.completer = _studies
    elif action.dest == 'dataset':
      action.completer = _names('sets', 'tasks') if command == 'inspect' else _names('sets')
  if parser.takes_overrides and flags.OVERRIDE in os.environ['COMP_LINE']:
    from lra_spt.config import loading

    for key in loading.keys(loading.load('configs/image.py')):
      parser.add_argument(flags.OVERRIDE + key)
  return parser


def _configs(prefix, **_):
  from lra_spt.config import protocol, user_files

  with user_files.importing_from(user_files.INSTALLED):
    from configs import common

  file, colon, options = prefix.partition('.py:')
  if not colon:
    return [*user_files.installed(), *_python_files(prefix)]
  before, comma, last = options.rpartition(',')
  values = {
    'model': (*common.MODELS, *common.CONTROLS),
    'regime': common.REGIMES,
    'causal': ('true', 'false'),
    'protocol': protocol.PROTOCOLS,
    'seed': (),
  }
  key, equals, _ = last.partition('=')
  ends = [f'{key}={value}' for value in values.get(key, ())] if equals else [f'{name}=' for name in values]
  return [f'{file}.py:{before}{comma}{end}' for end in ends]


def _studies(prefix, **_):
  from lra_spt.config import user_files

  return [*user_files.installed('studies', 'get_study'), *_python_files(prefix)]


def _python_files(prefix):
  import argcomplete

  return argcomplete.FilesCompleter('py')(prefix)


def _names(*kinds):
  def completer(**_):
    from lra_spt.cli.commands import list as names

    return sorted({name for kind in kinds for name, _ in names.KINDS[kind]()})

  return completer
