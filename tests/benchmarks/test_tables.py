"""Committed result files carry the tables of their numbers."""

import pytest

from benchmarks import tables


@pytest.mark.parametrize('path', sorted(tables.RESULTS.glob('*.json')), ids=lambda path: path.stem)
def test_tables_show_the_numbers_of_their_file(path):
  result = tables.read(path.stem)
  if made := tables.of(path.stem, result):
    assert result['tables'] == made, 'run python -m docs.build'
  for lines in result.get('tables', {}).values():
    assert len({line.count('|') for line in lines}) == 1


def test_a_changed_number_changes_its_table():
  result = tables.read('demo_seeds')
  result['accuracy']['scratch']['estimate'] += 0.01
  assert '| from scratch | 400 | 36.9 % |' in '\n'.join(tables.of('demo_seeds', result)['main'])
