"""Damaged raw sets are imported. The import gives a set or an error of one sentence, and changes no file.

`python -m tests.data_prep.fuzzing FORM TRIES SEED FOLDER` tries one form in its own process and prints a line
of JSON.
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

# Checksums guard these layers, so no change in them may give another set.
GUARDED = ('gzip', 'zip', 'image')
# These forms may give a smaller set: damaged images, and recordings with damaged names, are left out.
FEWER = ('pathfinder', 'pathfinder arrays', 'bidmc zip')


def undamaged(form: str) -> Damage:
  """Makes an undamaged raw set of this form; `layers` of the result counts the parts at each layer."""
  damage = Damage(None, np.random.default_rng(0))
  FORMS[form][0](damage)
  return damage


def make(raw: pathlib.Path, form: str, rng: np.random.Generator) -> str:
  """Writes a raw set with damage at a random layer; returns the layer."""
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
  """Replaces `builders.prepare_set`: reads the source to its end, with the checks of the builder.

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
  """Asserts dtype and shape, and that every token is in the vocabulary, which the builder does not check."""
  inputs = example['inputs']
  assert inputs.dtype == source.dtype
  assert len(inputs)
  if source.shape is not None:
    sizes = zip(source.shape, inputs.shape, strict=True)
    assert all(wanted in (0, size) for wanted, size in sizes), (inputs.shape, source.shape)
  if vocabulary := source.extra.get('vocabulary'):
    assert 0 < inputs.max() < len(vocabulary)


def attempt(form: str, raw: pathlib.Path, data_dir: pathlib.Path, really: bool) -> str | None:
  """Imports a raw set; returns the fingerprint of its examples, or None after a UserError of one sentence."""
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      actual = FORMS[form][1](data_dir, raw_dir=raw)
  except UserError as error:
    sentence = str(error)
    assert sentence.isprintable(), sentence
    assert sentence.endswith(('.', '?')), sentence
    assert len(sentence) < 1_000, sentence
    return None
  actual = actual if isinstance(actual, list) else [actual]
  if really:
    actual = [prepared.read_metadata(folder, '')['fingerprint'] for folder in actual]
  return ' '.join(actual)


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
  """Imports one damaged set; returns the outcome. Raises AssertionError if a rule is broken.

  Args:
    form: a key of `FORMS`.
    seed: chooses the damage.
    folder: an empty folder.
    whole: fingerprint of the examples of the undamaged set.
    really: prepare the set on the disk.
  """
  raw, data = folder / 'raw', folder / 'data'
  layer = make(raw, form, np.random.default_rng([seed, *form.encode()]))
  before, start = tree(folder, data), time.perf_counter()
  actual = attempt(form, raw, data, really)
  seconds = time.perf_counter() - start
  assert seconds < 10, f'{seconds:.1f} s'
  assert tree(folder, data) == before
  if actual is None and really:
    assert not data.exists() or not [*data.rglob('*')], [*data.rglob('*')]
  assert actual is None or layer not in GUARDED or actual == whole or form in FEWER, layer
  return 'refused' if actual is None else 'the same set' if actual == whole else 'another set'


def main(form: str, tries: str, seed: str, folder: str):
  """Prints {'counts': {outcome: tries}, 'failures': [[seed, error]], 'memory': bytes}."""
  place = pathlib.Path(folder)
  raw_sets.write(place / 'whole' / 'raw', FORMS[form][0](Damage(None, np.random.default_rng(0))))
  whole = attempt(form, place / 'whole' / 'raw', place / 'whole' / 'data', True)
  assert whole
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak of memory is measured from here on
  memory = peak()
  counts, failures = {}, []
  for number in range(int(seed), int(seed) + int(tries)):
    signal.alarm(30)  # ends the process if a try hangs
    (place / 'try').mkdir()
    try:
      became = one_try(form, number, place / 'try', whole, really=True)
      counts[became] = counts.get(became, 0) + 1
    except Exception as error:
      failures.append([number, f'{type(error).__name__}: {error}'[:500]])
    shutil.rmtree(place / 'try')
  print(json.dumps({'counts': counts, 'failures': failures, 'memory': peak() - memory}))


def peak() -> int:
  """Returns the peak memory of this process in bytes."""
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(status.partition('VmHWM:')[2].split()[0])


if __name__ == '__main__':
  main(*sys.argv[1:])
