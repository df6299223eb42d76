"""The console command `lra-spt`: runs a command and prints a user's error as one sentence.

Every command is a module of `lra_spt.cli.commands` with `parser()` and `main(argv)`; `argv` holds the
arguments after the name of the command. Commands read their flags before they import jax. With
LRA_SPT_TRACEBACK=1 a user's error shows its traceback. An exception that came through a user's file shows it
from that file on; any other exception is a bug and shows all of it.
"""

import argparse
import importlib
import os
import sys

import lra_spt
from lra_spt.cli import completion, huge_pages, streams
from lra_spt.cli.commands import COMMANDS
from lra_spt.config import user_files
from lra_spt.errors import ConfigError, UserError, nearest, too_many_open_files

TRAINING = ('check', 'compare', 'demo', 'evaluate', 'selftest', 'study', 'train')


def command():
  """Runs `main` with the arguments of this process; commands that train get huge pages."""
  user_files.search_working_directory_last()
  if completion.requested():
    completion.complete()
  streams.prepare()
  streams.find_temporary_folder()
  if sys.argv[1:2] and sys.argv[1] in TRAINING:
    huge_pages.restart()
  return main()


def main(argv=None):
  """Runs `lra-spt COMMAND ...` and returns the exit status.

  - 0: good.
  - 1: something is damaged or wrong (doctor, evaluate, export, report, study).
  - 2: bad input, or the system refuses access to a file.
  - 75: run it again. The run was asked to end by a signal and saved, or another process was lost.
  - 130: interrupted; 141: the reader of its output is gone, as for other Unix tools.
  """
  try:
    status = _dispatch(sys.argv[1:] if argv is None else list(argv))
    sys.stdout.flush()  # a closed pipe raises here and not at exit
    return status
  except KeyboardInterrupt:
    return _fail('interrupted.', status=130)
  except BrokenPipeError:  # as in `lra-spt list | head -1`
    streams.print_no_more()
    return 141  # the status that shells report after SIGPIPE
  except Exception as error:
    if os.environ.get('LRA_SPT_TRACEBACK') == '1':
      raise
    error = too_many_open_files(error) or error
    if isinstance(error, UserError):
      return _fail(str(error), status=error.status)
    if isinstance(error, OSError) and (refused := streams.refusal()):  # as in `lra-spt list > /dev/full`
      return _fail(str(refused))
    if (trace := user_files.trace(error)) is not None:
      print(trace, end='', file=sys.stderr)
      return _fail('the error came through your own file: correct it there, from the first line above on.')
    raise


def _dispatch(argv):
  parser = _parser()
  if not argv:
    parser.print_help()
    return 0
  command, *arguments = argv
  if command in COMMANDS:
    return importlib.import_module(f'lra_spt.cli.commands.{command}').main(arguments) or 0
  if command in ('-h', '--help', '--version'):
    parser.parse_args([command])
  kind = 'flag' if command.startswith('-') else 'command'
  hint = nearest(command, COMMANDS).lstrip() or f'The commands are {", ".join(COMMANDS)}.'
  raise ConfigError(f'there is no {kind} {command!r}. {hint}')


def _parser():
  width = max(map(len, COMMANDS))
  commands = '\n'.join(f'  {name:<{width}}  {text}' for name, text in COMMANDS.items())
  parser = argparse.ArgumentParser(
    prog='lra-spt',
    usage='lra-spt COMMAND [FLAGS]',
    description='Long-sequence architectures compared fairly: Long Range Arena from scratch and after '
    'self-pretraining.',
    epilog=f'commands:\n{commands}\n\nlra-spt COMMAND --help shows the flags of a command.',
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--version', action='version', version=f'lra-spt {lra_spt.__version__}')
  return parser


def _fail(sentence, status=2):
  print(f'lra-spt: {sentence}', file=sys.stderr)
  return status
