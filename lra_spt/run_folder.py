"""The folder of a run: what lies where, and the schema of result.json with its one writer and one reader.

config.json                      what the run is: identity of the config, fingerprints of the data
pretrain-HASH/, finetune-HASH/   a stage each, named by the hash of what determines it (links, where runs of
                                 a study share stages):
  metrics.jsonl, checkpoints/    curves; `latest` (to resume) and `best` (of the best validation)
  stage.json                     written when the stage is done
result.json, predictions.npz     written when the run is done
failure.json                     why the last attempt ended, where that can be put right
kernels.json, kernels.png        by `lra-spt kernels`
compilation_cache/               programs, for the next start (unless LRA_SPT_CACHE names another folder)
log.txt                          what the processes of a study's run said, of all attempts

All JSON files but metrics.jsonl are sealed (`lra_spt.seals`): result.json for predictions.npz too, stage.json
for metrics.jsonl.
"""

import datetime
import json
import os
import pathlib

import numpy as np

from lra_spt import config as config_lib
from lra_spt import files, seals
from lra_spt.errors import ConfigError, touching
from lra_spt.regimes import get_regime

CONFIG, STAGE, RESULT, PREDICTIONS = 'config.json', 'stage.json', 'result.json', 'predictions.npz'
FAILURE, METRICS, KERNELS = 'failure.json', 'metrics.jsonl', 'kernels.json'
LOG = 'log.txt'
LINK = '.link'  # of a stage that is elsewhere, in a bucket
COMPILED = 'compilation_cache'  # of programs, in a folder of runs
STAGES = ('pretrain', 'finetune')
STUDY = 'study.json'  # in the folder of a study: what it is
SEARCH = 'search'  # there: the runs that chose hyperparameters
REPEAT = f'delete {RESULT} and run the command of the run again, which evaluates and trains nothing'
CONFIG_ADVICE = 'restore it from a copy, or move its folder away and repeat the run'

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
  'recorded': (dict, False),  # {'source', 'seconds'} of predictions made elsewhere; not trained here
  'hardware': (dict, False),
  'versions': (dict, False),
  'commit': (str, False),
  'date': (str, False),
  'config': (dict, False),
  'runtime': (dict, False),
  'origins': (dict, False),
  'fingerprints': (dict, False),  # of data and splits
  'code': (dict, False),  # digests of mixer, objective and task, where they are not of the package
  'data': (dict, False),  # source, and whether it was verified
}

# What stage.json and the stages of result.json hold; a result may lack what an older version did not note.
STAGE_SCHEMA = {
  'steps': int,
  'examples': int,
  'epochs': float,
  'seconds': float,
  'flops_per_step': float,
  'best_step': int,
  'metrics': dict,
  'folder': str,
}
# diverged: see `lra_spt.objectives.contract`; time: {part: seconds} of the process that ended the stage;
# kernels: {call: the implementation that proved itself and ran}, see `lra_spt.selftest`; members: of the
# population that it trained in, whose time its seconds are a share of; best_digest: of the checkpoint of the
# best validation, see `lra_spt.training.digests`; computed: by which commit, on what, in which precision.
STAGE_OPTIONAL = {'diverged': bool, 'time': dict, 'kernels': dict, 'members': int}
STAGE_OPTIONAL |= {'best_digest': str, 'computed': dict}
BESIDE = ('fingerprints', 'code', 'pretrained')  # keys of config.json that are not of the config
# What every config.json holds, beside further sections of the config.
CONFIG_SCHEMA = {
  'task': str,
  'model': dict,
  'protocol': str,
  'regime': str,
  'causal': bool,
  'seed': int,
  'finetune': dict,
  'fingerprints': dict,
}


def cache_of_programs(workdir) -> pathlib.Path:
  """Where compiled programs are kept for the next start: the folder that LRA_SPT_CACHE names, or in
  `workdir`."""
  folder = os.environ.get('LRA_SPT_CACHE', '').strip() or files.place(workdir) / COMPILED
  return files.place(folder).expanduser().absolute()


def folder_of(path, flag: str) -> pathlib.Path:
  """An absolute path, also one in a bucket (`files.place`), from what stands behind a flag.

  Raises:
    ConfigError: it is empty, or of another kind.
  """
  if not str(path).strip():
    raise ConfigError(f'{flag} is empty (an unset variable?); name a folder')
  path = files.place(path).expanduser().absolute()  # Orbax takes no relative path
  if not files.is_bucket(path):
    with touching(path, 'used'):
      path.exists()  # a name that is too long
  return path


def local_folder(path, flag: str) -> pathlib.Path:
  """As `folder_of`, and a ConfigError for a bucket too."""
  if files.is_bucket(path):
    raise ConfigError(f'{flag} is {path}, but this command works in folders only; mount the bucket')
  return folder_of(path, flag)


def check_kept(workdir: pathlib.Path, store: pathlib.Path | None, runtime) -> None:
  """Raises a ConfigError where a run in a bucket is to write what can be written to folders only, or where a
  run and the `store` of its stages are not of one kind."""
  if store is not None and files.is_bucket(workdir) != files.is_bucket(store):
    raise ConfigError(f'--stages is {store}, but --workdir is {workdir}; give two folders, or two in buckets')
  for key in ('trackers', 'profile_steps'):
    if files.is_bucket(workdir) and runtime.get(key):
      raise ConfigError(
        f'runtime.{key} is {runtime[key]}, which is written to folders only, but the run is in {workdir}; '
        'leave it out, or give a folder as --workdir'
      )


def stage_folders(workdir: pathlib.Path, identity: dict) -> dict[str, pathlib.Path]:
  """A folder per stage, named by the hash of what determines it; identity: see `read_config`.

  All of `pretrain` counts, also options of other objectives: which these are depends on what a process has
  registered, and folders that there are must be found.
  """
  shared = {key: identity[key] for key in ('task', 'model', 'protocol', 'seed', 'regime', 'causal')}
  shared |= {key: identity[key] for key in ('code',) if key in identity}
  shared['data'] = [identity['fingerprints']['data'], identity['fingerprints']['splits']]
  pretrain = config_lib.digest(shared | {'pretrain': identity.get('pretrain')})
  pretrains = get_regime(identity['regime']).objective is not None
  before = identity.get('pretrained') or (pretrain if pretrains else None)
  finetune = config_lib.digest(shared | {'finetune': identity['finetune'], 'after': before})
  return {
    'pretrain': followed(workdir / f'pretrain-{pretrain}'),
    'finetune': followed(workdir / f'finetune-{finetune}'),
  }


def stages_in(workdir: pathlib.Path, names=STAGES) -> list[pathlib.Path]:
  """The folders of all stages of these names in the folder of a run."""
  found = [path for name in names for path in workdir.glob(f'{name}-*')]
  found = {path.with_suffix('') if path.suffix == LINK else path for path in found}
  return [path for path in map(followed, sorted(found)) if path.is_dir()]


def is_shared(folder: pathlib.Path) -> bool:
  """Whether the folder of a stage, of `stage_folders`, is one that several runs may need."""
  if files.is_bucket(folder):
    return not (folder.parent / CONFIG).exists()
  return folder.is_symlink()


def followed(folder: pathlib.Path) -> pathlib.Path:
  """The folder of a stage, or in a bucket, where there are no links, the one that is noted in its place."""
  link = folder.with_suffix(LINK)
  return files.place(link.read_text()) if files.is_bucket(folder) and link.is_file() else folder


def share_stages(folders: dict[str, pathlib.Path], store: pathlib.Path) -> None:
  """Makes the folders of stages that are not there yet links into `store`, where runs that need the same
  stage find the same folder.

  Args:
    folders: of `stage_folders`.
    store: made if missing; links are relative, so that a folder that holds runs and store can be moved.
      In a bucket they are notes in place of the folders, and absolute.

  Raises:
    ConfigError: a link leads to what is gone, and `store` has nothing of that stage either.
  """
  for folder in folders.values():
    if files.is_bucket(folder):
      if folder.parent != store and not folder.exists():
        files.write_text(folder.with_suffix(LINK), str(store / folder.name))
      continue
    with touching(store, 'written to'):
      kept = store / folder.name
      if folder.is_symlink() and not folder.exists() and folder.resolve() != kept.resolve():
        if not any(kept.glob('*')):
          raise ConfigError(
            f'{folder} is a link to {folder.readlink()}, which is gone, and {store} has nothing of that '
            'stage; give the --stages where it is now, or remove the link to train that stage again.'
          )
        folder.unlink()
      kept.mkdir(parents=True, exist_ok=True)
      if not folder.exists():
        folder.symlink_to(os.path.relpath(kept, folder.parent.resolve()))


def claim(workdir: pathlib.Path, identity: dict) -> None:
  """Notes what a run is in a new workdir.

  Raises:
    ConfigError: the workdir belongs to another run; shows the difference. Or it has a result, but no
      config.json: that of a recorded run, for example.
  """
  if not (workdir / CONFIG).exists():
    if (workdir / RESULT).exists():
      read_result(workdir)  # a damaged one has a sentence of its own
      raise ConfigError(
        f'{workdir} holds a result that no training here made (it has no {CONFIG}); choose another --workdir.'
      )
    seals.write(workdir / CONFIG, identity)
  before, identity = read_config(workdir), json.loads(json.dumps(identity))
  if config_lib.digest(before) != config_lib.digest(identity):
    what = 'another config' if before.get('code') == identity.get('code') else 'other code of your own'
    raise ConfigError(
      f'{workdir} belongs to {what}; choose another --workdir, or undo the change:\n'
      f'{config_lib.difference(before, identity)}'
    )


def read_config(workdir: pathlib.Path) -> dict:
  """What the run in a folder is: `config.identity`, `fingerprints` of its data, `code`, digests of what it
  trains that is not of the package, and `pretrained`, the hash of another run's pretraining that it goes on
  from.

  Raises:
    DamagedFile: config.json is none.
  """
  return seals.read(workdir / CONFIG, 'the config of a run', CONFIG_ADVICE, config_problem)[0]


def config_problem(config: dict) -> str | None:
  """What is wrong with the form of a config.json, or None."""
  if problem := _problem(config, CONFIG_SCHEMA):
    return problem
  for section, key in (('model', 'name'), ('fingerprints', 'data'), ('fingerprints', 'splits')):
    if not isinstance(config[section].get(key), str):
      return f'{section} has {config[section].get(key)!r:.80} as {key}'
  optional = {'pretrained': str, 'pretrain': dict, 'code': dict}
  return _problem(config, {key: kind for key, kind in optional.items() if key in config})


def write_stage(folder: pathlib.Path, report: dict) -> None:
  """Writes stage.json, which makes a stage a finished one."""
  if problem := stage_problem(report, whole=True):
    raise ValueError(f'a stage of another form would be noted: {problem}')
  seals.write(folder / STAGE, report, (METRICS,))


def read_stage(folder: pathlib.Path) -> dict | None:
  """What a finished stage notes of itself, None for one that is not finished.

  Raises:
    DamagedFile: stage.json is damaged.
  """
  path = folder / STAGE
  if not path.exists():
    return None
  kind = 'the note of a finished stage'
  advice = 'delete it and run the command of the run again, which evaluates that stage and does not train'
  return seals.read(path, kind, advice, lambda stage: stage_problem(stage, whole=True))[0]


def check_metrics(folder: pathlib.Path) -> None:
  """Raises a DamagedFile where the metrics.jsonl of a finished stage is not what the stage wrote."""
  path, advice = folder / STAGE, 'restore it from a copy, or delete it to do without learning curves'
  if path.exists():
    _, digests = seals.read(path, 'the note of a finished stage', advice)
    seals.check_beside(path, digests, advice)


def stage_problem(stage: dict, *, whole: bool) -> str | None:
  """What is wrong with what is noted of a stage, or None; whole: nothing may be missing."""
  schema = {key: kind for key, kind in STAGE_SCHEMA.items() if whole or key in stage}
  schema |= {key: kind for key, kind in STAGE_OPTIONAL.items() if key in stage}
  numbers = {**stage.get('metrics', {}), **stage.get('time', {})} if not _problem(stage, schema) else {}
  if problem := _problem(stage, schema) or _metrics_problem(numbers):
    return problem
  folder = stage.get('folder', 'a')
  plain = folder == pathlib.PurePath(folder).name and folder not in ('', '..')
  return None if plain else f'folder is {folder!r:.80}'


def write_result(workdir: pathlib.Path, result: dict, predictions: dict[str, np.ndarray]) -> None:
  """Writes predictions.npz, then result.json, which makes the run a finished one; failure.json goes."""
  if problem := schema_problem(result):
    raise ValueError(f'a result of another form would be written: {problem}')
  with files.replacing(workdir / PREDICTIONS, 'wb') as file:
    np.savez(file, **predictions)
  forget_failure(workdir)
  seals.write(workdir / RESULT, result, (PREDICTIONS,))  # last: a run that has one is not touched again


def read_result(workdir: pathlib.Path) -> dict:
  """result.json of a finished run.

  Raises:
    DamagedFile: it is none, or it or predictions.npz is not what the run wrote.
  """
  path = workdir / RESULT
  result, digests = seals.read(path, 'the result of a run', REPEAT, schema_problem)
  seals.check_beside(
    path, digests, f'delete {RESULT} and run the command of the run again, which evaluates only'
  )
  return result


def schema_problem(result: dict) -> str | None:
  """What is wrong with the form of a result, or None."""
  for key, (kind, needed) in SCHEMA.items():
    value = result.get(key)
    if value is None and not needed:
      continue
    if not _is(kind, value):
      return f'{key} is {value!r:.120}'
  for name, stage in result['stages'].items():
    if not isinstance(stage, dict):
      return 'a stage is no mapping'
    if problem := stage_problem(stage, whole=False):
      return f'of stage {name}, {problem}'
  if not isinstance(result['metrics'].get('test'), dict):
    return 'it has no test metrics'
  if not all(isinstance(metrics, dict) for metrics in result['metrics'].values()):
    return 'metrics hold something else than mappings'
  for key in ('groups', 'published', 'pretrained', 'recorded', 'fingerprints', 'code'):
    for name, value in (result.get(key) or {}).items():
      if not _is({'seed': int, 'seconds': float}.get(name, str), value):
        return f'{name} of {key} is {value!r:.80}'
  if not all(isinstance(sentence, str) for sentence in result.get('cautions') or ()):
    return 'cautions hold something else than text'
  return next(filter(None, map(_metrics_problem, result['metrics'].values())), None)


def _metrics_problem(metrics: dict) -> str | None:
  return next((f'{key} is {value!r:.80}' for key, value in metrics.items() if not _is(float, value)), None)


def _problem(content: dict, schema: dict) -> str | None:
  for key, kind in schema.items():
    if key not in content:
      return f'it lacks the key {key}'
    if not _is(kind, content[key]):
      return f'{key} is {content[key]!r:.80}'
  return None


def is_number(value) -> bool:
  """Whether a value of JSON is a finite number."""
  return _is(float, value)


def _is(kind: type, value) -> bool:
  """Whether a value of JSON is of a kind; float: any number, of a size that sums and products bear."""
  if kind not in (int, float):
    return isinstance(value, kind)
  whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
  return whole or (kind is float and isinstance(value, float) and abs(value) < 1e100)


def metrics_lines(path: pathlib.Path) -> list[dict | None]:
  """The lines of a metrics.jsonl: {'step': int, 'split': str, name: value}, None for what is no such line.

  Raises:
    FileAccessError: it cannot be read.
  """
  with touching(path, 'read'):
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
  return list(map(_metrics_line, lines))


def _metrics_line(line):
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    return None
  whole = isinstance(record, dict) and _is(int, record.get('step')) and _is(str, record.get('split'))
  return record if whole else None


def last_loss(folder: pathlib.Path) -> float | None:
  """The training loss of a stage where its metrics.jsonl ends (a mean over steps), None without one."""
  lines = metrics_lines(folder / METRICS) if (folder / METRICS).exists() else []
  losses = [line.get('loss') for line in lines if line and line['split'] == 'train']
  return next(filter(is_number, reversed(losses)), None)


def write_failure(workdir: pathlib.Path, error: Exception) -> None:
  """Notes why a run ended before its result."""
  note = {'error': str(error), 'kind': type(error).__name__, 'date': datetime.date.today().isoformat()}
  seals.write(workdir / FAILURE, note)


def forget_failure(workdir: pathlib.Path) -> None:
  """Removes the note of an earlier attempt."""
  with touching(workdir / FAILURE, 'removed'):
    (workdir / FAILURE).unlink(missing_ok=True)


def read_failure(workdir: pathlib.Path) -> dict | None:
  """{'error', 'kind', 'date'} of why a run ended before its result, None where nothing is noted.

  Raises:
    DamagedFile: failure.json is damaged.
  """
  path = workdir / FAILURE
  if not path.exists():
    return None
  kind, advice = 'a note of why a run ended', 'delete it; the run goes on without it'
  return seals.read(path, kind, advice, _failure_problem)[0]


def _failure_problem(note: dict) -> str | None:
  return next((f'{key} is {value!r:.80}' for key, value in note.items() if not isinstance(value, str)), None)
