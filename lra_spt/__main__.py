"""`python -m lra_spt` is the command `lra-spt`."""

import sys

from lra_spt.cli.main import command

sys.exit(command())
