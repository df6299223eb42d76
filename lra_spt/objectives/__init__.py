"""What is asked of a model: denoising (masked or causal), classification (of sequences or pairs), regression.

An objective says how to prepare a batch, which input width and head it needs, its loss and its metrics.
Losses and metrics are (sum, count) pairs until the very end, so that microbatches, processes and padding rows
are exact. Semantics: paper section 3.1; published code `src/dataloaders/base.py`
(`MaskedSequenceDatasetWrapper`), `src/tasks/metrics.py`.
"""

from lra_spt.objectives.answers import Classification, Regression
from lra_spt.objectives.contract import Prepared, row_keys
from lra_spt.objectives.denoising import Denoising
from lra_spt.objectives.metrics import R2, Mean

__all__ = ['R2', 'Classification', 'Denoising', 'Mean', 'Prepared', 'Regression', 'row_keys']
