"""Attention without our kernels: PyTorch's fused one, and neighbouring blocks folded into rows of the batch,
for any attention to every key.
"""

from benchmarks.peers import torch_calls


def torch_run(dtype, shape, platform, block):
  """PyTorch's fused attention and its gradients, see `torch_calls.run_of`.

  Args:
    dtype: name of the dtype.
    shape: [B, L, H, K], the layout of queries, keys, values and result.
    platform: 'gpu' or 'cpu'.
    block: as in `folded`; 0: every query sees every key.
  """
  import torch  # no requirement of the project

  attend = torch.nn.functional.scaled_dot_product_attention
  settings = {'dtype': getattr(torch, dtype), 'device': 'cuda' if platform == 'gpu' else 'cpu'}
  q, k, v, d_out = (torch.randn(shape, **settings).requires_grad_() for _ in range(4))

  def call(q, k, v):  # takes and gives [B, L, H, K]
    return attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

  return torch_calls.run_of(
    lambda *of: folded(call, torch.cat, *of, block) if block else call(*of), (q, k, v), d_out
  )


def folded(attend, concatenate, q_BLHK, k_BLHK, v_BLHK, block):
  """`Neighbours(block)` by attention to every key, for jax and PyTorch alike. Blocks become rows of the
  batch, their keys the two or three blocks that they see: the visible pairs and no others. Needs three."""
  batch, length, heads, width = q_BLHK.shape
  count = length // block

  def blocks(x_BLHK, first, end):
    return x_BLHK.reshape(batch, count, block, heads, width)[:, first:end]

  def call(queries, *keys):
    """Attention of a range of query blocks to ranges of key blocks, laid one behind the other."""
    q = blocks(q_BLHK, *queries)
    k, v = (concatenate([blocks(x, *one) for one in keys], 2) for x in (k_BLHK, v_BLHK))
    rows = (x.reshape(-1, x.shape[2], heads, width) for x in (q, k, v))
    return attend(*rows).reshape(q.shape)

  last = count - 1
  first_out = call((0, 1), (0, 1), (1, 2))
  inner_out = call((1, last), (0, last - 1), (1, last), (2, count))
  last_out = call((last, count), (last - 1, last), (last, count))
  return concatenate([first_out, inner_out, last_out], 1).reshape(q_BLHK.shape)
