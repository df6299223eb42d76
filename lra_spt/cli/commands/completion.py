"""`lra-spt completion bash|zsh`: lets a shell complete commands, flags, files, keys and names.

  eval "$(lra-spt completion bash)"     # in ~/.bashrc; zsh likewise, after compinit

At every TAB the shell asks `lra-spt completion words LINE`, which takes about half a second.
"""

import importlib
import pathlib

from lra_spt.cli import flags
from lra_spt.cli.commands import COMMANDS
from lra_spt.config import user_files

# Of the word that is completed bash replaces only what follows the last = or :.
_BASH = r"""_lra_spt() {
  local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
  COMPREPLY=($(lra-spt completion words "$line" 2> /dev/null))
  local word="${line##* }"
  COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}")
  [[ ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace
  return 0
}
complete -F _lra_spt lra-spt"""
_ZSH = r"""_lra_spt() {
  local -a found=("${(@f)$(lra-spt completion words "${(j: :)words[1,CURRENT-1]} $PREFIX" 2> /dev/null)}")
  [[ $found[1] == *[=/] ]] && compadd -S '' -a found || compadd -a found
}
compdef _lra_spt lra-spt"""
SHELLS = {'bash': _BASH, 'zsh': _ZSH}

_PATHS = ('workdir', 'data_dir', 'raw_dir', 'output', 'out', 'json', 'register', 'pretrained', 'stages')
_PATHS += ('predictions',)


def parser() -> flags.Parser:
  parser = flags.Parser(
    'completion', 'Prints the code for shell completion: eval "$(lra-spt completion bash)"'
  )
  parser.add_argument('shell', choices=(*SHELLS, 'words'), metavar='SHELL', help='bash or zsh')
  parser.add_argument(
    'line', nargs='?', help='with `words`: the line so far; prints what its last word can become'
  )
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  if arguments.shell == 'words':
    print('\n'.join(words(arguments.line or '')))
  else:
    print(SHELLS[arguments.shell])
  return 0


def words(line: str) -> list[str]:
  """What the last word of a line `lra-spt ...` can become."""
  *given, word = line.split(' ')[1:] or ['']
  given = [one for one in given if one]
  if not given:
    found = [*COMMANDS, '--help', '--version']
  elif given[0] in COMMANDS:
    found = _of_command(given[0], given[1:], word)
  else:
    found = []
  return [one for one in found if one.startswith(word)]


def _of_command(command, given, word):
  known = importlib.import_module(f'lra_spt.cli.commands.{command}').parser()
  by_flag = {name: action for action in known.flags() for name in action.option_strings}
  before = by_flag.get(given[-1]) if given else None
  if before is not None and before.nargs is None:
    return _values(command, before, word)
  flag, equals, value = word.partition('=')
  if known.takes_overrides and word.startswith(flags.OVERRIDE):
    return [] if equals else [f'{flags.OVERRIDE}{key}=' for key in _keys(given)]
  if equals and flag in by_flag:
    return [f'{flag}={one}' for one in _values(command, by_flag[flag], value)]
  if word.startswith('-'):
    valued = [f'{name}=' if action.nargs is None else name for name, action in by_flag.items()]
    return [*valued, '--help', *[flags.OVERRIDE] * known.takes_overrides]
  positional = [action for action in known.flags() if not action.option_strings]
  return _values(command, positional[0], word) if positional else []


def _values(command, action, value):
  if action.choices:
    return list(action.choices)
  if action.dest in ('config', 'file'):
    return _config_values(value)
  if action.dest == 'dataset':
    names = importlib.import_module('lra_spt.cli.commands.list')
    rows = [*names.sets(), *(names.tasks() if command == 'inspect' else ())]
    return list(dict.fromkeys(name for name, _ in rows))
  return _files(value) if action.dest in _PATHS else []


def _config_values(value):
  file, colon, argument = value.partition('.py:')
  if not colon:
    ending = ('.py', '/')
    return list(dict.fromkeys([*user_files.installed(), *(f for f in _files(value) if f.endswith(ending))]))
  from configs import common
  from lra_spt.config import protocol

  before, comma, last = argument.rpartition(',')
  options = {
    'model': (*common.MODELS, *common.CONTROLS),
    'regime': common.REGIMES,
    'causal': ('true', 'false'),
    'protocol': tuple(protocol.PROTOCOLS),
    'seed': (),
  }
  key, equals, _ = last.partition('=')
  ends = [f'{key}={one}' for one in options.get(key, ())] if equals else [f'{name}=' for name in options]
  return [f'{file}.py:{before}{comma}{end}' for end in ends]


def _keys(given):
  """The keys of the config that the line names, else of one of ours."""
  from lra_spt.config import loading

  named = [
    one.removeprefix('--config=') for one in given if '.py' in one and not one.startswith(flags.OVERRIDE)
  ]
  for spec in (*named, 'configs/image.py'):
    try:
      return loading.keys(loading.load(spec))
    except Exception:  # whatever is wrong with a file, a TAB is not the place to say so
      pass


def _files(value):
  folder, slash, _ = value.rpartition('/')
  place = pathlib.Path(folder + slash or '.')
  if not place.is_dir():
    return []
  return sorted(f'{folder}{slash}{path.name}{"/" * path.is_dir()}' for path in place.iterdir())
