"""Flags that several commands share, and the parser that turns wrong flags into one sentence.

This module needs neither jax nor numpy, so that help and wrong flags are answered at once.
"""

import argparse
import os
import re

from lra_spt.errors import ConfigError, nearest

CONFIG_HELP = 'config file, e.g. configs/image.py:model=transformer_rotary,regime=masked'
OVERRIDE = '--config.'


class Parser(argparse.ArgumentParser):
  """Reads the flags of a command; wrong flags raise a ConfigError.

  No flag may be abbreviated or left empty (`--workdir=$UNSET`), or given twice unless its action is 'append'.

  Args:
    command: its name, as in `lra-spt COMMAND`.
    overrides: accept --config.KEY=VALUE (or --config.KEY VALUE); `parse_args` then returns them as
      `overrides`, a list of 'KEY=VALUE'.
  """

  def __init__(self, command: str, description: str, *, overrides: bool = False, **options):
    super().__init__(prog=f'lra-spt {command}', description=description, allow_abbrev=False, **options)
    self.register('action', None, _Once)
    self.register('action', 'store', _Once)
    self.takes_overrides = overrides
    if overrides:
      self.epilog = '--config.KEY=VALUE changes a value of the config; `lra-spt config FILE` shows them all.'

  def parse_args(self, args):  # the dispatcher passes them, never sys.argv
    """The namespace of `args`; raises a ConfigError if they are wrong."""
    args, overrides = _split(args) if self.takes_overrides else (args, [])
    namespace, unknown = self.parse_known_args(args)
    if unknown:
      self.refuse_unknown(unknown[0])
    if self.takes_overrides:
      namespace.overrides = overrides
    return namespace

  def flags(self) -> list[argparse.Action]:
    """Flags and positional arguments, in order, without --help."""
    return [action for action in self._actions if action.dest != 'help']

  def refuse_unknown(self, word: str):
    """Raises the ConfigError for a word that is neither a flag nor an argument of this command."""
    flag = word.partition('=')[0]
    known = [name for action in self._actions for name in action.option_strings]
    if self.takes_overrides:
      known.append('--config.KEY=VALUE')
    if not word.startswith('-'):
      raise ConfigError(f'{self.prog} does not take {word!r}: leave it out, or see {self.prog} --help.')
    hint = nearest(flag, known).lstrip() or f'It takes {", ".join(sorted(known))}.'
    raise ConfigError(f'{self.prog} has no flag {flag}. {hint}')

  def error(self, message):
    """Raises a ConfigError with a sentence of ours for a message of argparse."""
    if match := re.fullmatch(r'the following arguments are required: (.*)', message):
      raise ConfigError(f'{self.prog} needs {match[1].replace(", ", " and ")}: see {self.prog} --help.')
    match = re.fullmatch(r'argument ([^ :]+): (.*)', message, re.DOTALL)
    name, text = match.groups() if match else ('', message)
    if text.startswith('expected one argument'):
      raise ConfigError(f'{name} has no value: write {name}=VALUE.')
    if choice := re.match(r"invalid choice: '(.*?)' \(", text, re.DOTALL):
      choices = next(list(a.choices) for a in self._actions if name in (*a.option_strings, a.dest, a.metavar))
      raise ConfigError(
        f'{name} is {choice[1]!r}: choose one of {", ".join(choices)}.{nearest(choice[1], choices)}'
      )
    if ignored := re.match(r'ignored explicit argument (.*)', text):
      raise ConfigError(f'{name} takes no value, but {ignored[1]} was given: write {name} alone.')
    raise ConfigError(f'{name} {text}'.strip())


class _Once(argparse.Action):
  """Stores a value; a second one and an empty one raise a ConfigError."""

  given = False

  def __call__(self, parser, namespace, values, option_string=None):
    name = option_string or self.metavar or self.dest
    if self.given:
      raise ConfigError(f'{name} is given twice: keep one of the two.')
    if isinstance(values, str) and not values.strip():
      raise ConfigError(f'{name} is empty: give it a value (a shell variable in it may be unset).')
    self.given = True
    setattr(namespace, self.dest, values)


def _split(arguments):
  """(arguments without overrides, ['KEY=VALUE', ...])."""
  rest, overrides = [], []
  words = iter(arguments)
  for word in words:
    if not word.startswith(OVERRIDE):
      rest.append(word)
      continue
    override = word.removeprefix(OVERRIDE)
    if '=' not in override:
      value = next(words, None)
      if value is None or value.startswith('--'):
        raise ConfigError(f'{word} has no value: write {word}=VALUE.')
      override = f'{override}={value}'
    overrides.append(override)
  return rest, overrides


def add_config(parser: Parser) -> None:
  """Adds --config FILE[:key=value,...]."""
  parser.add_argument('--config', required=True, metavar='FILE', help=CONFIG_HELP)


def add_register(parser: Parser) -> None:
  """Adds --register FILE, which may be given several times; see `register`."""
  parser.add_argument(
    '--register',
    metavar='FILE',
    action='append',
    type=path,
    default=[],
    help='Python file that registers your own tasks, sets, mixers or objectives; may be given several times',
  )


def add_accept_changed_code(parser: Parser) -> None:
  """Adds --accept_changed_code, for commands that compare user code with that of a run; see `register`."""
  parser.add_argument(
    '--accept_changed_code',
    action='store_true',
    help='go on with a run although your own mixer, objective or task has changed since it began',
  )


def add_joining(parser: Parser) -> None:
  """Adds the flags by which several processes join, see `joining`."""
  parser.add_argument(
    '--distributed',
    action='store_true',
    default=None,
    help='join the processes of a cluster (automatic on Cloud TPU, SLURM, Kubernetes)',
  )
  parser.add_argument('--coordinator', help='host:port of process 0, outside a recognised cluster')
  parser.add_argument(
    '--processes',
    type=whole(1),
    help='number of processes, outside a recognised cluster; 1: this one alone, in a cluster too',
  )
  parser.add_argument('--process', type=whole(0), help='rank of this process, outside a recognised cluster')


def joining(arguments) -> dict:
  """The arguments of `processes.start_processes` from the flags of `add_joining`."""
  return {name: getattr(arguments, name) for name in ('distributed', 'coordinator', 'processes', 'process')}


def add_run(parser: Parser) -> None:
  """Adds the flags of a command that rebuilds a run: --config, --register and --accept_changed_code."""
  parser.add_argument(
    '--config', metavar='FILE', help='config file of the run, needed if it registers a task or mixer'
  )
  add_register(parser)
  add_accept_changed_code(parser)


def register_run(arguments) -> None:
  """Runs the files of --register and --config."""
  register(arguments)
  if arguments.config:
    from lra_spt.config import loading

    loading.load(arguments.config)


def register(arguments) -> None:
  """Runs the files of --register, calls `_note_data_dir`, and sets --accept_changed_code for this process and
  its children."""
  if getattr(arguments, 'accept_changed_code', False):
    os.environ['LRA_SPT_ACCEPT_CHANGED_CODE'] = '1'  # see `lra_spt.runs.user_code`
  _note_data_dir(arguments)
  if not arguments.register:
    return
  from lra_spt.config import loading

  for path in arguments.register:
    if not path.strip():
      raise ConfigError('--register is empty: give the path of a .py file (a shell variable may be unset).')
    loading.register(path)


def _note_data_dir(arguments) -> None:
  """Makes prepared sets known as tasks of their names to this process and its children: the sets in
  runtime.data_dir of the config, or in --data_dir."""
  if not hasattr(arguments, 'data_dir') and not hasattr(arguments, 'overrides'):
    return
  from lra_spt.config import schema

  given = dict(pair.split('=', 1) for pair in getattr(arguments, 'overrides', ()) if '=' in pair)
  data_dir = given.get('runtime.data_dir') or getattr(arguments, 'data_dir', None)
  data_dir = data_dir or schema.DEFAULTS['runtime.data_dir']
  os.environ['LRA_SPT_DATA_DIR'] = str(data_dir)  # see `lra_spt.data.tasks`


def path(text: str) -> str:
  """The type of a flag that takes a file. It expands ~, which shells do not expand behind an equals sign."""
  return os.path.expanduser(text)


def whole(least: int | None = None):
  """The type of a flag that takes a whole number, which is at least `least` if that is given."""
  wanted = 'a whole number' if least is None else f'a whole number of at least {least}'

  def read(text):
    number = int(text) if re.fullmatch(r'\s*[+-]?\d+\s*', text) else None
    if number is None or (least is not None and number < least):
      raise argparse.ArgumentTypeError(f'takes {wanted}, not {text!r}')
    return number

  return read


def seeds(text: str) -> tuple[int, ...]:
  """The type of --seeds: '0,1,2', or '0..4' for a range that ends with 4."""
  if match := re.fullmatch(r'(\d+)\.\.(\d+)', text):
    numbers = tuple(range(int(match[1]), min(int(match[2]), int(match[1]) + 9999) + 1))
  else:
    numbers = tuple(int(part) for part in text.split(',')) if re.fullmatch(r'\d+(,\d+)*', text) else ()
  if not numbers or len(set(numbers)) < len(numbers):
    raise argparse.ArgumentTypeError(
      f'is {text!r}, but it takes different whole numbers separated by commas, such as 0,1,2, or a '
      'range such as 0..4'
    )
  return numbers


def check_output(flag: str, path) -> None:
  """Raises a ConfigError unless the folder of `path` exists and `path` itself is no folder."""
  if '://' in str(path):  # in a bucket, which has no folders
    return
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise ConfigError(f'{flag} is {path}, but there is no folder {folder}: create it first.')
  if os.path.isdir(path):
    raise ConfigError(f'{flag} is {path}, which is a folder: name a file.')
