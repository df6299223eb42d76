"""`python -m lra_spt.cli` is the command `lra-spt`, as `python -m lra_spt` is."""

import sys

from lra_spt.cli.main import command

if __name__ == '__main__':
  sys.exit(command())
