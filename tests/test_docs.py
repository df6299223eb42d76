"""What the README and the pages of docs/ say: width, links, commands, and names of files that are there."""

import importlib.util
import re

import pytest

import lra_spt
from lra_spt.commands import COMMANDS

WIDEST = 110
LARGEST = 16_000  # bytes of the README: what is longer belongs on a page of docs/


@pytest.fixture(scope='module')
def pages(repository):
  """{path: text} of everything that people read outside of the code."""
  names = ('README.md', 'launch/README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')
  files = [*(repository / name for name in names), *(repository / 'docs').glob('*.md')]
  return {path: path.read_text(encoding='utf-8') for path in files}


def test_lines_are_narrow_enough(pages, repository):
  wide = [
    f'{path.relative_to(repository)}:{number} has {len(line)} columns'
    for path, text in pages.items()
    for number, line in enumerate(text.splitlines(), 1)
    if len(line) > WIDEST
  ]
  assert wide == []


def test_the_readme_is_a_page(pages, repository):
  assert len(pages[repository / 'README.md'].encode()) < LARGEST


def test_links_lead_somewhere_and_every_page_has_one(pages, repository):
  linked = set()
  for path, text in pages.items():
    for target in re.findall(r'\]\(([^)\s]+)\)', text):
      if '://' in target:
        continue
      name, _, anchor = target.partition('#')
      page = (path.parent / name).resolve() if name else path
      assert page.exists(), f'{path.name} links to {target}'
      if anchor:
        titles = re.findall(r'^#+ (.*)$', page.read_text(encoding='utf-8'), flags=re.MULTILINE)
        assert anchor in {re.sub(r'[^\w\- ]', '', title).lower().replace(' ', '-') for title in titles}, (
          target
        )
      if path == repository / 'README.md':
        linked.add(page)
  assert linked >= pages.keys() - {repository / 'README.md'}


def test_benchmarks_that_are_named_exist(pages):
  names = {name for text in pages.values() for name in re.findall(r'-m\s+benchmarks\.([a-z]\w*)', text)}
  assert {'demo_seeds', 'attention', 'ssm', 'data'} <= names
  assert [name for name in sorted(names) if not importlib.util.find_spec(f'benchmarks.{name}')] == []
  assert not any(re.search(r'python benchmarks/', text) for text in pages.values())


def test_commands_take_the_flags_that_are_shown(pages):
  """Every `lra-spt ...` of a code block is a command, with flags that its help knows."""
  shown = 0
  for path, text in pages.items():
    for block in re.findall(r'(?:^    .*\n)+', text, flags=re.MULTILINE):
      for line in block.replace('\\\n', ' ').splitlines():
        words = re.sub(r'\s#.*', '', line).split()
        if words[:1] != ['lra-spt']:
          continue
        shown += 1
        assert words[1] in COMMANDS, f'{path.name}: {line}'
        flags = importlib.import_module(f'lra_spt.commands.{words[1]}').parser().format_help()
        for word in words[2:]:
          if word.startswith('--') and not word.startswith('--config.'):
            assert word.split('=')[0] in flags, f'{path.name}: {line}'
  assert shown > 15


def test_functions_that_are_called_are_public(pages):
  called = {name for text in pages.values() for name in re.findall(r'\blra_spt\.(\w+)\(', text)}
  assert called
  assert called <= set(lra_spt.__all__)


def test_files_that_are_named_exist(pages, repository):
  for path, text in pages.items():
    for name in re.findall(
      r'\b(?:configs|tests|benchmarks|launch|lra_spt|data_prep|docs)/[\w/.]+\.\w+', text
    ):
      assert (repository / name).exists(), f'{path.name} names {name}'
