"""Objectives of training: denoising (of hidden positions, or causal), classification (of sequences, pairs or
positions; one class or several labels), regression.

An objective prepares a batch, names the input width and head that it needs, and computes loss and metrics;
`contract` has the full description and explains how to write your own. Losses and metrics remain (sum, count)
pairs until the end, so that microbatches, processes and padding rows are handled exactly. Semantics: paper
section 3.1; published code `src/dataloaders/base.py` (`MaskedSequenceDatasetWrapper`),
`src/tasks/metrics.py`.
"""

from lra_spt.objectives.classification import (
  Classification,
  MultiLabelClassification,
  PositionClassification,
)
from lra_spt.objectives.completion import PrefixCompletion, SuffixCompletion
from lra_spt.objectives.contract import Objective, Prepared
from lra_spt.objectives.denoising import CausalDenoising, Denoising, HiddenDenoising, MaskedDenoising
from lra_spt.objectives.metrics import R2, Mean
from lra_spt.objectives.mixture import Mixture
from lra_spt.objectives.registry import (
  get_objective,
  options,
  options_from,
  register_objective,
)
from lra_spt.objectives.regression import Regression
from lra_spt.objectives.rows import denoising_targets, normalise, row_keys
from lra_spt.objectives.spans import SpanDenoising

__all__ = [
  'R2',
  'CausalDenoising',
  'Classification',
  'Denoising',
  'HiddenDenoising',
  'MaskedDenoising',
  'Mean',
  'Mixture',
  'MultiLabelClassification',
  'Objective',
  'PositionClassification',
  'PrefixCompletion',
  'Prepared',
  'Regression',
  'SpanDenoising',
  'SuffixCompletion',
  'denoising_targets',
  'get_objective',
  'normalise',
  'options',
  'options_from',
  'register_objective',
  'row_keys',
]
