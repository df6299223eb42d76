"""`lra-spt config`: shows every value of a config and its origin."""

from ml_collections import ConfigDict

from lra_spt.cli import flags
from lra_spt.config import loading, schema

ORIGIN = len('command line')


def parser() -> flags.Parser:
  parser = flags.Parser(
    'config',
    "Shows every value of a config with its origin: 'paper' (its tables or text), 'code' (published with the "
    "paper), 'ours', or 'command line'.",
    overrides=True,
  )
  parser.add_argument('file', metavar='FILE', help=flags.CONFIG_HELP)
  parser.add_argument('--about', action='store_true', help='also say what each key means')
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  print(table(loading.load(arguments.file, arguments.overrides), arguments.about))
  return 0


def table(config, about: bool = False) -> str:
  """The values of a config as lines of key, value and origin, by section; keys without a section come first.

  about: add the meaning of each key.
  """
  origins = config.get('origins', {})
  sections = {
    key: value for key, value in config.items() if isinstance(value, ConfigDict) and key != 'origins'
  }
  rows = {
    '': [(key, config[key], origins.get(key, '')) for key in config if key not in (*sections, 'origins')]
  }
  for name, section in sections.items():
    rows[name] = list(_rows(section, origins.get(name, {}), ''))
  cells = [(key, _text(value)) for part in rows.values() for key, value, _ in part]
  keys, values = (max(len(cell[column]) for cell in cells) for column in (0, 1))
  meanings = schema.meanings() if about else {}
  lines = []
  for name, part in rows.items():
    lines += ['', f'[{name}]'] if name else []
    for key, value, origin in part:
      meaning = meanings.get(f'{name}.{key}' if name else key, '')
      lines.append(f'{key:<{keys}}  {_text(value):<{values}}  {origin:<{ORIGIN}}  {meaning}'.rstrip())
  return '\n'.join(lines)


def _rows(section, origins, where):
  for key, value in section.items():
    origin = origins.get(key, '') if isinstance(origins, ConfigDict | dict) else ''
    if isinstance(value, ConfigDict) and len(value):
      yield from _rows(value, origin, f'{where}{key}.')
    else:
      yield f'{where}{key}', value, origin if isinstance(origin, str) else ''


def _text(value):
  """The value in the form that --config.KEY=VALUE takes."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple):
    return ','.join(map(_text, value)) + ',' * (len(value) == 1) or '()'
  return (value or "''") if isinstance(value, str) else str(value)
