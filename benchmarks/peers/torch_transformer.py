"""The Transformer of benchmarks/attention.py in PyTorch, with its fused attention."""

from benchmarks import harness

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, CLASSES = 4, 128, 8, 512, 256, 10


def step(batch, length):
  """(a function that makes a step and returns its loss, what is known about it, peak bytes before it)."""
  import torch  # no requirement of the project
  from torch import nn

  class Layer(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
      self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
      self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
      y = self.norm1(x)
      q, k, v = (f(y).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
      out = nn.functional.scaled_dot_product_attention(q, k, v)
      x = x + self.o(out.transpose(1, 2).reshape(x.shape))
      return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate='tanh'))

  class Classifier(nn.Module):
    def __init__(self):
      super().__init__()
      self.embed = nn.Embedding(VOCABULARY, WIDTH)
      self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
      self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, CLASSES, bias=False)

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

  return run, {'torch_threads': torch.get_num_threads()}, baseline
