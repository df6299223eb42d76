"""Pictures of the pages as PNG, each with digests of the result files that it shows.

docs/figures.py has a list of those that are drawn. One is of the page of a study, taken by a browser:

  lra-spt report --workdir=runs/mini && python -m docs.pictures runs/mini/report.html [--browser=chromium]
"""

import argparse
import hashlib
import pathlib
import subprocess
import tempfile

from PIL import Image, PngImagePlugin

from lra_spt.report.pages import figures

ROOT = pathlib.Path(__file__).parent.parent
SHOWS = 'Description'  # a keyword of PNG: what the picture shows
PAGE = ROOT / 'docs/images/mini.png'
OF_PAGE = [ROOT / 'benchmarks/results/mini_table_runs.jsonl']  # the runs that the page is made from
WIDTH, HEIGHT = 1280, 4480  # pixels: the page down to the leads of one model over another


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


def take(page: pathlib.Path, path: pathlib.Path, files: list[pathlib.Path], browser: str) -> None:
  """Saves the upper part of an HTML page, as a browser without a window shows it."""
  with tempfile.TemporaryDirectory() as folder:
    taken = pathlib.Path(folder, 'page.png')
    options = ('--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars')
    size, profile = f'--window-size={WIDTH},{HEIGHT}', f'--user-data-dir={folder}/profile'
    command = [browser, *options, profile, size, f'--screenshot={taken}', page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    text = PngImagePlugin.PngInfo()
    text.add_text(SHOWS, digests(files))
    with Image.open(taken) as picture:
      picture.quantize(colors=256, dither=Image.Dither.NONE).save(path, optimize=True, pnginfo=text)


def main(arguments=None) -> None:
  parser = argparse.ArgumentParser(prog='python -m docs.pictures', description=__doc__.split('\n')[0])
  parser.add_argument('page', type=pathlib.Path, help='report.html in the folder of the study mini_table')
  parser.add_argument('--browser', default='chromium', help='command of Chromium or Chrome')
  given = parser.parse_args(arguments)
  if 'Study mini_table ' not in given.page.read_text(encoding='utf-8'):
    parser.error(f'{given.page} is not the page of the study mini_table; give its report.html')
  take(given.page, PAGE, OF_PAGE, given.browser)


if __name__ == '__main__':
  main()
