"""The Transformer of benchmarks/attention.py in PyTorch, with PyTorch's fused attention."""

import collections

from benchmarks import harness

VOCABULARY, CLASSES = 256, 10
Size = collections.namedtuple('Size', 'batch length width layers heads hidden')


def step(size: Size):
  """(function that makes a step and returns its loss, facts about it, peak bytes before it)."""
  from torch import nn  # no requirement of the project

  batch, length, width, layers, heads, hidden = size

  class Layer(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
      self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
      self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x):
      y = self.norm1(x)
      q, k, v = (f(y).view(batch, length, heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
      out = nn.functional.scaled_dot_product_attention(q, k, v)
      x = x + self.o(out.transpose(1, 2).reshape(x.shape))
      return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate='tanh'))

  return training([Layer() for _ in range(layers)], batch, length, width, bias=False)


def prenorm(block, initial: list[dict], size):
  """The results of `step` for a pre-norm encoder in float32.

  Args:
    block: (params, x_BLD, normalised x_BLD) -> x_BLD.
    initial: {name: array} of each layer.
    size: batch, length, width, layers.
  """
  import torch
  from torch import nn

  batch, length, width, _ = size

  class Layer(nn.Module):
    def __init__(self, arrays):
      super().__init__()
      self.norm = nn.LayerNorm(width)
      # A copy: the arrays may be read-only.
      self.mixer = nn.ParameterDict({name: torch.tensor(array) for name, array in arrays.items()})

    def forward(self, x_BLD):
      return block(self.mixer, x_BLD, self.norm(x_BLD))

  return training([Layer(arrays) for arrays in initial], batch, length, width, bias=True)


def training(layers: list, batch: int, length: int, width: int, *, bias: bool):
  """The results of `step` for a classifier of tokens: embedding, layers, LayerNorm, mean, linear head; AdamW.

  Args:
    layers: modules from [batch, length, width] to the same.
    batch, length, width: sizes.
    bias: LayerNorm and head have a bias.
  """
  import torch
  from torch import nn

  class Classifier(nn.Module):
    def __init__(self):
      super().__init__()
      self.embed = nn.Embedding(VOCABULARY, width)
      self.layers = nn.Sequential(*layers)
      self.norm, self.head = nn.LayerNorm(width, bias=bias), nn.Linear(width, CLASSES, bias=bias)

    def forward(self, tokens):
      return self.head(self.norm(self.layers(self.embed(tokens))).mean(1))

  model = Classifier()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
  tokens, label = torch.randint(VOCABULARY, (batch, length)), torch.randint(CLASSES, (batch,))
  baseline = harness.peak_bytes()

  def run():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens), label)
    loss.backward()
    optimizer.step()
    return loss.item()

  known = {
    'torch': torch.__version__,
    'torch_threads': torch.get_num_threads(),
    'parameters': sum(parameter.numel() for parameter in model.parameters()),
  }
  return run, known, baseline
