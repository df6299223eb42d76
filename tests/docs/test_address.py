"""One line of setup.py says where the project is published, and docs/build.py writes it everywhere."""

import json
import re
import runpy
import sys
import types

import pytest

from docs import address

SUFFIXES = ('.md', '.py', '.sh', '.ipynb', '.yml', '.cff', '.toml', '.txt', '')
FOLDERS = ('lra_spt', 'configs', 'data_prep', 'benchmarks', 'docs', 'examples', 'launch', '.github', '.ci')
SETUP = ('README.md', 'setup.py', 'requirements.txt', 'lra_spt/__init__.py')


@pytest.fixture
def packaged(repository, tmp_path, monkeypatch):
  """The keywords that setup.py gives setuptools for an owner."""

  def run(owner):
    for name in SETUP:
      text = (repository / name).read_text(encoding='utf-8')
      path = tmp_path / name
      path.parent.mkdir(exist_ok=True)
      path.write_text(text.replace("OWNER = ''", f'OWNER = {owner!r}'), encoding='utf-8')
    metadata = {}
    setuptools = types.SimpleNamespace(setup=metadata.update, find_namespace_packages=lambda include: include)
    monkeypatch.setitem(sys.modules, 'setuptools', setuptools)
    runpy.run_path(str(tmp_path / 'setup.py'))
    return metadata

  return run


def test_nothing_names_a_placeholder(repository):
  files = [path for folder in FOLDERS for path in (repository / folder).rglob('*')]
  files += [*repository.iterdir(), *(repository / 'notebooks').iterdir()]
  texts = [path.read_text(encoding='utf-8') for path in files if path.is_file() and path.suffix in SUFFIXES]
  assert not any('YOUR_' + 'NAME' in text for text in texts)


@pytest.mark.parametrize('owner', ['', 'jane-doe'])
def test_one_line_writes_every_address(repository, owner):
  """The owner can be set, changed and removed again."""
  actual = {}
  for path in address.files():
    text = address.filled(path.read_text(encoding='utf-8'), 'somebody')
    actual[path.name] = address.filled(text, owner)
    assert (address.filled(actual[path.name], '') == path.read_text(encoding='utf-8')) or address.owner()
  source = 'https://github.com/jane-doe/lra_spt'
  for name, text in actual.items():
    stem = '01_quickstart' if name == 'README.md' else name.removesuffix('.ipynb')
    badge = (
      f"<a href='https://colab.research.google.com/github/jane-doe/lra_spt/blob/main/notebooks/{stem}.ipynb'>"
    )
    assert text.count(badge) == ('colab.research' in text) == bool(owner and name.endswith(('.md', '.ipynb')))
    if name.endswith('.ipynb'):
      json.loads(text)
      assert f"REPOSITORY = '{owner and f'{source}.git'}'  #" in text
  lines = {'CITATION.cff': 'repository-code: ', 'mkdocs.yml': '      - Source: '}
  for name, line in lines.items():
    assert (f'\n{line}{source}\n' in actual[name]) == bool(owner)
    assert ('github.com/' in actual[name]) == bool(owner)


def test_setup_gives_no_address_before_there_is_one(packaged):
  metadata = packaged('')
  assert set(metadata['project_urls']) == {'Paper'}
  assert 'src="docs/images/front.png"' in metadata['long_description']


def test_setup_gives_addresses_that_lead_to_files(packaged, repository):
  metadata = packaged('jane-doe')
  source = 'https://github.com/jane-doe/lra_spt'
  assert metadata['project_urls'].pop('Paper').startswith('https://arxiv.org/')
  assert set(metadata['project_urls']) == {'Source', 'Documentation', 'Changelog', 'Issues'}
  assert metadata['project_urls']['Source'] == source
  links = re.findall(r'\]\(([^)\s]+)\)', metadata['long_description'])
  assert all(link.startswith('https://') for link in links)
  pictures = 'https://raw.githubusercontent.com/jane-doe/lra_spt/main/'
  prefixes = (f'{source}/blob/main/', f'{source}/tree/main/', pictures)
  paths = [
    link.removeprefix(prefix).split('#')[0]
    for link in (*links, *metadata['project_urls'].values())
    for prefix in prefixes
    if link.startswith(prefix)
  ]
  assert len(paths) > 20
  assert [path for path in paths if not (repository / path).exists()] == []
  for picture in re.findall(r'\bsrc(?:set)?="([^"]+)"', metadata['long_description']):
    assert (repository / picture.removeprefix(pictures)).is_file()
    assert picture.startswith(pictures)
