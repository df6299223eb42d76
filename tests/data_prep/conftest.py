"""Fixtures that the tests of preparation share."""

import dataclasses
import hashlib
import subprocess
import sys

import pytest
import requests

from data_prep import catalogue


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  """Official archives have gigabytes, so tests download from this machine only."""
  get = requests.get

  def get_from_here(url, **options):
    if not url.startswith('http://127.0.0.1:'):
      raise requests.ConnectionError(f'a test asks for {url}')
    return get(url, **options)

  monkeypatch.setattr(requests, 'get', get_from_here)


@pytest.fixture
def make_official(change_entry):
  """make_official(path) makes the checksum of this archive the official one."""

  def make(path):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    for name, entry in catalogue.SETS.items():
      known = tuple(
        dataclasses.replace(archive, sha256=sha256) if archive.name == path.name else archive
        for archive in entry.archives
      )
      change_entry(name, archives=known)

  return make


@pytest.fixture
def change_entry(monkeypatch):
  """change_entry(name, **changes) changes an entry of the catalogue, or adds one."""

  def change(name, **changes):
    entry = catalogue.SETS.get(name, catalogue.Entry(name))
    monkeypatch.setitem(catalogue.SETS, name, dataclasses.replace(entry, **changes))

  return change


@pytest.fixture
def unpacked(tmp_path, shared_folder):
  """unpacked(name) -> folder with real data in its official layout; skips where there is none."""

  def unpack(name):
    script, raw = shared_folder / 'data' / 'unpack.py', tmp_path / 'raw'
    if not script.is_file():
      pytest.skip(f'no {script}')
    subprocess.run([sys.executable, str(script), str(raw), name], check=True)
    return raw

  return unpack
