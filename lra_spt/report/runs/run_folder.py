"""The folder of a run: where everything is, and the one writer and one reader of each file.

config.json                      what the run is: identity of the config, fingerprints of the data
pretrain-HASH/, finetune-HASH/   one folder per stage, named by the hash of what determines it (links, where
                                 runs of a study share stages):
  metrics.jsonl, checkpoints/    curves; `latest` (to resume) and `best` (of the best validation)
  stage.json                     written when the stage is done
result.json, predictions.npz     written when the run is done
failure.json                     why the last attempt ended, if this can be fixed
kernels.json, kernels.png        by `lra-spt kernels`
compilation_cache/               compiled programs, for the next start (unless LRA_SPT_CACHE names another
                                 folder)
log.txt                          output of the processes of a study's run, of all attempts

`lra_spt.report.runs.schema` describes their content. All JSON files except metrics.jsonl are sealed
(`lra_spt.files.checksums`): result.json also for predictions.npz, stage.json also for metrics.jsonl.
"""

import datetime
import functools
import json
import os
import pathlib

import numpy as np

from lra_spt import files
from lra_spt.config import loading
from lra_spt.config.regimes import get_regime
from lra_spt.config.values import is_number, is_whole, problem
from lra_spt.errors import ConfigError, touching
from lra_spt.files import checksums
from lra_spt.report.runs import schema

CONFIG, STAGE, RESULT, PREDICTIONS = 'config.json', 'stage.json', 'result.json', 'predictions.npz'
FAILURE, METRICS, KERNELS = 'failure.json', 'metrics.jsonl', 'kernels.json'
LOG = 'log.txt'
LINK = '.link'  # of a stage that is elsewhere, in a bucket
COMPILED = 'compilation_cache'  # of programs, in a folder of runs
STAGES = ('pretrain', 'finetune')
STUDY = 'study.json'  # in the folder of a study: what it is
SEARCH = 'search'  # there: the runs that chose hyperparameters
REPEAT = f'delete {RESULT} and run the command of the run again, which evaluates without training'
CONFIG_ADVICE = 'restore it from a copy, or move its folder away and repeat the run'
BESIDE = ('fingerprints', 'code', 'pretrained')  # keys of config.json that are not of the config


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
  """The same as `folder_of`, with a ConfigError for a bucket too."""
  if files.is_bucket(path):
    raise ConfigError(f'{flag} is {path}, but this command works in folders only; mount the bucket')
  return folder_of(path, flag)


def check_kept(workdir: pathlib.Path, store: pathlib.Path | None, runtime) -> None:
  """Raises a ConfigError where a run in a bucket is to write what can be written to folders only, or where a
  run and the `store` of its stages are not of one kind."""
  if store is not None and files.is_bucket(workdir) != files.is_bucket(store):
    raise ConfigError(
      f'--stages is {store}, but --workdir is {workdir}; give two folders, or two places in buckets'
    )
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
  pretrain = loading.digest(shared | {'pretrain': identity.get('pretrain')})
  pretrains = get_regime(identity['regime']).objective is not None
  before = identity.get('pretrained') or (pretrain if pretrains else None)
  finetune = loading.digest(shared | {'finetune': identity['finetune'], 'after': before})
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
  """True if the folder of a stage, of `stage_folders`, is one that several runs may need."""
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
        f'{workdir} holds a result that was not trained here (it has no {CONFIG}); choose another --workdir.'
      )
    checksums.write(workdir / CONFIG, identity)
  before, identity = read_config(workdir), json.loads(json.dumps(identity))
  if loading.digest(before) != loading.digest(identity):
    what, accept = 'another config', ''
    if before.get('code') != identity.get('code'):
      what, accept = 'other code of your own', ', or give --accept_changed_code if it does not matter'
    raise ConfigError(
      f'{workdir} belongs to {what}; choose another --workdir, or undo the change{accept}:\n'
      f'{loading.difference(before, identity)}'
    )


def read_config(workdir: pathlib.Path) -> dict:
  """The identity of the run in a folder.

  It is that of its config (`loading.identity`) with `fingerprints` of its data, `code`, digests of user code
  that it trains, and `pretrained`, the hash of another run's pretraining that it goes on from.

  Raises:
    DamagedFile: config.json is none.
  """
  return checksums.read(
    workdir / CONFIG, 'the config of a run', CONFIG_ADVICE, functools.partial(problem, schema.Config)
  )[0]


def write_stage(folder: pathlib.Path, report: dict) -> None:
  """Writes stage.json, which makes a stage a finished one."""
  if wrong := schema.stage_problem(report):
    raise ValueError(f'a stage of another form would be noted: {wrong}')
  checksums.write(folder / STAGE, report, (METRICS,))


def read_stage(folder: pathlib.Path) -> dict | None:
  """The report of a finished stage, None for one that is not finished.

  Raises:
    DamagedFile: stage.json is damaged.
  """
  path = folder / STAGE
  if not path.exists():
    return None
  kind = 'the note of a finished stage'
  advice = 'delete it and run the command of the run again, which evaluates that stage without training'
  return checksums.read(path, kind, advice, schema.stage_problem)[0]


def check_metrics(folder: pathlib.Path) -> None:
  """Raises a DamagedFile where the metrics.jsonl of a finished stage is not what the stage wrote."""
  path, advice = folder / STAGE, 'restore it from a copy, or delete it to do without learning curves'
  if path.exists():
    _, digests = checksums.read(path, 'the note of a finished stage', advice)
    checksums.check_beside(path, digests, advice)


def write_result(workdir: pathlib.Path, result: dict, predictions: dict[str, np.ndarray]) -> None:
  """Writes predictions.npz, then result.json, which makes the run a finished one; failure.json goes."""
  if wrong := problem(schema.Result, result):
    raise ValueError(f'a result of another form would be written: {wrong}')
  with files.replacing(workdir / PREDICTIONS, 'wb') as file:
    np.savez(file, **predictions)
  forget_failure(workdir)
  checksums.write(workdir / RESULT, result, (PREDICTIONS,))  # last: a run that has one is not touched again


def read_result(workdir: pathlib.Path) -> dict:
  """result.json of a finished run.

  Raises:
    DamagedFile: it is none, or it or predictions.npz is not what the run wrote.
  """
  path = workdir / RESULT
  result, digests = checksums.read(
    path, 'the result of a run', REPEAT, functools.partial(problem, schema.Result)
  )
  checksums.check_beside(path, digests, REPEAT)
  return result


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
  whole = isinstance(record, dict) and is_whole(record.get('step')) and isinstance(record.get('split'), str)
  return record if whole else None


def last_loss(folder: pathlib.Path) -> float | None:
  """The training loss of a stage where its metrics.jsonl ends (a mean over steps), None without one."""
  lines = metrics_lines(folder / METRICS) if (folder / METRICS).exists() else []
  losses = [line.get('loss') for line in lines if line and line['split'] == 'train']
  return next(filter(is_number, reversed(losses)), None)


def write_failure(workdir: pathlib.Path, error: Exception) -> None:
  """Notes why a run ended before its result."""
  note = {'error': str(error), 'kind': type(error).__name__, 'date': datetime.date.today().isoformat()}
  checksums.write(workdir / FAILURE, note)


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
  kind, advice = 'a note of why a run ended', 'delete it; the run resumes without it'
  return checksums.read(path, kind, advice, functools.partial(problem, schema.Failure))[0]
