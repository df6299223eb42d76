"""Downloads from a server on this machine: good ones, wrong ones, broken ones, and none at all."""

import dataclasses
import hashlib
import http.server
import io
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time

import pytest

from data_prep import downloads
from data_prep.sources import bidmc_ts

CONTENT = io.BytesIO()
with tarfile.open(fileobj=CONTENT, mode='w:gz') as _tar:
  _tar.addfile(tarfile.TarInfo('numbers/empty.txt'))
CONTENT = CONTENT.getvalue()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)


class Handler(http.server.BaseHTTPRequestHandler):
  """/good: an archive; /short: its start; /page: a page; /silent: all but a byte; /endless; /missing: 404."""

  def do_GET(self):
    self.server.asked.append(self.path)
    if self.path == '/missing':
      self.send_error(404)
      return
    body = b'<p>Please sign in' if self.path == '/page' else CONTENT
    self.send_response(200)
    self.send_header('Content-Length', str(2**40 if self.path == '/endless' else len(body)))
    self.end_headers()
    while self.path == '/endless' and not self.server.released.wait(0.01):
      try:
        self.wfile.write(bytes(2**16))
      except OSError:
        return
    self.wfile.write(body[: {'/short': 20, '/silent': -1}.get(self.path)])
    if self.path == '/silent':
      self.wfile.flush()
      self.server.released.wait(60)

  def log_message(self, *arguments):
    pass


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
    server.asked, server.released = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()


@pytest.fixture
def offer(server, monkeypatch):
  """offer(path, ...) makes 'numbers' a data set whose archive lies there; returns the archive."""

  def make(path, *, port=None, sha256=SHA256, size=SIZE):
    url = f'http://127.0.0.1:{port or server.server_address[1]}{path}'
    archive = downloads.Archive(name='numbers.tar.gz', url=url, size=size, sha256=sha256)
    monkeypatch.setitem(downloads.ARCHIVES, 'numbers', (archive,))
    return archive

  return make


def left(folder):
  return sorted(str(path.relative_to(folder)) for path in folder.rglob('*'))


@pytest.mark.parametrize('checksum', ['known', 'unknown'])
def test_an_archive_arrives_under_its_name_and_only_once(tmp_path, offer, server, capsys, checksum):
  archive = offer('/good', **({} if checksum == 'known' else {'sha256': None, 'size': 10**6}))
  folder = tmp_path / 'downloads'
  assert downloads.fetch('numbers', folder) == folder
  assert (folder / 'numbers.tar.gz').read_bytes() == CONTENT
  captured = capsys.readouterr()
  size = '0.0 MB' if checksum == 'known' else 'about 1.0 MB'
  assert captured.out == f'Downloading numbers.tar.gz ({size}) from {archive.url}.\n'
  assert captured.err == ''  # no progress bar off a terminal
  assert downloads.fetch('numbers', folder) == folder
  assert server.asked == ['/good']
  assert capsys.readouterr().out == ''
  assert left(folder) == ['.lock', 'numbers.tar.gz']


@pytest.mark.parametrize(
  'path, change, reason',
  [
    ('/good', {'sha256': '0' * 64}, 'what came is not the official file'),
    ('/good', {'size': 1}, 'what came is not the official file'),
    ('/page', {}, 'what came is not the official file'),
    ('/page', {'sha256': None}, 'what came is not an archive'),
    ('/missing', {}, 'the server answers with status 404'),
    ('/short', {}, 'the connection broke off'),
    ('/short', {'sha256': None}, 'the connection broke off'),
    ('/silent', {}, 'no connection|does not answer in time'),
  ],
)
def test_wrong_answers_leave_nothing(tmp_path, offer, monkeypatch, path, change, reason):
  if path == '/silent':  # a busy machine may need longer than this to answer
    monkeypatch.setattr(downloads, '_SILENCE', 0.3)
  archive = offer(path, **change)
  (tmp_path / 'unfinished').mkdir()
  (tmp_path / 'unfinished' / 'of an earlier attempt').touch()
  with pytest.raises(FileNotFoundError, match=reason) as raised:
    downloads.fetch('numbers', tmp_path)
  message = str(raised.value)
  assert message.startswith(f'numbers.tar.gz could not be downloaded from {archive.url} (')
  assert message.endswith('put it into a folder and name that folder with --raw_dir.')
  assert '\n' not in message
  assert left(tmp_path) == ['.lock']


def test_without_a_network_the_answer_comes_at_once(tmp_path, offer):
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    offer('/good', port=unused.getsockname()[1])
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match='no connection to the server'):
      downloads.fetch('numbers', tmp_path)
  assert time.monotonic() - start < 5
  assert left(tmp_path) == ['.lock']


def test_a_failure_is_not_remembered(tmp_path, offer):
  offer('/good', sha256='0' * 64)
  with pytest.raises(FileNotFoundError):
    downloads.fetch('numbers', tmp_path)
  offer('/good')
  assert (downloads.fetch('numbers', tmp_path) / 'numbers.tar.gz').read_bytes() == CONTENT


def test_any_official_archive_in_the_folder_is_enough(tmp_path, offer, server, monkeypatch):
  other = dataclasses.replace(offer('/good'), name='other.zip')
  monkeypatch.setitem(downloads.ARCHIVES, 'numbers', (*downloads.ARCHIVES['numbers'], other))
  assert downloads.find('numbers', tmp_path) is None
  (tmp_path / 'other.zip').touch()
  downloads.fetch('numbers', tmp_path)
  assert downloads.find('numbers', tmp_path) == other
  assert server.asked == []


def test_archives_come_before_folders_and_folders_before_other_files(tmp_path):
  assert downloads.locate('cifar10', tmp_path / 'none') is None
  binary, python = downloads.ARCHIVES['cifar10']
  for archive, folder in ((binary, 'cifar-10-batches-bin'), (python, 'deep/down/cifar-10-batches-py')):
    (tmp_path / folder).mkdir(parents=True)
    for place in (tmp_path, tmp_path / folder):
      assert downloads.locate('cifar10', place) == (tmp_path / folder, archive)
  (tmp_path / binary.name).write_bytes(b'')
  assert downloads.locate('cifar10', tmp_path) == (tmp_path / binary.name, binary)
  (tmp_path / 'cifar-10-batches-bin').rename(tmp_path / 'renamed')
  (tmp_path / 'renamed' / 'test_batch.bin').write_bytes(b'')
  assert downloads.locate('cifar10', tmp_path / 'renamed') == (tmp_path / 'renamed', binary)
  (tmp_path / 'BIDMC32HR_TRAIN.ts').write_bytes(b'')
  assert downloads.locate('bidmc', tmp_path)[0].name == 'BIDMC32HR_TRAIN.ts'
  (tmp_path / 'bidmc_01_Signals.csv').write_bytes(b'')
  assert downloads.locate('bidmc', tmp_path)[0] == tmp_path


INTERRUPTED = """
  import signal, sys
  from data_prep import downloads

  signal.signal(signal.SIGINT, signal.default_int_handler)
  downloads.ARCHIVES['numbers'] = (downloads.Archive(name='numbers.tar.gz', url=sys.argv[2], size=1),)
  downloads.fetch('numbers', sys.argv[1])
"""


def test_an_interruption_ends_the_process_and_leaves_nothing(tmp_path, offer, server, repository):
  arguments = [str(tmp_path), offer('/endless').url]
  with subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(INTERRUPTED), *arguments],
    cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  ) as process:  # fmt: skip
    try:
      deadline = time.monotonic() + 60
      while not list(tmp_path.glob('unfinished/*/endless')) and time.monotonic() < deadline:
        time.sleep(0.02)
      with pytest.raises(ValueError, match='Another process is'):
        downloads.fetch('numbers', tmp_path)
      process.send_signal(signal.SIGINT)
      _, error = process.communicate(timeout=20)
    finally:
      process.kill()
  assert 'KeyboardInterrupt' in error
  assert left(tmp_path) == ['.lock']


def test_the_table_agrees_with_what_tfds_ships():
  shipped = {}
  root = downloads.tfds.core.utils.tfds_path()
  for table in ('datasets/imdb_reviews/checksums.tsv', 'datasets/speech_commands/checksums.tsv',
                'url_checksums/cifar10.txt'):  # fmt: skip
    for line in (root / table).read_text().splitlines():
      url, size, sha256, *_ = line.split('\t')
      shipped[url.rpartition('/')[2]] = int(size), sha256
  for dataset in ('text', 'text_2048', 'cifar10', 'speech_commands'):
    archive = downloads.ARCHIVES[dataset][0]
    assert (archive.size, archive.sha256) == shipped[archive.name]
    assert archive.url.endswith(f'/{archive.name}')


def test_the_table_knows_every_ts_file():
  zenodo = {(archive.name, archive.url.split('/')[4]) for archive in downloads.ARCHIVES['bidmc'][1:]}
  assert zenodo == {
    (f'BIDMC32{target}_{part}.ts', str(record))
    for target, record in bidmc_ts.RECORDS.items()
    for part in bidmc_ts.PARTS
  }
