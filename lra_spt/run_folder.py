"""The folder of a run: what lies where, and the schema of result.json with its one writer and one reader.

config.json                      what the run is: identity of the config, fingerprints of the data
pretrain-HASH/, finetune-HASH/   a stage each, named by the hash of what determines it:
  metrics.jsonl, checkpoints/    curves; `latest` (to resume) and `best` (of the best validation)
  stage.json                     written when the stage is done
result.json, predictions.npz     written when the run is done
failure.json                     why the last attempt ended, where that can be put right
kernels.json, kernels.png        by `lra-spt kernels`
"""

import datetime
import json
import pathlib

import numpy as np

from lra_spt import config as config_lib
from lra_spt import files
from lra_spt.errors import ConfigError, DamagedFile, touching
from lra_spt.regimes import get_regime

CONFIG, STAGE, RESULT, PREDICTIONS = 'config.json', 'stage.json', 'result.json', 'predictions.npz'
FAILURE, METRICS = 'failure.json', 'metrics.jsonl'
STAGES = ('pretrain', 'finetune')

# What result.json holds: {key: (type, whether it must be there)}.
SCHEMA = {
  'task': (str, True),
  'model': (str, True),
  'regime': (str, True),
  'causal': (bool, True),  # the form of the mixer
  'protocol': (str, True),
  'seed': (int, True),
  'arm': (str, False),  # how reports call the run, where regime and form do not say enough
  'metric': (str, False),  # that scores the test set: a key of metrics.test
  'metrics': (dict, True),  # {'validation': {name: value}, 'test': {name: value, 'examples': count}}
  'parameters': (int, False),
  'stages': (dict, True),  # {stage: steps, examples, epochs, seconds, flops_per_step, best_step, ...}
  'splits': (str, False),  # kind of the splits, see `lra_spt.data.splits`
  'groups': (dict, False),  # {'name': 'patients', 'members': 'windows'} where test examples belong together
  'cautions': (list, False),  # sentences to stand beside the numbers
  'published': (dict, False),  # {'task', 'model'}: key of the published numbers
  'pretrained': (dict, False),  # the run whose pretraining was finetuned
  'hardware': (dict, False),
  'versions': (dict, False),
  'commit': (str, False),
  'date': (str, False),
  'config': (dict, False),
  'runtime': (dict, False),
  'origins': (dict, False),
  'fingerprints': (dict, False),  # of data and splits
  'data': (dict, False),  # source, and whether it was verified
}


def is_bucket(path) -> bool:
  """Whether a path names something else than a folder of this machine."""
  return '://' in str(path)


def local_folder(path, flag: str) -> pathlib.Path:
  """An absolute path from what stands behind a flag.

  Raises:
    ConfigError: it is empty, or a bucket.
  """
  if not str(path).strip():
    raise ConfigError(f'{flag} is empty (an unset variable?); name a folder')
  if is_bucket(path):
    raise ConfigError(
      f'{flag} is {path}, but runs are kept in folders only; mount the bucket, or give a folder that all '
      'processes share'
    )
  path = pathlib.Path(path).expanduser().absolute()  # Orbax takes no relative path
  with touching(path, 'used'):
    path.exists()  # a name that is too long
  return path


def stage_folders(workdir: pathlib.Path, identity: dict) -> dict[str, pathlib.Path]:
  """A folder per stage, named by the hash of what determines it; identity: see `read_config`."""
  shared = {key: identity[key] for key in ('task', 'model', 'protocol', 'seed', 'regime', 'causal')}
  shared['data'] = [identity['fingerprints']['data'], identity['fingerprints']['splits']]
  pretrain = config_lib.digest(shared | {'pretrain': identity['pretrain']})
  pretrains = get_regime(identity['regime']).objective is not None
  before = identity.get('pretrained') or (pretrain if pretrains else None)
  finetune = config_lib.digest(shared | {'finetune': identity['finetune'], 'after': before})
  return {'pretrain': workdir / f'pretrain-{pretrain}', 'finetune': workdir / f'finetune-{finetune}'}


def claim(workdir: pathlib.Path, identity: dict) -> None:
  """Notes what a run is in a new workdir.

  Raises:
    ConfigError: the workdir belongs to another run; shows the difference.
  """
  if not (workdir / CONFIG).exists():
    files.write_json(workdir / CONFIG, identity)
  before, identity = read_config(workdir), json.loads(json.dumps(identity))
  if config_lib.digest(before) != config_lib.digest(identity):
    raise ConfigError(
      f'{workdir} belongs to another config; choose another --workdir, or undo the change:\n'
      f'{config_lib.difference(before, identity)}'
    )


def read_config(workdir: pathlib.Path) -> dict:
  """What the run in a folder is: `config.identity`, `fingerprints` of its data, and `pretrained`, the hash of
  another run's pretraining that it goes on from.

  Raises:
    DamagedFile: config.json is none.
  """
  advice = 'repeat the run or move its folder away'
  return files.read_json(workdir / CONFIG, 'the config of a run', advice)


def read_stage(folder: pathlib.Path) -> dict | None:
  """What a finished stage notes of itself, None for one that is not finished.

  Raises:
    DamagedFile: stage.json is damaged.
  """
  if not (folder / STAGE).exists():
    return None
  return files.read_json(folder / STAGE, 'the note of a finished stage', 'delete it to evaluate it again')


def write_result(workdir: pathlib.Path, result: dict, predictions: dict[str, np.ndarray]) -> None:
  """Writes predictions.npz, then result.json, which makes the run a finished one; failure.json goes."""
  if problem := schema_problem(result):
    raise ValueError(f'a result of another form would be written: {problem}')
  with files.replacing(workdir / PREDICTIONS, 'wb') as file:
    np.savez(file, **predictions)
  with touching(workdir / FAILURE, 'removed'):
    (workdir / FAILURE).unlink(missing_ok=True)
  files.write_json(workdir / RESULT, result)  # last: a run that has one is not touched again


def read_result(workdir: pathlib.Path) -> dict:
  """result.json of a finished run.

  Raises:
    DamagedFile: it is none.
  """
  path, advice = workdir / RESULT, 'repeat the run or move its folder away'
  result = files.read_json(path, 'the result of a run', advice)
  if problem := schema_problem(result):
    raise DamagedFile(f'{path} is not the result of a run ({problem}); {advice}.')
  return result


def schema_problem(result: dict) -> str | None:
  """What is wrong with the form of a result, or None."""
  for key, (kind, needed) in SCHEMA.items():
    value = result.get(key)
    if value is None and not needed:
      continue
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
      return f'{key} is {value!r}'[:160]
  if not all(isinstance(stage, dict) for stage in result['stages'].values()):
    return 'a stage is no mapping'
  if not isinstance(result['metrics'].get('test'), dict):
    return 'it has no test metrics'
  return None


def write_failure(workdir: pathlib.Path, error: Exception) -> None:
  """Notes why a run ended before its result."""
  note = {'error': str(error), 'kind': type(error).__name__, 'date': datetime.date.today().isoformat()}
  files.write_json(workdir / FAILURE, note)
