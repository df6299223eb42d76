"""The long form of tests/faults/test_faults.py: every operation of prepare, train and report is struck.

  python -m tests.faults.long --folder=F     # about two hours; the same command goes on where it was ended

In chains (see chain.py), whose folder is checked by a run without faults after every few strikes. What comes
first of each kind (a call and a file, without hashes and steps) in a process is struck:
  ENOSPC  the disk is full from there on, until the process ends: every kind;
  EIO     that operation alone fails: every kind (of training, those of the regime that has one stage);
  EACCES  likewise, where something is opened, made, renamed or removed;
  EFBIG, EDQUOT  from there on; 20 kinds of write;
  torn    half of a write happens, or another operation does not, and SIGKILL ends all: 50 kinds of training,
          every kind of the other commands;
  SIGTERM, SIGINT  before 10 kinds of training.
Linux only; see interposer.py.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys

from benchmarks import harness
from tests.faults import chain, interposer, zygote
from tests.faults.interposer import Fault

OUTPUT = harness.RESULTS / 'faults.json'
BETWEEN_CHECKS = 8
KILLS, SIGNALS, LIMITS = 50, 10, 20
SCENES = {  # scene: the one that makes what it is given
  chain.STRIPES: None,
  chain.LISTOPS: None,
  chain.MASKED: chain.STRIPES,
  chain.SCRATCH: chain.STRIPES,
  chain.REPORT: chain.MASKED,
}


def spread(kinds: list[str], count: int) -> list[str]:
  """`count` of them, evenly."""
  return [kinds[i * len(kinds) // count] for i in range(min(count, len(kinds)))]


def plan(scene: chain.Scene, operations) -> list[Fault]:
  """The faults that strike a command, chain by chain."""
  kinds = list(dict.fromkeys(operation.kind for operation in operations))
  calls = {kind: kind.split()[0] for kind in kinds}
  writes = [kind for kind in kinds if calls[kind] in interposer.WRITES]
  named = [kind for kind in kinds if calls[kind] in (*interposer.PATHS,)]
  limits = spread(writes, LIMITS)
  alone = {'EIO': kinds, 'EACCES': named, 'EFBIG': limits, 'EDQUOT': limits}
  signals = dict.fromkeys(('SIGTERM', 'SIGINT'), spread(kinds, SIGNALS))
  if scene is chain.MASKED:
    chosen = {'ENOSPC': kinds, 'torn': spread(kinds, KILLS), **signals}
  elif scene is chain.SCRATCH:
    chosen = alone
  else:
    chosen = {'ENOSPC': kinds, 'torn': kinds, **alone}
  return [Fault(kind, action) for action, kinds in chosen.items() for kind in kinds]


class Records:
  """Records of past strikes in a file of lines, with which an ended command goes on."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    lines = path.read_text().splitlines() if path.exists() else []
    self.struck = [chain.Struck(**json.loads(line)) for line in lines]
    self._done = {(struck.scene, struck.kind, struck.action) for struck in self.struck}

  def has(self, scene: chain.Scene, fault: Fault) -> bool:
    return (scene.name, fault.at, fault.action) in self._done

  def add(self, struck: chain.Struck) -> None:
    self.struck.append(struck)
    with self._path.open('a') as file:
      file.write(json.dumps(dataclasses.asdict(struck)) + '\n')


def strike_all(one: chain.Chain, scene: chain.Scene, faults, records: Records, announce) -> None:
  """Strikes what has not been struck; a problem that a check finds is noted at the strike before it."""
  faults = [fault for fault in faults if not records.has(scene, fault)]
  pending, since = [], 0
  for number, fault in enumerate(faults, 1):
    struck = one.strike(fault)
    if struck is None:  # the operation is not among those that are left to do
      one.again()
      struck = one.strike(fault)
    if struck is None:
      struck = chain.Struck(scene.name, fault.at, fault.action, 0, '', 0.0, 'it did not come again')
    pending.append(struck)
    since += 1
    if since == BETWEEN_CHECKS or number == len(faults) or struck.problem:
      problem, since = one.finish(), 0
      if problem or struck.problem:
        struck.problem = '; '.join(filter(None, (struck.problem, problem)))
        one.again()
      for each in pending:
        records.add(each)
      pending = []
    announce(
      f'{scene.name} {number}/{len(faults)} {fault.action} at {fault.at}: {struck.status} {struck.problem}'
    )


def table(records: Records) -> list[dict]:
  """A row for each command, action and call."""
  rows = collections.defaultdict(lambda: collections.Counter())
  for struck in records.struck:
    row = rows[struck.scene, struck.action, struck.kind.split()[0]]
    row['struck'] += 1
    row['problems'] += bool(struck.problem)
    row[f'status {struck.status}'] += 1
  return [
    {'command': command, 'fault': action, 'call': call, **counts}
    for (command, action, call), counts in sorted(rows.items())
  ]


def main(argv: list[str] | None = None) -> int:
  """0 when nothing was found."""
  parser = argparse.ArgumentParser('python -m tests.faults.long', description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument('--folder', type=pathlib.Path, required=True, help='to work in; kept')
  parser.add_argument('--only', default='', help='the commands whose name begins so')
  parser.add_argument('--json', type=pathlib.Path, default=OUTPUT, help='output (%(default)s)')
  arguments = parser.parse_args(argv)
  if reason := interposer.unavailable():
    print(reason, file=sys.stderr)
    return 2
  folder = arguments.folder.absolute()
  folder.mkdir(parents=True, exist_ok=True)
  head = harness.report('', 'real processes struck at each kind of operation on files', 'orbax-checkpoint')
  head['command'] = 'python -m tests.faults.long'
  records = Records(folder / 'records.jsonl')
  processes = zygote.Processes(folder, zygote.compiled_in(folder))
  counts = {}
  for scene, before in SCENES.items():
    name = scene.name.replace(' ', '-')
    given = before and folder / before.name.replace(' ', '-')
    expected, operations = chain.undisturbed(processes, scene, folder / name, given)
    kinds = {operation.kind for operation in operations}
    planned = plan(scene, operations)
    counts[scene.name] = {'operations': len(operations), 'kinds': len(kinds), 'planned': len(planned)}
    if scene.name.startswith(arguments.only):
      one = chain.Chain(processes, scene, folder / 'struck', given, expected)
      strike_all(one, scene, planned, records, lambda line: print(line, flush=True))
  processes.close()
  for name, count in collections.Counter(struck.scene for struck in records.struck).items():
    counts[name]['struck'] = count
  problems = [dataclasses.asdict(struck) for struck in records.struck if struck.problem]
  kills = sum(struck.action == 'torn' for struck in records.struck)
  counted = {'strikes': len(records.struck), 'kills': kills, 'problems': problems}
  harness.write(arguments.json, head | {'commands': counts} | counted | {'rows': table(records)})
  return int(bool(problems))


if __name__ == '__main__':
  sys.exit(main())
