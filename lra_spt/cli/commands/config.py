"""`lra-spt config`: shows every value of a config and its origin."""

import re

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
  values, origins = loading.flattened(config), loading.flattened(config.get('origins', {}))
  meanings = schema.meanings() if about else {}
  sections: dict[str, list[tuple]] = {'': []}
  for key in loading.keys(config):
    section, name = key.split('.', 1) if '.' in key else ('', key)
    meaning = meanings.get(re.sub(r'^model\.mixers\.\d+\.', 'model.mixer.', key), '')
    row = (name, _text(values[key]), origins.get(key, ''), meaning)
    sections.setdefault(section, []).append(row)
  first, second = (max(len(row[column]) for rows in sections.values() for row in rows) for column in (0, 1))
  lines = []
  for section, rows in sections.items():
    lines += ['', f'[{section}]'] if section else []
    for name, value, origin, meaning in rows:
      lines.append(f'{name:<{first}}  {value:<{second}}  {origin:<{ORIGIN}}  {meaning}'.rstrip())
  return '\n'.join(lines)


def _text(value):
  """The value in the form that --config.KEY=VALUE takes."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple):
    return ','.join(map(_text, value)) + ',' * (len(value) == 1) or '()'
  return (value or "''") if isinstance(value, str) else str(value)
