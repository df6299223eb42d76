"""The folder of a run: where everything is, and how its files are written and read.

config.json                      what the run is: identity of the config, fingerprints of the data
pretrain-HASH/, finetune-HASH/   one folder per stage, named by the hash of what determines it (links, where
                                 runs of a study share stages; pretrain-HASH.link is a note of the folder,
                                 where the file system has no symbolic links):
  metrics.jsonl, checkpoints/    curves; `latest` (to resume) and `best` (of the best validation)
  computed.json                  versions, hardware and settings of its attempts
  stage.json                     written when the stage is done
result.json, predictions.npz     written when the run is done
failure.json                     why the last attempt ended, if this can be fixed
kernels.json, kernels.png        by `lra-spt kernels`
inside.json                      by `lra-spt inside`
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
import re

import numpy as np

from lra_spt import files
from lra_spt.config import loading
from lra_spt.config.regimes import get_regime
from lra_spt.config.values import is_number, is_whole, problem
from lra_spt.errors import ConfigError, touching
from lra_spt.files import checksums
from lra_spt.report.runs import schema

CONFIG, STAGE, RESULT, PREDICTIONS = 'config.json', 'stage.json', 'result.json', 'predictions.npz'
FAILURE, METRICS, COMPUTED = 'failure.json', 'metrics.jsonl', 'computed.json'
KERNELS, INSIDE = 'kernels.json', 'inside.json'
LOG = 'log.txt'
LINK = '.link'  # suffix of a note that takes the place of a symbolic link
COMPILED = 'compilation_cache'  # of programs, in a folder of runs
STAGES = ('pretrain', 'finetune')
STUDY = 'study.json'  # in the folder of a study: what it is
SEARCH = 'search'  # there: the runs that chose hyperparameters
REPEAT = f'delete {RESULT} and run the command of the run again, which evaluates without training'
CONFIG_ADVICE = 'restore it from a copy, or move its folder away and repeat the run'
UNUSABLE = {  # in a path: TensorStore refuses it, or writes to another place
  r'\\': 'a backslash',
  r'[\ud800-\udfff]': 'bytes that are not UTF-8',
  r'\0': 'a zero byte',
  r'gs:/(?!/)': 'a folder whose name ends in gs:',
  r'\.__lock(/|$)': 'a folder whose name ends in .__lock',
}
BESIDE = ('fingerprints', 'code', 'pretrained')  # keys of config.json that are not of the config


def cache_of_programs(workdir) -> pathlib.Path:
  """Returns the folder of compiled programs for the next start: the one that LRA_SPT_CACHE names, or one in
  `workdir`."""
  folder = os.environ.get('LRA_SPT_CACHE', '').strip() or files.place(workdir) / COMPILED
  return folder_of(folder, 'LRA_SPT_CACHE')


def folder_of(path, flag: str) -> pathlib.Path:
  """Returns the absolute path of the folder, or place in a bucket (`files.place`), that a flag names.

  Raises:
    ConfigError: it is empty, of another kind, or has a name that the libraries for arrays cannot write.
  """
  if not isinstance(path, str | os.PathLike):
    raise ConfigError(f'{flag} is {path!r:.80}; give the path of a folder as a text')
  if not str(path).strip():
    raise ConfigError(f'{flag} is empty (an unset variable?); name a folder')
  path = files.place(path).absolute()  # Orbax takes no relative path
  for pattern, what in UNUSABLE.items():
    if re.search(pattern, str(path)):
      raise ConfigError(
        f'{flag} is {path}, but the libraries that store arrays cannot use a path with {what}; give another'
      )
  if not files.is_bucket(path):
    with touching(path, 'used'):
      path.exists()  # a name that is too long
  return path


def local_folder(path, flag: str) -> pathlib.Path:
  """Does the same as `folder_of`, and also raises a ConfigError for a place in a bucket."""
  if files.is_bucket(path):
    raise ConfigError(f'{flag} is {path}, but this command works in folders only; mount the bucket')
  return folder_of(path, flag)


def check_places(workdir: pathlib.Path, store: pathlib.Path | None, runtime) -> None:
  """Raises a ConfigError if a run in a bucket would write something that only folders can hold, or if only
  one of the run and the `store` of its stages is in a bucket."""
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

  All of `pretrain` counts, also the options of other objectives. Which options those are depends on what a
  process has registered, and existing folders must be found in any case.
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


def stages_in(workdir: pathlib.Path, names=STAGES, gone: bool = False) -> list[pathlib.Path]:
  """Returns the folders of a run's stages of these names. gone: only those that a link leads to, but that do
  not exist."""
  folders = [path for name in names for path in workdir.glob(f'{name}-*')]
  folders = {path.with_suffix('') if path.suffix == LINK else path for path in folders}
  places = map(followed, sorted(folders))
  return [path for path in places if (not path.exists() if gone else path.is_dir())]


def is_shared(folder: pathlib.Path) -> bool:
  """True if the folder of a stage, of `stage_folders`, is one that several runs may need."""
  return folder.is_symlink() or not (folder.parent / CONFIG).exists()


def followed(folder: pathlib.Path) -> pathlib.Path:
  """The folder of a stage, or the one that a note in its place names."""
  note = folder.with_suffix(LINK)
  if not note.is_file():
    return folder
  with touching(note, 'read'):
    target = note.read_text(encoding='utf-8', errors='surrogateescape')
  return files.place(target) if files.is_bucket(target) else (folder.parent / target).resolve()


def share_stages(folders: dict[str, pathlib.Path], store: pathlib.Path) -> None:
  """Links the folders of stages, unless they exist, into `store`, where runs that need the same stage find
  the same folder.

  On exFAT, on network drives and in buckets there are no symbolic links, so notes take their place.

  Args:
    folders: of each stage, in the folder of the run.
    store: made if missing; links are relative, so that a folder that holds runs and store can be moved.
      In a bucket they are absolute.

  Raises:
    ConfigError: a link leads to what is gone, and `store` has nothing of that stage either.
  """
  for folder in folders.values():
    note, shared, there = folder.with_suffix(LINK), store / folder.name, followed(folder)
    if files.is_bucket(folder):
      if there == folder != shared and not folder.exists():
        files.write_text(note, str(shared))
      continue
    with touching(store, 'written to'):
      is_link = there != folder or folder.is_symlink()
      if is_link and not there.exists() and there.resolve() != shared.resolve():
        if not any(shared.glob('*')):
          raise ConfigError(
            f'{folder} is a link to {there.resolve()}, which is gone, and {store} has nothing of that '
            'stage; give the --stages where it is now, or remove the link to train that stage again.'
          )
        (folder if folder.is_symlink() else note).unlink()
        is_link = False
      shared.mkdir(parents=True, exist_ok=True)
      if not is_link and not folder.exists():
        _link(folder, os.path.relpath(shared, folder.parent.resolve()))


def _link(folder, target):
  try:
    folder.symlink_to(target)
  except OSError:  # each file system without symbolic links has its own error
    with files.replacing(folder.with_suffix(LINK), 'wb') as file:
      file.write(os.fsencode(target))


def claim(workdir: pathlib.Path, identity: dict) -> None:
  """Writes config.json, the identity of a run, into a new workdir; raises as `check_claim`."""
  check_claim(workdir, identity)
  if not (workdir / CONFIG).exists():
    checksums.write(workdir / CONFIG, identity)


def check_claim(workdir: pathlib.Path, identity: dict) -> None:
  """Compares a run with what a workdir holds, and writes nothing.

  Raises:
    ConfigError: the workdir belongs to another run (the message shows the difference), or it has a result but
      no config.json, as a recorded run has.
  """
  if not (workdir / CONFIG).exists():
    if (workdir / RESULT).exists():
      read_result(workdir)  # a damaged one has a sentence of its own
      raise ConfigError(
        f'{workdir} holds a result that was not trained here (it has no {CONFIG}); choose another --workdir.'
      )
    return
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

  It has the identity of the config (`loading.identity`), `fingerprints` of the data, `code` (digests of the
  user code that the run trains) and `pretrained` (the hash of another run's pretraining that it continues).

  Raises:
    DamagedFile: config.json is not the config of a run.
  """
  return checksums.read(
    workdir / CONFIG, 'the config of a run', CONFIG_ADVICE, functools.partial(problem, schema.Config)
  )[0]


def write_stage(folder: pathlib.Path, report: dict) -> None:
  """Writes stage.json, which marks a stage as finished."""
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


def write_attempts(folder: pathlib.Path, attempts: list[dict]) -> None:
  """Writes computed.json: how a stage was computed, a dict for each attempt that differed from the one
  before."""
  with touching(folder, 'written to'):
    folder.mkdir(parents=True, exist_ok=True)
  checksums.write(folder / COMPUTED, {'attempts': attempts})


def read_attempts(folder: pathlib.Path) -> list[dict]:
  """The attempts of `write_attempts`; none for a stage of an older version.

  Raises:
    DamagedFile: computed.json is damaged.
  """
  path = folder / COMPUTED
  if not path.exists():
    return []
  kind, advice = 'a note of how a stage is computed', 'delete it; the stage resumes without it'
  return checksums.read(path, kind, advice, functools.partial(problem, schema.Attempts))[0]['attempts']


def check_metrics(folder: pathlib.Path) -> None:
  """Raises a DamagedFile where the metrics.jsonl of a finished stage is not what the stage wrote."""
  path, advice = folder / STAGE, 'restore it from a copy, or delete it to do without learning curves'
  if path.exists():
    _, digests = checksums.read(path, 'the note of a finished stage', advice)
    checksums.check_beside(path, digests, advice)


def write_result(workdir: pathlib.Path, result: dict, predictions: dict[str, np.ndarray]) -> None:
  """Writes predictions.npz, removes failure.json, and writes result.json, which marks a run as finished."""
  if wrong := problem(schema.Result, result):
    raise ValueError(f'a result of another form would be written: {wrong}')
  with files.replacing(workdir / PREDICTIONS, 'wb') as file:
    np.savez(file, **predictions)
  forget_failure(workdir)
  checksums.write(workdir / RESULT, result, (PREDICTIONS,))  # last: a run that has one is not touched again


def read_result(workdir: pathlib.Path) -> dict:
  """result.json of a finished run.

  Raises:
    DamagedFile: it is no result of a run, or it or predictions.npz is not what the run wrote.
  """
  path = workdir / RESULT
  result, digests = checksums.read(
    path, 'the result of a run', REPEAT, functools.partial(problem, schema.Result)
  )
  checksums.check_beside(path, digests, REPEAT)
  return result


def metrics_lines(path: pathlib.Path) -> list[dict | None]:
  """Returns the lines of a metrics.jsonl: {'step': int, 'split': str, name: value}, None for any other line.

  Raises:
    FileAccessError: it cannot be read.
  """
  with touching(path, 'read'):
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
  records = _parsed(f'[{",".join(lines)}]')  # at once, which takes a third of the time
  if records is None or len(records) != len(lines):
    records = map(_parsed, lines)
  return list(map(_metrics_line, records))


def _parsed(text):
  """The content of a text, None if it is not JSON."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return None


def _metrics_line(record):
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
  """Returns why a run ended before its result, {'error', 'kind', 'date'}; None if nothing is noted.

  Raises:
    DamagedFile: failure.json is damaged.
  """
  path = workdir / FAILURE
  if not path.exists():
    return None
  kind, advice = 'a note of why a run ended', 'delete it; the run resumes without it'
  return checksums.read(path, kind, advice, functools.partial(problem, schema.Failure))[0]
