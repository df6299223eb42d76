"""Behaviours in which the published code differs from good practice, as switches.

`paper` behaves as the published code of "Never Train from Scratch" does (github.com/IdoAmos/not-from-scratch,
commit f919137); files and lines below are of that commit. `clean`, the default, takes the other value of
every switch.

The protocol does not cover sizes, mask rates and learning rates, which follow the paper's tables in both.
Lengths are those of the published configs in both; on Text these differ from the paper's text (4,096, not
2,048).

The following are not switched, and follow good practice in both:

- The earlier of two checkpoints with equal validation metrics counts as the best (published: the later).
- No training batch is dropped at the end of an epoch.
- R2 is computed over the whole split (published: the mean over batches).
- Sequences are padded to the task's length (published: to the longest of the batch, lra.py:1369-1376, so that
  the other sequences of a batch decide how much padding attention, DLR and BatchNorm see).
- BatchNorm's running variance averages the variances of batches (published: PyTorch's, larger by n / (n - 1)
  for n positions of all rows; at the sizes of the paper, by less than 1e-4).
- A quotation mark in the texts of Retrieval is a character (published: syntax of the file,
  lra.py:1844-1851).
"""

import dataclasses
from typing import Literal

from lra_spt.errors import ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Protocol:
  """One value per behaviour. Every result names the protocol under which it was obtained."""

  name: str

  tied_qkvo_init: bool
  """Query, key, value and output projections of a layer start as copies of one matrix, because the published
  attention deep-copies a single Linear (mha.py:102-164). Otherwise they are drawn independently."""

  attend_to_padding: bool
  """Attention and DLR see padded positions: the wrapper around the published layers forwards only (x, state)
  and drops `lengths` (src/models/sequence/base.py:99-104); only S4 zeroes padded inputs. Otherwise padded
  keys are masked, and all state-space models zero padded inputs."""

  decay_everything: bool
  """Weight decay also applies to biases, norm scales, embeddings and an SSM's C and D: the published
  optimizer puts every parameter without an `_optim` tag into one group (train.py:499-519). Otherwise it
  applies only to the parameters it is meant for."""

  drop_last_evaluation_batch: bool
  """Evaluation leaves out the examples of an incomplete last batch: drop_last is set for all three loaders
  (configs/loader/default.yaml:1-4, train.py:594-611). Otherwise this batch is filled up with rows of
  weight 0."""

  redraw_validation_masks: bool
  """Validation of masked denoising draws new masks at every evaluation: masks are drawn in the dataset's
  `__getitem__` (src/dataloaders/base.py:437-441). Otherwise they are fixed per example."""

  identity_token_head: bool
  """Text and Retrieval pretrain without an output projection, and hidden states serve as logits: a misspelt
  attribute makes the decoder an identity (lra.py:1064-1065, 1937-1938; src/utils/config.py:51-55). Applies
  to tasks that declare it. Otherwise the head is linear."""

  published_splits: bool
  """Tasks that declare it are split as in the published code. Text (Task.splits 'reused') trains on the whole
  training file, and the test set picks the checkpoints of both stages: without a validation set, the test
  loader becomes the one called 'val' (lra.py:941-943; train.py:608-634). Otherwise a tenth of the training
  file is held out for validation. BIDMC ('shuffled') has overlapping windows of one patient in all three
  splits (prepare/bidmc/process_data.py:13-31). Otherwise each patient is in one split."""

  position_statistics: bool
  """Speech Commands is normalised by the mean and deviation of every time step over the training set. Samples
  are divided by 2^15 twice before, so the 1e-5 added to the deviation outweighs it (sc.py:56-65, 291-296).
  Otherwise all time steps share one mean and one deviation."""

  label_range: bool
  """Labels of a regression are mapped to [-1, 1] between their least and largest value in training
  (ts.py:72-82; appendix C.3). Otherwise to mean 0 and deviation 1."""

  batchnorm_over_padding: bool
  """BatchNorm statistics count padded positions: BatchNorm1d runs over batch x length
  (components.py:262-321). Otherwise only valid positions count."""

  input_range: bool
  """BIDMC's signals are mapped to [-1, 1] between the least and the largest value of each channel in training
  (appendix C.3; the published code reads them as stored, ts.py). Otherwise each channel has mean 0 and
  deviation 1 over the training patients."""

  l1_selection: Literal['mae', 'r2']
  """The metric that picks the best pretraining checkpoint under the L1 loss: the published configs take the
  lowest val/masked_mae; the paper's text (C.1) says the best R2."""

  worst_checkpoint: bool
  """Pretraining on Speech Commands keeps the checkpoint of the LARGEST validation error: its config monitors
  val/masked_mae with mode max (configs/pipeline/sc-lm.yaml:11-12). Otherwise the best one is kept."""

  cosine_rises: bool
  """When a stage outlasts its cosine schedule, the learning rate rises and falls again: the published
  schedule is `get_cosine_schedule_with_warmup` of transformers, which has no end (src/utils/registry.py:17).
  Otherwise the stage ends when its learning rate reaches 0. This matters where a config's total_steps are
  fewer than the steps of its epochs: Pythia on ListOps (2,000 of 300,000), DLR from random values on PathX,
  S4 on Speech Commands."""

  constant_shift: bool
  """DSS divides the kernels of growing states by their largest values without a gradient through the division
  (ag1988/dss, commit 777084e, `standalone/dss.py`). Otherwise the gradient is that of the kernel."""

  long_range_arena_code: bool
  """The mixers `local`, `bigbird` and `reformer` compute what the code of the Long Range Arena computes,
  which differs from their papers (google-research/long-range-arena, commit cd31e5c, `local_attention.py`,
  `bigbird_attention.py`, `reformer_attention.py`); each docstring says how. Otherwise they follow the
  papers."""


PAPER = Protocol(
  name='paper',
  tied_qkvo_init=True,
  attend_to_padding=True,
  decay_everything=True,
  drop_last_evaluation_batch=True,
  redraw_validation_masks=True,
  identity_token_head=True,
  published_splits=True,
  position_statistics=True,
  label_range=True,
  batchnorm_over_padding=True,
  input_range=True,
  l1_selection='mae',
  worst_checkpoint=True,
  cosine_rises=True,
  constant_shift=True,
  long_range_arena_code=True,
)
"""The behaviour of the published code."""

CLEAN = Protocol(
  name='clean',
  tied_qkvo_init=False,
  attend_to_padding=False,
  decay_everything=False,
  drop_last_evaluation_batch=False,
  redraw_validation_masks=False,
  identity_token_head=False,
  published_splits=False,
  position_statistics=False,
  label_range=False,
  batchnorm_over_padding=False,
  input_range=False,
  l1_selection='r2',
  worst_checkpoint=False,
  cosine_rises=False,
  constant_shift=False,
  long_range_arena_code=False,
)
"""Good practice; the default, also for mixers that are built by hand."""

PROTOCOLS = {protocol.name: protocol for protocol in (CLEAN, PAPER)}


def get_protocol(name: str) -> Protocol:
  """`CLEAN` or `PAPER`; ConfigError for any other name."""
  if name not in PROTOCOLS:
    raise ConfigError(
      f'There is no protocol {name!r}: choose clean (good practice) or paper (as published).'
      f'{nearest(name, PROTOCOLS)}'
    )
  return PROTOCOLS[name]
