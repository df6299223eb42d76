"""Runs `lra-spt train` until its first step is done, and reports when each part ended: see `first_step`.

  python -c 'import benchmarks.started as child; child.main()' NOW FLAG ...

NOW: when it was started. Before the first clock reading, only what the command itself imports is imported.
"""

import json
import os
import sys
import time

from lra_spt.cli import huge_pages


def main() -> None:
  """Trains until the first step is there; prints {part: seconds since NOW when it ended}."""
  started, arguments, ends = float(sys.argv[1]), sys.argv[2:], {}

  def ended(part):
    ends[part] = time.time() - started

  huge_pages.restart()  # as `lra-spt train` does
  ended('Python')
  import jax

  from lra_spt.cli import main as cli
  from lra_spt.runs import build
  from lra_spt.runs import plan as planning
  from lra_spt.training import loop

  ended('imports')

  def noted(owner, name, part):
    function = getattr(owner, name)

    def run(*positional, **named):
      result = function(*positional, **named)
      if part not in ends:
        ended(part)
      return result

    setattr(owner, name, run)

  def until_a_step(program):
    step = train_steps(program)

    def dispatch(*positional):
      ended('folders, files, threads')
      result = step(*positional)
      ended('step compiled')
      jax.block_until_ready(result)
      ended('step computed')
      print(json.dumps(ends), flush=True)
      os._exit(0)

    return dispatch

  noted(planning, 'stages_of', 'config and shapes')
  noted(planning.examples_lib, 'open_splits', 'data opened')
  noted(build.Built, 'check', 'sizes checked')
  noted(build.Built, 'fresh_state', 'initial values')
  train_steps, loop.train_steps = loop.train_steps, until_a_step
  sys.exit(cli.main(arguments))
