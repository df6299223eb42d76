"""Makes the tables of all committed result files again."""

from benchmarks import tables
from lra_spt import files

for path in sorted(tables.RESULTS.glob('*.json')):
  result = tables.read(path.stem)
  made = tables.of(path.stem, result)
  if made and made != result.get('tables'):
    files.write_json(path, result | {'tables': made})
    print(f'wrote the tables of {path.name}')
