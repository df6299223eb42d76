"""Makes tables from result files, fills the pages and draws their pictures: python -m docs.build

People write the pages; this program writes what stands between these comments, and nothing else:

  <!-- value FILE PATH FORMAT -->79.9<!-- /value -->     a number of benchmarks/results/FILE
  <!-- table FILE NAME --> ... <!-- /table -->           a table that FILE holds under `tables`
  <!-- source FILE --> ... <!-- /source -->              machine, version, date, commit and command of FILE
  <!-- list NAME --> ... <!-- /list -->                  a table that is made from code (docs/lists.py)

PATH has the keys on the way to the number, with slashes between them. In a list of objects `key=value`
chooses those that have this value, and one must be left: `gains/model=DLR/column=Text/estimate`. FORMAT is a
key of FORMATS, or `number`, which counts what the path leads to. A line of a page must not begin with the
comment of a value: Markdown takes such a line for HTML.

It also writes the address of the project where that is named (docs/address.py).

--check changes nothing. Its status is 1 where a page shows something else than its result files, or a picture
was drawn from other result files.
"""

import argparse
import functools
import json
import pathlib
import re
import sys
import textwrap

from benchmarks import tables
from benchmarks.tables import markdown
from docs import address, lists, pictures

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'
MARK = re.compile(r'<!-- (value|table|source|list) (.+?) -->(.*?)<!-- /\1 -->', re.DOTALL)


class BadMark(Exception):
  """A comment names a file, key, table, list or format that does not exist."""


@functools.cache
def result(file: str) -> dict:
  path = RESULTS / file
  if not path.exists():
    raise BadMark(f'there is no result file {file}')
  return json.loads(path.read_text(encoding='utf-8'))


def matches(content, path: str) -> list:
  """Lists what a path leads to, as the head of this file explains it."""
  for part in path.split('/'):
    key, equals, value = part.partition('=')
    if equals:
      content = [one for one in content if str(one.get(key)) == value]
      continue
    content = only(content, path) if isinstance(content, list) and not part.isdigit() else content
    try:
      content = content[int(part) if isinstance(content, list) else part]
    except (KeyError, IndexError, TypeError):
      raise BadMark(f'the path {path} ends before {part!r}') from None
  return content if isinstance(content, list) else [content]


def only(there: list, path: str):
  if len(there) != 1:
    raise BadMark(f'{len(there)} objects match the path {path}, not 1')
  return there[0]


def score(one: dict) -> str:
  """Formats an estimate or a score with its limits: '79.9 % (78.6 to 81.2)'."""
  values = one.get('estimate', one.get('score')), one['low'], one['high']
  return '{} % ({} to {})'.format(*map(markdown.score, values))


def gain(one: dict) -> str:
  """Formats a difference with its limits: '+5.9 points (+5.2 to +6.7)'."""
  return markdown.difference(one | {'significant': False}).replace(' (', ' points (', 1)


FORMATS = {
  'text': str,
  'count': '{:,}'.format,
  'whole': '{:.0f}'.format,
  'tenths': lambda value: f'{value:.1f}'.replace('-', '−'),
  'hundredths': lambda value: f'{value:.2f}'.replace('-', '−'),
  'thousandths': lambda value: f'{value:.3f}'.replace('-', '−'),
  'power': '{:.0e}'.format,
  'percent': markdown.score,
  'points': markdown.signed,
  'score': score,
  'gain': gain,
}


def _value(words: str) -> str:
  file, _, rest = words.partition(' ')
  path, _, name = rest.rpartition(' ')
  if name not in (*FORMATS, 'number'):
    raise BadMark(f'there is no format {name!r}; choose from {", ".join(FORMATS)} and number')
  there = matches(result(file), path)
  return f'{len(there):,}' if name == 'number' else FORMATS[name](only(there, path))


def _table(words: str) -> str:
  file, _, name = words.partition(' ')
  made = result(file).get('tables', {})
  if name not in made:
    raise BadMark(f'{file} has no table {name!r}')
  return '\n' + '\n'.join(made[name]) + '\n'


def source(file: str) -> str:
  """Names machine, jax, date, commits and command of a result in a paragraph."""
  content = result(file)
  runs = {}
  for one in content.get('machines') or [content]:
    machine = f'{lists.device(one["hardware"])}, jax {one["versions"]["jax"]}'
    runs[machine] = runs.get(machine, 0) + one.get('runs', 1)
  several = len(runs) > 1
  machines = [f'{machine} ({count} runs)' if several else machine for machine, count in runs.items()]
  rows = [content, *(row for row in content.get('rows', ()) if isinstance(row, dict))]
  commits = list(dict.fromkeys(row['commit'] for row in rows if row.get('commit')))
  of = f', commit{"s" * (len(commits) > 1)} {", ".join(commits)}' if commits else ''
  dates = sorted({row['date'] for row in rows if 'date' in row})
  when = dates[0] if len(dates) == 1 else f'{dates[0]} to {dates[-1]}'
  text = f'{" and ".join(machines)}, {when}{of}; `{content["command"]}`.'
  return '\n' + textwrap.fill(text, 108, break_long_words=False, break_on_hyphens=False) + '\n'


def _list(name: str) -> str:
  if name not in lists.LISTS:
    raise BadMark(f'there is no list {name!r}; choose from {", ".join(lists.LISTS)}')
  return '\n' + '\n'.join(lists.LISTS[name]()) + '\n'


FILLS = {'value': _value, 'table': _table, 'source': source, 'list': _list}


def filled(text: str) -> str:
  """Returns the text of a page with all comments filled."""
  return MARK.sub(
    lambda mark: f'<!-- {mark[1]} {mark[2]} -->{FILLS[mark[1]](mark[2])}<!-- /{mark[1]} -->', text
  )


def pages() -> list[pathlib.Path]:
  return [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def main(arguments=None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m docs.build', description='Fills in the numbers and tables of the pages.'
  )
  parser.add_argument('--check', action='store_true', help='write nothing; status 1 where something is stale')
  check = parser.parse_args(arguments).check
  stale = tables.refresh(write=not check)
  result.cache_clear()
  owner, named = address.owner(), address.files()
  for path in dict.fromkeys([*pages(), *named]):
    text = path.read_text(encoding='utf-8')
    try:
      new = filled(text)
      new = address.filled(new, owner) if path in named else new
    except BadMark as bad:
      print(f'{path.relative_to(ROOT)}: {bad}.')
      return 1
    if new != text:
      stale.append(path)
      if not check:
        path.write_text(new, encoding='utf-8')
  for name in pictures.stale(result):
    stale.append(pictures.FOLDER / f'{name}.png')
    if not check:
      pictures.draw(name, result)
  for path in stale:
    print(f'{path.relative_to(ROOT)} {"is stale: run python -m docs.build" if check else "is written"}')
  return int(check and bool(stale))


if __name__ == '__main__':
  sys.exit(main())
