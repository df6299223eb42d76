"""Where the project is published: OWNER in setup.py, from which docs/build.py fills in what names it.

  <!-- badge NOTEBOOK --> ... <!-- /badge -->    the badge that opens a notebook on Colab
  REPOSITORY = '...'                             in a notebook: where pip finds the project
  git clone ... lra_spt                      in the README
  repository-code: ..., - Source: ...            lines of CITATION.cff and mkdocs.yml

While OWNER is empty there is no badge, REPOSITORY is empty, `git clone` has URL, and the lines are comments.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
BADGE = re.compile(r'<!-- badge (\w+) -->.*?<!-- /badge -->')
REPOSITORY = re.compile(r"\bREPOSITORY = '[^']*'")
CLONE = re.compile(r'(git clone )\S+( lra_spt)')
LINE = re.compile(r'^( *)(?:# )?(repository-code: |- Source: ).*$', re.MULTILINE)
UNKNOWN = 'written by docs/build.py, once OWNER of setup.py is set'


def owner() -> str:
  """The owner on GitHub; '' while there is none."""
  return re.search(r"^OWNER = '(.*)'", (ROOT / 'setup.py').read_text(encoding='utf-8'), re.MULTILINE)[1]


def files() -> list[pathlib.Path]:
  """All files that name the address."""
  notebooks = sorted((ROOT / 'notebooks').glob('*.ipynb'))
  return [ROOT / 'README.md', ROOT / 'CITATION.cff', ROOT / 'mkdocs.yml', *notebooks]


def filled(text: str, owner: str) -> str:
  """Returns the text of one of these files with the address."""
  source = owner and f'https://github.com/{owner}/lra_spt'

  def badge(mark):
    # As HTML, because Markdown takes a line that begins with a comment for that; it stands in JSON too.
    page = f'https://colab.research.google.com/github/{owner}/lra_spt/blob/main/notebooks/{mark[1]}.ipynb'
    image = "<img src='https://colab.research.google.com/assets/colab-badge.svg' alt='Open in Colab'>"
    return f'<!-- badge {mark[1]} -->{owner and f"<a href={page!r}>{image}</a>"}<!-- /badge -->'

  text = BADGE.sub(badge, text)
  text = REPOSITORY.sub(f"REPOSITORY = '{source and source + '.git'}'", text)
  text = CLONE.sub(lambda clone: f'{clone[1]}{source or "URL"}{clone[2]}', text)
  return LINE.sub(lambda line: f'{line[1]}{"" if source else "# "}{line[2]}{source or UNKNOWN}', text)
