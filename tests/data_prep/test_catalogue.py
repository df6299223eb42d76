"""The catalogue agrees with the tasks that read its sets, and its facts are written into the sets."""

import dataclasses

from data_prep import catalogue, prepare
from data_prep.sources import bidmc
from lra_spt.data import prepared
from lra_spt.data.tasks import get_task, preparation


def test_every_set_of_a_task_can_be_prepared(shipped_tasks):
  for task in shipped_tasks:
    entry = catalogue.owner(task.dataset)
    assert entry is not None, task.name
    assert entry.published_vocabulary == task.vocabulary
    assert not entry.class_names or len(entry.class_names) == task.classes
    assert preparation(task, 'D') == f'lra-spt prepare {entry.name} --data_dir D'
  assert {name for entry in catalogue.SETS.values() for name in entry.sets} == {
    task.dataset for task in shipped_tasks
  }


def test_what_inspection_shows_is_in_the_metadata(tmp_path):
  stripes = prepared.read_metadata(prepare.prepare('stripes', tmp_path, examples=5), '')
  assert stripes['class_names'] == ['horizontal', 'falling', 'vertical', 'rising']
  assert stripes['published_vocabulary'] == 0
  listops = prepared.read_metadata(prepare.prepare('listops', tmp_path, examples=5, workers=1), '')
  assert (listops['class_names'], listops['published_vocabulary']) == ([], 19)


def test_examples_of_published_sets_are_those_of_the_splits():
  def counts(task):
    return tuple(catalogue.published_counts(task).values())

  assert counts(get_task('image')) == (45_000, 5_000, 10_000)
  assert counts(get_task('text').as_published()) == (25_000, 25_000, 25_000)
  assert counts(get_task('bidmc_hr')) == counts(get_task('bidmc_spo2')) == (5_700, 900, 1_350)
  assert counts(get_task('bidmc_rr')) == (5_621, 900, 1_350)
  assert counts(get_task('bidmc_rr').as_published()) == (5_509, 1_181, 1_181)
  assert sum(counts(get_task('pulse_mini'))) == 8_374
  assert catalogue.published_counts(dataclasses.replace(get_task('image'), splits='grouped')) is None
  assert catalogue.published_counts(dataclasses.replace(get_task('image'), dataset='mine')) is None


def test_groups_of_bidmc_are_its_patients():
  groups, recordings = catalogue.SETS['bidmc'].groups, {}
  for number in bidmc.NUMBERS:
    recordings[bidmc.patient(number)] = recordings.get(bidmc.patient(number), 0) + 1
  assert groups['bidmc_hr'] == tuple(150 * count for count in recordings.values())
  assert {bidmc.SETS[name]: sum(sizes) for name, sizes in groups.items()} == bidmc.OFFICIAL
