"""Real processes on a full or failing disk, and killed: one sentence or none, nothing lost, the same result.

The short form: points of every kind. `python -m tests.faults.long` strikes every operation. Each command is
struck at one operation after the other, on one folder; see chain.py.
"""

import pytest

from tests.faults import chain
from tests.faults.interposer import Fault

UNFINISHED, SET = 'data/stripes/incomplete.0.0', 'data/stripes/1.0.0'
STAGE = 'run/finetune'
LATEST, BEST = f'{STAGE}/checkpoints/latest/STEP', f'{STAGE}/checkpoints/best/STEP'
STRIKES = {
  chain.STRIPES: [
    ('ENOSPC', f'write {UNFINISHED}/stripes-validation.array_record'),
    ('kill', f'fsync {UNFINISHED}/metadata.json'),
    ('EIO', f'rename {UNFINISHED} {SET}'),
    ('torn', f'write {SET}/.checked.json.part'),
  ],
  chain.SCRATCH: [
    ('ENOSPC', 'write run/config.json.part'),
    ('ENOSPC', f'mkdir {LATEST}.tmp'),
    ('torn', f'write {STAGE}/metrics.jsonl'),
    ('EDQUOT', f'write {LATEST}.tmp/_CHECKPOINT_METADATA'),
    ('ENOSPC', f'writev {LATEST}.tmp/state.tmp/d/HASH'),
    ('EIO', f'fsync {BEST}.tmp/state.tmp/ocdbt.process_0/d/HASH'),
    ('SIGTERM', f'rename {BEST}.tmp {BEST}'),
    ('kill', f'rename {LATEST}.tmp {LATEST}'),
    ('EIO', f'unlinkat {LATEST}.tmp/state/_METADATA'),
    ('EFBIG', 'write run/predictions.npz.part'),
    ('EACCES', 'unlink run/failure.json'),
    ('kill', 'rename run/result.json.part run/result.json'),
  ],
  chain.REPORT: [
    ('ENOSPC', 'write run/report.html.part'),
    ('kill', 'rename run/report.html.part run/report.html'),
  ],
}


@pytest.mark.parametrize('scene', STRIKES, ids=lambda scene: scene.name)
def test_every_fault_costs_nothing_but_time(processes, undisturbed, tmp_path, scene):
  """C++ writes are among them: ArrayRecord's, and TensorStore's of the arrays `d/HASH` of checkpoints."""
  folder, expected, operations = undisturbed(scene)
  kinds = {operation.kind for operation in operations}
  given = None if not scene.given else folder
  struck_on = chain.Chain(processes, scene, tmp_path / 'struck', given, expected)
  for action, kind in STRIKES[scene]:
    assert kind in kinds
    struck = struck_on.strike(Fault(kind, action))
    if struck is None:  # a thread that writes had done it before the last strike came to the loop
      assert struck_on.finish() == ''
      struck_on.again()
      struck = struck_on.strike(Fault(kind, action))
    assert struck is not None, f'{kind} did not come again'
    assert struck.problem == '', struck
  assert struck_on.finish() == ''


def test_what_a_run_renames_is_on_the_disk_before_and_after(undisturbed):
  """The file before, its new name after; sets before they are named, checkpoints before others go."""
  names = {'run/config.json', 'run/result.json', 'run/predictions.npz', f'{STAGE}/stage.json'}
  kinds = [operation.kind for operation in undisturbed(chain.SCRATCH)[2]]
  for name in names:
    renamed = kinds.index(f'rename {name}.part {name}')
    assert kinds[renamed - 1] == f'fsync {name}.part'
    assert kinds[renamed + 1] == f'fsync {name.rpartition("/")[0]}'
  removed = kinds.index(f'rename {LATEST} {LATEST}.tmp')
  saved = max(i for i, kind in enumerate(kinds[:removed]) if kind == f'rename {LATEST}.tmp {LATEST}')
  for name in ('/_CHECKPOINT_METADATA', '/state/d/HASH', '/state/_METADATA', '', '/..'):
    path = f'{LATEST}{name}' if name != '/..' else f'{STAGE}/checkpoints/latest'
    assert f'fsync {path}' in kinds[saved:removed]
  kinds = [operation.kind for operation in undisturbed(chain.STRIPES)[2]]
  named = kinds.index(f'rename {UNFINISHED} {SET}')
  for name in ('stripes-train.array_record', 'metadata.json', 'dataset_info.json', 'features.json'):
    assert f'fsync {UNFINISHED}/{name}' in kinds[:named]
