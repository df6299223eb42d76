"""What the README and the pages of docs/ say: width, links, commands, and names of files that are there."""

import importlib.util
import json
import re
import shutil

import pytest

import lra_spt
from benchmarks.__main__ import BENCHMARKS
from docs import figures, told, told_further
from lra_spt.cli.commands import COMMANDS

WIDEST = 110
LONGEST = 160  # lines of the README: what is longer belongs on a page of docs/
DECIMAL = r'(?<![\w.,])\d+\.\d+(?![\w.])'


@pytest.fixture(scope='module')
def pages(repository):
  """{path: text} of everything that people read outside of the code."""
  names = ('README.md', 'launch/README.md', 'launch/colab.md', 'CONTRIBUTING.md', 'CHANGELOG.md')
  files = [*(repository / name for name in names), *(repository / 'docs').glob('*.md')]
  return {path: path.read_text(encoding='utf-8') for path in files}


def test_every_peer_is_told_about(repository):
  page = (repository / 'docs' / 'peers.md').read_text(encoding='utf-8')
  for path in (repository / 'benchmarks' / 'peers').glob('[!_]*.py'):
    assert f'`{path.name}`' in page


def without_rows(block):
  """A marked part of a page, with empty lines for the rows of its tables."""
  return re.sub(r'(?m)^\|.*$', '', block[0])


def test_lines_are_narrow_enough(pages, repository):
  """But rows of tables that are made from result files, which nobody types and nothing can break."""
  wide = [
    f'{path.relative_to(repository)}:{number} has {len(line)} columns'
    for path, text in pages.items()
    for number, line in enumerate(figures.MARKED.sub(without_rows, text).splitlines(), 1)
    if len(line) > WIDEST
  ]
  assert wide == []


def test_the_readme_is_a_page(pages, repository):
  assert len(pages[repository / 'README.md'].splitlines()) <= LONGEST


def test_links_lead_somewhere_and_every_page_and_notebook_has_one(pages, repository):
  """A page from the README, a notebook from it or from a page."""
  linked = {path: set() for path in pages}
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
      linked[path].add(page)
  readme = repository / 'README.md'
  assert linked[readme] >= pages.keys() - {readme}
  assert set().union(*linked.values()) >= {*(repository / 'notebooks').glob('*.ipynb')}


def test_numbers_are_those_of_the_result_files():
  assert figures.stale() == []
  assert figures.stale_pictures() == []


def test_no_number_of_the_small_tasks_is_typed(repository):
  """But their protocol, in whole numbers: what the pages say of results, docs/*.py say."""
  answers = (repository / 'docs' / 'results.md').read_text(encoding='utf-8').partition('## The demo')[0]
  small = answers + (repository / 'docs' / 'mini.md').read_text(encoding='utf-8')
  made = [found[2] for found in figures.MARKED.finditer(small)]
  assert {*made} >= {name for name in figures.BLOCKS if name.startswith('told_')}
  assert re.findall(DECIMAL, figures.MARKED.sub('', small)) == []
  parameters = [cell['parameters'] for cell in figures.result('mini_table')['cells'] if cell['parameters']]
  thousands = f'{min(parameters) / 1000:.0f} to {max(parameters) / 1000:.0f} thousand parameters'
  assert thousands in small


def test_a_sentence_that_is_not_true_any_more_is_refused(monkeypatch, capsys):
  found = figures.result('mini_labels')
  for one in found['growths']:
    one['significant'] = False
  with pytest.raises(told.NotTrue, match='rewrite it in docs/.*py: The gain does not grow here'):
    told_further.labels(found, figures.result('mini_table'))
  monkeypatch.setitem(
    figures.BLOCKS, 'told_labels', lambda: told_further.labels(found, figures.result('mini_table'))
  )
  for arguments in (['--check'], []):
    assert figures.main(arguments) == 1
    assert capsys.readouterr().out.startswith('The result files do not bear this out')


def test_numbers_that_changed_are_noticed(monkeypatch, tmp_path, capsys):
  found = figures.result('demo_seeds')
  found['accuracy']['scratch']['estimate'] += 0.01
  shutil.copytree(figures.RESULTS, tmp_path / 'results')
  (tmp_path / 'results' / 'demo_seeds.json').write_text(json.dumps(found))
  monkeypatch.setattr(figures, 'RESULTS', tmp_path / 'results')
  assert figures.main(['--check']) == 1
  assert capsys.readouterr().out.startswith('README.md shows other numbers than benchmarks/results')
  assert '| from scratch | 400 | 36.9 % |' in '\n'.join(figures.demo())


def test_strikes_that_are_told_are_those_of_the_result_file(pages, repository):
  told, found = pages[repository / 'docs' / 'tests.md'], figures.result('faults')
  assert {f'{found["strikes"]:,}', str(found['kills']), found['date']} <= {*re.findall(r'\d[\d,-]*\d', told)}


def test_benchmarks_that_are_named_exist(pages):
  today = [text for path, text in pages.items() if path.name != 'CHANGELOG.md']
  names = {name for text in today for name in re.findall(r'-m\s+benchmarks\s+([a-z]\w*)', text)}
  assert {'demo_seeds', 'attention', 'ssm', 'data'} <= names <= {*BENCHMARKS}


def test_commands_take_the_flags_that_are_shown(pages):
  """Every `lra-spt ...` of a code block is a command, with flags that its help knows."""
  shown = 0
  for path, text in pages.items():
    for block in re.findall(r'(?:^    .*\n)+', text, flags=re.MULTILINE):
      for line in block.replace('\\\n', ' ').splitlines():
        words = re.sub(r'\s#.*', '', line).split()
        if words[:1] not in (['lra-spt'], ['!lra-spt']):
          continue
        shown += 1
        assert words[1] in COMMANDS, f'{path.name}: {line}'
        flags = importlib.import_module(f'lra_spt.cli.commands.{words[1]}').parser().format_help()
        for word in words[2:]:
          if word.startswith('--') and not word.startswith('--config.'):
            assert word.split('=')[0] in flags, f'{path.name}: {line}'
  assert shown > 15


def test_functions_that_are_called_are_public(pages):
  called = {name for text in pages.values() for name in re.findall(r'\blra_spt\.(\w+)\(', text)}
  assert called
  assert called <= set(lra_spt.__all__)


def test_files_that_are_named_exist(pages, repository):
  """The history alone names files that are gone."""
  for path, text in pages.items():
    if path.name == 'CHANGELOG.md':
      continue
    for name in re.findall(
      r'(?<!/)\b(?:configs|tests|benchmarks|launch|lra_spt|data_prep|docs)/[\w/.]+\.\w+', text
    ):
      assert (repository / name).exists(), f'{path.name} names {name}'
