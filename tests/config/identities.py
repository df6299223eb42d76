"""Writes identities.json: a digest per config file and model, of what a run is, with origins, in every form.

  python -m tests.config.identities

A change of the file shows in a review which models of which files got other values.
"""

import hashlib
import json
import pathlib
import re

from configs import rows
from lra_spt.config import loading, schema, user_files
from lra_spt.errors import ConfigError

FILE = pathlib.Path(__file__).with_suffix('.json')
FURTHER = (
  *(f'configs/bidmc.py:target={target}' for target in ('rr', 'spo2')),
  *(f'configs/pathx.py:resolution={size}' for size in (64, 256)),
  *(f'configs/pythia.py:task={task}' for task in ('text', 'retrieval', 'image', 'pathfinder')),
  'configs/text.py:length=2048',
)
FORMS = ('regime=masked', 'regime=scratch', 'regime=causal', 'regime=scratch,causal=true')


def _spec(file: str, *choices: str) -> str:
  return file + (',' if ':' in file else ':') + ','.join(filter(None, choices))


def models_of(file: str) -> list[str]:
  """The models that a config file offers; [''] if it has only one."""
  try:
    loading.load(_spec(file, 'model=no_such'))
  except ConfigError as error:
    offered = re.search(r'choose one of (.*?)\.(?: |$)', str(error))
    return offered[1].split(', ') if offered else ['']
  return ['']


def digest_of(file: str, model: str) -> str:
  """Eight hex digits of all configs of a model; a form that the model does not have counts as such."""
  digests = []
  for form in FORMS:
    try:
      config = loading.plain(loading.load(_spec(file, model and f'model={model}', form)))
    except ConfigError:
      digests.append('none')
    else:
      del config['runtime'], config['origins']['runtime']
      for section, _, last in (key.partition('.') for key in schema.LATER):  # no part of identities
        del config[section][last], config['origins'][section][last]
      digests.append(loading.digest(config))
  return hashlib.sha256(' '.join(digests).encode()).hexdigest()[:8]


def identities() -> dict[str, dict[str, str]]:
  """{config file: {model: digest}}; of further arguments, the models of the paper's tables alone."""
  files = [file for file in user_files.installed() if not file.startswith('configs/studies/')]
  models = {file: models_of(file) for file in files}
  models |= {file: [model for model in models_of(file) if model in ('', *rows.MODELS)] for file in FURTHER}
  return {file: {model: digest_of(file, model) for model in names} for file, names in models.items()}


if __name__ == '__main__':
  FILE.write_text(json.dumps(identities(), indent=1) + '\n')
