"""Turns stored notebooks into Markdown pages of the site; runs nothing."""

import base64
import json
import pathlib
import re

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'notebooks'
ESCAPES = re.compile(r'\x1b\[[0-9;]*m')  # colours of a terminal


def names() -> list[str]:
  return sorted(path.stem for path in FOLDER.glob('*.ipynb'))


def page(name: str) -> tuple[str, dict[str, bytes]]:
  """Returns the page of a notebook, and {file name beside it: content} of its pictures."""
  notebook = json.loads((FOLDER / f'{name}.ipynb').read_text(encoding='utf-8'))
  parts, pictures = [], {}
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(source)
      continue
    parts.append(_block(source, 'python'))
    for output in cell['outputs']:
      data = output.get('data', {})
      if 'image/png' in data:
        file = f'{name}_{len(pictures) + 1}.png'
        pictures[file] = base64.b64decode(''.join(data['image/png']))
        parts.append(f'![Output of the cell above]({file})')
      elif text := ''.join(output.get('text') or data.get('text/plain') or ''):
        parts.append(_block(ESCAPES.sub('', text), 'text .output'))
  return '\n\n'.join(parts) + '\n', pictures


def _block(text: str, classes: str) -> str:
  """Fences a text with more backticks than it has in a row."""
  fence = '`' * (max([2, *map(len, re.findall('`+', text))]) + 1)
  return f'{fence}{{ .{classes} }}\n{text.rstrip()}\n{fence}'
