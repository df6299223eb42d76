"""Tasks have the right sizes, shapes of batches and cautions about splits, all without jax."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from lra_spt.data import examples as examples_lib
from lra_spt.data import parts, prepared, splits, tasks

WITHOUT_JAX = """
import importlib, pkgutil, sys, warnings
import lra_spt.data
for module in pkgutil.iter_modules(lra_spt.data.__path__, 'lra_spt.data.'):
  importlib.import_module(module.name)
assert not {'jax', 'jaxlib', 'flax', 'clu'} & set(sys.modules)

sys.modules['jax'] = None  # as where it is not installed: Grain, which would import it, does without
warnings.simplefilter('ignore')
from lra_spt.data import examples, pipeline, tasks
task = tasks.Task('tiny_bytes', 'tiny_bytes', tasks.Bytes(16), tasks.Classes(2), 'random')
train = examples.open_split(task, 'train', sys.argv[1])
batch = train.gather([3, 0])
assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
  name: (part.shape, part.dtype) for name, part in task.batch(2).items()
}
batch = next(pipeline.train_batches(train, batch_size=8, seed=0, threads=2))
assert batch['inputs'].shape == (8, 16)
print(sum(len(x['index']) for x in pipeline.evaluation_batches(train, batch_size=8)), batch['index'].tolist())
"""


def test_sets_are_read_without_jax(repository, byte_task, byte_set):
  """Users of other frameworks can read the same batches with lra_spt/data alone."""
  program = [sys.executable, '-c', WITHOUT_JAX, str(byte_set[0])]
  done = subprocess.run(program, cwd=repository, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  from lra_spt.data import pipeline

  train = examples_lib.open_split(byte_task, 'train', byte_set[0])
  index = train.indices[pipeline.train_indices(len(train), 0, 0, 8)]
  assert done.stdout.splitlines()[-1] == f'48 {index.tolist()}'


def test_tasks_are_those_of_the_paper(shipped_tasks):
  expected = {
    'listops': (2048, 0, 19, 10, 19),
    'text': (4096, 0, 135, 2, 135),
    'text_2048': (2048, 0, 130, 2, 130),
    'retrieval': (4000, 0, 99, 2, 99),
    'image': (1024, 1, 0, 10, 0),
    'scifar': (1024, 3, 0, 10, 0),
    'pathfinder': (1024, 1, 0, 2, 256),
    'pathfinder64': (4096, 1, 0, 2, 256),
    'pathx': (16384, 1, 0, 2, 256),
    'pathx256': (65536, 1, 0, 2, 256),
    'speech_commands': (16000, 1, 0, 35, 0),
    'bidmc_hr': (4000, 2, 0, 0, 0),
    'bidmc_rr': (4000, 2, 0, 0, 0),
    'bidmc_spo2': (4000, 2, 0, 0, 0),
    'ppg_dalia': (49_920, 6, 0, 0, 0),
    'listops_mini': (128, 0, 19, 10, 19),  # from here on, tasks of ours
    'image_mini': (144, 1, 0, 10, 0),
    'text_mini': (256, 0, 90, 2, 90),
    'pathfinder_mini': (256, 1, 0, 2, 256),
    'pulse_mini': (256, 2, 0, 0, 0),
    'stripes': (64, 1, 0, 4, 0),  # the task of the demo
  }
  sizes = {
    t.name: (t.length, t.channels, t.vocabulary, t.classes, t.inputs.denoising_classes) for t in shipped_tasks
  }
  assert sizes == expected


@pytest.mark.parametrize(
  'name, row, stored, label',
  [
    ('listops', (2048,), 'uint8', 'int32'),
    ('retrieval', (2, 4000), 'uint8', 'int32'),
    ('scifar', (1024, 3), 'uint8', 'int32'),
    ('pathfinder', (1024,), 'uint8', 'int32'),
    ('speech_commands', (16_000,), 'int16', 'int32'),
    ('bidmc_hr', (4000, 2), 'float32', 'float32'),
  ],
)
def test_a_task_describes_its_batches_before_they_are_read(name, row, stored, label):
  batch = tasks.get_task(name).batch(5, 3)
  assert batch['inputs'] == parts.ArraySpec((5, 3, *row), np.dtype(stored))
  lengths = (5, 3, 2) if name == 'retrieval' else (5, 3)
  assert batch['lengths'] == parts.ArraySpec(lengths, np.dtype('int32'))
  assert batch['label'].dtype == label
  zeros = {key: np.zeros(part.shape, part.dtype) for key, part in batch.items()}
  assert {key: (x.size, x.nbytes) for key, x in zeros.items()} == {
    key: (part.size, part.nbytes) for key, part in batch.items()
  }


def test_ids_of_a_large_vocabulary_are_stored_as_they_are_encoded():
  small, large = (tasks.Tokens(8, vocabulary) for vocabulary in (256, 257))
  assert (small.dtype, large.dtype) == ('uint8', 'int32')


def test_a_set_that_is_not_there_names_the_whole_command(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'make it with `lra-spt prepare bidmc --data_dir {tmp_path}`'):
    examples_lib.open_split('bidmc_hr', 'train', tmp_path)
  with pytest.raises(FileNotFoundError, match='make it with `lra-spt prepare speech_commands --data_dir'):
    examples_lib.open_split('speech_commands', 'train', tmp_path)


@pytest.mark.parametrize('name', ['image', 'pathfinder'])
def test_bytes_as_tokens_are_the_same_batches(name):
  task = tasks.get_task(name)
  read = task.with_byte_tokens()
  assert (read.channels, read.vocabulary, read.inputs.denoising_classes) == (0, 257, 256)
  assert read.batch(5, 3) == task.batch(5, 3)
  assert (read.name, read.dataset, read.splits) == (task.name, task.dataset, task.splits)


@pytest.mark.parametrize(
  'name, held',
  [
    ('listops', 'tokens already'),
    ('scifar', '3 x uint8'),
    ('speech_commands', '1 x int16'),
    ('bidmc_hr', '2 x float32'),
  ],
)
def test_only_tasks_of_one_byte_per_position_can_be_read_as_tokens(name, held):
  with pytest.raises(
    ValueError, match=f'for tasks of one byte per position, but those of {name} hold {held}'
  ):
    tasks.get_task(name).with_byte_tokens()


def test_unknown_task_names_the_known_ones():
  with pytest.raises(ValueError, match="no task 'imagenet'.*Did you mean image"):
    tasks.get_task('imagenet')


def test_register_makes_a_task_known_and_refuses_another_of_that_name(monkeypatch, token_task):
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  tasks.register_task(token_task)
  assert tasks.get_task(token_task.name) is token_task
  tasks.register_task(dataclasses.replace(token_task))
  with pytest.raises(ValueError, match="different task is already called 'tiny_tokens'"):
    tasks.register_task(token_task.with_inputs(length=13))
  with pytest.raises(ValueError, match="register_task was given 'listops': give it a Task"):
    tasks.register_task('listops')


def test_a_task_that_is_normalised_by_position_is_registered_twice(monkeypatch):
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))

  def task(mean):
    return tasks.Task(
      'sound', 'sound', tasks.Values(4, np.full((4, 1), mean), np.ones((4, 1))), tasks.Classes(2)
    )

  assert tasks.register_task(task(0.5)) == task(0.5)
  with pytest.raises(ValueError, match="different task is already called 'sound'"):
    tasks.register_task(task(0.25))


@pytest.mark.parametrize(
  'part, option',
  [
    (tasks.Tokens, {'channels': 3}),
    (tasks.Tokens, {'scale': 255.0}),
    (tasks.Values, {'vocabulary': 9}),
    (tasks.Values, {'documents': 2}),
    (tasks.Bytes, {'channels': 3}),
    (tasks.Bytes, {'dtype': 'float32'}),
    (tasks.Classes, {'std': 1.0}),
    (tasks.Real, {'count': 2}),
  ],
)
def test_impossible_values_of_a_task_are_refused(part, option):
  whole = {
    tasks.Tokens: {'length': 8, 'vocabulary': 9},
    tasks.Values: {'length': 8, 'mean': (0.5,), 'std': (0.5,)},
    tasks.Bytes: {'length': 8},
    tasks.Classes: {'count': 2},
    tasks.Real: {'mean': 0.0, 'std': 1.0, 'range': (-1.0, 1.0)},
  }
  part(**whole[part])
  with pytest.raises(TypeError, match='unexpected keyword'):
    part(**whole[part], **option)


@pytest.mark.parametrize('dtype, scale', [('uint8', 255.0), ('int16', 32_768.0), ('float32', 1.0)])
def test_the_default_scale_depends_on_the_dtype(dtype, scale):
  assert tasks.Values(8, (0.0,), (1.0,), dtype).scale == scale
  assert tasks.Values(8, (0.0,), (1.0,), dtype, scale=10.0).scale == 10.0  # unless it is given
  assert tasks.Values(8, (0.0,), (1.0,), dtype) == tasks.Values(8, (0.0,), (1.0,), dtype, scale=scale)


def test_scales_of_shipped_tasks_have_not_changed(shipped_tasks):
  actual = {
    task.name: task.inputs.scale for task in shipped_tasks if not isinstance(task.inputs, tasks.Tokens)
  }
  ones = {'bidmc_hr', 'bidmc_rr', 'bidmc_spo2', 'ppg_dalia', 'pulse_mini'}
  bytes_of = {'image', 'scifar', 'pathfinder', 'pathfinder64', 'pathx', 'pathx256'}
  bytes_of |= {'image_mini', 'pathfinder_mini', 'stripes'}
  assert actual == {
    **dict.fromkeys(ones, 1.0), **dict.fromkeys(bytes_of, 255.0), 'speech_commands': 32_768.0
  }  # fmt: skip


def test_a_dtype_in_which_nothing_is_stored_is_named():
  with pytest.raises(
    ValueError, match="^Values of dtype 'float64' are not stored; choose one of uint8, int16"
  ):
    tasks.Values(8, (0.0,), (1.0,), 'float64')


@pytest.mark.parametrize(
  'inputs, labels, message',
  [
    (tasks.Values(4, (0.5, 0.0), (1.0, 0.0)), tasks.Classes(2), 'its inputs by std=0'),
    (tasks.Values(4, np.zeros((4, 1)), np.zeros((4, 1))), tasks.Classes(2), 'its inputs by std=0'),
    (tasks.Values(4, (0.5,), (float('nan'),)), tasks.Classes(2), 'its inputs by std=nan'),
    (tasks.Bytes(4, std=-1.0), tasks.Classes(2), 'its inputs by std=-1'),
    (tasks.Bytes(4), tasks.Real(80.0, 0.0, (80.0, 80.0)), 'its labels by std=0'),
  ],
)
def test_a_standard_deviation_must_be_finite_and_above_zero(inputs, labels, message):
  with pytest.raises(ValueError, match=rf"^Task 'flat' divides {message}; give a number above 0 \(1 for"):
    tasks.Task('flat', 'flat', inputs, labels)


def test_a_channel_that_never_varies_is_divided_by_one():
  inputs = tasks.Values(4, channels=3, dtype='int16', measured=True)
  assert inputs == tasks.Values(4, (0.0,) * 3, (1.0,) * 3, dtype='int16', measured=True)
  task = tasks.Task('flat', 'flat', inputs, tasks.Classes(2))
  # Rounding may leave a tiny std for a channel that never varies.
  measured = task.with_measured(
    {'train': {'mean': [16_384.0, 3.0, 0.0], 'std': [8_192.0, 3e-13, 0.0]}}
  ).inputs
  assert measured.mean == (0.5, 3.0 / 32_768, 0.0)
  assert measured.std == (0.25, 1.0, 1.0)


@pytest.mark.parametrize(
  ('part', 'message'),
  [
    (lambda: tasks.Values(4), 'no mean or no std; give both, or measured=True'),
    (lambda: tasks.Values(4, (0.0,), (1.0,), channels=2), 'channels=2, but a mean of 1'),
    (lambda: tasks.Real(mean=1.0), 'no std; give mean, std and range, or measured=True'),
  ],
)
def test_constants_are_given_or_measured(part, message):
  with pytest.raises(ValueError, match=message):
    part()


@pytest.mark.parametrize('std', [2.0, 0.0])
def test_labels_are_measured(std):
  labels = {'mean': [5.0], 'std': [std], 'least': [5 - std], 'largest': [5 + std]}
  task = tasks.Task('own', 'own', tasks.Bytes(4), tasks.Real(measured=True))
  assert task.with_measured({'labels': labels}).labels == tasks.Real(
    5.0, std or 1.0, (3.0, 7.0) if std else (4.0, 6.0), measured=True
  )
  with pytest.raises(ValueError, match='of the labels of its training file'):
    task.with_measured({})


def test_unknown_splits_are_named(byte_task, byte_set):
  with pytest.raises(ValueError, match="'thirds' are unknown; use one of files, holdout, random, reused"):
    examples_lib.open_split(dataclasses.replace(byte_task, splits='thirds'), 'train', byte_set[0])


def test_cautions_follow_the_splits():
  text, heart = tasks.get_task('text'), tasks.get_task('bidmc_hr')
  assert text.cautions == tasks.get_task('image').cautions == ()
  (reused,) = text.as_published().cautions
  assert 'validation set is the test set, as in the published code' in reused
  assert 'this accuracy is measured' in reused
  (apart,), (mixed,) = heart.cautions, heart.as_published().cautions
  assert apart.startswith(
    'Patients of the test set are in no other split. In the paper, windows of one patient'
  )
  assert 'its R2 answers an easier question' in apart
  assert mixed.startswith(
    'Windows of one patient lie in training, validation and test set, as in the published'
  )
  assert heart.groups.name == 'patients'


def test_cautions_of_a_task_of_ones_own_speak_of_no_paper():
  birds = dataclasses.replace(
    tasks.get_task('image'), name='birds', splits='grouped', groups=tasks.Groups('singer', 'recordings')
  )
  assert birds.cautions == ('Singers of the test set are in no other split.',)
  (mixed,) = dataclasses.replace(birds, splits='random').cautions
  assert mixed == (
    'Recordings of one singer lie in training, validation and test set: nothing here says how the model does '
    'on singers that it has not seen.'
  )
  assert dataclasses.replace(birds, splits='files').cautions == ()
  assert 'published' not in dataclasses.replace(birds, splits='reused').cautions[0]


def test_a_task_without_other_published_splits_stays_as_it_is():
  listops = tasks.get_task('listops')
  assert listops.as_published() is listops
  assert tasks.get_task('text').as_published().splits == 'reused'


def test_groups_are_found_by_the_place_in_their_file():
  metadata = {'fingerprint': '', 'groups': {'train': [2, 3, 1]}}
  heart = tasks.get_task('bidmc_hr')
  examples = examples_lib.Examples(heart, 'test', 'train', None, np.arange(4), metadata, '')
  actual = examples.groups(np.array([0, 1, 2, 4, 5]))
  assert (actual.tolist(), actual.dtype) == ([0, 0, 1, 1, 2], np.int32)
  examples.file = 'test'
  assert examples.groups(np.array([0])) is None


@pytest.mark.parametrize(
  'labels, classes, message',
  [
    (tasks.Classes(2), 0, "are real numbers, but task 'tiny_bytes' has 2 classes; for classes save them as "
     'whole numbers, from 0 to 1, remove .* and prepare the set again'),
    (tasks.Real(0.0, 1.0, (-1.0, 1.0)), 2, "are whole numbers, of 2 classes, but task 'tiny_bytes' is a "
     r'regression; give it labels=Classes\(2\), or save them as real numbers, remove .*'),
    (tasks.Classes(3), 2, "has classes=2, but task 'tiny_bytes' has 3; correct the task"),
  ],
)  # fmt: skip
def test_labels_of_another_kind_are_told_apart(byte_task, byte_set, monkeypatch, labels, classes, message):
  read = prepared.read_metadata
  monkeypatch.setattr(prepared, 'read_metadata', lambda *given: read(*given) | {'classes': classes})
  with pytest.raises(ValueError, match=message) as raised:
    examples_lib.open_split(dataclasses.replace(byte_task, labels=labels), 'train', byte_set[0])
  assert '\n' not in str(raised.value)


def test_every_task_has_splits_that_exist(shipped_tasks):
  kinds = {task.splits for task in shipped_tasks}
  kinds |= {task.as_published().splits for task in shipped_tasks}
  counts = {'train': 20, 'validation': 3, 'test': 4}
  for kind in kinds:
    metadata = {'counts': counts, 'groups': {'train': [1] * 20}, 'source': 'a test'}
    assert splits.split_positions(kind, metadata).keys() == {'train', 'validation', 'test'}
