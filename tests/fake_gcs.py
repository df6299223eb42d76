"""A stand-in for Google Cloud Storage on this machine: the part of its JSON API that TensorStore uses.

  with FakeGCS() as server:
    server.objects['bucket', 'folder/name']    # an Object: its bytes and generation
    server.environment                         # for processes that shall use the stand-in

As in the real service, objects appear whole, have generations and honour ifGenerationMatch. For every request
the server calls `server.fault(method, name)` with the name of the object, or of the first one that a list may
contain. It returns:

  None                no fault
  a number            the server does nothing and answers with this status
  ('done', number)    the server does it and answers with this status, so the client sends it again
  ('late', seconds)   the server waits before it does it
"""

import dataclasses
import http.server
import itertools
import json
import pathlib
import threading
import time
import urllib.parse


@dataclasses.dataclass(frozen=True)
class Object:
  data: bytes
  generation: int


class FakeGCS:
  """A server on a free port of this machine, which runs inside of `with`."""

  def __init__(self):
    self.objects = {}
    self.requests = []  # (method, name) of all, in order
    self.fault = lambda method, name: None
    self.lock = threading.Lock()
    self.generations = itertools.count(1_700_000_000_000_000)
    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    self._server.daemon_threads = True
    self._server.fake = self
    self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

  @property
  def environment(self) -> dict[str, str]:
    url = f'http://127.0.0.1:{self._server.server_port}'
    return {'TENSORSTORE_GCS_HTTP_URL': url, 'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'nobody'}

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()

  def put(self, bucket: str, name: str, data: bytes) -> None:
    self.objects[bucket, name] = Object(data, next(self.generations))

  def upload(self, bucket: str, folder: pathlib.Path, prefix: str) -> None:
    """Puts all files below a folder into a bucket."""
    for path in folder.rglob('*'):
      if path.is_file():
        self.put(bucket, f'{prefix}/{path.relative_to(folder).as_posix()}', path.read_bytes())

  def download(self, bucket: str, prefix: str, folder: pathlib.Path) -> None:
    """Writes all objects below a prefix into a folder."""
    for name in self.names(bucket, f'{prefix}/'):
      path = folder / name.removeprefix(f'{prefix}/')
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(self.objects[bucket, name].data)

  def names(self, bucket: str, prefix: str = '') -> list[str]:
    return sorted(
      name for its_bucket, name in list(self.objects) if its_bucket == bucket and name.startswith(prefix)
    )

  def flip(self, bucket: str, name: str, at: int) -> None:
    """Changes one bit of an object without a request."""
    data = bytearray(self.objects[bucket, name].data)
    data[at] ^= 1
    self.put(bucket, name, bytes(data))


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True

  def log_message(self, *_):
    pass

  def _serve(self):
    fake = self.server.fake
    url = urllib.parse.urlsplit(self.path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
    _, _, rest = url.path.partition('/storage/v1/b/')
    bucket, _, name = rest.partition('/')
    name = name.removeprefix('o')
    name = urllib.parse.unquote(name.removeprefix('/')) or query.get('name') or query.get('startOffset', '')
    fake.requests.append((self.command, name))
    fault = fake.fault(self.command, name)
    if isinstance(fault, int):
      return self._answer(fault, b'{"error": {"message": "as asked for"}}')
    if fault and fault[0] == 'late':
      time.sleep(fault[1])
    answer = self._do(fake, bucket, name, query, body, listing=url.path.endswith('/o'))
    if fault and fault[0] == 'done':
      return self._answer(fault[1], b'{"error": {"message": "as asked for"}}')
    return self._answer(*answer)

  do_GET = do_POST = do_DELETE = _serve

  def _do(self, fake, bucket, name, query, body, listing):
    with fake.lock:
      stored = fake.objects.get((bucket, name))
      generation = stored.generation if stored else 0
      if 'ifGenerationMatch' in query and int(query['ifGenerationMatch']) != generation:
        return 412, b'{}'
      if self.command == 'POST':
        fake.put(bucket, name, body)
        return 200, json.dumps(self._about(fake, bucket, name)).encode()
      if listing:
        return 200, json.dumps(self._list(fake, bucket, query)).encode()
      if stored is None:
        return 404, b'{}'
      if self.command == 'DELETE':
        del fake.objects[bucket, name]
        return 204, b''
      if int(query.get('ifGenerationNotMatch', -1)) == generation:
        return 304, b''
      if query.get('alt') != 'media':
        return 200, json.dumps(self._about(fake, bucket, name)).encode()
      return self._content(stored)

  def _content(self, stored):
    headers = {'x-goog-generation': str(stored.generation)}
    if asked := self.headers.get('Range'):
      begin, _, end = asked.removeprefix('bytes=').partition('-')
      size = len(stored.data)
      first = int(begin) if begin else max(0, size - int(end))
      last = min(int(end), size - 1) if begin and end else size - 1
      if first > last:
        return 416, b''
      headers['Content-Range'] = f'bytes {first}-{last}/{size}'
      return 206, stored.data[first : last + 1], headers
    return 200, stored.data, headers

  def _about(self, fake, bucket, name):
    stored = fake.objects[bucket, name]
    return {
      'kind': 'storage#object',
      'bucket': bucket,
      'name': name,
      'size': str(len(stored.data)),
      'generation': str(stored.generation),
      'metageneration': '1',
      'timeCreated': '2026-01-01T00:00:00Z',
      'updated': '2026-01-01T00:00:00Z',
    }

  def _list(self, fake, bucket, query):
    prefix, start, end = query.get('prefix', ''), query.get('startOffset', ''), query.get('endOffset')
    start = max(start, query.get('pageToken', ''))
    names = [name for name in fake.names(bucket, prefix) if name >= start and (end is None or name < end)]
    size = int(query.get('maxResults', 1000))
    items = [self._about(fake, bucket, name) for name in names[:size]]
    return {'items': items} | ({'nextPageToken': names[size]} if len(names) > size else {})

  def _answer(self, status, content, headers=()):
    self.send_response(status)
    for key, value in dict(headers).items():
      self.send_header(key, value)
    if status not in (204, 304):
      self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if content and status not in (204, 304):
      self.wfile.write(content)
