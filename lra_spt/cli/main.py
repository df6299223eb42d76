"""The console command `lra-spt`: picks a command, and turns errors meant for the user into one sentence.

Every command is a module of `lra_spt.cli.commands` with `parser()` and `main(argv)`; `argv` holds the
arguments after the command's name. Commands import what computes only after reading their flags. With
LRA_SPT_TRACEBACK=1 users' errors show their traceback too; any other exception is a bug and keeps its own.
"""

import argparse
import importlib
import os
import sys

import lra_spt
from lra_spt.cli import completion, huge_pages, streams
from lra_spt.cli.commands import COMMANDS
from lra_spt.errors import ConfigError, FileAccessError, UserError, nearest

TRAINING = ('check', 'demo', 'evaluate', 'selftest', 'study', 'train')  # commands that compute on the CPU


def command():
  """The program `lra-spt`: `main` with this process's arguments, its arrays in huge pages where it trains."""
  if completion.requested():
    completion.complete()
  streams.prepare()
  if sys.argv[1:2] and sys.argv[1] in TRAINING:
    huge_pages.restart()
  return main()


def main(argv=None):
  """Runs `lra-spt COMMAND ...`; returns the exit status.

  0 good, 1 something is damaged or wrong (doctor, evaluate, export, report, study), 2 bad input or a disk
  that refuses, 75 run it again: saved when asked to end (SIGTERM, SIGINT), or another process of the run is
  lost, 130 interrupted, 141 when nobody reads what it prints: it ends then like other Unix tools, and a run
  goes on from its last checkpoint.
  """
  try:
    status = _dispatch(sys.argv[1:] if argv is None else list(argv))
    sys.stdout.flush()  # here, where it can be caught that nobody reads any more
    return status
  except KeyboardInterrupt:
    return _fail('interrupted.', status=130)
  except BrokenPipeError:  # as in `lra-spt list | head -1`
    streams.print_no_more()
    return 141  # what shells report of a program that SIGPIPE ended
  except UserError as error:
    if os.environ.get('LRA_SPT_TRACEBACK') == '1':
      raise
    return _fail(str(error), status=error.status)
  except OSError:
    try:  # as in `lra-spt list > /dev/full`
      streams.check()
    except FileAccessError as refused:
      streams.print_no_more()
      return _fail(str(refused))
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
  raise ConfigError(
    f'there is no {kind} {command!r}; the commands are {", ".join(COMMANDS)}.{nearest(command, COMMANDS)}'
  )


def _parser():
  width = max(map(len, COMMANDS))
  parser = argparse.ArgumentParser(
    prog='lra-spt',
    usage='lra-spt COMMAND [FLAGS]',
    description=lra_spt.__doc__.partition('\n')[0],
    epilog='\n'.join(
      ['commands:', *(f'  {name:<{width}}  {text}' for name, text in COMMANDS.items())]
      + ['', 'lra-spt COMMAND --help shows the flags of a command.']
    ),
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--version', action='version', version=f'lra-spt {lra_spt.__version__}')
  return parser


def _fail(sentence, status=2):
  print(f'lra-spt: {sentence}', file=sys.stderr)
  return status
