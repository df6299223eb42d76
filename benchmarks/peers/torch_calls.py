"""Calls of PyTorch as the benchmarks time them."""


def run_of(function, tensors, d_out):
  """(function that runs `function(*tensors)` and its gradients once, the megabytes that it takes, results
  included; None on a CPU)."""
  import torch  # no requirement of the project

  on_gpu = tensors[0].is_cuda

  def run():
    torch.autograd.grad(function(*tensors), tensors, d_out)
    if on_gpu:
      torch.cuda.synchronize()

  if not on_gpu:
    return run, None
  run()
  before = torch.cuda.memory_allocated()
  torch.cuda.reset_peak_memory_stats()
  run()
  return run, (torch.cuda.max_memory_allocated() - before) / 1e6
