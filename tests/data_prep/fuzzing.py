"""Imports of damaged raw sets, and what must be true of them whatever is wrong.

`python -m tests.data_prep.fuzzing FORM TRIES SEED FOLDER` tries one form in a process of its own, and prints
a line of JSON.
"""

import contextlib
import hashlib
import io
import json
import pathlib
import shutil
import signal
import sys
import time

import numpy as np

from data_prep import builders
from lra_spt.data import prepared
from lra_spt.errors import UserError
from tests.data_prep import raw_sets
from tests.data_prep.raw_sets import FORMS, SPECIAL, Damage

# Layers within which nothing may change that is not noticed: checksums guard them.
GUARDED = ('gzip', 'zip', 'image')
# But for sets of which fewer examples are left where that is accepted: without damaged images, and without
# recordings whose names are damaged.
FEWER = ('pathfinder', 'pathfinder arrays', 'bidmc zip')


def undamaged(form: str) -> Damage:
  """The layers of an undamaged raw set of this form; `layers` has the number of things at each."""
  damage = Damage(None, np.random.default_rng(0))
  FORMS[form][0](damage)
  return damage


def make(raw: pathlib.Path, form: str, rng: np.random.Generator) -> str:
  """Writes a raw set with something wrong; returns at which layer."""
  layers = undamaged(form).layers
  layer = str(rng.choice([*layers, 'special'])) if rng.random() < 0.9 else 'special'
  damage = Damage(layer, rng)
  damage.chosen = int(rng.integers(layers.get(layer, 1)))
  files = FORMS[form][0](damage)
  raw_sets.write(raw, files)
  if layer == 'special':
    raw_sets.replace(raw / str(rng.choice(sorted(files))), str(rng.choice(SPECIAL)))
  return layer


def consumed(dataset, data_dir, request, load):
  """In the place of `builders.prepare_set`: reads the source to its end, with the builder's own checks.

  Returns:
    SHA-256 of the examples.
  """
  json.dumps(request)
  work = pathlib.Path(data_dir) / dataset / 'unfinished'
  work.parent.mkdir(parents=True, exist_ok=True)
  source = load(work)
  builder = builders.SequenceBuilder(dataset=dataset, source=source, request={}, data_dir=data_dir)
  with contextlib.suppress(AttributeError):
    builder._bar = _Bar()
  for file in source.counts:
    for example in builder._examples(file):
      check(example, source)
  return builder._fingerprint.hex()


class _Bar:
  def update(self, count=1):
    del count


def check(example, source):
  """Asserts what the builder does not check: every token is in the vocabulary."""
  inputs = example['inputs']
  assert inputs.dtype == source.dtype
  assert len(inputs)
  if source.shape is not None:
    sizes = zip(source.shape, inputs.shape, strict=True)
    assert all(wanted in (0, size) for wanted, size in sizes), (inputs.shape, source.shape)
  if vocabulary := source.extra.get('vocabulary'):
    assert 0 < inputs.max() < len(vocabulary)


def attempt(form: str, raw: pathlib.Path, data_dir: pathlib.Path, really: bool) -> str | None:
  """Imports a raw set: what identifies the examples, or None after a UserError of one sentence."""
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      found = FORMS[form][1](data_dir, raw_dir=raw)
  except UserError as error:
    sentence = str(error)
    assert sentence.isprintable(), sentence
    assert sentence.endswith(('.', '?')), sentence
    assert len(sentence) < 1_000, sentence
    return None
  found = found if isinstance(found, list) else [found]
  if really:
    found = [prepared.read_metadata(folder, '')['fingerprint'] for folder in found]
  return ' '.join(found)


def tree(folder: pathlib.Path, but: pathlib.Path):
  """{path: checksum of the file, None for others} of a folder, without the folder `but` in it."""
  return {
    str(path): None
    if not path.is_file() or path.is_symlink()
    else hashlib.sha256(path.read_bytes()).hexdigest()
    for path in folder.rglob('*')
    if path != but and but not in path.parents
  }


def one_try(form: str, seed: int, folder: pathlib.Path, whole: str, really: bool = False) -> str:
  """One damaged set; returns what became of it. Raises what is wrong.

  Args:
    form: of `FORMS`.
    seed: says what is wrong with the set.
    folder: an empty one.
    whole: what identifies the examples of the undamaged set.
    really: prepare the set on the disk.
  """
  raw, data = folder / 'raw', folder / 'data'
  layer = make(raw, form, np.random.default_rng([seed, *form.encode()]))
  before, start = tree(folder, data), time.perf_counter()
  found = attempt(form, raw, data, really)
  seconds = time.perf_counter() - start
  assert seconds < 10, f'{seconds:.1f} s'
  assert tree(folder, data) == before
  if found is None and really:
    assert not data.exists() or not [*data.rglob('*')], [*data.rglob('*')]
  assert found is None or layer not in GUARDED or found == whole or form in FEWER, layer
  return 'refused' if found is None else 'the same set' if found == whole else 'another set'


def main(form: str, tries: str, seed: str, folder: str):
  """Prints {'counts': what became of the tries, 'failures': [[seed, what]], 'memory': bytes}."""
  place = pathlib.Path(folder)
  raw_sets.write(place / 'whole' / 'raw', FORMS[form][0](Damage(None, np.random.default_rng(0))))
  whole = attempt(form, place / 'whole' / 'raw', place / 'whole' / 'data', True)
  assert whole
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak of memory is measured from here on
  memory = peak()
  counts, failures = {}, []
  for number in range(int(seed), int(seed) + int(tries)):
    signal.alarm(30)  # ends the process where a try hangs
    (place / 'try').mkdir()
    try:
      became = one_try(form, number, place / 'try', whole, really=True)
      counts[became] = counts.get(became, 0) + 1
    except Exception as error:
      failures.append([number, f'{type(error).__name__}: {error}'[:500]])
    shutil.rmtree(place / 'try')
  print(json.dumps({'counts': counts, 'failures': failures, 'memory': peak() - memory}))


def peak() -> int:
  """Bytes of memory that this process had at most."""
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(status.partition('VmHWM:')[2].split()[0])


if __name__ == '__main__':
  main(*sys.argv[1:])
