"""Pictures of the pages as PNG, each with digests of the result files that it shows.

docs/figures.py has a list of them.
"""

import hashlib
import pathlib

from PIL import Image

from lra_spt.pages import figures

SHOWS = 'Description'  # a keyword of PNG: what the picture shows


def digests(files: list[pathlib.Path]) -> str:
  """'demo_seeds.json 0a1b...', of the content of files."""
  return ', '.join(f'{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}' for path in files)


def save(path: pathlib.Path, draw, files: list[pathlib.Path]) -> None:
  """draw: makes the figure within a style of its own; nothing is written where it makes None."""
  with figures.style(path.stem):
    if (figure := draw()) is not None:
      figure.savefig(path, dpi=150, facecolor='white', metadata={SHOWS: digests(files)})


def is_stale(path: pathlib.Path, files: list[pathlib.Path]) -> bool:
  """Whether a picture shows other result files, does not say which, or is not there."""
  if not path.exists():
    return True
  with Image.open(path) as picture:
    return picture.text.get(SHOWS) != digests(files)
