"""Pythia 70M (Biderman et al. 2023) on all of LRA but PathX, pretrained on text or from random values.

  lra-spt train --config=configs/pythia.py:task=text --workdir=runs/pythia \\
    --config.model.weights=model.safetensors
  lra-spt train --config=configs/pythia.py:task=text --workdir=runs/random

model.safetensors: that of EleutherAI/pythia-70m-deduped, the final revision; without weights the model starts
from random numbers. The paper's numbers (Table 2), test accuracy in %:

                 text    listops   retrieval   image   pathfinder
  pretrained     83.41     43.05       84.29   67.41        80.05
  random         69.29     41.20       76.45   52.55        74.31

We have not run these configs at full size, nor with the published weights.
The argument takes task (one of these), regime (scratch: finetuning only, as in the paper; or causal: causal
self-pretraining before it, which is ours), protocol (clean or paper) and seed.

Differences from the published runs: our tokens stand for one of Pythia's each, so an operator of ListOps is a
letter (as in the code's `listops_an`) where it is two tokens there; characters that are several of its tokens
are unknown; the embedding has rows for the task's tokens only; the head starts as the rest does. On Image and
Pathfinder each pixel is a token, the number from 0 to 255 in decimal, as there.
"""

from configs import common, image, listops, pathfinder, retrieval, text
from configs.rows import code, ours, paper
from lra_spt.config import loading as config_lib
from lra_spt.config import protocol

# GPTNeoXConfig of the model, and how huggingface/transformers starts it (initializer_range).
MODEL = {
  'model.width': 512,
  'model.depth': 6,
  'model.feed_forward': 2048,
  'model.mixer.heads': 8,
  'model.mixer.rotary': True,
  'model.mixer.rotary_dimensions': 16,  # of the 64 of a head
  'model.parallel_residual': True,  # mixer and feed-forward layer read the same and are both added
  'model.random_init': 'matrices',
  'model.random_std': 0.02,
  'model.position': 'none',
  'finetune.optimizer.weight_decay': 0.0,
}
ROWS = {
  'text': text.ROWS,
  'listops': listops.ROWS,
  'retrieval': retrieval.ROWS,
  'image': image.ROWS,
  'pathfinder': pathfinder.ROWS,
}
# The config needs a mask rate although Pythia has no masked pretraining.
MASK_RATES = {'text': 0.15, 'listops': 0.1, 'retrieval': 0.15, 'image': 0.5, 'pathfinder': 0.5}
# Pixels are read as tokens, as other models of these tasks do not.
PIXELS = {'model.byte_tokens': True, 'finetune.head': 'linear', 'finetune.epochs': 200.0}
# Table 5 (C.1.5): lr and batch of finetuning; the rest from the published code's configs.
TRAINING = {
  'text': paper({'finetune.optimizer.lr': 5e-4, 'finetune.batch_size': 16})
  | code(
    {
      'finetune.epochs': 32.0,
      'finetune.schedule.warmup_steps': 5000,
      'finetune.pool': 'last',
      'finetune.head': 'linear',
    }
  ),
  'listops': paper({'finetune.optimizer.lr': 5e-5, 'finetune.batch_size': 64})
  | code(
    {
      'finetune.epochs': 200.0,
      'finetune.schedule.name': 'cosine',
      'finetune.schedule.warmup_steps': 200,
      'finetune.schedule.total_steps': 2000,
      'finetune.pool': 'mean',
    }
  ),
  'retrieval': paper({'finetune.optimizer.lr': 1e-4, 'finetune.batch_size': 256})
  | code({'finetune.epochs': 20.0, 'finetune.schedule.warmup_steps': 2500}),
  'image': paper({'finetune.optimizer.lr': 7e-5, 'finetune.batch_size': 64})
  | code(PIXELS | {'finetune.schedule.warmup_steps': 2000, 'finetune.pool': 'mean'}),
  'pathfinder': paper({'finetune.optimizer.lr': 1e-4, 'finetune.batch_size': 1024})
  | code(PIXELS | {'finetune.schedule.warmup_steps': 2500, 'finetune.pool': 'last'}),
}


TWO_DAYS = paper({'finetune.max_seconds': 2 * common.ONE_DAY})  # C.1


def get_config(arg=''):
  """The config of 'task=...,regime=...'; default: task=text,regime=scratch."""
  choice = config_lib.arguments(
    arg, task=tuple(ROWS), regime=('scratch', 'causal'), protocol=tuple(protocol.PROTOCOLS), seed=0
  )
  choice.model, choice.causal = 'pythia_70m', True
  arm = 'causal' if choice.regime == 'causal' else 'causal scratch'
  row = ours(ROWS[choice.task]['transformer', arm]) | code(MODEL) | TRAINING[choice.task] | TWO_DAYS
  if choice.regime == 'causal':
    row |= ours(TRAINING[choice.task])
  rows = {('pythia_70m', arm): row}
  return common.from_row(rows, choice, task=choice.task, mask_rate=MASK_RATES[choice.task])
