"""The console command `lra-spt`: picks a subcommand, imports it, turns expected errors into one sentence.

Every subcommand is a function `main(argv)` of another module; `argv` holds the arguments after its name.
LRA_SPT_TRACEBACK=1 shows the whole traceback instead of the sentence.
"""

import argparse
import importlib
import os
import pathlib
import sys
import traceback

import lra_spt

# Name: (module, what it does). Modules are imported when asked for: `lra-spt --version` needs no jax.
COMMANDS = {
  'demo': ('lra_spt.studies.demo', 'the whole story on generated data: pretrain, finetune, report.html'),
  'prepare': ('data_prep.prepare', 'make a data set from official files or a generator'),
  'inspect': ('lra_spt.inspection.inspect', 'what is in a prepared set: sizes, labels, copies, examples'),
  'train': ('lra_spt.experiment', 'one run: pretraining, finetuning, test; the same command resumes it'),
  'compile': (
    'lra_spt.fit.compile',
    'the train step for a TPU slice without having one: does it fit, its cost',
  ),
  'kernels': ('lra_spt.studies.kernels', 'convolution kernels of a run, learned and initial: kernels.png'),
  'report': ('lra_spt.report.page', 'report.html of all runs under a folder'),
}


def main(argv=None):
  """Runs `lra-spt COMMAND ...`; returns the exit status (0 good, 2 bad input, 130 interrupted)."""
  arguments = _parser().parse_args(argv)
  if arguments.command not in COMMANDS:
    return _fail(f'unknown command {arguments.command!r}; the commands are {", ".join(COMMANDS)}.')
  try:
    return importlib.import_module(COMMANDS[arguments.command][0]).main(arguments.arguments) or 0
  except KeyboardInterrupt:
    return _fail('interrupted.', status=130)
  except Exception as error:
    if os.environ.get('LRA_SPT_TRACEBACK') == '1' or not _is_expected(error):
      raise
    return _fail(str(error))


def _parser():
  width = max(map(len, COMMANDS))
  parser = argparse.ArgumentParser(
    prog='lra-spt',
    description=lra_spt.__doc__,
    epilog='\n'.join(
      ['commands:', *(f'  {name:<{width}}  {text}' for name, (_, text) in COMMANDS.items())]
      + ['', 'lra-spt COMMAND --help shows the flags of a command.']
    ),
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--version', action='version', version=f'lra-spt {lra_spt.__version__}')
  parser.add_argument('command', metavar='COMMAND', help='one of the commands below')
  parser.add_argument('arguments', nargs=argparse.REMAINDER, help='flags of the command')
  return parser


def _is_expected(error):
  """Whether the message is meant for the user: a file problem, or a sentence that this project wrote itself.

  A ValueError out of a library (say, two shapes that do not fit) is a defect and keeps its traceback. JAX
  removes its own frames from a traceback and leaves a note instead, hence the look at the notes.
  """
  if isinstance(error, OSError):
    return True
  if not isinstance(error, (ValueError, FloatingPointError)) or getattr(error, '__notes__', None):
    return False
  raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
  root = pathlib.Path(lra_spt.__file__).resolve().parent.parent
  return any(raised_in.is_relative_to(root / package) for package in ('lra_spt', 'data_prep', 'configs'))


def _fail(sentence, status=2):
  print(f'lra-spt: {sentence}', file=sys.stderr)
  return status


if __name__ == '__main__':
  sys.exit(main())
