"""Docstrings that the site shows read the same as Markdown and in the source."""

import ast
import inspect
import json
import re

import pytest

import lra_spt

PAGES = ('api.md', 'mixers.md')
SECTIONS = {'Args:', 'Attributes:', 'Raises:', 'Returns:', 'Yields:'}  # of Google's style, made into tables
EMPHASIS = r'\*[^*]+\*|(?<!\w)_(?!_).+?(?<!_)_(?!\w)|__.+?__|<\w[^>]*>'


@pytest.fixture(scope='module')
def shown(repository):
  """Maps a module, or a class in one, to its members that a page shows; None stands for all public ones."""
  text = '\n'.join((repository / 'docs' / page).read_text(encoding='utf-8') for page in PAGES)
  members_of = {}
  for name, options in re.findall(r'^::: ([\w.]+)\n((?: {4,}.*\n)*)', text + '\n', flags=re.MULTILINE):
    members = re.search(r'members: (false|\[.*?\])', options, flags=re.DOTALL)
    members_of[name] = members and re.findall(r'\w+', members[1].removeprefix('false'))
  return members_of


@pytest.fixture(scope='module')
def docstrings(shown, source_modules):
  """Maps 'file:line' to the docstring there, for public names of the modules that are shown."""
  return {
    f'{source_modules[module]}:{line}': text
    for module in _modules(shown, source_modules)
    for line, text in _docstrings(ast.parse(source_modules[module].read_text()))
  }


def _modules(names, source_modules):
  """Lists the modules that hold these names, and those from which a package exports them."""
  modules = set()
  for name in names:
    while name not in source_modules:
      name = name.rpartition('.')[0]
    modules.add(name)
    tree = ast.parse(source_modules[name].read_text())
    offered = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for node in tree.body if source_modules[name].name == '__init__.py' else ():
      if isinstance(node, ast.ImportFrom) and {each.name for each in node.names} & offered:
        modules.add(node.module)
  return sorted(modules)


def _docstrings(node):
  for child in node.body:
    if isinstance(child, ast.Expr) and isinstance(getattr(child.value, 'value', None), str):
      yield child.lineno, inspect.cleandoc(child.value.value)
    elif isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith('_'):
      yield from _docstrings(child) if isinstance(child, ast.ClassDef) else _of_function(child)


def _of_function(node):
  if ast.get_docstring(node):
    yield node.body[0].lineno, ast.get_docstring(node)


def prose(text):
  """Returns the running text as Markdown reads it, and indented lines that are no code, list or section."""
  running, wrong = [], []
  fenced = code = listed = False
  before = ''
  for line in text.splitlines():
    indent = len(line) - len(line.lstrip())
    if line.startswith('```'):
      fenced = not fenced
    elif fenced:
      continue
    elif not line.strip():
      running.append('')
    elif not indent:
      code, listed = False, line.startswith('- ') or line in SECTIONS
      running.append(line)
    elif listed:
      running.append(line)
    elif indent >= 4 and (code or not before):
      code = True
    else:
      wrong.append(line)
    before = line.strip()
  return '\n'.join(running), wrong


def test_code_and_lists_of_docstrings_are_such_in_markdown(docstrings):
  """Code is fenced, or indented by four after an empty line; other indented lines are lists or sections."""
  assert len(docstrings) > 100
  assert {place: wrong for place, text in docstrings.items() if (wrong := prose(text)[1])} == {}


def test_markdown_takes_nothing_from_docstrings(docstrings):
  """No pair of stars or underscores sets words in italics, and there is no tag."""
  taken = {}
  for place, text in docstrings.items():
    for paragraph in re.sub(r'`[^`]*`', '', prose(text)[0]).split('\n\n'):
      alone = re.sub(r'(?<!\S)[*_]{1,3}(?!\S)', '', paragraph)
      if marked := re.findall(EMPHASIS, alone, flags=re.DOTALL):
        taken[place] = marked
  assert taken == {}


def test_attributes_have_a_line_each(docstrings):
  """In a line with two names the second would be taken for the type of the first."""
  pairs = r'^ +\w+, \w+.*?:'
  sections = {
    place: text.partition('\nAttributes:\n')[2].split('\n\n')[0] for place, text in docstrings.items()
  }
  assert {
    place: lines for place, text in sections.items() if (lines := re.findall(pairs, text, re.MULTILINE))
  } == {}


def test_examples_that_markdown_would_not_take_as_code_are_found():
  assert prose('So:\n\n  x = 1\n\nEnd.')[1] == ['  x = 1']
  assert prose('So:\n    x = 1')[1] == ['    x = 1']
  assert prose('So:\n\n    x = 1\n    y = 2\n\n```\n z\n```\n- a\n  b\n\nArgs:\n  c: d.\n')[1] == []


def test_every_mixer_is_there_with_its_equation_and_its_source(repository, source_modules):
  """Each has a heading that docs/models.md links to; below it stand its classes that have formulas."""
  page = (repository / 'docs' / 'mixers.md').read_text(encoding='utf-8')
  linked = (repository / 'docs' / 'models.md').read_text(encoding='utf-8')
  entries = dict(re.findall(r'^### (\w+)\n(.*?)(?=^##|\Z)', page, flags=re.MULTILINE | re.DOTALL))
  prefix = 'lra_spt.models.mixers.'
  modules = {name.removeprefix(prefix): path for name, path in source_modules.items() if prefix in name}
  assert entries.keys() == modules.keys()
  for name, path in modules.items():
    assert f'(mixers.md#{name})' in linked
    tree = ast.parse(path.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    with_formula = [each for each in classes if re.search(r'\n\n {4}\S', ast.get_docstring(each) or '')]
    assert with_formula, f'{name} has no equation'
    for each in with_formula:
      assert f'{prefix}{name}.{each.name}\n' in page, f'{name}: {each.name}'
    if name != 'none':
      about = ' '.join(ast.get_docstring(tree).split())
      assert re.search(r'\(.* 20\d\d, arXiv \d{4}\.\d{4,5}\b.*\)', about), f'{name}: who and where'
      assert re.search(r'code.*`[\w-]+/[\w-]+`, commit \w{7}|published( no)? code', about), (
        f'{name}: whose code'
      )


def test_names_that_notebooks_and_pages_import_are_in_the_reference(repository, shown, source_modules):
  """The reference holds each `from lra_spt... import NAME`, and every public `lra_spt.NAME`."""
  texts = [path.read_text(encoding='utf-8') for path in (repository / 'docs').glob('*.md')]
  texts.append((repository / 'README.md').read_text(encoding='utf-8'))
  for path in (repository / 'notebooks').glob('*.ipynb'):
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    texts += [''.join(cell['source']) for cell in cells]
  taken = {*lra_spt.__all__}
  for text in texts:
    for names in re.findall(r'^from (?:lra_spt|data_prep)[\w.]* import (.+)$', text, flags=re.MULTILINE):
      taken |= {name.strip() for name in names.split('#')[0].split(',')}
  assert {'make_mixer', 'CLEAN', 'open_splits', 'Cell'} <= taken
  there = {name.rpartition('.')[2] for name in shown}
  for name, members in shown.items():
    if members is None and name in source_modules:
      members = [getattr(node, 'name', '') for node in ast.parse(source_modules[name].read_text()).body]
    there.update(members or ())
  assert taken - there == set()
