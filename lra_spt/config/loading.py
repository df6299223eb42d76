"""Configurations that record where every value comes from.

A config file defines `get_config(arg='') -> ConfigDict` and builds it with `from_sources`, which records the
origin of every value ('paper', 'code' or 'ours') in a parallel tree `config.origins`. `load` finds such a
file, passes it its argument and applies overrides. `identity`, `difference` and `digest` compare configs.
"""

import dataclasses
import difflib
import hashlib
import inspect
import itertools
import json
import os
import pathlib
import re
import types
from collections.abc import Mapping

from ml_collections import ConfigDict

from lra_spt.config import mixers, schema, user_files
from lra_spt.config import values as config_values
from lra_spt.config.fields import check_field
from lra_spt.config.regimes import get_regime
from lra_spt.errors import IMPORT_FIRST, ConfigError, MissingFile, nearest, touching

COMMAND_LINE = 'command line'
# {key of the config: key of the file's argument}. The argument chooses these, because the config file picks
# the hyperparameters that go with them.
_BY_ARGUMENT = {'regime': 'regime', 'causal': 'causal', 'model.name': 'model', 'model.mixer.name': 'model'}
_HYBRID = re.compile(r'model\.mixers(?:\.(\d+)\.name)?')  # keys that the argument `model` chooses too
_LISTED = re.compile(r'(pretrain|finetune)\.optimizer\.(lr|weight_decay)')
_CONTENT = 'sha256:'  # prefix of model.weights in config.json
_registered: set[pathlib.Path] = set()


def from_sources(paper=None, code=None, ours=None) -> ConfigDict:
  """Merges three dicts into one locked ConfigDict with an `origins` tree of 'paper', 'code' or 'ours'.

  Keys may be nested or dotted: {'model': {'width': 64}} is {'model.width': 64}. Lists become tuples, and a
  list of sections, such as that of model.mixers, a section with the keys 0, 1 and so on.

  Raises:
    ConfigError: a key has two origins, or is a section in one place and a value in another.
  """
  values, origins = {}, {}
  for origin, source in (('paper', paper), ('code', code), ('ours', ours)):
    _merge(values, origins, source or {}, origin, '')
  if 'origins' in values:
    raise ConfigError(
      'The key origins is reserved, because from_sources fills it itself: choose another name.'
    )
  config = ConfigDict(values)
  config.origins = ConfigDict(origins)
  return config.lock()


def _merge(values, origins, source, origin, where):
  for key, value in source.items():
    if isinstance(key, str):
      key, dot, rest = key.partition('.')
      value = {rest: value} if dot else value
    config_values.check_key(key, f'The source {origin}', where)
    value = config_values.numbered(value)
    section = isinstance(value, config_values.SECTION)
    if key in values and not (section and isinstance(values[key], dict)):
      first = 'a section' if isinstance(values[key], dict) else origins[key]
      raise ConfigError(f'{where}{key} is given twice, as {first} and as {origin}: keep one of the two.')
    if section:
      _merge(values.setdefault(key, {}), origins.setdefault(key, {}), value, origin, f'{where}{key}.')
    else:
      values[key] = tuple(value) if isinstance(value, list) else value
      origins[key] = origin


def arguments(arg: str, **options) -> types.SimpleNamespace:
  """Reads a config file's argument 'key=value,key=value' against the options it offers.

  An option is a tuple of the allowed values, the default first, or else a default that fixes the type.
  Returns a namespace with one attribute per option.
  """
  chosen = {name: option[0] if isinstance(option, tuple) else option for name, option in options.items()}
  given = set()
  for item in filter(None, (part.strip() for part in arg.split(','))):
    key, equals, text = (part.strip() for part in item.partition('='))
    if key not in options or not equals:
      raise ConfigError(
        f'The config argument {item!r} is unknown: write key=value with one of the keys '
        f'{config_values.listed(options)}.{nearest(key, options)}'
      )
    if key in given:
      raise ConfigError(f'The config argument {key} is given twice; leave one out.')
    given.add(key)
    chosen[key] = config_values.parse(text, chosen[key], f'The config argument {key}')
    if isinstance(options[key], tuple) and chosen[key] not in options[key]:
      close = nearest(text, options[key])
      close += IMPORT_FIRST if key in ('model', 'regime', 'task') else ''
      known = '`lra-spt list models`' if key == 'model' else config_values.listed(options[key])
      raise ConfigError(f'The config argument {key}={text} is unknown: choose one of {known}.{close}')
  return types.SimpleNamespace(**chosen)


def load(spec: str, overrides: Mapping | list[str] | None = None) -> ConfigDict:
  """The config of `path/to/file.py` or `path/to/file.py:key=value,key=value`, with overrides applied.

  Args:
    spec: the file, looked up from the working directory, then in the installed `configs`; what follows the
      colon is handed to its `get_config`. While the file runs, it can import modules that lie beside it.
    overrides: {'finetune.optimizer.lr': 1e-3} or ['finetune.optimizer.lr=1e-3']; a text is read as the type
      of the value it replaces, whose origin becomes 'command line'.

  Raises:
    ConfigError: no such file, key or value, or the file returns no whole config (see `check_whole`).
  """
  if not isinstance(spec, str | os.PathLike):
    raise ConfigError(f'The config file is {spec!r:.80}: give its path as a text.')
  name = _file_in(spec := os.fspath(spec))
  arg = spec[len(name) + 1 :]
  path = user_files.find(name)
  module = user_files.run(path, '_config_file_')
  if not callable(getattr(module, 'get_config', None)):
    raise ConfigError(f'The config file {path} has no function get_config: define one that returns it.')
  takes_argument = bool(inspect.signature(module.get_config).parameters)
  if arg and not takes_argument:
    raise ConfigError(f'The config file {path} takes no argument: leave out :{arg}.')

  def make(arg):
    with user_files.importing_from(path.resolve().parent):
      return module.get_config(arg) if arg else module.get_config()

  config = config_values.as_config(make(arg), f'The config of {path}', kinds=ConfigDict)
  check_whole(config, f'The config of {path}')
  for key, value in _pairs(overrides or {}):
    if takes_argument and (key in _BY_ARGUMENT or _HYBRID.fullmatch(key)):
      raise ConfigError(_by_argument(make, name, arg, key, value))
    _override(config, key, value)
  check_whole(config, f'The config of {path}')
  return config.lock()


def _file_in(spec: str) -> str:
  """The file of FILE.py:ARGUMENT. If several beginnings could be it, one that exists."""
  names = [spec[: match.end() - 1] for match in re.finditer(r'\.py:', spec)] + [spec]
  return next((name for name in names if os.path.isfile(os.path.expanduser(name))), names[0])


def lists(overrides: list[str]) -> tuple[dict[str, list[str]], list[str]]:
  """Separates overrides that list several values, as 'finetune.optimizer.lr=1e-3,2e-3' does, from the others.

  Learning rates and weight decays may be listed, one run for each value.

  Returns:
    ({key: values}, the other overrides).

  Raises:
    ConfigError: a list has a number twice.
  """
  listed, others = {}, []
  for item in overrides:
    key, _, text = item.partition('=')
    values = [value.strip() for value in text.strip().strip('[]()').split(',') if value.strip()]
    if _LISTED.fullmatch(key.strip()) and len(values) > 1:
      for first, second in itertools.combinations(values, 2):
        if _number(first) == _number(second):
          again = 'twice' if first == second else f'and {second}, which are the same number'
          raise ConfigError(f'{key.strip()} lists {first} {again}: keep one of the two.')
      listed[key.strip()] = values
    else:
      others.append(item)
  return listed, others


def _number(text):
  """A text as a number; the text itself if it is none, which the config refuses later."""
  try:
    return float(text)
  except ValueError:
    return text


def register(path) -> None:
  """Runs a Python file that registers a user's tasks, sets, mixers or objectives.

  A file runs once, even if several calls name it. It can import modules beside it.

  Raises:
    ConfigError: there is no such file, or Python cannot run it.
  """
  path = pathlib.Path(path)
  if path.suffix != '.py' or not path.is_file():
    raise ConfigError(f'There is no Python file {path} to register from: give the path of a .py file.')
  if path.resolve() not in _registered:
    user_files.run(path, '_registered_')
    _registered.add(path.resolve())


def check_whole(config, what: str = 'The config') -> None:
  """Checks that a config has the keys that every config needs. Values within sections are checked later, when
  a run is resolved.

  Raises:
    ConfigError: a key is missing or has a value of another type, or `config`
      asks for the causal form of a mixer that has none. If a field has a wrong value, it is a FieldError.
  """
  needed = {field.name: field for field in dataclasses.fields(schema.ConfigSpec)}
  if 'regime' in config and get_regime(config.regime).objective is None:
    del needed['pretrain']
  for key, field in needed.items():
    if key not in config:
      raise ConfigError(
        f'{what} lacks the key {key}: every config has {config_values.listed(needed)}.{nearest(key, config)}'
      )
    if not dataclasses.is_dataclass(field.type):
      check_field(field, config_values.convert(field.type, config[key], key))
    elif not isinstance(config[key], ConfigDict):
      raise ConfigError(f'{what} has {config[key]!r} as {key}, but {key} is a section: give its keys.')
  causal = get_regime(config.regime).causal or config.causal
  one, several = config.model.get('mixer'), config.model.get('mixers')
  for mixer in (one, *(several.values() if isinstance(several, ConfigDict) else ())):
    if isinstance(mixer, ConfigDict):
      mixers.check_form(mixer.get('name', ''), causal)


def _by_argument(make, name, arg, key, value):
  """The sentence for an override of a value that the file's argument chooses; it says what to write."""
  given = dict(item.partition('=')[::2] for item in arg.split(',') if item)
  if (hybrid := _HYBRID.fullmatch(key)) is None:
    given[_BY_ARGUMENT[key]] = str(value).strip()
  else:
    names, place = given.get('model', '').split('-'), hybrid[1]
    changed = slice(None) if place is None else slice(int(place), int(place) + 1)
    names[changed] = re.findall(r'\w+', str(value))
    given['model'] = '-'.join(names)
  argument = ','.join(f'{k}={v}' for k, v in given.items())
  why = f'{key} selects the hyperparameters that go with it'
  try:
    make(argument)
  except ConfigError as error:
    return f'{why}, so it cannot be set alone, and {name}:{argument} cannot be used: {error}'
  return f'{why}, so it belongs to the argument of the config file: write --config={name}:{argument}'


def _pairs(overrides):
  if isinstance(overrides, config_values.SECTION):
    return [(str(key), value) for key, value in overrides.items()]
  overrides = [overrides] if isinstance(overrides, str) else overrides
  if not isinstance(overrides, list | tuple) or not all(isinstance(item, str) for item in overrides):
    raise ConfigError(
      f"The overrides are {overrides!r:.80}: give a dict such as {{'seed': 3}}, or texts KEY=VALUE."
    )
  for item in overrides:
    if '=' not in item:
      raise ConfigError(f'The override {item!r} has no value: write {item}=VALUE.')
  pairs = [(key.strip(), text.strip()) for key, _, text in (item.partition('=') for item in overrides)]
  keys = [key for key, _ in pairs]
  if twice := [key for key in keys if keys.count(key) > 1]:
    raise ConfigError(f'{twice[0]} is set twice: keep one of the two.')
  return pairs


def _override(config, key, value):
  *sections, last = key.split('.')
  values, origins = config, config.get('origins')
  for section in sections:
    values = values.get(section) if isinstance(values, ConfigDict) else None
    origins = origins.get(section) if isinstance(origins, ConfigDict) else None
  known = isinstance(values, ConfigDict) and (last in values or key in schema.DEFAULTS)
  if key.split('.')[0] == 'origins' or not known:
    raise ConfigError(_unknown(config, key))
  existing = schema.EVERYTHING if key in schema.PATTERNS else values.get(last, schema.DEFAULTS.get(key))
  if isinstance(existing, ConfigDict):
    inner = config_values.listed(f'{key}.{name}' for name in values[last])
    raise ConfigError(f'{key} is a section, not a value: set one of {inner}.')
  parsed = config_values.parse(value, existing, key)
  with values.ignore_type(), values.unlocked():  # the type is checked already, and None may be replaced
    values[last] = parsed
  if isinstance(origins, ConfigDict):
    with origins.unlocked():
      origins[last] = COMMAND_LINE


def keys(config) -> list[str]:
  """The dotted keys of all values, such as 'finetune.optimizer.lr'."""
  return [leaf for leaf in flattened(config) if not leaf.startswith('origins.')]


def _unknown(config, key):
  leaves = keys(config)
  # A correct name in the wrong section (finetune.lr) is a common mistake, and its text is not close.
  close = [leaf for leaf in leaves if leaf.split('.')[-1] == key.split('.')[-1]]
  close = [leaf for leaf in close if leaf.split('.')[0] == key.split('.')[0]] or close
  close = close or difflib.get_close_matches(key, leaves, n=3, cutoff=0.5)
  top = dict.fromkeys(leaf.split('.')[0] for leaf in leaves)
  hint = (
    f'the nearest ones are {config_values.listed(close)}' if close else f'it has {config_values.listed(top)}'
  )
  return f'The config has no key {key}: {hint}.'


def identity(config) -> dict:
  """The part of a config that determines a run: all but `runtime` and `origins`, as plain dicts and lists.

  The weights that the run starts from are named by the SHA-256 of their file, so that the file may move.
  The keys `schema.LATER` are absent where they have their defaults.

  Raises:
    MissingFile: the file of weights does not exist.
  """
  values = {key: value for key, value in plain(config).items() if key not in ('runtime', 'origins')}
  path = values['model'].pop('weights', '')
  if path:
    values['model']['weights'] = path if path.startswith(_CONTENT) else _content(path)
  for key in schema.LATER:
    section, _, last = key.partition('.')
    if last in values[section] and tuple(values[section][last]) == schema.DEFAULTS[key]:
      del values[section][last]
  return values


def _content(path) -> str:
  path = pathlib.Path(os.path.expanduser(path))
  if not path.is_file():
    raise MissingFile(f'model.weights is {path}, but there is no such file; name a safetensors file.')
  with touching(path, 'read'), path.open('rb') as file:
    return _CONTENT + hashlib.file_digest(file, 'sha256').hexdigest()


SMOKE_STEPS = {'max_steps': 2, 'evaluate_every': 1}  # of each stage of a smoke run


def shorten(config) -> None:
  """Changes a config into one of a smoke run: a few steps of each stage, to see that everything works."""
  for name in ('pretrain', 'finetune'):
    if name in config:
      with config.unlocked():
        config[name].update(SMOKE_STEPS)
        config[name].schedule.warmup_steps = min(1, config[name].schedule.get('warmup_steps', 0))
        if 'origins' in config:
          config.origins[name].update(dict.fromkeys(SMOKE_STEPS, COMMAND_LINE))


def is_short(config: Mapping) -> bool:
  """True for the config of a smoke run, or of a smoke run's result; a compute-tied one has the steps of both
  stages."""
  finetune, short = config.get('finetune') or {}, SMOKE_STEPS['max_steps']
  steps = finetune.get('max_steps') in (short, 2 * short)
  return steps and finetune.get('evaluate_every') == SMOKE_STEPS['evaluate_every']


def difference(a, b) -> str:
  """One line per value that differs, 'finetune.optimizer.lr: 0.001 -> 0.0005'; '' if none does."""
  a, b = flattened(plain(a)), flattened(plain(b))
  lines = []
  for key in dict.fromkeys([*a, *b]):
    if key not in a or key not in b or a[key] != b[key]:
      before, after = (repr(values[key]) if key in values else '(absent)' for values in (a, b))
      lines.append(f'{key}: {before} -> {after}')
  return '\n'.join(lines)


def digest(mapping) -> str:
  """Eight hex digits of the SHA-256 of the canonical JSON; equal for a mapping and its JSON round trip."""
  text = json.dumps(plain(mapping, True), sort_keys=True, separators=(',', ':'), allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def plain(value, one_number: bool = False):
  """A config as dicts and lists, as JSON has them. one_number: 1.0 becomes 1, because they are equal."""
  if isinstance(value, config_values.SECTION):
    return {str(key): plain(item, one_number) for key, item in value.items()}
  if isinstance(value, tuple | list):
    return [plain(item, one_number) for item in value]
  if one_number and isinstance(value, float) and value.is_integer():
    return int(value)
  return value


def flattened(values, where='') -> dict:
  """{dotted key: value} of nested sections; an empty one is a value."""
  flat = {}
  for key, value in values.items():
    section = isinstance(value, config_values.SECTION) and len(value)
    flat.update(flattened(value, f'{where}{key}.') if section else {f'{where}{key}': value})
  return flat
