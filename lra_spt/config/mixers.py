"""Which mixers exist, and the row of each, for tasks whose table has none.

Config files ask here, so this module does not need jax: mixers of the package (`lra_spt/models/mixers/`) are
read from their source, others are known once `register_mixer` has run.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Mapping

from lra_spt.errors import ConfigError

FOLDER = pathlib.Path(__file__).parents[1] / 'models' / 'mixers'
SECTIONS = ('model', 'pretrain', 'finetune')
_registered: dict[str, dict] = {}
_bidirectional_only: set[str] = set()


def add(name: str, row: Mapping, causal: bool = True) -> None:
  """Makes the mixer `name` known with its row, {dotted key of the config: value}; see `register_mixer`.

  Raises:
    ConfigError: a name that could not be written as model=NAME, or a row that sets what rows do not.
  """
  _registered[name] = _checked(name, row)
  if not causal:
    _bidirectional_only.add(name)


def _checked(name, row):
  if not re.fullmatch(r'\w+', name):
    raise ConfigError(
      f'A mixer is called {name!r}: use letters, digits and _ only, so that model={name} can choose it.'
    )
  for key in row:
    section, dot, _ = key.partition('.')
    if section not in SECTIONS or not dot or key in ('model.name', 'model.mixer', 'model.mixer.name'):
      raise ConfigError(
        f'The row of the mixer {name!r} sets {key!r}: it may only set values below {", ".join(SECTIONS)}, '
        "such as 'model.mixer.state_size' or 'finetune.optimizer.lr', and not names."
      )
  return dict(row)


def rows() -> dict[str, dict]:
  """{name: row} of every mixer, those of the tree first."""
  return in_the_tree(FOLDER) | _registered


def registered_outside() -> list[str]:
  """Names of the mixers that are not of the tree."""
  return [name for name in _registered if name not in in_the_tree(FOLDER)]


def has_causal_form(name: str) -> bool:
  """Whether the mixer has one, as far as is known of it here."""
  return name not in _bidirectional_only | _declared(FOLDER)[1]


def check_form(name: str, causal: bool) -> None:
  """Raises a ConfigError where the causal form of a mixer is asked for that has none."""
  if causal and not has_causal_form(name):
    raise ConfigError(
      f'The mixer {name!r} has no causal form: choose regime=masked, or regime=scratch without causal=true.'
    )


def in_the_tree(folder: pathlib.Path) -> dict[str, dict]:
  """{name: row} of the classes under `folder` that are decorated with @register_mixer(name, row={...}).

  Raises:
    ValueError: where name, row or form is no literal, which only running the file could tell.
  """
  return _declared(folder)[0]


@functools.cache
def _declared(folder):
  """{name: row}, and the names of those without a causal form."""
  found, bidirectional_only = {}, set()
  for path in sorted(folder.glob('*.py')):
    for node in ast.parse(path.read_text(encoding='utf-8'), str(path)).body:
      for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func).split('.')[-1] == 'register_mixer':
          given = {keyword.arg: keyword.value for keyword in call.keywords}
          name = ast.literal_eval(call.args[0] if call.args else given['name'])
          found[name] = _checked(name, ast.literal_eval(given['row']) if 'row' in given else {})
          if 'causal' in given and not ast.literal_eval(given['causal']):
            bidirectional_only.add(name)
  return found, bidirectional_only
