"""Hooks of mkdocs (mkdocs.yml).

Pages that lie elsewhere in the repository, the notebooks, and the script that sorts tables of reports join
the site. Links are written for reading in the repository; the hooks turn them into links between pages of the
site. Of a picture with a dark variant, the theme shows the one that the reader has switched on, whatever the
system prefers.
"""

import pathlib
import posixpath
import re

import notebook_pages  # beside this file, whose folder mkdocs adds to the path
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
ELSEWHERE = {  # path in the repository: name in the site
  'README.md': 'index.md',
  'launch/README.md': 'launching.md',
  'launch/colab.md': 'colab.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changes.md',
}
NOTEBOOKS = {f'notebooks/{name}.ipynb': f'notebooks/{name}.md' for name in notebook_pages.names()}
LINKED = '.md', '.png', '.ipynb'
PICTURE = re.compile(  # one picture for light pages and one for dark ones
  r'<picture>\s*<source [^>]*srcset="docs/([^"]+)">\s*<img src="docs/([^"]+)"([^>]*)>\s*</picture>'
)
SORTING = ROOT / 'lra_spt/report/pages/templates/tables.js'
LINK = re.compile(r'(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))')


def on_files(files, config):
  for path, name in ELSEWHERE.items():
    text = (ROOT / path).read_text(encoding='utf-8')
    files.append(File.generated(config, name, content=text))
  for name in notebook_pages.names():
    text, pictures = notebook_pages.page(name)
    files.append(File.generated(config, f'notebooks/{name}.md', content=text))
    for file, content in pictures.items():
      files.append(File.generated(config, f'notebooks/{file}', content=content))
  files.append(File.generated(config, SORTING.name, content=SORTING.read_text(encoding='utf-8')))
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns links to pages into those of the site, and links to other files into their names."""
  uri, there = page.file.src_uri, ELSEWHERE | NOTEBOOKS
  here = {name: path for path, name in there.items()}.get(uri, f'docs/{uri}')
  known = {file.src_uri for file in files}

  def moved(match):
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[2]))
    name = there.get(path, path.removeprefix('docs/'))
    target = posixpath.relpath(name, posixpath.dirname(uri))
    return f'{match[1]}{target}{match[3]}' if name in known else match[0]

  def without(match):  # [text](file.py) -> text
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[2]))
    return f'`{path}`' if (ROOT / path).is_file() and not path.endswith(LINKED) else match[0]

  markdown = PICTURE.sub(r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>', markdown)
  markdown = re.sub(r'\[([^\]]+)\]\(([^)\s:#]+)\)', without, markdown)
  return LINK.sub(moved, markdown)
