"""JSON files that record what they were: each holds digests of its own content and of files beside it.

  {..., "sha256": {"result.json": HEX, "predictions.npz": HEX}}

The digest under the file's own name is that of its content without this key; the others are of whole files.
A file that was edited or damaged since is not accepted. A file of an older version has no digests, and is
read without this check.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable

from lra_spt.errors import DamagedFile, touching
from lra_spt.files import atomic

KEY = 'sha256'


def write(path: pathlib.Path, content: dict, beside: Iterable[str] = ()) -> None:
  """Writes JSON with digests of itself and of those files `beside` it that there are."""
  atomic.write_json(path, sealed(path, content, beside))


def sealed(path: pathlib.Path, content: dict, beside: Iterable[str] = ()) -> dict:
  """`content` with the digests that `write` adds."""
  others = {name: of_file(path.parent / name) for name in beside if (path.parent / name).is_file()}
  return content | {KEY: {path.name: _digest(json.loads(json.dumps(content)))} | others}


def read(
  path: pathlib.Path, kind: str, advice: str, problem: Callable[[dict], str | None] = lambda content: None
) -> tuple[dict, dict[str, str]]:
  """(content, {name: digest} of the files beside it) of JSON, whether sealed or not.

  Args:
    path, kind, advice: as of `atomic.read_json`.
    problem: says what is wrong with the form of the content.

  Raises:
    DamagedFile: it is no JSON object, not what was written, or of another form.
  """
  content = atomic.read_json(path, kind, advice)
  digests = content.pop(KEY, {})
  if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
    raise DamagedFile(f'{path} is not {kind} ({KEY} is {digests!r:.80}); {advice}.')
  if digests.pop(path.name, None) not in (None, _digest(content)):
    raise DamagedFile(
      f'{path} was edited or damaged after it was written, according to its own digest; {advice}.'
    )
  if wrong := problem(content):
    raise DamagedFile(f'{path} is not {kind} ({wrong}); {advice}.')
  return content, digests


def check_beside(path: pathlib.Path, digests: dict[str, str], advice: str) -> None:
  """Raises a DamagedFile for a file beside `path` that is there and is not the one of its digest."""
  for name, digest in digests.items():
    other = path.parent / name
    if other.is_file() and of_file(other) != digest:
      raise DamagedFile(
        f'{other} was edited or damaged after it was written, according to the digest in {path.name}; '
        f'{advice}.'
      )


def of_file(path) -> str:
  """SHA-256 of a file in hex; FileAccessError when it cannot be read."""
  with touching(path, 'read'), atomic.place(path).open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _digest(content: dict) -> str:
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
