"""Submissions: finished runs as one zip file that anybody can check. Reading one runs no code from it.

The file holds the folders of runs as they lie below their workdir, without checkpoints: result.json,
predictions.npz, config.json, and of every stage stage.json and metrics.jsonl; on request also the encoder.
code/ has the source files of user code. Unpacked it is a folder of runs for `lra-spt report`.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import pathlib
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence

import safetensors

from lra_spt import files
from lra_spt.config.protocol import get_protocol
from lra_spt.config.user_files import DIGEST, digest_of_texts
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import get_task
from lra_spt.errors import ConfigError, DamagedFile, DataError, MissingFile, UserError, touching
from lra_spt.report.runs import record, run_folder
from lra_spt.report.runs import run as runs_lib
from lra_spt.report.study import archive, notes

CODE, ENCODER = 'code', 'encoder.safetensors'
NAMES = {run_folder.RESULT, run_folder.PREDICTIONS, run_folder.CONFIG, run_folder.STAGE, run_folder.METRICS}
MOST, MOST_IN_ALL = 64 * 2**20, 2 * 2**30  # bytes of a file, unpacked, other than an encoder; of all
MOST_FILES, MOST_SOURCES, MOST_SOURCE = 10_000, 10, 2**18  # the last in bytes; choices of sources are hashed
SAME = ('task', 'regime', 'causal', 'protocol', 'seed', 'fingerprints', 'code')  # in config.json and result
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class CheckedRun:
  """A run of a submission. name: task, model, way of training and seed; shown: the score as its predictions
  give it; faults: what is wrong, a clause each."""

  name: str
  shown: str
  faults: tuple[str, ...] = ()


def pack(workdir, path, sources: Sequence = (), encoder: Callable | None = None) -> None:
  """Writes the finished runs in or below a folder into a file, whole or not at all.

  Args:
    workdir: folder of a study, or of runs at any depth; runs of a search stay out.
    path: of the file.
    sources: Python files that the runs trained.
    encoder: writes the encoder of the run in its first argument to the file in its second; None: without.

  Raises:
    MissingFile: there is no finished run. DataError: a run has no predictions. DamagedFile: one is damaged.
    ConfigError: two sources have one name.
  """
  workdir, names = files.place(workdir), [pathlib.Path(source).name for source in sources]
  if len({*names}) < len(names) or not all(name.endswith('.py') for name in names):
    raise ConfigError(f'--register gives {", ".join(names)}: give .py files of different names.')
  if not (folders := runs_lib.finished(workdir)):
    raise MissingFile(f'there is no finished run in or below {workdir}: give the folder of finished runs.')
  with files.replacing(path, 'wb') as file, zipfile.ZipFile(file, 'w') as packed:
    for source, name in zip(sources, names, strict=True):
      with touching(source, 'read'):
        _add(packed, f'{CODE}/{name}', pathlib.Path(source).read_bytes())
    for folder in folders:
      for name, content in _contents(folder, encoder):
        _add(packed, (folder.relative_to(workdir) / name).as_posix(), content)


def _add(packed, name, content):
  # A constant date, so that the same runs make the same file.
  packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


def _contents(folder, encoder) -> Iterator[tuple[str, bytes | str]]:
  run = runs_lib.read_run(folder)
  if run.predictions is None:
    raise DataError(f'{folder} has no {run_folder.PREDICTIONS}, so nobody can check it: {run_folder.REPEAT}.')
  yield run_folder.RESULT, json.dumps(archive.anywhere(folder / run_folder.RESULT), indent=1)
  for name in (run_folder.PREDICTIONS, run_folder.CONFIG):
    if (folder / name).exists():
      yield name, (folder / name).read_bytes()
  for stage in run.result['stages']:
    place = run.stage_folder(stage)
    if place is None or (stage == 'pretrain' and run.result.get('pretrained')):  # it lies with another run
      continue
    for name in (run_folder.STAGE, run_folder.METRICS):
      if (place / name).exists():
        yield f'{run.stage(stage, "folder") or place.name}/{name}', (place / name).read_bytes()
  if encoder is not None:
    with tempfile.TemporaryDirectory() as temporary:
      encoder(folder, path := pathlib.Path(temporary) / ENCODER)
      yield ENCODER, path.read_bytes()


@contextlib.contextmanager
def unpacked(path) -> Iterator[pathlib.Path]:
  """A temporary folder with the runs of a submission.

  Raises:
    MissingFile: there is no such file.
    DamagedFile: it is no submission: no zip file, or one with other names, links or sizes than `pack` writes.
  """
  if not (path := files.place(path)).exists():
    raise MissingFile(f'{path} does not exist; give a file that `lra-spt submit` wrote.')
  with touching(path, 'read'), path.open('rb') as file:
    raw = io.BytesIO(file.read(MOST_IN_ALL))  # in memory, so that damage raises no errors of the system
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary).resolve()
    try:
      with touching(folder, 'written'), zipfile.ZipFile(raw) as packed:
        _extract(packed, folder)
    except UserError:
      raise
    except _DAMAGE as error:
      reason = ' '.join(str(error).split())[:160]
      raise DamagedFile(
        f'{path} is not a submission ({reason}); get it again, or ask whoever made it for another.'
      ) from error
    yield folder


def _extract(packed, folder):
  for info in packed.infolist():
    _refuse(info)
  infos = [info for info in packed.infolist() if not info.is_dir()]
  if len(infos) > MOST_FILES or sum(info.file_size for info in infos) > MOST_IN_ALL:
    raise ValueError(f'it holds more than {MOST_FILES:,} files, or {MOST_IN_ALL / 2**20:,.0f} MiB unpacked')
  names = [info.filename for info in infos]
  folders = {str(parent) for name in names for parent in pathlib.PurePosixPath(name).parents}
  if len({*names} - folders) < len(names):
    raise ValueError('it holds two files of one name, or a file with the name of a folder')
  for info in infos:
    place = folder / info.filename
    place.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(info) as content, place.open('xb') as file:
      shutil.copyfileobj(content, file)  # at most the size that the file states
    if place.name == run_folder.PREDICTIONS and zipfile.is_zipfile(place):
      with zipfile.ZipFile(place) as arrays:
        if sum(array.file_size for array in arrays.infolist()) > MOST:
          raise ValueError(f'{info.filename} holds arrays of more than {MOST / 2**20:.0f} MiB')
  if not any(name.split('/')[-1] == run_folder.RESULT for name in names):
    raise ValueError(f'it holds no {run_folder.RESULT}')


def _refuse(info):
  """Raises a ValueError for a member that `pack` does not write."""
  name, parts = info.filename, info.filename.removesuffix('/').split('/')
  if {'', '.', '..'} & {*parts} or '\\' in name or not name.isprintable():
    raise ValueError(f'it holds {name!r:.80}, which leads out of its folder')
  if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
    raise ValueError(f'it holds {name!r:.80}, which is a link')
  source = parts[0] == CODE and len(parts) == 2 and name.endswith('.py')
  if not (info.is_dir() or source or parts[-1] in (*NAMES, ENCODER)):
    raise ValueError(f'it holds {name!r:.80}, which is no file of a run')
  if parts[-1] != ENCODER and info.file_size > (MOST_SOURCE if source else MOST):
    raise ValueError(f'it holds {name!r:.80} of {info.file_size:,} bytes unpacked')
  if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise ValueError(f'it compresses {name!r:.80} by method {info.compress_type}')


def verify(folder: pathlib.Path, data_dir=None) -> tuple[list[CheckedRun], list[str]]:
  """Checks the runs of a submission.

  Checksums must be right, and the score of every run must follow from its predictions and labels. If the
  prepared set is in data_dir, its fingerprints and its labels must be those of the run. Config and result
  must agree, and every digest of user code must be that of source files in the submission.

  Args:
    folder: from `unpacked`.
    data_dir: folder of prepared sets, or None.

  Returns:
    The runs, and sentences on what was compared with what.
  """

  @functools.cache
  def opened(task, protocol):
    """(test split, '') or (None, why there is none)."""
    if data_dir is None:
      return None, 'no --data_dir is given'
    try:
      task = get_task(task, data_dir)
      task = task.as_published() if get_protocol(protocol).published_splits else task
      return examples_lib.open_split(task, 'test', data_dir), ''
    except (ConfigError, MissingFile):
      return None, f'there is no set of it in {data_dir}'

  sources = {path.name: path.read_bytes() for path in sorted((folder / CODE).glob('*.py'))}
  by_digest = _by_digest(sources)
  checked, sentences, trained = [], {}, set()
  for place in sorted(path.parent for path in folder.rglob(run_folder.RESULT)):
    faults = []
    try:
      run = runs_lib.read_run(place)
      split, why = opened(run.task, run.protocol)
      _check(run, faults, folder)
      faults += _code_faults(run, by_digest, trained)
      if split is not None:
        faults += _label_faults(run, split, data_dir)
    except UserError as error:
      name = place.relative_to(folder).as_posix()
      checked.append(CheckedRun(name, 'unreadable', (*faults, _clause(error, folder))))
      continue
    source = f'those of the file, because {why}' if why else f'those of the prepared set in {data_dir}'
    sentences[f'Labels of {run.task}: {source}.'] = None
    name = f'{run.task}, {run.model}, {run.arm}, seed {run.seed}' + ', recorded' * bool(run.recorded)
    shown = f'{run.score.name} {run.score.show(run.counted)} over {run.examples:,} examples'
    checked.append(CheckedRun(name, shown, tuple(faults)))
  for name in sources:
    what = 'is source that runs trained' if name in trained else 'is not compared: no run notes its digest'
    sentences[f'{CODE}/{name} {what}.'] = None
  return checked, list(sentences)


def _check(run, faults, folder):
  """Adds faults of a run by itself; raises a UserError where a file of it cannot be read."""
  if (run.result.get('pretrained') or {}).get('run'):
    raise DamagedFile('its pretraining lies outside the submission')
  if run.predictions is None:
    raise DamagedFile(f'{run_folder.PREDICTIONS} is missing')
  faults += [_clause(sentence, folder).partition(': ')[2] for sentence in notes.contradictions([run])]
  configs = {'its config': run.result.get('config') or {}}
  if (run.path / run_folder.CONFIG).exists():
    configs[run_folder.CONFIG] = run_folder.read_config(run.path)
  for name, config in configs.items():
    wrong = [key for key in SAME if config.get(key, run.result.get(key)) != run.result.get(key)]
    faults += [f'{name} has another {key} than {run_folder.RESULT}' for key in wrong[:1]]
  for stage in run.path.glob(f'*/{run_folder.STAGE}'):
    run_folder.read_stage(stage.parent)
    run_folder.check_metrics(stage.parent)
  if (path := run.path / ENCODER).exists():
    try:
      with safetensors.safe_open(path, framework='numpy') as tensors:
        about = tensors.metadata() or {}
    except safetensors.SafetensorError as error:
      raise DamagedFile(f'{ENCODER} is no safetensors file ({error})') from error
    if (about.get('task'), about.get('step')) != (run.task, str(run.stage('finetune', 'best_step'))):
      faults.append(f'{ENCODER} is of another task or step')


def _label_faults(run, split, data_dir) -> list[str]:
  prints = {'data': split.fingerprint, 'splits': split.split_fingerprint}
  for name, theirs in (run.result.get('fingerprints') or {}).items():
    if theirs != (here := prints.get(name, 'none')):
      return [
        f'its {name} have the fingerprint {theirs[:8]}, those of {run.task} in {data_dir} have {here[:8]}'
      ]
  try:
    record.checked(run.path / run_folder.PREDICTIONS, split)
  except DataError as error:
    return [_clause(error, run.path)]
  return []


def _by_digest(sources) -> dict[str, tuple[str, ...]]:
  """Returns {digest: names} of every choice of the sources, because only running them would show which of
  them a class reaches."""
  if len(sources) > MOST_SOURCES:
    raise DataError(f'The submission has {len(sources)} source files; give at most {MOST_SOURCES}.')
  chosen = (names for n in range(1, len(sources) + 1) for names in itertools.combinations(sources, n))
  return {digest_of_texts(sources[name] for name in names): names for names in chosen}


def _code_faults(run, by_digest, trained) -> list[str]:
  faults = []
  for kind, digest in (run.result.get('code') or {}).items():
    if digest in by_digest:
      trained.update(by_digest[digest])
    elif digest.startswith(DIGEST):
      faults.append(f'the source of its {kind} ({digest}) is not in the submission')
  return faults


def _clause(error, folder) -> str:
  """A sentence without its advice, which is for whoever trained the run, and without the temporary folder."""
  return str(error).replace(f'{folder}/', '').partition('; ')[0].rstrip('.')
