"""Stores finished runs of a study in one file of numbers and restores them, so a study can change machines.

The file has one JSON object per line. The first is the study (`study.json`), the others are its finished
runs. A run has its folder, its `result.json` and, unless a search made it, its answer to each test example,
in the order of their numbers. If the study shows curves over operations, the run also has the validations of
its finetuning. Labels are not included: they come from the prepared set. Answers that do not give the score
of the result are refused.
Answers are classes (at most 256), or numbers for a regression, or probabilities.
"""

import base64
import json
import pathlib
import zlib
from collections.abc import Callable

import numpy as np

from lra_spt import files
from lra_spt.data import measures
from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import ConfigError, DamagedFile, DataError
from lra_spt.files import checksums
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics.scores import SCORES
from lra_spt.report.study import record as studies

CURVES = 'operations'  # value of `Study.show`, and key in the file
DATA_DIR = 'runtime.data_dir'
ADVICE = 'take the file as it was committed'


def store(workdir, path) -> int:
  """Writes the file from the folder of a study; returns the number of its runs.

  Call `restore` first, or runs of other machines are lost.
  """
  workdir = pathlib.Path(workdir)
  folders = sorted(folder.parent for folder in workdir.rglob(run_folder.RESULT))
  study = _without_path(_read(workdir / run_folder.STUDY))
  curves = study['show'] == CURVES
  before = lines_of(path) if (path := pathlib.Path(path)).exists() else {}
  lines = [{'study': study}]
  for folder in folders:
    line = _line(folder, workdir, curves)
    stored = before.get(line['folder'])
    # A restored run differs from its line by the checksum of predictions.npz alone, which has a date in it.
    lines.append(
      stored if stored is not None and _without_checksum(stored) == _without_checksum(line) else line
    )
  with files.replacing(path, 'w') as file:
    file.writelines(json.dumps(line, separators=(',', ':')) + '\n' for line in lines)
  return len(folders)


def lines_of(path) -> dict[str, dict]:
  """{folder: line} of a file of runs; see the head of this module."""
  return {line['folder']: line for line in map(json.loads, path.read_text().splitlines()[1:])}


def _without_checksum(line) -> dict:
  return line | {'result': {key: value for key, value in line['result'].items() if key != checksums.KEY}}


def _read(path) -> dict:
  return json.loads(path.read_text())


def _without_path(study: dict) -> dict:
  """The record of a study without the path of its data, and so without its checksum."""
  cells = [
    cell | {'overrides': {key: value for key, value in cell['overrides'].items() if key != DATA_DIR}}
    for cell in study['cells']
  ]
  return {key: value for key, value in study.items() if key != checksums.KEY} | {'cells': cells}


def _line(folder, workdir, curves):
  result = run_folder.read_result(folder)  # refuses a damaged one
  line = {'folder': folder.relative_to(workdir).as_posix(), 'result': anywhere(folder / run_folder.RESULT)}
  if line['folder'].split('/')[0] != run_folder.SEARCH:
    if not (folder / run_folder.PREDICTIONS).exists():
      raise DataError(
        f'{folder} has no {run_folder.PREDICTIONS}, so it cannot go into the file: delete the run.'
      )
    with np.load(folder / run_folder.PREDICTIONS, allow_pickle=False) as stored:
      order_N = np.argsort(stored['index'])
      answers_N, label_N = stored['prediction'][order_N], stored['label'][order_N]
      if label_N.ndim == 2 and label_N.dtype.kind == 'i':  # answers at positions that do not count become 0
        answers_N = np.where(label_N == UNLABELLED, 0, answers_N)
      answers_N = answers_N.astype(_dtype(stored['label'], result.get('metric')))
    packed = zlib.compress(answers_N.tobytes(), 9)
    line['answers'] = base64.b64encode(packed).decode()
    if curves:
      line[CURVES] = _validation(folder, result)
  return line


def _dtype(label, metric):
  """The dtype of stored answers: classes, or numbers for a regression and probabilities."""
  return np.uint8 if label.dtype.kind == 'i' and metric != 'auroc' else '<f4'


def _validation(folder, result) -> list[dict]:
  """The lines about validation in the metrics of finetuning, without their times."""
  path = run_folder.followed(folder / result['stages']['finetune']['folder']) / run_folder.METRICS
  lines = run_folder.metrics_lines(path) if path.exists() else []
  validation = [line for line in lines if line and line['split'] == 'validation']
  return [{key: value for key, value in line.items() if key != 'seconds'} for line in validation]


def anywhere(path) -> dict:
  """Returns the content of a result.json without places on this machine: the data lie in the default folder,
  and the folder of another run's pretraining is ''. The checksum of the content is new."""
  stored = _read(path)
  result = {key: value for key, value in stored.items() if key != checksums.KEY}
  if 'data_dir' in result.get('runtime', {}):
    result['runtime'] = result['runtime'] | {'data_dir': 'data'}
  if result.get('pretrained'):
    result['pretrained'] = result['pretrained'] | {'run': ''}
  return result | {checksums.KEY: stored[checksums.KEY] | checksums.sealed(path, result)[checksums.KEY]}


def restore(path, workdir, tests: Callable[[str], dict | None]) -> tuple[int, list[str]]:
  """Makes folders of the runs that `workdir` lacks; returns their number, and the tasks that are left out.

  Args:
    path: a file that `store` wrote; where there is none, nothing happens.
    workdir: folder of the study.
    tests: returns the test examples of a task, in any order: index, label and, if they belong together,
      group, [N] each, as in predictions.npz. If its set is not there it returns None, and the runs of the
      task are left out.

  Raises:
    ConfigError: the folder belongs to another study, or lacks cells of the file.
    InUse: a study runs in the folder.
    DamagedFile: a result was edited, or the answers are not those to these examples.
  """
  path, workdir = pathlib.Path(path), pathlib.Path(workdir)
  if not path.exists():
    return 0, []
  workdir.mkdir(parents=True, exist_ok=True)
  study, *lines = map(json.loads, path.read_text().splitlines())
  study = _without_path(study['study'])
  records = [study, *([studies.read_record(workdir)] if studies.is_study(workdir) else [])]
  has = {(cell['row'], cell['column']) for cell in records[-1]['cells']}
  lacking = [cell for cell in study['cells'] if cell['seeds'] and (cell['row'], cell['column']) not in has]
  if lacking:
    raise ConfigError(
      f'{workdir} has no cell {lacking[0]["row"]}, {lacking[0]["column"]}, of which {path} has runs: give '
      'the command of those runs there first (it trains nothing that is finished).'
    )
  missing = [line for line in lines if not (workdir / line['folder'] / run_folder.RESULT).exists()]
  tasks = dict.fromkeys(line['result']['task'] for line in missing)
  absent = [task for task in tasks if tests(task) is None]
  missing = [line for line in missing if line['result']['task'] not in absent]
  if missing or not studies.is_study(workdir):
    with files.owned(workdir, 'putting runs into'):
      for record in records:  # first that of the file, then that of this machine
        studies.claim(workdir, record)
      for line in missing:
        restore_run(line, workdir, path, tests)
  return len(missing), absent


def test_examples(split) -> dict:
  """The examples of a test split as `restore` takes them."""
  test = split.gather(np.arange(len(split)))
  examples, group_N = {key: test[key] for key in ('index', 'label')}, split.groups(test['index'])
  return examples if group_N is None else examples | {'group': group_N}


def on_other_sets(path, prints: Callable[[str], dict | None]) -> list[str]:
  """A sentence per task whose runs in the file saw another version of its set than the one prepared here.

  They are restored all the same, since labels and answers agree, but runs that are trained here see other
  inputs or splits, and no report compares the two.

  Args:
    path: a file that `store` wrote; without it there is no sentence.
    prints: returns the `fingerprints` of the prepared set of a task, or None if it is not there.
  """
  if not (path := pathlib.Path(path)).exists():
    return []
  results_of = {}
  for line in lines_of(path).values():
    result = line['result']
    results_of.setdefault(result['task'], {})[str(result.get('fingerprints'))] = result
  sentences = []
  for task, results in results_of.items():
    here = prints(task)
    for result in results.values() if here else ():
      theirs = result.get('fingerprints') or {}
      if unlike := [name for name in theirs if theirs[name] != here.get(name)]:
        name, source = unlike[0], (result.get('data') or {}).get('source', 'source not noted')
        sentences.append(
          f'The runs of {task} in the file ({source}) have other {name} than the set that is prepared here '
          f'(fingerprint {theirs[name][:8]}, here {here.get(name, "none")[:8]}), so runs that are trained '
          'here are compared with none of them: prepare it from the same files, or go on in a folder of '
          'its own.'
        )
  return sentences


def restore_run(line: dict, workdir: pathlib.Path, path, tests: Callable[[str], dict | None]) -> None:
  """Makes the folder of one run from its line in the file `path`; see `restore`."""
  folder = workdir / line['folder']
  if workdir.resolve() not in folder.resolve().parents:
    raise DamagedFile(f'{path} names the folder {line["folder"]!r}, which is not in the study; {ADVICE}.')
  result = {key: value for key, value in line['result'].items() if key != checksums.KEY}
  sealed = checksums.sealed(folder / run_folder.RESULT, result)[checksums.KEY]
  if sealed.items() - line['result'][checksums.KEY].items():
    raise DamagedFile(f'{path}: the result of {line["folder"]} was edited, by its checksum; {ADVICE}.')
  if 'answers' not in line:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / run_folder.RESULT, line['result'])
    return
  test = tests(result['task'])
  order_N = np.argsort(test['index'])  # the order in which `store` wrote answers
  test = {key: value_N[order_N] for key, value_N in test.items()}
  dtype = _dtype(test['label'], result['metric'])
  answer_N = np.frombuffer(zlib.decompress(base64.b64decode(line['answers'])), dtype)
  score = SCORES[result['metric']]
  stored = result['metrics']['test'][score.key]
  if agree := answer_N.size == test['label'].size:
    answer_N = answer_N.reshape(test['label'].shape)
    scored = measures.measured([score.key], test['label'], answer_N)[score.key]
    agree = abs(scored - stored) <= score.tolerance
  if not agree:
    raise DamagedFile(
      f'{path}: the answers of {line["folder"]} are not those to the test examples of {result["task"]}; '
      f'prepare that set as the study says, or {ADVICE}.'
    )
  folder.mkdir(parents=True, exist_ok=True)
  if line.get(CURVES):  # before the result, with which the run counts as finished
    _restore_curve(folder, result['stages']['finetune']['folder'], line[CURVES], path)
  run_folder.write_result(folder, result, test | {'prediction': answer_N})


def _restore_curve(folder, name, lines, path):
  if not files.is_name(name):
    raise DamagedFile(f'{path} names the stage {name!r}, which is not in {folder.name}; {ADVICE}.')
  # A run that was begun here has a link to the stages of the study.
  place = run_folder.followed(folder / name).resolve()
  place.mkdir(parents=True, exist_ok=True)
  with files.replacing(place / run_folder.METRICS, 'w') as file:
    file.writelines(json.dumps(one) + '\n' for one in lines)
