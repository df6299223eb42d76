"""A command that faults strike one after the other, on one folder, and that ends as if there had been none.

Each fault strikes a process of its own, at one operation; after every one what was there before must be
intact. The last process runs without any: it must make what an undisturbed one makes, and leave nothing else.
"""

import dataclasses
import json
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Sequence

import numpy as np

from tests.faults.interposer import Fault, leftovers, normalised
from tests.faults.zygote import ROOT, Outcome, Processes

TIMED = ('seconds', 'examples_per_second', 'mfu')
NOT_BY_STEP = ('.checked.json', 'tensorboard')  # differ with times, and with the number of processes


@dataclasses.dataclass(frozen=True)
class Scene:
  """A command on files.

  arguments: of `lra-spt`, where FOLDER stands for the folder of the scene. watched: folders in it whose
  operations count. content: what the command makes there, as something that `==` compares. given: folders
  that are there before, and must not change, from a folder of the same names.
  """

  name: str
  arguments: Sequence[str]
  watched: Sequence[str]
  content: Callable[[pathlib.Path], object]
  given: Sequence[str] = ()


def bytes_below(folder: pathlib.Path) -> dict[str, bytes]:
  """{relative path: content} of all files but notes with times."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file() and path.name not in NOT_BY_STEP
  }


def run_content(folder: pathlib.Path) -> dict:
  """Everything in a run that does not tell the time: result, predictions, curves, names of files."""
  run = folder / 'run'
  result = json.loads((run / 'result.json').read_text())
  for stage in result['stages'].values():
    del stage['seconds'], stage['time']
  curves = {}
  for path in run.glob('*/metrics.jsonl'):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    curves[path.parent.name] = [{k: v for k, v in line.items() if k not in TIMED} for line in lines]
  files = {normalised(str(path.relative_to(run))) for path in run.rglob('*')}
  return {
    'result': {key: result[key] for key in ('metrics', 'stages', 'parameters', 'fingerprints', 'config')},
    'predictions': {name: array.tobytes() for name, array in np.load(run / 'predictions.npz').items()},
    'curves': curves,
    'files': sorted(files),
  }


def _prepared(dataset: str, *flags: str) -> Scene:
  command = ('prepare', dataset, '--data_dir=FOLDER/data', *flags)
  return Scene(f'prepare {dataset}', command, ('data',), lambda folder: bytes_below(folder / 'data'))


def _trained(regime: str) -> Scene:
  config = f'--config={ROOT}/tests/faults/tiny_run.py:regime={regime}'
  command = ('train', config, '--workdir=FOLDER/run', '--config.runtime.data_dir=FOLDER/data')
  return Scene(f'train {regime}', command, ('run',), run_content, given=('data',))


STRIPES = _prepared('stripes', '--examples=40')
LISTOPS = _prepared('listops', '--examples=40', '--workers=2')
MASKED, SCRATCH = _trained('masked'), _trained('scratch')
REPORT = Scene(
  'report',
  ('report', '--workdir=FOLDER/run'),
  ('run',),
  lambda folder: {'report.html': (folder / 'run' / 'report.html').read_bytes()},
  given=('run',),
)


def _run(processes: Processes, scene: Scene, folder, fault=None) -> Outcome:
  arguments = [argument.replace('FOLDER', str(folder)) for argument in scene.arguments]
  return processes.lra_spt(*arguments, watched={name: folder / name for name in scene.watched}, fault=fault)


def undisturbed(processes: Processes, scene: Scene, folder, given=None):
  """(what the command makes in a fresh folder, its operations); given: the folder that has `scene.given`."""
  _fresh(scene, folder, given)
  outcome = _run(processes, scene, folder)
  assert (outcome.status, outcome.complained) == (0, ''), outcome
  return scene.content(folder), outcome.operations


def _fresh(scene, folder, given):
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  for name in scene.given:
    shutil.copytree(given / name, folder / name)


@dataclasses.dataclass
class Struck:
  """The outcome of a process that a fault struck; problem: the deviation from what is expected."""

  scene: str
  kind: str
  action: str
  status: int
  sentence: str
  seconds: float
  problem: str = ''


class Chain:
  """Strikes a command at one operation after the other.

  Args:
    folder: to work in; given: as in `undisturbed`; expected: what the command makes.
  """

  def __init__(self, processes: Processes, scene: Scene, folder, given, expected):
    self._processes, self._scene, self._folder, self._given = processes, scene, folder, given
    self._expected = expected
    self.again()

  def strike(self, fault: Fault) -> Struck | None:
    """Runs the command with the fault; None when it came to its end without meeting it."""
    start = time.monotonic()
    outcome = _run(self._processes, self._scene, self._folder, fault)
    seconds = round(time.monotonic() - start, 2)
    if outcome.struck is None:
      return None
    problem = _wrong_end(outcome, fault.action) or self._wrong_state(outcome)
    status, sentence = outcome.status, outcome.complained.replace(str(self._folder), '').strip()
    return Struck(self._scene.name, str(fault.at), fault.action, status, sentence, seconds, problem)

  def finish(self) -> str:
    """Runs the command without a fault, on a copy, so that the chain can go on; what is wrong then, or ''."""
    copy = self._folder.with_name(f'{self._folder.name}.kept')
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(self._folder, copy, symlinks=True)
    outcome = _run(self._processes, self._scene, self._folder)
    problem = self._wrong_result(outcome)
    shutil.rmtree(self._folder)
    copy.rename(self._folder)
    return problem

  def again(self) -> None:
    """Starts with a fresh folder."""
    _fresh(self._scene, self._folder, self._given)
    self._kept = {name: bytes_below(self._folder / name) for name in self._scene.given}

  def _wrong_result(self, outcome):
    if (outcome.status, outcome.complained) != (0, ''):
      return f'the next run ended with {outcome.status}: {outcome.complained[-2000:]}'
    left = [name for watched in self._scene.watched for name in leftovers(self._folder / watched)]
    if left:
      return f'the next run left {left}'
    actual = self._scene.content(self._folder)
    if actual == self._expected:
      return ''
    differing = [key for key in {*actual, *self._expected} if actual.get(key) != self._expected.get(key)]
    return f'the next run made another {sorted(differing)}'

  def _wrong_state(self, outcome):
    for name, content in self._kept.items():
      now = bytes_below(self._folder / name)
      changed = [path for path in content if now.get(path) != content[path]]
      if changed:
        return f'{name}: {changed} changed'
    for path in self._folder.rglob('*.json'):
      if not re.search('tmp|incomplete', str(path.relative_to(self._folder))):
        try:
          json.loads(path.read_text())
        except ValueError as error:
          return f'{path} is half written: {error}'
    saved = {}
    before = outcome.operations[: [id(o) for o in outcome.operations].index(id(outcome.struck))]
    for operation in before:
      if re.fullmatch(r'rename \S+\.tmp \S+/(latest|best)/STEP', operation.kind):
        saved[pathlib.Path(operation.path).parent] = pathlib.Path(operation.path)
    for path in saved.values():
      whole = [path for path in path.parent.iterdir() if (path / 'commit_success.txt').exists()]
      if not any(int(actual.name) >= int(path.name) for actual in whole if actual.name.isdigit()):
        return f'the checkpoint {path} is gone'
    return ''


def _wrong_end(outcome: Outcome, action: str) -> str:
  """The deviation in how a process ended, or ''."""
  complaint = outcome.complained
  if 'Traceback' in complaint + outcome.printed or 'Exception' in complaint:
    return f'a traceback: {complaint[-3000:]}'
  if action in ('kill', 'torn'):
    return '' if outcome.status == -9 else f'it ended with {outcome.status}'
  sentences = complaint.splitlines()
  if action in ('SIGTERM', 'SIGINT') and sentences and 'the run saves its state and ends' in sentences[0]:
    del sentences[0]  # the answer to the signal, which may come too late to stop the run
  if outcome.status == 0:
    return '' if not sentences else f'it ended well, but said {complaint[:1000]}'
  allowed = {'SIGTERM': (75, -15), 'SIGINT': (130,)}.get(action, (2,))
  if outcome.status not in allowed:
    return f'it ended with {outcome.status}: {complaint[-2000:]}'
  if outcome.status != -15 and (len(sentences) != 1 or not sentences[0].startswith('lra-spt: ')):
    return f'it said {complaint[:1000]!r}'
  if 'failure.json' in complaint and 'failure.json' not in outcome.struck.kind:
    return f'the note of the error buries it: {complaint[:1000]!r}'
  if action in ('ENOSPC', 'EDQUOT', 'EFBIG') and not re.search(
    r'/\S+ could not be .*: (no space|the)', complaint
  ):
    return f'it did not say what is missing: {complaint[:1000]!r}'
  return ''
