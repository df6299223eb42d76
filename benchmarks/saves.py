"""How long the loop waits for a save of the best and of the latest state: in the foreground, and as it does.

  python -m benchmarks.saves [--json PATH] [--cases image:model=s4,...] [--rounds N] [--resume]

States are those of finetuning with the config, on one CPU device. `foreground` saves both and returns when
they are on the disk, as a run of several processes does; `background` copies both and returns while a thread
writes, and `written` is how long that takes from then on, when nothing else runs.
"""

import contextlib
import pathlib
import tempfile

import jax

from benchmarks import harness
from lra_spt import config as config_lib
from lra_spt import parallel
from lra_spt.build import build_stage
from lra_spt.training.background import Background
from lra_spt.training.checkpoints import Checkpoints

CASES = [f'{task}:model={model}' for task in ('image', 'pathx') for model in ('transformer_rotary', 's4')]


def measured(case: str, rounds: int) -> dict:
  """The columns of a row."""
  built = build_stage(config_lib.load(f'configs/{case.replace(":", ".py:", 1)}'), 'finetune')
  mesh = parallel.make_mesh(devices=jax.devices()[:1])
  with contextlib.ExitStack() as opened:
    folder = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory()))
    opened.enter_context(jax.set_mesh(mesh))
    before, now = (
      opened.enter_context(contextlib.closing(Checkpoints(folder / name, background=background)))
      for name, background in (('foreground', None), ('background', Background()))
    )
    state = jax.block_until_ready(built.fresh_state(mesh))

    def save(checkpoints):
      state['step'] = state['step'] + 1
      checkpoints.save_best(state)
      checkpoints.save_latest(state)

    runs = {'foreground': lambda: save(before), 'background': lambda: save(now), 'written': now.wait}
    samples = harness.turns(runs, rounds)
  return {
    'megabytes': round(sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6, 2),
    'arrays': len(jax.tree.leaves(state)),
    **{name: harness.milliseconds(each) for name, each in samples.items()},
  }


def main(arguments=None):
  parser = harness.parser('saves', __doc__, 'saves.json')
  parser.add_argument('--cases', default=','.join(CASES), help='configs (%(default)s)')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each (%(default)s)')
  harness.add_resume(parser)
  options = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('saves', 'how long the loop waits for a save', rows=[])
  cases = [{'case': case} for case in harness.chosen(parser, 'case', options.cases, CASES)]
  harness.fill(options, report, cases, lambda case: measured(case, options.rounds))


if __name__ == '__main__':
  main()
