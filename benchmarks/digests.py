"""What digests cost: of a checkpoint when it is saved, of a prepared set when it is opened.

python -m benchmarks digests [--megabytes=200] [--config=configs/image.py:regime=masked]

The checkpoint is that of the config's pretraining: first a save, then its digests alone. The set is random
bytes in rows of 1,024. It is opened twice: when nothing is known of its files, so all of them are read, and
again.
"""

import contextlib
import pathlib
import tempfile

import jax
import numpy as np

from benchmarks import harness
from data_prep import builders
from lra_spt.config import loading
from lra_spt.data import examples, prepared, tasks
from lra_spt.distributed import sharding
from lra_spt.runs.build import build_stage
from lra_spt.training.checkpoints.digests import digests
from lra_spt.training.checkpoints.store import Checkpoints

LENGTH = 1024
TASK = tasks.Task('random', 'random', tasks.Tokens(LENGTH, vocabulary=256), tasks.Classes(2))


def of_a_checkpoint(config: str, folder: pathlib.Path) -> dict:
  """Milliseconds of a save and of the digests in it."""
  built = build_stage(loading.load(config), 'pretrain')
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  with jax.set_mesh(mesh), contextlib.closing(Checkpoints(folder)) as checkpoints:
    state = jax.block_until_ready(built.fresh_state(mesh))
    runs = {
      'save': lambda: checkpoints.save_latest(state),
      'digests': lambda: digests(state).block_until_ready(),
    }
    samples = harness.turns(runs, rounds=7)
  found = {name: harness.milliseconds(each) for name, each in samples.items()}
  return found | {'megabytes': round(sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6, 2)}


def of_a_set(megabytes: float, data_dir: pathlib.Path) -> dict:
  """Milliseconds of opening a set whose files are not known to be whole, and one whose files are."""
  rows = max(8, round(megabytes * 1e6 / LENGTH))
  counts = {'train': rows - 4, 'validation': 2, 'test': 2}

  def random(file, seed):
    rng = np.random.default_rng(seed)
    return ((rng.integers(4, 256, LENGTH, np.uint8), k % 2) for k in range(counts[file]))

  source = builders.Source(
    description='random bytes',
    citation='none',
    files={file: lambda file=file, seed=seed: random(file, seed) for seed, file in enumerate(counts)},
    counts=counts,
    classes=2,
    shape=None,
    origin='random numbers',
    verified=False,
    extra={'vocabulary': ['<mask>', '<pad>', '<unk>', '<eos>', *map(str, range(252))]},
  )
  builders.prepare_set('random', data_dir, {'counts': counts}, lambda work: source)
  noted = data_dir / 'random' / prepared.VERSION / prepared.CHECKED

  def open_unknown():
    noted.unlink(missing_ok=True)
    examples.open_splits(TASK, data_dir)

  runs = {'first': open_unknown, 'again': lambda: examples.open_splits(TASK, data_dir)}
  samples = harness.turns(runs, rounds=5)
  return {name: harness.milliseconds(each) for name, each in samples.items()} | {'megabytes': megabytes}


def main(arguments=None):
  parser = harness.parser('digests', __doc__, 'digests.json')
  parser.add_argument('--megabytes', type=float, default=200.0, help='of the set (%(default)s)')
  parser.add_argument('--config', default='configs/image.py:regime=masked', help='(%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('digests', 'what digests cost', config=options.config)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    report['checkpoint'] = of_a_checkpoint(options.config, folder / 'checkpoints')
    report['set'] = of_a_set(options.megabytes, folder / 'data')
  for what in ('checkpoint', 'set'):
    found = dict(report[what])
    size = found.pop('megabytes')
    times = ', '.join(f'{name} {each["milliseconds"]:.0f} ms' for name, each in found.items())
    print(f'{what} of {size} MB: {times}')
  harness.write(options.json, report)


if __name__ == '__main__':
  main()
