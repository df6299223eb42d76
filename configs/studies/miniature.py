"""A study that takes minutes: three tiny models in every regime on two generated tasks, a demonstration.

  lra-spt prepare stripes --data_dir=data
  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/miniature.py --workdir=runs/miniature --processes=2

The tasks are that of the demo and ListOps. Models are far too small, and train far too briefly, for the
numbers to say anything about them.
"""

from lra_spt.studies.study import Cell, Study

ARMS = {
  'scratch': 'regime=scratch',
  'scratch, causal form': 'regime=scratch,causal=true',
  'masked': 'regime=masked',
  'causal': 'regime=causal',
}


def get_study():
  return Study(
    'miniature',
    'Every regime in miniature',
    cells=[
      Cell(
        f'{name}, {arm}',
        column,
        f'configs/miniature.py:task={task},model={model},{argument}',
      )
      for model, name in (('transformer', 'Transformer'), ('s4', 'S4'), ('dlr', 'DLR'))
      for arm, argument in ARMS.items()
      for task, column in (('stripes', 'Stripes'), ('listops_mini', 'ListOps'))
    ],
    about='Three tiny models in every regime on two generated tasks. It shows what a study is; its numbers '
    'say nothing about the models.',
    seeds=(0, 1),
  )
