"""The command of a further Python process that uses this package."""

import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def python() -> list[str]:
  """Returns the interpreter and its flags, which `-m MODULE` follows.

  `-m` looks into the working directory first. That folder may hold another one named lra_spt, such as the
  clone. So the flag -P leaves it out, unless it is the folder that this process imported the package from.
  """
  return [sys.executable, *([] if pathlib.Path.cwd() == _ROOT else ['-P'])]
