"""Runs notebooks from top to bottom and stores their outputs in them.

  python notebooks/store.py                    # all of them, with the settings that they have
  python notebooks/store.py 01_quickstart

Each runs in an empty folder, of which the outputs keep no trace: paths in them begin below it.
"""

import pathlib
import sys
import tempfile
import time

import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent


def execute(path, folder, *, timeout=None):
  """The notebook of `path` with its outputs, run in `folder`; seconds that a cell may take, or any."""
  notebook = nbformat.read(path, as_version=4)
  nbclient.NotebookClient(notebook, timeout=timeout, kernel_name='python3').execute(cwd=str(folder))
  return notebook


def tidied(notebook, folder):
  """The same without what differs between two runs of the same bits: where it ran, when, and as what."""
  notebook.metadata['language_info'] = {'name': 'python'}
  for cell in notebook.cells:
    cell.metadata.pop('execution', None)
    for output in cell.get('outputs', ()):
      if 'text' in output:
        output['text'] = output['text'].replace(f'{folder}/', '')
  return notebook


def main(names):
  known = sorted(path.stem for path in FOLDER.glob('*.ipynb'))
  for name in set(names) - set(known):
    sys.exit(f'There is no notebook {name!r}; choose from {", ".join(known)}.')
  for name in names or known:
    path, begin = FOLDER / f'{name}.ipynb', time.time()
    print(f'{name}: running ...', flush=True)
    with tempfile.TemporaryDirectory() as folder:
      nbformat.write(tidied(execute(path, folder), folder), path)
    print(f'{name}: {time.time() - begin:.0f} s', flush=True)


if __name__ == '__main__':
  main(sys.argv[1:])
