"""All benchmarks from one place.

  python -m benchmarks                   # what there is, and of when and where its result file is
  python -m benchmarks NAME ...          # runs some, one after the other; all: every one
  python -m benchmarks NAME -- --flag    # the rest are flags of each of them
  python -m benchmarks table             # writes what result files say into README and docs

Each one is also a command of its own (`python -m benchmarks.NAME --help`) and writes JSON with hardware,
versions, commit and load average. `all` takes days on two cores.
"""

import argparse
import ast
import json
import re
import subprocess
import sys

from benchmarks import harness

FOLDER = harness.ROOT / 'benchmarks'


def commands() -> dict[str, str]:
  """{name: what it measures} of every benchmark."""
  found = {}
  for path in sorted(FOLDER.glob('*.py')):
    text = path.read_text(encoding='utf-8')
    if "__name__ == '__main__'" in text and path.stem != '__main__':
      found[path.stem] = ast.get_docstring(ast.parse(text)).partition('\n\n')[0].replace('\n', ' ')
  return found


def results() -> dict[str, list[str]]:
  """{name: its result files, with date, processor and commit where they say so}."""
  found = {}
  for path in sorted(harness.RESULTS.glob('*.json')):
    content = json.loads(path.read_text(encoding='utf-8'))
    noted = [content.get('date'), (content.get('hardware') or {}).get('cpu'), content.get('commit')]
    line = ', '.join([path.name, *(str(v) for v in noted if v)])
    made = re.search(r'\bbenchmarks[./](\w+)', str(content.get('command')))  # older ones do not say
    for name in [made[1]] if made else [name for name in commands() if _writes(name, path)]:
      found.setdefault(name, []).append(line)
  return found


def _writes(name, path) -> bool:
  return f"'{path.name}'" in (FOLDER / f'{name}.py').read_text(encoding='utf-8')


def main(arguments=None) -> int:
  words = sys.argv[1:] if arguments is None else list(arguments)
  words, flags = (
    (words[: words.index('--')], words[words.index('--') + 1 :]) if '--' in words else (words, [])
  )
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser('python -m benchmarks', description=__doc__, formatter_class=raw)
  parser.add_argument(
    'names', nargs='*', metavar='NAME', help='of benchmarks, all, or table; none: lists them'
  )
  names, known = parser.parse_args(words).names, commands()
  if names == ['table']:
    return subprocess.run([sys.executable, '-m', 'docs.figures', *flags], cwd=harness.ROOT).returncode
  if not names:
    kept = results()
    for name, what in known.items():
      print(f'{name}\n  {what}')
      for line in kept.get(name, ['no result file']):
        print(f'  {line}')
    return 0
  names = list(known) if names == ['all'] else harness.chosen(parser, 'benchmark', ','.join(names), known)
  failed = []
  for name in names:
    command = [sys.executable, '-m', f'benchmarks.{name}', *flags]
    print(' '.join(['python', *command[1:]]), flush=True)
    if subprocess.run(command, cwd=harness.ROOT).returncode:
      failed.append(name)
  if failed:
    print(f'failed: {", ".join(failed)}', file=sys.stderr)
  return bool(failed)


if __name__ == '__main__':
  sys.exit(main())
