"""Downloads from a server on this machine succeed, are refused, break off or cannot begin."""

import dataclasses
import hashlib
import http.server
import importlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time

import pytest

from data_prep import builders, catalogue, downloads, finding, official
from lra_spt import errors

CONTENT = io.BytesIO()
with tarfile.open(fileobj=CONTENT, mode='w:gz') as _tar:
  _tar.addfile(tarfile.TarInfo('numbers/empty.txt'))
CONTENT = CONTENT.getvalue()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)


class Handler(http.server.BaseHTTPRequestHandler):
  """A server whose path chooses how it sends an archive with an ETag: /good, /page, /missing, ...

  /short and /silent begin it, then end or fall silent; /broken ends after another third of it each time, and
  knows ranges as /good does; /plain and /plain-short know none and have no ETag; /endless never ends.
  """

  def do_GET(self):
    kind, content = self.path.strip('/'), self.server.content
    self.server.asked.append((self.path, self.headers.get('Range')))
    if kind == 'missing':
      self.send_error(404)
      return
    body, status, tag = content, 200, f'"{hashlib.sha256(content).hexdigest()}"'
    if kind == 'page':
      body = b'<p>Please sign in'
    first = 0
    if (wanted := self.headers.get('Range')) and not kind.startswith('plain') and (
      self.headers.get('If-Range') == tag
    ):  # fmt: skip
      first, status = int(wanted.removeprefix('bytes=').removesuffix('-')), 206
    if first and first >= len(body):
      self.send_response(416)
      self.send_header('Content-Range', f'bytes */{len(body)}')
      self.send_header('Content-Length', '0')
      self.end_headers()
      return
    self.send_response(status)
    self.send_header('Content-Length', str(2**40 if kind == 'endless' else len(body) - first))
    self.send_header('Content-Type', self.server.kind)
    if not kind.startswith('plain'):
      self.send_header('ETag', tag)
    if status == 206:
      self.send_header('Content-Range', f'bytes {first}-{len(body) - 1}/{len(body)}')
    self.end_headers()
    while kind == 'endless' and not self.server.released.wait(0.01):
      try:
        self.wfile.write(bytes(2**16))
      except OSError:
        return
    end = {'short': 20, 'plain-short': 20, 'silent': len(body) - 1, 'broken': first + len(body) // 3 + 1}
    self.wfile.write(body[first : end.get(kind, len(body))])
    if kind == 'silent':
      self.wfile.flush()
      self.server.released.wait(60)

  def log_message(self, *arguments):
    pass


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')
  monkeypatch.setattr(downloads, '_BLOCK', 4)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
    server.asked, server.released = [], threading.Event()
    server.content, server.kind = CONTENT, 'application/gzip'
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()


@pytest.fixture
def offer(server, change_entry):
  """offer(path, ...) makes 'numbers' a data set whose archive lies there; returns the archive."""

  def make(path, *, port=None, sha256=SHA256, size=SIZE):
    url = f'http://127.0.0.1:{port or server.server_address[1]}{path}'
    archive = official.Archive('numbers.tar.gz', url, size=size, sha256=sha256, unpacked='numbers')
    change_entry('numbers', archives=(archive,))
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
  assert server.asked == [('/good', None)]
  assert capsys.readouterr().out == ''
  assert left(folder) == ['numbers.tar.gz']


@pytest.mark.parametrize(
  'path, change, reason',
  [
    ('/good', {'sha256': '0' * 64}, 'what was downloaded is not the official file'),
    ('/good', {'size': 1}, f'the server offers {SIZE} bytes, but the official file has 1'),
    ('/page', {}, f'the server offers 17 bytes, but the official file has {SIZE}'),
    ('/page', {'sha256': None}, 'what was downloaded is not an archive'),
    ('/missing', {}, 'the server answered with status 404'),
    ('/plain-short', {}, 'the connection broke off'),
    ('/plain-short', {'sha256': None}, 'the connection broke off'),
  ],
)
def test_wrong_answers_leave_nothing(tmp_path, offer, path, change, reason):
  archive = offer(path, **change)
  (tmp_path / 'numbers.tar.gz.part').write_bytes(b'nobody knows of what')
  with pytest.raises(FileNotFoundError, match=reason) as raised:
    downloads.fetch('numbers', tmp_path)
  message = str(raised.value)
  assert message.startswith(f'numbers.tar.gz could not be downloaded from {archive.url} (')
  assert message.endswith(
    '); get it by other means, put it into a folder and name that folder with --raw_dir.'
  )
  assert '\n' not in message
  assert left(tmp_path) == []


def test_a_page_is_refused_before_it_is_kept(tmp_path, offer, server):
  server.kind = 'text/html; charset=utf-8'
  offer('/good', sha256=None)
  with pytest.raises(FileNotFoundError, match='the server sent a web page, not an archive'):
    downloads.fetch('numbers', tmp_path)
  assert left(tmp_path) == []


@pytest.mark.parametrize('path', ['/short', '/silent'])
def test_a_download_resumes_after_the_connection_broke(tmp_path, offer, server, monkeypatch, path):
  if path == '/silent':  # a busy machine may need longer than this to answer
    monkeypatch.setattr(downloads, '_SILENCE', 0.5)
  offer(path)
  with pytest.raises(FileNotFoundError, match='broke off|in time') as raised:
    downloads.fetch('numbers', tmp_path)
  assert 'run the same command again to resume, or get it by other' in str(raised.value)
  assert left(tmp_path) == ['numbers.tar.gz.part', 'numbers.tar.gz.part.json']
  part = (tmp_path / 'numbers.tar.gz.part').read_bytes()
  assert part == CONTENT[: len(part)]
  assert len(part) >= 20
  note = tmp_path / 'numbers.tar.gz.part.json'
  note.write_text(note.read_text().replace(path, '/good'))
  offer('/good')
  server.asked.clear()
  downloads.fetch('numbers', tmp_path)
  assert server.asked == [('/good', f'bytes={len(part)}-')]
  assert (tmp_path / 'numbers.tar.gz').read_bytes() == CONTENT
  assert left(tmp_path) == ['numbers.tar.gz']


def test_a_download_that_makes_progress_resumes_at_once(tmp_path, offer, server):
  offer('/broken')
  downloads.fetch('numbers', tmp_path)
  assert (tmp_path / 'numbers.tar.gz').read_bytes() == CONTENT
  begins = [int(wanted.removeprefix('bytes=').removesuffix('-')) for _, wanted in server.asked[1:]]
  assert server.asked[0] == ('/broken', None)
  assert begins == sorted(set(begins))
  assert 2 <= len(begins) <= 4


@pytest.mark.parametrize('known', [True, False])
def test_the_part_of_a_file_that_changed_is_dropped(tmp_path, offer, server, known):
  offer('/short')
  with pytest.raises(FileNotFoundError):
    downloads.fetch('numbers', tmp_path)
  note = tmp_path / 'numbers.tar.gz.part.json'
  note.write_text(note.read_text().replace('/short', '/good'))
  with tarfile.open(fileobj=(other := io.BytesIO()), mode='w:gz') as tar:
    tar.addfile(tarfile.TarInfo('numbers/other.txt'))
  server.content = other.getvalue()
  of_it = {'sha256': hashlib.sha256(server.content).hexdigest(), 'size': len(server.content)}
  offer('/good', **(of_it if known else {'sha256': None}))
  downloads.fetch('numbers', tmp_path)
  assert (tmp_path / 'numbers.tar.gz').read_bytes() == server.content


def test_a_part_that_is_whole_is_only_checked(tmp_path, offer, server):
  offer('/good', sha256='0' * 64)
  tag = f'"{SHA256}"'
  (tmp_path / 'numbers.tar.gz.part').write_bytes(CONTENT)
  note = {'url': offer('/good').url, 'validator': tag}
  (tmp_path / 'numbers.tar.gz.part.json').write_text(json.dumps(note))
  downloads.fetch('numbers', tmp_path)
  assert server.asked == [('/good', f'bytes={SIZE}-')]
  assert left(tmp_path) == ['numbers.tar.gz']


def test_a_damaged_part_is_not_kept(tmp_path, offer):
  (tmp_path / 'numbers.tar.gz.part').write_bytes(b'?' * 20)
  note = {'url': offer('/good').url, 'validator': f'"{SHA256}"'}
  (tmp_path / 'numbers.tar.gz.part.json').write_text(json.dumps(note))
  with pytest.raises(FileNotFoundError, match='what was downloaded is not the official file'):
    downloads.fetch('numbers', tmp_path)
  assert left(tmp_path) == []
  downloads.fetch('numbers', tmp_path)
  assert (tmp_path / 'numbers.tar.gz').read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_of_it_again(tmp_path, offer, server):
  archive = offer('/plain')
  (tmp_path / 'numbers.tar.gz.part').write_bytes(CONTENT[:20])
  note = {'url': archive.url, 'validator': f'"{SHA256}"'}
  (tmp_path / 'numbers.tar.gz.part.json').write_text(json.dumps(note))
  downloads.fetch('numbers', tmp_path)
  assert server.asked == [('/plain', 'bytes=20-')]
  assert (tmp_path / 'numbers.tar.gz').read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, offer):
  offer('/good')
  (tmp_path / 'file').touch()
  with pytest.raises(errors.FileAccessError, match='written to: there is a file of that name'):
    downloads.fetch('numbers', tmp_path / 'file')


def test_without_a_network_the_answer_comes_at_once(tmp_path, offer):
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    offer('/good', port=unused.getsockname()[1])
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match='no connection to the server'):
      downloads.fetch('numbers', tmp_path)
  assert time.monotonic() - start < 5
  assert left(tmp_path) == []


def test_a_failure_is_not_remembered(tmp_path, offer):
  offer('/good', sha256='0' * 64)
  with pytest.raises(FileNotFoundError):
    downloads.fetch('numbers', tmp_path)
  offer('/good')
  assert (downloads.fetch('numbers', tmp_path) / 'numbers.tar.gz').read_bytes() == CONTENT


def test_any_official_archive_in_the_folder_is_enough(tmp_path, offer, server, change_entry):
  other = dataclasses.replace(offer('/good'), name='other.zip')
  change_entry('numbers', archives=(offer('/good'), other))
  assert finding.downloaded('numbers', tmp_path) is None
  (tmp_path / 'other.zip').touch()
  downloads.fetch('numbers', tmp_path)
  assert finding.downloaded('numbers', tmp_path) == other
  assert server.asked == []


@pytest.mark.parametrize('dataset', ['cifar10', 'text', 'retrieval', 'speech_commands'])
def test_files_that_are_not_there_are_named_with_their_source(tmp_path, dataset):
  prepare = catalogue.SETS[dataset].importer.function
  prepare = getattr(importlib.import_module(f'data_prep.{prepare.module}'), prepare.function)
  name = re.escape(catalogue.SETS[dataset].archives[0].name)
  for raw, wrong in ((None, 'cannot be generated'), (tmp_path, f"{tmp_path} holds nothing of '{dataset}'")):
    with pytest.raises(FileNotFoundError, match=f'{wrong}: put {name}.*--raw_dir'):
      prepare(tmp_path / 'data', raw_dir=raw)


def test_archives_come_before_folders_and_folders_before_other_files(tmp_path):
  assert finding.locate('cifar10', tmp_path / 'none') is None
  binary, python = catalogue.SETS['cifar10'].archives
  for archive, folder in ((binary, 'cifar-10-batches-bin'), (python, 'deep/down/cifar-10-batches-py')):
    (tmp_path / folder).mkdir(parents=True)
    for place in (tmp_path, tmp_path / folder):
      assert finding.locate('cifar10', place) == (tmp_path / folder, archive)
  (tmp_path / binary.name).write_bytes(b'')
  assert finding.locate('cifar10', tmp_path) == (tmp_path / binary.name, binary)
  (tmp_path / 'cifar-10-batches-bin').rename(tmp_path / 'renamed')
  (tmp_path / 'renamed' / 'test_batch.bin').write_bytes(b'')
  assert finding.locate('cifar10', tmp_path / 'renamed') == (tmp_path / 'renamed', binary)
  (tmp_path / 'BIDMC32HR_TRAIN.ts').write_bytes(b'')
  assert finding.locate('bidmc', tmp_path)[0].name == 'BIDMC32HR_TRAIN.ts'
  (tmp_path / 'bidmc_01_Signals.csv').write_bytes(b'')
  assert finding.locate('bidmc', tmp_path)[0] == tmp_path


INTERRUPTED = """
  import signal, sys
  from data_prep import catalogue, downloads, official

  signal.signal(signal.SIGINT, signal.default_int_handler)
  archive = official.Archive('numbers.tar.gz', sys.argv[2])
  catalogue.register_set(catalogue.Entry('numbers', archives=(archive,)))
  downloads.fetch('numbers', sys.argv[1])
"""


def test_an_interruption_ends_the_process_and_leaves_what_came(tmp_path, offer, server, repository):
  arguments = [str(tmp_path), offer('/endless').url]
  with subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(INTERRUPTED), *arguments],
    cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  ) as process:  # fmt: skip
    try:
      deadline = time.monotonic() + 60
      while not list(tmp_path.glob('numbers.tar.gz.part')) and time.monotonic() < deadline:
        time.sleep(0.02)
      assert process.poll() is None, process.communicate()
      with pytest.raises(ValueError, match=r'Another process \(.*\) is downloading'):
        downloads.fetch('numbers', tmp_path)
      process.send_signal(signal.SIGINT)
      _, error = process.communicate(timeout=20)
    finally:
      process.kill()
  assert 'KeyboardInterrupt' in error
  assert left(tmp_path) == ['numbers.tar.gz.part', 'numbers.tar.gz.part.json']


def test_the_table_agrees_with_what_tfds_ships():
  shipped = {}
  root = builders.tfds.core.utils.tfds_path()
  for table in ('datasets/imdb_reviews/checksums.tsv', 'datasets/speech_commands/checksums.tsv',
                'url_checksums/cifar10.txt'):  # fmt: skip
    for line in (root / table).read_text().splitlines():
      url, size, sha256, *_ = line.split('\t')
      shipped[url.rpartition('/')[2]] = int(size), sha256
  for dataset in ('text', 'text_2048', 'cifar10', 'speech_commands'):
    archive = catalogue.SETS[dataset].archives[0]
    assert (archive.size, archive.sha256) == shipped[archive.name]
    assert archive.url.endswith(f'/{archive.name}')
