"""Makes the pictures of docs/gallery.md from reports, with Chromium.

  python -m docs.gallery demo=runs/demo/report.html study=runs/longer/report.html

A picture shows the first screen of a page in 256 colours, as docs/images/report_NAME.png.
"""

import pathlib
import subprocess
import sys
import tempfile

from PIL import Image

FOLDER = pathlib.Path(__file__).parent / 'images'
SIZE = 960, 900  # of the window, in pixels


def picture(name: str, page: pathlib.Path) -> pathlib.Path:
  """Writes the picture of a page and returns its path."""
  with tempfile.TemporaryDirectory() as folder:
    shot = pathlib.Path(folder) / 'shot.png'
    command = ['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars']
    command += [f'--user-data-dir={folder}', f'--window-size={SIZE[0]},{SIZE[1]}', f'--screenshot={shot}']
    subprocess.run([*command, page.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL)
    path = FOLDER / f'report_{name}.png'
    with Image.open(shot) as image:
      image.convert('RGB').quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
  return path


if __name__ == '__main__':
  for argument in sys.argv[1:]:
    name, _, page = argument.partition('=')
    made = picture(name, pathlib.Path(page))
    print(f'{made} has {made.stat().st_size / 1e3:.0f} kB')
