"""Trains a PyTorch model on a prepared set, and prints the command that adds its predictions to our reports.

    lra-spt prepare stripes --data_dir=data
    python examples/torch_dataloader.py data predictions.npz

It reads task, splits and batches from `lra_spt.data`, which needs no jax.
"""

import shlex
import sys
import time

import numpy as np
import torch
from torch import nn

from lra_spt.data.examples import open_splits

TASK, EPOCHS, SEED = 'stripes', 4, 0


class Split(torch.utils.data.Dataset):
  """One split, read one batch at a time: {name: array} of inputs, lengths, label, weight and index."""

  def __init__(self, examples):
    self.examples = examples

  def __len__(self):
    return len(self.examples)

  def __getitems__(self, positions):  # DataLoader prefers this to single examples
    return {name: torch.from_numpy(part) for name, part in self.examples.gather(positions).items()}


def main(data_dir, path):
  torch.manual_seed(SEED)
  splits = open_splits(TASK, data_dir)
  load = {
    name: torch.utils.data.DataLoader(
      Split(part), 64, shuffle=name == 'train', collate_fn=lambda batch: batch
    )
    for name, part in splits.items()
  }
  task, start = splits['train'].task, time.monotonic()
  scale, mean, std = task.inputs.scale, task.inputs.mean[0], task.inputs.std[0]
  layers = [nn.Conv1d(1, 32, 17, padding=8), nn.ReLU(), nn.Conv1d(32, 32, 17, padding=8), nn.ReLU()]
  model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, task.classes))
  optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

  def logits(batch):
    return model((batch['inputs'][:, None].float() / scale - mean) / std)

  def answers(split):
    with torch.no_grad():
      batches = [(batch['index'], batch['label'], logits(batch).argmax(1)) for batch in load[split]]
    return [torch.cat(parts).numpy() for parts in zip(*batches, strict=True)]

  for epoch in range(EPOCHS):
    for batch in load['train']:
      optimizer.zero_grad()
      nn.functional.cross_entropy(logits(batch), batch['label'].long()).backward()
      optimizer.step()
    _, label, prediction = answers('validation')
    print(f'epoch {epoch + 1}: validation accuracy {np.mean(label == prediction):.3f}')
  np.savez(path, **dict(zip(('index', 'label', 'prediction'), answers('test'), strict=True)))
  flags = {'task': TASK, 'model': 'convolution', 'regime': 'scratch', 'seed': SEED, 'predictions': path}
  flags |= {'out': 'runs/convolution', 'data_dir': data_dir, 'source': 'examples/torch_dataloader.py'}
  flags['parameters'] = sum(part.numel() for part in model.parameters())
  flags['seconds'] = round(time.monotonic() - start, 1)
  print(shlex.join(['lra-spt', 'record', *(f'--{key}={value}' for key, value in flags.items())]))


if __name__ == '__main__':
  main(*sys.argv[1:])
