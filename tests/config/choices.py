"""The paper's tasks, and the configs of its models on them."""

import functools

from lra_spt.config import loading

FORMS = (('scratch', False), ('scratch', True), ('masked', False), ('causal', True))
TASKS = ('listops', 'text', 'retrieval', 'image', 'scifar', 'pathfinder', 'pathx', 'speech_commands')
BIDMC = ('bidmc_hr', 'bidmc_rr', 'bidmc_spo2')  # of one file
ALL = (*TASKS, *BIDMC)


def spec(task):
  """The config file of a task and the beginning of its argument."""
  return f'configs/bidmc.py:target={task[6:]},' if task in BIDMC else f'configs/{task}.py:'


@functools.cache
def load(task, model, regime, causal=False):
  return loading.load(f'{spec(task)}model={model},regime={regime},causal={str(causal).lower()}')
