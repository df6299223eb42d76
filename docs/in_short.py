"""The summary on top of docs/speed.md, from the result files of its tables; see docs/figures.py."""

import textwrap

from docs import gpu, speeds
from docs.told import NUMBERS, claim


def speed(attention: dict, ssm: dict, data: dict, generator: dict, accelerator: dict) -> list[str]:
  """A point a kind of table, of the files of these names (attention and ssm: on CPUs)."""
  return [
    *_bullet(_on_gpu(accelerator)),
    *_bullet(_attention(attention)),
    *_bullet(_ssm(ssm)),
    *_bullet(_data(data, generator)),
    *_bullet('**Not timed**: TPUs, several GPUs.'),
  ]


def _bullet(text: str) -> list[str]:
  return textwrap.wrap(
    text, 108, initial_indent='* ', subsequent_indent='  ', break_long_words=False, break_on_hyphens=False
  )


def _span(values) -> str:
  return ' to '.join(f'{pick(values):.2g}' for pick in (min, max))


def _missed(reached: dict[str, float]) -> str:
  """'Two of three targets are missed.'; reached: as of `speeds.ssm_reached`."""
  missed = [name for name, times in reached.items() if times < 1]
  if not missed:
    return 'All targets are met.'
  count = f'{NUMBERS[len(missed)].capitalize()} of {NUMBERS[len(reached)]} targets'
  return f'{count} {"is" if len(missed) == 1 else "are"} missed.'


def _on_gpu(found) -> str:
  image, _, *blocks = gpu.attention_ratios(found, 'bfloat16')
  return claim(
    '**Attention on one H100, bfloat16**: our Pallas kernels are faster than cuDNN and PyTorch on the '
    'neighbouring blocks of PathX, and slower than both on Image, with heads of 64 dimensions.',
    found['hardware']['device_kind'].startswith('NVIDIA H100'),
    all(times[other] > 1 for times in blocks for other in ('cudnn', 'torch')),
    all(image[other] < 1 for other in ('cudnn', 'torch')),
  )


def _attention(found) -> str:
  reached = speeds.attention_reached(found)
  over = [speeds.ATTENTION_TARGET / times for times in reached.values()]
  return (
    f'**Attention on {found["hardware"]["cpu_count"]} CPU cores**: a training step takes {_span(over)} times '
    f'the time of PyTorch with fused attention. {_missed(reached)}'
  )


def _ssm(found) -> str:
  faster = {}
  for row in found['steps']:
    for other, ratio in row.get('times_faster_than', {}).items():
      faster.setdefault((row['contender'].split()[0], other), []).append(ratio['wall'])
  s5 = [ratio for (_, other), ratios in faster.items() if other.endswith(' peer') for ratio in ratios]
  lru = [1 / ratio for ratio in faster['lru', 's5 256']]
  return claim(
    f'**State-space models on {found["hardware"]["cpu_count"]} CPU cores**: a training step of S4 is '
    f'{_span(faster["s4", "s4 torch"])} times as fast as S4 in PyTorch without its extension, one of S5 '
    f"{_span(s5)} times as fast as its authors' way of computing. LRU takes about twice as long as S5 with "
    f'as many states. {_missed(speeds.ssm_reached(found))}',
    all(1.75 < ratio < 2.25 for ratio in lru),
  )


def _data(found, generator) -> str:
  faster = [times for row in generator['resolutions'].values() for times in row.get('times_faster', ())]
  ratios = [row['ratio'] for row in found['rows']]
  return (
    f'**Data**: reading is {_span(ratios)} times as fast as TFDS with Grain; Pathfinder images are generated '
    f'at least {min(faster)} times as fast as by the official code, timed on another machine.'
  )
