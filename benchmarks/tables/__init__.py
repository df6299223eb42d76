"""Makes the Markdown tables that result files carry under `tables` for the pages.

`python -m docs.build` makes the tables of all files in benchmarks/results and puts them on pages. A file
whose program is gone keeps the tables that it has.
"""

import json
import pathlib

from benchmarks.tables import counts, lra_mini, speed
from lra_spt import files

RESULTS = pathlib.Path(__file__).parent.parent / 'results'
MAKERS = {  # result file: what makes its table
  'attention_block_cpu': speed.block_attention,
  'attention_cpu': speed.attention,
  'chips_compiled': counts.chips,
  'compare_quick': lra_mini.quick,
  'configs_compiled': counts.configs_compiled,
  'data': speed.data,
  'demo_seeds': speed.demo,
  'epoch': speed.epoch,
  'faults_several': counts.faults_several,
  'field_compiled': counts.field_compiled,
  'field_cpu': lambda result: speed.field(result, read('ways')),
  'first_step': speed.first_step,
  'generator': speed.generator,
  'huge_pages': speed.huge_pages,
  'members': speed.members,
  'numerics': counts.numerics,
  'processes': counts.processes,
  'saves': speed.saves,
  'slopes': speed.slopes,
  'ssm_cpu': speed.ssm,
  'study_costs': counts.study_costs,
  'tpu_traffic': counts.tpu_traffic,
}


def of(name: str, result: dict) -> dict[str, list[str]]:
  """Makes the tables of one result file.

  Args:
    name: of the file, without `.json`.
    result: its content.

  Returns:
    {name of a table: its lines}; empty for a file that has none, or whose tables nothing makes any more.
  """
  if name in MAKERS:
    return {'main': MAKERS[name](result)}
  if name == 'accelerator':
    return {'attention': speed.gpu_attention(result), 'steps': speed.gpu_steps(result)}
  if 'cells' in result:
    return lra_mini.of_study(name, result, lambda: read('mini_table'))
  return {}


def read(name: str) -> dict:
  return json.loads((RESULTS / f'{name}.json').read_text(encoding='utf-8'))


def refresh(write: bool) -> list[pathlib.Path]:
  """Returns the result files whose tables are not those of their numbers; `write` puts the new ones there."""
  stale = []
  for path in sorted(RESULTS.glob('*.json')):
    result = read(path.stem)
    made = of(path.stem, result)
    if made and made != result.get('tables'):
      stale.append(path)
      if write:
        files.write_json(path, result | {'tables': made})
  return stale
