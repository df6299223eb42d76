"""`lra-spt list`: lists the names that commands and configs take."""

import ast

from lra_spt.cli import flags
from lra_spt.config import user_files


def parser() -> flags.Parser:
  parser = flags.Parser(
    'list', 'Lists the names that commands and configs take: all of them, or those of one KIND.'
  )
  parser.add_argument('kind', nargs='?', choices=tuple(KINDS), metavar='KIND', help=', '.join(KINDS))
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  for number, kind in enumerate([arguments.kind] if arguments.kind else KINDS):
    rows = KINDS[kind]()
    width = max([len(name) for name, _ in rows], default=0)
    print('\n' * bool(number) + f'{kind}:')
    for name, text in rows:
      print(f'  {name:<{width}}  {text}'.rstrip())
    if not rows:
      print('  none here')
  return 0


def tasks() -> list[tuple[str, str]]:
  """(name, description) of every task."""
  from lra_spt.data.tasks import TASKS

  return [(name, f'{task.description} Set: {task.dataset}.') for name, task in TASKS.items()]


def models() -> list[tuple[str, str]]:
  """(name, description) of every value of the config argument `model`."""
  from configs import authors, rows, ssm
  from lra_spt.config import mixers

  def other(name):
    whose = "; its authors' values where they published some" if name in authors.ROWS else ''
    form = '' if mixers.has_causal_form(name) else ', bidirectional only'
    return f"the task's Transformer with this mixer instead of attention{form}{whose}"

  return [
    *((name, 'Transformer of the paper') for name in rows.TRANSFORMERS),
    *(
      (name, 'state-space model, not in the paper' if name in ssm.NOT_IN_THE_PAPER else 'state-space model')
      for name in rows.STATE_SPACE_MODELS
    ),
    *((name, 'control: sees no order') for name in rows.CONTROLS),
    *((name, other(name)) for name in rows.other_models()),
  ]


def sets() -> list[tuple[str, str]]:
  """(name, origin) of every set that `lra-spt prepare` makes."""
  from data_prep import catalogue

  def how(entry):
    files = 'from official files' if entry.archives else 'from your own files'
    return ', '.join([files] * bool(entry.importer) + ['generated'] * bool(entry.generator))

  npz = (catalogue.NPZ, 'from your own .npz files, under the name given with --name')
  return [*((name, how(entry)) for name, entry in catalogue.SETS.items()), npz]


def configs() -> list[tuple[str, str]]:
  """(name, first line) of every installed config file."""
  return [(name, _first_line(name)) for name in user_files.installed()]


def studies() -> list[tuple[str, str]]:
  """(name, first line) of every installed study file."""
  return [(name, _first_line(name)) for name in user_files.installed('studies', 'get_study')]


def _first_line(name):
  text = user_files.find(name).read_text(encoding='utf-8')
  return (ast.get_docstring(ast.parse(text)) or '').partition('\n')[0]


KINDS = {'tasks': tasks, 'models': models, 'sets': sets, 'configs': configs, 'studies': studies}
