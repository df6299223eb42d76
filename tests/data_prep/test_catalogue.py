"""The catalogue agrees with the tasks that read its sets, and what it says reaches the sets."""

from data_prep import catalogue, prepare
from lra_spt.data import prepared


def test_every_set_of_a_task_can_be_prepared(shipped_tasks):
  for task in shipped_tasks:
    entry = catalogue.owner(task.dataset)
    assert entry is not None, task.name
    assert entry.published_vocabulary == task.vocabulary
    assert not entry.class_names or len(entry.class_names) == task.classes
    assert task.preparation('D') == f'lra-spt prepare {entry.name} --data_dir D'
  assert {name for entry in catalogue.SETS.values() for name in entry.sets} == {
    task.dataset for task in shipped_tasks
  }


def test_what_inspection_shows_is_in_the_metadata(tmp_path):
  stripes = prepared.read_metadata(prepare.prepare('stripes', tmp_path, examples=5), '')
  assert stripes['class_names'] == ['horizontal', 'falling', 'vertical', 'rising']
  assert stripes['published_vocabulary'] == 0
  listops = prepared.read_metadata(prepare.prepare('listops', tmp_path, examples=5, workers=1), '')
  assert (listops['class_names'], listops['published_vocabulary']) == ([], 19)
