"""The README and docs/ keep to a width, and their links, commands, file names and numbers hold."""

import importlib.util
import json
import re
import shutil

import pytest

import lra_spt
from benchmarks.__main__ import BENCHMARKS
from docs import build
from lra_spt.cli.commands import COMMANDS

WIDEST = 110
LONGEST = 120  # lines of the README: what is longer belongs on a page of docs/


@pytest.fixture(scope='module')
def pages(repository):
  """Maps the pages that people read outside of the code to their texts."""
  names = ('README.md', 'launch/README.md', 'launch/colab.md', 'CONTRIBUTING.md', 'CHANGELOG.md')
  files = [*(repository / name for name in names), *(repository / 'docs').glob('*.md')]
  return {path: path.read_text(encoding='utf-8') for path in files}


def test_every_peer_has_a_place_on_its_page(repository):
  page = (repository / 'docs' / 'peers.md').read_text(encoding='utf-8')
  for path in (repository / 'benchmarks' / 'peers').glob('[!_]*.py'):
    assert f'`{path.name}`' in page


def typed(text):
  """Drops comments and rows of tables, but keeps the number of lines."""
  return re.sub(r'(?m)^\|.*$', '', re.sub(r'<!-- .*? -->', '', text))


def test_lines_are_narrow_enough(pages, repository):
  wide = [
    f'{path.relative_to(repository)}:{number} has {len(line)} columns'
    for path, text in pages.items()
    for number, line in enumerate(typed(text).splitlines(), 1)
    if len(line) > WIDEST
  ]
  assert wide == []


def test_no_line_of_a_paragraph_begins_with_a_comment(pages):
  """Markdown would take the whole line for HTML."""
  for path, text in pages.items():
    assert not re.search(r'^<!-- /?value', text, flags=re.MULTILINE), path.name


def test_the_readme_is_a_page(pages, repository):
  assert len(pages[repository / 'README.md'].splitlines()) <= LONGEST


def test_links_lead_somewhere_and_every_page_and_notebook_has_one(pages, repository):
  """The README links to every page; it or a page links to every notebook."""
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


def test_pages_and_pictures_show_the_result_files():
  assert build.main(['--check']) == 0, 'run python -m docs.build'


@pytest.fixture
def other_results(monkeypatch, tmp_path):
  """Copies the result files and makes the demo's pretrained models a point better."""
  shutil.copytree(build.RESULTS, tmp_path / 'results')
  path = tmp_path / 'results' / 'demo_seeds.json'
  content = json.loads(path.read_text())
  content['accuracy']['masked self-pretraining']['estimate'] += 0.01
  path.write_text(json.dumps(content))
  monkeypatch.setattr(build, 'RESULTS', tmp_path / 'results')
  yield
  build.result.cache_clear()


def test_a_number_that_changed_is_noticed(other_results, capsys):
  assert build.main(['--check']) == 1
  lines = capsys.readouterr().out.splitlines()
  assert {line.split()[0] for line in lines} >= {'README.md', 'docs/images/front.png'}


MARKS = [
  ('value demo_seeds.json accuracy/scratch/estimate percent', '35.9'),
  ('value demo_seeds.json accuracy/scratch score', '35.9 % (26.2 to 45.6)'),
  ('value mini_table.json gains/model=DLR/column=Text/estimate points', '+10.1'),
  ('value mini_table.json means/column=Text gain', '+5.9 points (+5.2 to +6.7)'),
  ('value mini_table.json cells/row=S4, masked/column=Text/steps/0 count', '1,500'),
  ('value mini_table.json gains/significant=True number', '2'),
]


@pytest.mark.parametrize(('mark', 'shown'), MARKS)
def test_a_comment_is_filled(mark, shown):
  text = f'It is <!-- {mark} -->0<!-- /value -->.'
  assert build.filled(text) == f'It is <!-- {mark} -->{shown}<!-- /value -->.'


@pytest.mark.parametrize(
  ('mark', 'named'),
  [
    ('value none.json a percent', 'none.json'),
    ('value demo_seeds.json accuracy/none percent', 'none'),
    ('value demo_seeds.json accuracy/scratch/estimate per', "'per'"),
    ('value mini_table.json gains/model=DLR/estimate percent', '5 objects'),
    ('value mini_table.json gains/model=None/estimate percent', '0 objects'),
    ('table demo_seeds.json none', "'none'"),
    ('list none', "'none'"),
  ],
)
def test_a_comment_that_names_nothing_is_refused(mark, named):
  with pytest.raises(build.BadMark, match=named):
    build.filled(f'<!-- {mark} --><!-- /{mark.split()[0]} -->')


def test_benchmarks_that_are_named_exist(pages):
  names = {name for text in pages.values() for name in re.findall(r'-m\s+benchmarks\s+([a-z]\w*)', text)}
  assert {'demo_seeds', 'attention', 'ssm', 'data'} <= names <= {*BENCHMARKS}


def test_commands_take_the_flags_that_are_shown(pages):
  """Each `lra-spt ...` of a code block is a command, and its help knows the flags."""
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
  for path, text in pages.items():
    for name in re.findall(
      r'(?<!/)\b(?:configs|tests|benchmarks|launch|lra_spt|data_prep|docs)/[\w/.]+\.\w+', text
    ):
      assert (repository / name).exists(), f'{path.name} names {name}'
