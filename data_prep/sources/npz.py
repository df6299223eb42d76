"""A set of your own from files: train.npz and, optionally, validation.npz and test.npz, or Parquet or Arrow.

A folder (train, validation, test) may take the place of a file. It holds either the same arrays as
`inputs.npy`, `labels.npy` and so on, or several files of one kind, which are joined in the order of their
names.

Every file holds `labels`, of one of these kinds:

- classes: whole numbers 0 to classes - 1, [N];
- a regression: real numbers, [N], or [N, K] of several dimensions;
- several labels: true or false, bool [N, K];
- classes of positions: whole numbers [N, L], with -1 where a position does not count, or [all positions] in a
  row.

Training examples may have no label: -1 for classes, NaN for a regression, -1 at all positions. Pretraining
reads them, finetuning does not. Inputs have one of three forms:

- values: `inputs`, uint8, int16 or float32 [N, L] or [N, L, C]. With `lengths`, [N], example n is the first
  lengths[n] positions of its row; uint8 and int16 then need the shape [N, L, C], also for one channel;
- token ids: `inputs`, whole numbers [N, L], and `lengths`, [N]: example n is the first lengths[n] ids of its
  row;
- token ids in a row: `inputs`, [all tokens], and `offsets`, [N + 1]: example n is
  inputs[offsets[n]:offsets[n + 1]];
- values in a row: `inputs`, [all positions, C], and the same `offsets`. If all examples have the same length,
  they become a set of fixed length.

Optionally, `groups`, [N], gives every example a whole number; examples with the same number belong together,
such as the recordings of one patient. They are stored one after another, a task with splits='grouped' keeps
them in one split, and confidence intervals count groups. All examples of a group must be in one file.

Ids 0 and 1 are `<mask>` and `<pad>` and occur in no input; 2 and 3 are meant for `<unk>` and `<eos>`.
train.npz may name all ids with `vocabulary`, an array of strings.

Files of Parquet (.parquet) and Arrow (.arrow, the format of files) have a row per example, and the columns
`inputs`, `labels` and optionally `groups`. Inputs are lists, which may differ in length: of uint8, int16 or
float32 they are values, or lists of C values per position; of other whole numbers they are token ids. Labels
are numbers, or lists as above. An example whose number is missing has no label.

Inputs may be larger than memory; everything else must fit into it. Two kinds of inputs must fit as well:
arrays that are stored column by column (Fortran order), and arrays in a file other than .npy whose groups are
not one after another. One batch of an Arrow file must fit.

    np.savez('raw/train.npz', inputs=x_NL, labels=y_N)
    lra-spt prepare npz --name waves --raw_dir raw --data_dir data

The metadata then hold `statistics`: mean and standard deviation of the training values, as a task needs them.
"""

import functools
import pathlib

import numpy as np

from data_prep import builders, labels, verification
from data_prep.sources import npz_files
from lra_spt.data import scorable, splits, tokenizers
from lra_spt.errors import DataError, MissingFile, counted, touching


def _load(paths, dataset):
  parts = npz_files.of_one_length({file: npz_files.read_any(path) for file, path in paths.items()})
  train = parts['train']
  npz_files.check_alike({paths[file]: part for file, part in parts.items()})
  npz_files.check_groups(parts, paths)
  classes = labels.classes(parts, paths)
  by_class = train.labels.dtype == np.int64
  known = [
    part.labels if part.per_position else part.labels[labels.is_known(part.labels)] for part in parts.values()
  ]
  for sentence in _remarks(parts, paths):
    print(sentence)
  tokens, vocabulary = train.kind == 'tokens', ()
  if tokens:
    vocabulary = _vocabulary(parts, paths)
    dtype, shape = np.uint8 if len(vocabulary) <= 256 else np.int32, None
  else:
    dtype, shape = train.inputs.dtype.type, train.shape
  return builders.Source(
    description=f'{dataset}: a set of the user.',
    citation='',
    files={file: functools.partial(part.examples, dtype) for file, part in parts.items()},
    counts={file: len(part) for file, part in parts.items()},
    classes=classes,
    per_position=train.per_position,
    unlabelled=True,
    label_width=train.label_width,
    shape=shape,
    dtype=dtype,
    groups=None if train.groups is None else {file: part.together()[1] for file, part in parts.items()},
    statistics=not tokens,
    origin=f'own files {", ".join(path.name for path in paths.values())}',
    verified=False,
    extra={
      'verification': 'none',
      'distinct_labels': len(np.unique(np.concatenate([label.reshape(-1) for label in known]))),
      **({'vocabulary': list(vocabulary)} if tokens else {}),
      **(
        {'train_labels': train.labels[train.order].tolist()} if by_class and 'validation' not in parts else {}
      ),
    },
  )


def _remarks(parts, paths):
  """Yields sentences on splits whose score says little or is not defined, as far as the files tell."""
  held = {split: (str(paths[split]), parts[split].labels) for split in scorable.MEANING if split in parts}
  train, kind = parts['train'], 'holdout' if 'test' in parts else 'random'
  if 'validation' not in parts and train.groups is None:
    known = np.ones(1) if train.per_position else labels.is_known(train.labels)
    labelled = [] if known.all() else np.flatnonzero(known).tolist()
    counts = {file: len(part) for file, part in parts.items()}
    cut = splits.split_positions(kind, {'counts': counts, 'labelled': labelled})
    for split in scorable.MEANING.keys() - held.keys():
      where = f'the {split} split that splits={kind!r} cuts from {paths["train"]}'
      held[split] = where, train.labels[cut[split][1]]
  for file, part in parts.items():
    count = 0 if part.groups is None else len(np.unique(part.groups))
    if count and len(parts) == 1 and count < splits.LEAST_GROUPS:
      yield (
        f"{paths[file]} has {counted(count, 'group')}, and splits='grouped' needs {splits.LEAST_GROUPS} to "
        'give every split one; give more groups, or validation.npz and test.npz with groups of their own.'
      )
    if count == 1 and file == 'test':
      yield (
        f'{paths[file]} has one group, so its score has no interval and no comparison; give two groups or '
        'more.'
      )
  for split, (where, label_N) in sorted(held.items(), reverse=True):
    if len(label_N):
      why = scorable.why_no_r2_of(label_N) if label_N.dtype.kind == 'f' else ''
      yield from scorable.remark(split, where, len(label_N), why)


def _vocabulary(parts, paths):
  named, most = parts['train'].vocabulary, max(part.largest for part in parts.values())
  if not named:
    return (*tokenizers.SPECIAL_TOKENS, *map(str, range(len(tokenizers.SPECIAL_TOKENS), most + 1)))
  if len(named) <= most:
    raise DataError(f'{paths["train"]} names {len(named)} ids, but the id {most} occurs; name all of them.')
  return named


def prepare_npz(data_dir, *, dataset: str, raw_dir):
  """Imports arrays; this module's docstring describes their files.

  Args:
    data_dir: folder for prepared sets.
    dataset: name of the set.
    raw_dir: folder of train.npz and, optionally, validation.npz and test.npz, or of files of another kind or
      folders in their place.

  Returns:
    The folder of the set.

  Raises:
    MissingFile: there is no train.npz, nor anything in its place.
    DataError: there are other such files, which would be ignored, or two of one name.
    UserError: as for `npz_files.read_any` and `builders.prepare_set`, or the files do not fit together.
  """
  raw = pathlib.Path(raw_dir).expanduser()
  paths = {}
  with touching(raw, 'read'):
    others = sorted(
      path.name
      for path in raw.glob('*')
      if path.suffix in npz_files.SUFFIXES and path.stem not in builders.FILE_ORDER
    )
    for file in builders.FILE_ORDER:
      names = [*(f'{file}{suffix}' for suffix in npz_files.SUFFIXES), file]
      there = [raw / name for name in names if (raw / name).exists()]
      if len(there) > 1:
        what = '' if there[1].suffix else 'the folder '
        raise DataError(f'{raw} holds {there[0].name} and {what}{there[1].name}; move one of the two away.')
      if there:
        paths[file] = there[0]
  if 'train' not in paths:
    raise MissingFile(f'There is no {raw / "train.npz"}; save inputs and labels there with numpy.savez.')
  if others:
    names = ', '.join(f'{file}.npz' for file in builders.FILE_ORDER)
    raise DataError(
      f'{raw} holds {", ".join(others)}, which is not read; its files are called {names}, or .parquet or '
      '.arrow.'
    )
  checksums = {}
  for file, path in paths.items():
    names = npz_files.names_in(path)
    checksums |= {f'{file}/{name}': verification.digest(path / name, 'SHA256') for name in names}
    if not names:
      checksums[file] = verification.digest(path, 'SHA256')
  return builders.prepare_set(
    dataset, data_dir, {'from': 'npz', 'files': checksums}, lambda work: _load(paths, dataset)
  )
