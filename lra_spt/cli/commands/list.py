"""`lra-spt list`: lists the names that commands and configs take."""

import ast

from lra_spt.cli import flags
from lra_spt.config import user_files


def parser() -> flags.Parser:
  parser = flags.Parser(
    'list', 'Lists the names that commands and configs take: all of them, or those of one KIND.'
  )
  parser.add_argument('kind', nargs='?', choices=tuple(KINDS), metavar='KIND', help=', '.join(KINDS))
  parser.add_argument(
    '--parameters',
    metavar='CONFIG',
    help='lists the parameters of the encoder of a config instead, as patterns of finetune.transfer and '
    'finetune.freeze see them',
  )
  flags.add_register(parser)
  return parser


def main(argv: list[str]) -> int:
  arguments = parser().parse_args(argv)
  flags.register(arguments)
  if arguments.parameters:
    print('\n'.join(parameter_lines(arguments.parameters)))
    return 0
  for number, kind in enumerate([arguments.kind] if arguments.kind else KINDS):
    rows = KINDS[kind]()
    width = max([len(name) for name, _ in rows], default=0)
    print('\n' * bool(number) + f'{kind}:')
    for name, text in rows:
      print(f'  {name:<{width}}  {text}'.rstrip())
    if not rows:
      print('  none here')
  return 0


def parameter_lines(config: str) -> list[str]:
  """Describes each parameter of the encoder: name, shape and size, in columns.

  Raises:
    ConfigError: the config cannot be used.
  """
  import jax

  from lra_spt.config import loading
  from lra_spt.runs.build import build, resolve
  from lra_spt.training import state

  model = build(resolve(loading.load(config)), 'finetune').model
  encoder = model.params['encoder']
  rows = [
    (name, ' x '.join(map(str, leaf.shape)), f'{leaf.size:,}')
    for name, leaf in zip(state.leaf_names(encoder), jax.tree.leaves(encoder), strict=True)
  ]
  wide, shape, size = (max(len(row[column]) for row in rows) for column in range(3))
  head = model.parameter_count - sum(leaf.size for leaf in jax.tree.leaves(encoder))
  lines = [f'{a:<{wide}}  {b:<{shape}}  {c:>{size}}' for a, b, c in rows]
  return [*lines, f'The head has {head:,} more and always trains.']


def tasks() -> list[tuple[str, str]]:
  """(name, description) of every task."""
  from lra_spt.data.generated import FAMILIES
  from lra_spt.data.tasks import TASKS

  return [
    *((name, f'{task.description} Set: {task.dataset}.') for name, task in TASKS.items()),
    *((f'{name}_N', f'{family.description} N: {family.number}.') for name, family in FAMILIES.items()),
  ]


def models() -> list[tuple[str, str]]:
  """(name, description) of every value of the config argument `model`."""
  from lra_spt.config import mixers

  with user_files.importing_from(user_files.INSTALLED):
    from configs import authors, rows, ssm

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
    ('NAME-NAME', "hybrid of mixers, such as s4-s4-attention: the task's Transformer with them in turn"),
  ]


def sets() -> list[tuple[str, str]]:
  """(name, origin) of every set that `lra-spt prepare` makes."""
  user_files.claim_data_prep()
  from data_prep import catalogue

  def how(entry):
    files = 'from official files' if entry.archives else 'from your own files'
    return ', '.join([files] * bool(entry.importer) + ['generated'] * bool(entry.generator))

  from lra_spt.data.generated import FAMILIES

  families = [
    (f'{name}_N', f'generated, for a number N of {family.number}') for name, family in FAMILIES.items()
  ]
  npz = (catalogue.NPZ, 'from your own .npz files, under the name given with --name')
  return [*((name, how(entry)) for name, entry in catalogue.SETS.items()), *families, npz]


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
