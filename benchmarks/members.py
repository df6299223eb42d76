"""What a training step of several runs costs as one program, beside as many programs of one run.

  python -m benchmarks members [--json PATH] [--members 2,4,8] [--cases text:model=s4,...] [--resume]

Pretraining steps of LRA-mini's models on random examples, in dispatches of `--steps`, on one device. They
take turns:

  alone        the dispatches of all members, one after the other
  together     the dispatch of the population, as `runtime.members` trains it on CPUs: one member after the
               other within the program
  vectorised   the members stacked in every operation, as on accelerators

benchmarks.accelerator measures the same on a GPU.
"""

import contextlib
import dataclasses
import functools

import jax
import numpy as np

from benchmarks import harness
from lra_spt.config import loading
from lra_spt.data.tasks import Tokens
from lra_spt.distributed import sharding
from lra_spt.runs.build import build_stage
from lra_spt.training import population
from lra_spt.training.programs import forget_programs
from lra_spt.training.step import train_steps

CASES = [f'{task}:model={model}' for task in ('text', 'image') for model in ('transformer_rotary', 's4')]
MEMBERS = (2, 4, 8)


def batches(task, steps: int, rows: int, seed: int = 0) -> dict:
  """Random examples, [steps, rows, ...], all of full length."""
  rng = np.random.default_rng(seed)
  found = {name: np.ones((steps, *part.shape), part.dtype) for name, part in task.batch(rows).items()}
  limit = task.inputs.vocabulary if isinstance(task.inputs, Tokens) else 256
  found['inputs'] = rng.integers(2, limit, found['inputs'].shape).astype(found['inputs'].dtype)
  found['lengths'][:] = task.length
  found['index'][:] = np.arange(rows)
  return found


class Dispatches:
  """A dispatch of `members` runs as one program; called, it runs `repeats` of them and waits.

  vectorised: members are stacked in every operation, whatever the platform.
  """

  def __init__(self, built, members: int, steps: int, *, repeats: int = 1, vectorised: bool = False):
    self._mesh = sharding.make_mesh(devices=jax.devices()[:1], members=members)
    rows, self._repeats = built.spec.batch_size, repeats
    with self._in_force(vectorised):
      seeds = [dataclasses.replace(built, seed=seed) for seed in range(members)]
      self._state = population.stack([each.fresh_state(self._mesh) for each in seeds], self._mesh)
      chunks = [batches(built.task, steps, rows, seed) for seed in range(members)]
      stacked = population.stacks(self._mesh)
      chunk = jax.tree.map(lambda *x: np.stack(x) if stacked else x[0], *chunks)
      chunk = sharding.to_devices(chunk, self._mesh, rows, np.arange(rows), leading=1, stacked=stacked)
      keys = population.stack([each.key for each in seeds], self._mesh)
      counts = np.full((members,) if stacked else (), steps, np.int32)
      self._arguments = chunk, counts, keys
      self._program = train_steps(built.typical_program).lower(self._state, *self._arguments).compile()
    self.known = harness.compiled_bytes(self._program)

  @contextlib.contextmanager
  def _in_force(self, vectorised):
    before, population.ONE_BY_ONE = population.ONE_BY_ONE, () if vectorised else population.ONE_BY_ONE
    forget_programs()
    with jax.set_mesh(self._mesh):
      yield
    population.ONE_BY_ONE = before
    forget_programs()

  def __call__(self) -> None:
    for _ in range(self._repeats):
      self._state, records = self._program(self._state, *self._arguments)
    jax.block_until_ready(records)


def measured(case: str, members: int, steps: int, rounds: int) -> dict:
  """The columns of a row; times are of a step of all members."""
  built = build_stage(loading.load(f'configs/mini/{case.replace(":", ".py:", 1)}'), 'pretrain')
  runs = {
    'alone': Dispatches(built, 1, steps, repeats=members),
    'together': Dispatches(built, members, steps),
  }
  if jax.default_backend() in population.ONE_BY_ONE:
    runs['vectorised'] = Dispatches(built, members, steps, vectorised=True)
  samples = harness.turns(runs, rounds)
  found = {'batch': built.spec.batch_size, 'length': built.task.length, 'steps': steps}
  for name, each in samples.items():
    found[name] = harness.milliseconds(each, per=steps) | runs[name].known
    if name != 'alone':
      found[name]['times_faster'] = harness.ratios(samples['alone'], each)
  return found


def main(arguments=None):
  parser = harness.parser('members', __doc__, 'members.json')
  parser.add_argument('--cases', default=','.join(CASES), help='configs of LRA-mini (%(default)s)')
  parser.add_argument('--members', default=','.join(map(str, MEMBERS)), help='(%(default)s)')
  parser.add_argument('--steps', type=int, default=8, help='of a dispatch (%(default)s)')
  parser.add_argument('--rounds', type=int, default=5, help='turns of each (%(default)s)')
  harness.add_resume(parser)
  options = parser.parse_args(arguments)
  counts = map(int, harness.chosen(parser, 'number of members', options.members, list(map(str, MEMBERS))))
  cases = harness.chosen(parser, 'case', options.cases, CASES)
  harness.cpu_only()
  report = harness.report('members', 'steps of several runs as one program', rows=[])
  rows = [{'case': case, 'members': members} for members in counts for case in cases]
  measure = functools.partial(measured, steps=options.steps, rounds=options.rounds)
  harness.fill(options, report, rows, measure)


if __name__ == '__main__':
  main()
