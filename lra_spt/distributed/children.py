"""The command of a further Python process that uses this package."""

import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def python() -> list[str]:
  """Returns the interpreter with flags, for `-m MODULE`.

  `-m` looks into the working directory first. Where that is not what this process imported the package from,
  it may hold another folder of this name, such as a clone, so the flag -P leaves it out.
  """
  return [sys.executable, *([] if pathlib.Path.cwd() == _ROOT else ['-P'])]
