"""What the runs of LRA-mini say so far, for the pages: python -m benchmarks.mini_table --workdir=runs/mini

Reads the folder of `lra-spt study configs/studies/mini_table.py` and writes the file of that name in
benchmarks/results: every cell with its state, the learning rates that were tried, and what the finished ones
say together.
"""

from benchmarks import harness
from lra_spt import run_folder
from lra_spt.report import conclusions, export, studies

KEPT = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
KEPT += ('parameters', 'flops', 'seconds')


def collected(workdir) -> dict:
  """The content of the file."""
  table = studies.read_table(workdir)
  lines = [{key: line[key] for key in KEPT} for line in export.study_lines(table)]
  searched = {(cell['row'], cell['column']): cell['search'] for cell in table.record['cells']}
  first = run_folder.read_result(table.runs[0].path)
  return {
    'command': 'lra-spt study configs/studies/mini_table.py',
    'cells': [line | {'search': searched[line['row'], line['column']]} for line in lines],
    'answers': conclusions.sentences(table.findings),
  } | {key: first[key] for key in ('date', 'commit', 'hardware', 'versions')}


def main(arguments=None):
  parser = harness.parser('mini_table', __doc__, 'mini_table.json')
  parser.add_argument('--workdir', default='runs/mini', help='folder of the study (%(default)s)')
  options = parser.parse_args(arguments)
  found = collected(options.workdir)
  harness.write(options.json, found)
  print('\n'.join(found['answers']))


if __name__ == '__main__':
  main()
