"""Long-sequence architectures compared fairly: Long Range Arena from scratch and after self-pretraining.

Everything that the command line does (`lra-spt --help`) can be done from Python:

  import lra_spt

  config = lra_spt.load_config('configs/demo.py:regime=masked')  # any file of configs/, or your own
  result = lra_spt.train(config, 'runs/demo')      # needs `lra-spt prepare stripes --data_dir=data`
  print(result['metrics']['test']['accuracy'])

  run = lra_spt.load_run('runs/demo')              # task, config, model with its weights
  answers = run.predict('test')                    # a split, or an array of inputs
  print(answers.probabilities.shape, (answers.prediction == answers.label).mean())

  model = lra_spt.build_model(config)              # the same model before training

To add a mixer, task, regime or objective of your own, call `register_mixer`, `register_task`,
`register_regime` or `register_objective` in a file that your config imports or that --register names. The
docstrings of `lra_spt.models.registry`, `lra_spt.data.tasks`, `lra_spt.config.regimes` and
`lra_spt.objectives.contract` explain how to write one.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
  from lra_spt.config.regimes import Regime, register_regime
  from lra_spt.data.tasks import Task, register_task
  from lra_spt.models.registry import register_mixer
  from lra_spt.objectives.registry import register_objective
  from lra_spt.report.runs.inside import Inside
  from lra_spt.runs.api import Predictions, Restored, Run, build_model, load_config, load_run, train
  from lra_spt.runs.inside import look_inside

__version__ = '0.1.0'
__all__ = [
  'Inside',
  'Predictions',
  'Regime',
  'Restored',
  'Run',
  'Task',
  'build_model',
  'load_config',
  'load_run',
  'look_inside',
  'register_mixer',
  'register_objective',
  'register_regime',
  'register_task',
  'train',
]

# These are imported at their first use, so that `import lra_spt` is fast and needs no jax.
_PLACES = {
  'Inside': 'lra_spt.report.runs.inside',
  'Regime': 'lra_spt.config.regimes',
  'Task': 'lra_spt.data.tasks',
  'look_inside': 'lra_spt.runs.inside',
  'register_mixer': 'lra_spt.models.registry',
  'register_objective': 'lra_spt.objectives.registry',
  'register_regime': 'lra_spt.config.regimes',
  'register_task': 'lra_spt.data.tasks',
}


def __getattr__(name: str):
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_PLACES.get(name, 'lra_spt.runs.api')), name)


def __dir__():
  return [*globals(), *__all__]
