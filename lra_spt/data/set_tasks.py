"""The task of a prepared set that no Python file describes: the set's metadata say all that it needs."""

from lra_spt.data import prepared
from lra_spt.data.parts import Classes, Groups, MultiLabel, PerPosition, Real, Tokens, Values
from lra_spt.data.task import Task

# The commands that make such sets, by the `from` of their request.
_COMMANDS = {
  'npz': 'lra-spt prepare npz --name {name} --raw_dir RAW',
  'ts': 'lra-spt prepare ts --name {name} --train TRAIN.ts --test TEST.ts',
}


def task_of(name: str, data_dir) -> Task | None:
  """Returns the task of a prepared set, which has the name of the set; None if there is no such set.

  Values and real labels are normalised by the measured mean and deviation. A set with a validation file has
  the splits of its files. Else groups are kept apart, classes have the same share in every split, and other
  sets are split at random.

  Args:
    name: of the set.
    data_dir: folder given to `lra-spt prepare`.

  Raises:
    DataError: the description of the set is damaged.
    FileAccessError: it cannot be read.
  """
  folder = prepared.dataset_folder(data_dir, name)
  if not (folder / prepared.METADATA).is_file():
    return None
  metadata, _ = prepared.read_description(folder, f'remove {folder} and prepare it again')
  made_by = metadata['request'].get('from')
  return Task(
    name=name,
    dataset=name,
    inputs=_inputs(metadata),
    labels=_labels(metadata),
    splits=_splits(metadata),
    groups=Groups('group', 'examples') if metadata.get('groups') else None,
    description=f'A set from {metadata["source"]}.',
    prepare_command=_COMMANDS.get(made_by, 'lra-spt prepare {name} --raw_dir RAW').format(name=name),
  )


def _inputs(metadata):
  shape, longest, vocabulary = metadata['shape'], metadata['longest'], metadata.get('vocabulary')
  if shape is None:
    return Tokens(longest, len(vocabulary), documents=metadata['documents'])
  channels = shape[1] if len(shape) == 2 else 1
  padded = shape[0] == 0
  return Values(longest, channels=channels, dtype=metadata['dtype'], measured=True, padded=padded)


def _labels(metadata):
  width = metadata.get('label_width', 0)
  if not metadata['classes']:
    return Real(measured=True, dimensions=width or 1)
  kind = MultiLabel if width else PerPosition if metadata.get('per_position') else Classes
  return kind(metadata['classes'])


def _splits(metadata):
  counts = metadata['counts']
  if counts.get('validation') and counts.get('test'):
    return 'files'
  if metadata.get('groups') and not counts.get('test'):
    return 'grouped'
  if metadata.get('train_labels'):
    return 'stratified'
  return 'holdout' if counts.get('test') else 'random'
