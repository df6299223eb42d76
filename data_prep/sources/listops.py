"""ListOps: a generator with the distribution of the Long Range Arena, and a reader of LRA's own files.

A tree grows from the root (depth 1). At a depth below `max_depth` a node is an operator with probability 1/4
and a digit otherwise; at `max_depth` it is a digit. An operator has 2 to `max_args` arguments and is MIN,
MAX, MED (median, truncated) or SM (sum modulo 10), both drawn uniformly. A tree is kept if its number of
tokens is strictly between `min_length` and `max_length`, and if no equal one was kept before. LRA itself
fixes no seed; ours is a function of the seed alone, however many processes grow the trees.
"""

import dataclasses
import functools
import hashlib
import pathlib

import numpy as np

from data_prep import builders, catalogue, chunks, finding, verification
from data_prep.sources import listops_trees, listops_tsv
from lra_spt.data import tokenizers
from lra_spt.errors import DataError, MissingFile

LENGTH = 2048
_CITATION = (
  'Nangia and Bowman, ListOps: A Diagnostic Dataset for Latent Tree Learning, NAACL 2018 (SRW); '
  'Tay et al., Long Range Arena, ICLR 2021.'
)
_DESCRIPTION = 'Nested expressions of MIN, MAX, MED and SM over digits, as token ids that end in <eos>.'
# Raise it when the trees of a seed change, so that old chunks are not mixed in.
GENERATOR = 1
# Trees of a seed grow in stretches, each with a random state; a chunk holds a multiple of a stretch.
_STRETCH, _CHUNK = 500, 10_000


@dataclasses.dataclass(frozen=True)
class TreeShape:
  """Limits of the trees; the defaults are LRA's."""

  max_depth: int = 10
  max_args: int = 10
  min_length: int = 500
  max_length: int = 2000

  def __post_init__(self):
    if self.max_depth < 1 or self.max_args < 2 or self.max_length - self.min_length < 2:
      raise DataError(
        f'{self} describes no tree; max_depth must be at least 1, max_args at least 2 and some length '
        'must lie strictly between min_length and max_length.'
      )


def _grow_stretch(seed, number, shape):
  """Grows stretch `number` of the trees of a seed: codes of n trees in a row, lengths [n], labels [n]."""
  key = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
  tokens = np.zeros((_STRETCH, shape.max_length), np.uint8)
  lengths, labels = np.zeros(_STRETCH, np.int64), np.zeros(_STRETCH, np.uint8)
  count = listops_trees.grow_many(
    key,
    1000 * _STRETCH,
    shape.max_depth,
    shape.max_args,
    shape.min_length,
    shape.max_length,
    tokens,
    lengths,
    labels,
  )
  codes = tokens[:count][np.arange(shape.max_length) < lengths[:count, None]]
  return {'codes': codes, 'lengths': lengths[:count], 'labels': labels[:count]}


def _grow_chunk(seed, shape, start, stop):
  parts = [_grow_stretch(seed, number, shape) for number in range(start // _STRETCH, stop // _STRETCH)]
  return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def generate_trees(count: int, work: pathlib.Path, *, seed=0, shape: TreeShape = TreeShape(), **making):
  """Distinct random trees; a pure function of (count, seed, shape), and the first trees of a larger count.

  Args:
    count: number of trees.
    work: folder for chunks, see `chunks.open_folder`.
    seed: at least 0.
    shape: limits of the trees.
    **making: workers, runner and beam_options of `chunks.make_chunks`.

  Returns:
    A list of uint8 arrays of codes (positions in `tokenizers.LISTOPS_TOKENS`), and labels uint8 [count].

  Raises:
    DataError: `shape` has fewer distinct trees.
    UserError: see `chunks.make_chunks`.
  """
  folder = chunks.open_folder(work, {'generator': GENERATOR, 'seed': seed, **dataclasses.asdict(shape)})
  trees, labels, seen = [], [], set()
  stop = fertile = 0  # trees grown so far, with repeated ones; trees up to the last chunk that gave a new one
  while len(trees) < count:
    start, stop = stop, stop + -(-(count - len(trees)) // _STRETCH) * _STRETCH
    parts = chunks.divide(folder, stop, size=_CHUNK, start=start)
    chunks.make_chunks(
      functools.partial(_grow_chunk, seed, shape), parts, title='growing trees', unit=' trees', **making
    )
    for part in parts:
      grown, before = chunks.read(part), len(trees)
      codes = np.split(grown['codes'], np.cumsum(grown['lengths']))[:-1]
      for tree, label in zip(codes, grown['labels'], strict=True):
        key = hashlib.blake2b(tree.tobytes(), digest_size=16).digest()
        if key not in seen:
          seen.add(key)
          trees.append(tree)
          labels.append(label)
      fertile = part.stop if len(trees) > before else fertile
    if stop - fertile >= 20 * _STRETCH:
      raise DataError(
        f'Only {len(trees):,} of {count:,} distinct ListOps trees were found for {shape}; '
        'ask for fewer or allow longer ones.'
      )
  return trees[:count], np.asarray(labels[:count], np.uint8)


def _source(trees, labels, *, length, origin, verified, extra):
  """A Source from codes: builds the vocabulary from the training file and turns codes into ids."""
  occurrences = np.zeros(len(tokenizers.LISTOPS_TOKENS), np.int64)
  for tree in trees['train']:
    occurrences += np.bincount(tree, minlength=len(occurrences))
  counts = {token: int(n) for token, n in zip(tokenizers.LISTOPS_TOKENS, occurrences, strict=True) if n}
  vocabulary = tokenizers.build_vocabulary(counts)
  ids = np.asarray(
    [
      vocabulary.index(token) if token in counts else tokenizers.UNKNOWN
      for token in tokenizers.LISTOPS_TOKENS
    ],
    np.uint8,
  )

  def read(file):
    for tree, label in zip(trees[file], labels[file], strict=True):
      yield np.append(ids[tree[: length - 1]], np.uint8(tokenizers.END)), int(label)

  files = {file: functools.partial(read, file) for file in trees}
  return builders.Source(
    description=_DESCRIPTION,
    citation=_CITATION,
    files=files,
    counts={file: len(trees[file]) for file in trees},
    classes=10,
    shape=None,
    origin=origin,
    verified=verified,
    extra={'vocabulary': list(vocabulary), **extra},
  )


def _load_files(raw_dir, accept, length):
  place, _ = finding.require('listops', raw_dir)
  missing = [name for name in listops_tsv.FILES.values() if place.is_dir() and not (place / name).exists()]
  if missing:
    raise MissingFile(f'{place} lacks {", ".join(missing)}: {finding.advice("listops")}.')
  read = listops_tsv.read(place, TreeShape())
  counts = {file: len(trees) for file, (trees, _) in read.items()}
  verified = verification.check_counts(place, counts, catalogue.SETS['listops'].counts, **accept)
  return _source(
    {file: trees for file, (trees, _) in read.items()},
    {file: labels for file, (_, labels) in read.items()},
    length=length,
    origin='files basic_{train,val,test}.tsv',
    verified=verified,
    extra={'verification': 'row counts (no official checksums exist)' if verified else 'none'},
  )


def prepare_listops(
  data_dir,
  *,
  dataset: str = 'listops',
  examples: int | None = None,
  sizes=None,
  seed: int = 0,
  shape: TreeShape = TreeShape(),
  length: int = LENGTH,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  workers: int | None = None,
  runner: str = 'local',
  beam_options: str = '',
):
  """Generates ListOps, or imports LRA's files when `raw_dir` is given.

  Args:
    data_dir: folder for prepared sets.
    dataset: name of the set; a variant (`demo_listops`) has its own.
    examples: size of a generated training file; None for LRA's. The catalogue has the sizes of the other two.
    sizes: {'train', 'validation', 'test': examples}, in place of `examples`.
    seed, shape, workers, runner, beam_options: see `generate_trees`.
    length: positions of the task, `<eos>` included; longer expressions are cut.
    raw_dir: folder with LRA's files.
    accept_unverified, accept_incomplete: import files with more, or with fewer, rows than LRA's.

  Returns:
    The folder of the set. Raises what `builders.prepare_set` raises.
  """
  if raw_dir is not None:
    accept = {'accept_unverified': accept_unverified, 'accept_incomplete': accept_incomplete}
    return builders.prepare_set(
      dataset,
      data_dir,
      {'from': 'files', 'length': length},
      lambda work: _load_files(raw_dir, accept, length),
    )
  sizes = dict(sizes or catalogue.SETS['listops'].counts_for(examples))
  settings = dataclasses.asdict(shape)

  def load(work):
    making = {'workers': workers, 'runner': runner, 'beam_options': beam_options}
    trees, labels = generate_trees(sum(sizes.values()), work, seed=seed, shape=shape, **making)
    ends = dict(zip(sizes, np.cumsum(list(sizes.values())).tolist(), strict=True))
    parts = {file: slice(end - sizes[file], end) for file, end in ends.items()}
    return _source(
      {file: trees[part] for file, part in parts.items()},
      {file: labels[part] for file, part in parts.items()},
      length=length,
      origin=f'generated, seed {seed}',
      verified=False,
      extra={'generator': {'seed': seed, **settings}},
    )

  return builders.prepare_set(
    dataset, data_dir, {'from': 'generator', 'seed': seed, 'sizes': sizes, 'length': length, **settings}, load
  )
