"""Runs notebooks from top to bottom and stores their outputs in them.

  python notebooks/store.py                    # all notebooks, with their settings
  python notebooks/store.py 01_quickstart

Each runs in an empty folder. The outputs do not name this folder: paths in them begin below it. An exercise
is not run: it is its solution, with blanks in place of what stands between BEGIN SOLUTION and END SOLUTION.
"""

import copy
import json
import os
import pathlib
import re
import sys
import tempfile
import time

import nbformat
import tqdm

FOLDER = pathlib.Path(__file__).parent
SUFFIX = '_solution'
BLANKS = {  # type of a cell: a solution with its name for the blank, and what takes its place
  'code': (
    re.compile(r'^( *)# BEGIN SOLUTION: (.*)\n(?:.*\n)*?\1# END SOLUTION$', re.MULTILINE),
    lambda match: f'{match[1]}raise NotImplementedError({match[2]!r})',
  ),
  'markdown': (
    re.compile(r'^<!-- BEGIN SOLUTION: (.*) -->\n(?:.*\n)*?<!-- END SOLUTION -->$', re.MULTILINE),
    r'*\1*',
  ),
}


def execute(path, folder, *, timeout=None):
  """Runs the notebook of `path` in `folder` and returns it with its outputs.

  timeout: seconds that a cell may take; None: any time.
  """
  import nbclient

  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(notebook, timeout=timeout, kernel_name='python3')
  cells = sum(cell.cell_type == 'code' for cell in notebook.cells)
  with tqdm.tqdm(total=cells, desc=pathlib.Path(path).stem, unit=' cells', disable=None) as bar:
    client.on_cell_executed = lambda **_: bar.update()
    client.execute(cwd=str(folder))
  return notebook


def tidied(notebook, folder):
  """Removes the parts that differ between two equal runs: folder, time and version of Python."""
  notebook.metadata['language_info'] = {'name': 'python'}
  for cell in notebook.cells:
    cell.metadata.pop('execution', None)
    if 'outputs' in cell:
      outputs = json.loads(json.dumps(_joined(cell.outputs)).replace(f'{folder}/', ''))
      cell.outputs = nbformat.from_dict(outputs)
  return notebook


def _joined(outputs):
  """Joins consecutive outputs of one stream, which a kernel splits at times that vary."""
  joined = []
  for one in outputs:
    last = joined[-1] if joined else {}
    if one.output_type == 'stream' == last.get('output_type') and one.name == last['name']:
      last['text'] += one.text
    else:
      joined.append(dict(one))
  return joined


def exercise(solution):
  """Returns the notebook with blanks instead of solutions, and without outputs."""
  notebook = copy.deepcopy(solution)
  for cell in notebook.cells:
    pattern, blank = BLANKS[cell.cell_type]
    cell.source = re.sub(rf'(<!-- badge \w+?){SUFFIX} ', r'\1 ', pattern.sub(blank, cell.source))
    if cell.cell_type == 'code':
      cell.outputs, cell.execution_count = [], None
  return notebook


def main(names):
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # a search for other devices writes into the outputs
  stems = {path.stem for path in FOLDER.glob('*.ipynb')}
  known = sorted(stem for stem in stems if f'{stem}{SUFFIX}' not in stems)
  for name in set(names) - set(known):
    sys.exit(f'There is no notebook {name!r}; choose from {", ".join(known)}.')
  for name in names or known:
    path, begin = FOLDER / f'{name}.ipynb', time.time()
    print(f'{name}: running ...', flush=True)
    with tempfile.TemporaryDirectory() as made:
      folder = pathlib.Path(made).resolve()  # notebooks see the path without links
      notebook = tidied(execute(path, folder), folder)
    nbformat.write(notebook, path)
    if name.endswith(SUFFIX):
      nbformat.write(exercise(notebook), FOLDER / f'{name.removesuffix(SUFFIX)}.ipynb')
    print(f'{name}: {time.time() - begin:.0f} s', flush=True)


if __name__ == '__main__':
  main(sys.argv[1:])
