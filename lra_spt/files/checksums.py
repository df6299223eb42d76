"""JSON files with checksums of their content and of files beside them.

  {..., "sha256": {"result.json": HEX, "predictions.npz": HEX}}

The checksum under the name of the file itself is that of its content without this key; the others are of
whole files. A file that was edited or damaged is refused. A file without this key, such as one written by
hand, is read unchecked.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable

from lra_spt.errors import DamagedFile, touching
from lra_spt.files import atomic

KEY = 'sha256'


def write(path: pathlib.Path, content: dict, beside: Iterable[str] = ()) -> None:
  """Writes JSON with checksums of its content and of the files `beside` it that exist."""
  atomic.write_json(path, sealed(path, content, beside))


def sealed(path: pathlib.Path, content: dict, beside: Iterable[str] = ()) -> dict:
  """`content` with the checksums that `write` adds."""
  others = {name: of_file(path.parent / name) for name in beside if (path.parent / name).is_file()}
  return content | {KEY: {path.name: _digest(json.loads(json.dumps(content)))} | others}


def read(
  path: pathlib.Path, kind: str, advice: str, problem: Callable[[dict], str | None] = lambda content: None
) -> tuple[dict, dict[str, str]]:
  """Reads JSON and compares it with its checksum.

  Args:
    path, kind, advice: see `atomic.read_json`.
    problem: returns a problem with the form of the content, or None.

  Returns:
    The content, and {name: checksum} of the files beside it.

  Raises:
    DamagedFile: it is no JSON object, was changed, or has another form.
  """
  content = atomic.read_json(path, kind, advice)
  digests = content.pop(KEY, {})
  if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
    raise DamagedFile(f'{path} is not {kind} ({KEY} is {digests!r:.80}); {advice}.')
  if digests.pop(path.name, None) not in (None, _digest(content)):
    raise DamagedFile(
      f'{path} was edited or damaged after it was written, according to its checksum; {advice}.'
    )
  if wrong := problem(content):
    raise DamagedFile(f'{path} is not {kind} ({wrong}); {advice}.')
  return content, digests


def check_beside(path: pathlib.Path, digests: dict[str, str], advice: str) -> None:
  """Raises a DamagedFile for an existing file beside `path` that differs from its checksum."""
  for name, digest in digests.items():
    other = path.parent / name
    if other.is_file() and of_file(other) != digest:
      raise DamagedFile(
        f'{other} was edited or damaged after it was written, according to the checksum in {path.name}; '
        f'{advice}.'
      )


def of_file(path) -> str:
  """SHA-256 of a file in hex; raises a FileAccessError if it cannot be read."""
  with touching(path, 'read'), atomic.place(path).open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _digest(content: dict) -> str:
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
