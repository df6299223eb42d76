"""Fails when a test was skipped that could have run: python .ci/skipped.py tests.xml

Every reason for a skip must be one of those below; those about missing data hold only where no folder of
real data is (LRA_SPT_SHARED, or `shared` beside the repository). Tests that compile for TPUs must have run:
they need no TPU.
"""

import os
import pathlib
import re
import sys
import xml.etree.ElementTree

ALWAYS = (  # what this environment cannot have
  r'needs Apache Beam',  # has a part of its own in .ci/run
  r'needs (wandb|mlflow)',  # likewise
  r'needs jax (older than )?0\.11',  # one of both; .ci/run also has newer jax, with tokamax
  r'PyTorch is not installed',  # no requirement; an example and peers use it
  r'neither aeon nor sktime is installed',  # likewise; tests also read files that they write themselves
  r'zsh is not installed',
  r'libtpu exists for Linux on x86-64 only',
  r'watching system calls is written for Linux',
  r'this system refuses seccomp user notifications',
)
WITHOUT_DATA = (r'no folder .*: set LRA_SPT_SHARED', r'no (official )?Pathfinder images', r'no .*unpack\.py')


def wrong(report: str, folder: pathlib.Path) -> list[str]:
  """A line for every test of a junit report that should have run, and one when none compiled for TPU."""
  known = ALWAYS if folder.is_dir() else (*ALWAYS, *WITHOUT_DATA)
  found, compiled = [], 0
  for case in xml.etree.ElementTree.fromstring(report).iter('testcase'):
    name = f'{case.get("classname")}.{case.get("name")}'
    skipped = case.find('skipped')
    compiled += 'test_tpu' in name and skipped is None
    reason = None if skipped is None else skipped.get('message', '')
    if reason is not None and not any(re.search(pattern, reason) for pattern in known):
      found.append(f'{name} was skipped: {reason}')
  return found if compiled else [*found, 'no test compiled for a TPU']


def main(arguments: list[str]) -> int:
  """0 when every test ran that could."""
  root = pathlib.Path(__file__).resolve().parent.parent
  shared = pathlib.Path(os.environ.get('LRA_SPT_SHARED', root.parent / 'shared'))
  lines = wrong(pathlib.Path(arguments[0]).read_text(encoding='utf-8'), shared)
  print(
    '\n'.join(lines) or f'ci: every test ran that could ({"with" if shared.is_dir() else "no"} real data)'
  )
  return int(bool(lines))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
