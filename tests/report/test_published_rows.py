"""Where the project is published: one line of CONTRIBUTING.md writes it everywhere, and setup.py reads it."""

import re
import runpy
import sys
import types

import pytest

# Of the repository, or of Colab's view of it.
ADDRESS = re.compile(r'(?<=/)(github(?:\.com)?)/([\w-]+)/lra_spt\b')
SUFFIXES = ('.md', '.py', '.sh', '.ipynb', '.yml', '.cff', '.toml', '.txt', '')
FOLDERS = ('lra_spt', 'configs', 'data_prep', 'benchmarks', 'docs', 'examples', 'launch', '.github', '.ci')
SETUP = ('README.md', 'setup.py', 'requirements.txt', 'lra_spt/__init__.py')


@pytest.fixture
def packaged(repository, tmp_path, monkeypatch):
  """The keywords that setup.py gives setuptools where the README's badge names an owner."""

  def run(owner):
    for name in SETUP:
      text = (repository / name).read_text(encoding='utf-8')
      path = tmp_path / name
      path.parent.mkdir(exist_ok=True)
      path.write_text(ADDRESS.sub(rf'\1/{owner}/lra_spt', text), encoding='utf-8')
    told = {}
    setuptools = types.SimpleNamespace(setup=told.update, find_namespace_packages=lambda include: include)
    monkeypatch.setitem(sys.modules, 'setuptools', setuptools)
    runpy.run_path(str(tmp_path / 'setup.py'))
    return told

  return run


def test_one_line_writes_every_address(repository):
  """All of them name the same owner, and the line names all their files."""
  page = (repository / 'CONTRIBUTING.md').read_text(encoding='utf-8')
  patterns = re.search(r'perl -pi -e s,/YOUR_NAME/,/OWNER/, (.*)', page)[1].split()
  written = {path for pattern in patterns for path in repository.glob(pattern)}
  files = [path for folder in FOLDERS for path in (repository / folder).rglob('*')]
  files += [*repository.iterdir(), *(repository / 'notebooks').iterdir()]
  texts = {f: f.read_text(encoding='utf-8') for f in files if f.is_file() and f.suffix in SUFFIXES}
  owners = {path: {found[2] for found in ADDRESS.finditer(text)} for path, text in texts.items()}
  named = {path for path, names in owners.items() if names}
  assert named == written
  assert len(set.union(*owners.values())) == 1


def test_setup_gives_no_address_before_there_is_one(packaged):
  told = packaged('YOUR_NAME')
  assert set(told['project_urls']) == {'Paper'}
  assert '](docs/images/front.png)' in told['long_description']


def test_setup_gives_addresses_that_lead_to_files(packaged, repository):
  told = packaged('jane-doe')
  source = 'https://github.com/jane-doe/lra_spt'
  assert told['project_urls'].pop('Paper').startswith('https://arxiv.org/')
  assert set(told['project_urls']) == {'Source', 'Documentation', 'Changelog', 'Issues'}
  assert told['project_urls']['Source'] == source
  links = re.findall(r'\]\(([^)\s]+)\)', told['long_description'])
  assert all(link.startswith('https://') for link in links)
  pictures = 'https://raw.githubusercontent.com/jane-doe/lra_spt/main/'
  prefixes = (f'{source}/blob/main/', f'{source}/tree/main/', pictures)
  paths = [
    link.removeprefix(prefix).split('#')[0]
    for link in (*links, *told['project_urls'].values())
    for prefix in prefixes
    if link.startswith(prefix)
  ]
  assert len(paths) > 20
  assert [path for path in paths if not (repository / path).exists()] == []
  assert f'{pictures}docs/images/front.png' in links
