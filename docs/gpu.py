"""What the pages say of runs on a GPU: tables of benchmarks/results/accelerator.json, and Image at the size
of the paper."""

import numpy as np

from docs import mini
from docs.costs import gain, head, paragraph, percent
from docs.told import claim
from lra_spt.report import published

ROUTES = {'cudnn': 'cuDNN', 'torch': 'PyTorch', 'pallas': 'ours, Pallas', 'blockwise': 'ours, plain XLA'}
DTYPES = {'bfloat16': 'bfloat16', 'float32': 'float32'}
WAYS = {
  'layers in a loop': 'layers in a loop',
  'layers in a loop, attention by cudnn': 'the same, attention by cuDNN',
  'layers in a loop, all but products again': 'the same, all but matrix products computed again',
  'layers in a loop, elementwise again': 'the same, elementwise operations computed again',
}
ORDINALS = 'first', 'second', 'third', 'fourth'
STEP = 'step image transformer_rotary bfloat16 8 per dispatch'


def _rows(found: dict, part: str) -> dict[str, dict]:
  return {row['case']: row for row in found['parts'][part]['rows']}


def _table(names, rows) -> list[str]:
  return [*head(names), *(f'| {" | ".join(row)} |' for row in rows)]


def _time(row: dict | None) -> str:
  if row is None or 'not_run' in row:
    return ''
  return f'{row["milliseconds"]:.3g} ms'


def _source(found: dict) -> str:
  machine, versions = found['hardware'], found['versions']
  names = f'{machine["device_kind"]}, jax {versions["jax"]}, torch {versions["torch"]}'
  dates = {row['date'] for part in found['parts'].values() for row in part['rows']}
  return f'{names}, {max(dates)}; `python -m benchmarks accelerator`'


def _calls(found) -> list[tuple[str, dict, str]]:
  """What attends to what, the rows that have it, and the name of its shape there."""
  full, blocks = _rows(found, 'benchmarks'), _rows(found, 'attention')
  neighbours = 'blocks of 4,096 and their neighbours'
  return [
    ('every key', full, 'image'),
    ('every key', full, 'pathx'),
    (neighbours, blocks, 'pathx'),
    (neighbours, blocks, 'pathx narrow'),
  ]


def _times(rows, shape, dtype) -> dict[str, dict | None]:
  return {route: rows.get(f'attention {shape} {route} {dtype}') for route in ROUTES}


def attention_ratios(found: dict, dtype: str) -> list[dict[str, float]]:
  """{route: its time over that of our Pallas kernels} of each call."""
  calls = [_times(rows, shape, dtype) for _, rows, shape in _calls(found)]
  return [
    {
      route: row['milliseconds'] / times['pallas']['milliseconds']
      for route, row in times.items()
      if row and 'milliseconds' in row
    }
    for times in calls
  ]


def attention(found: dict) -> list[str]:
  """Forward and backward of attention by route: to every key, and of neighbouring blocks."""
  lines = []
  for name, rows, shape in _calls(found):
    for dtype in DTYPES:
      times = _times(rows, shape, dtype)
      size = ' x '.join(f'{part:,}' for part in times['pallas']['shape_BLHK'])
      lines.append([name, size, dtype, *map(_time, times.values())])
  image, long, pathx, narrow = attention_ratios(found, 'bfloat16')
  *_, wide, thin = attention_ratios(found, 'float32')
  told = claim(
    'In bfloat16 the Pallas kernels are '
    f'{100 * (pathx["torch"] - 1):.0f} and {100 * (narrow["torch"] - 1):.0f} % faster than PyTorch and cuDNN '
    f'on the blocks of PathX. With all {16384:,} keys they are {100 * (long["cudnn"] - 1):.0f} % faster than '
    'cuDNN. On Image, with heads of 64 dimensions, they are '
    f'{100 * (1 / image["cudnn"] - 1):.0f} % slower than cuDNN and {100 * (1 / image["torch"] - 1):.0f} % '
    'slower than PyTorch. In float32 (TF32 products), which cuDNN does not support, they are '
    f'{wide["torch"]:.1f} and {thin["torch"]:.1f} times as fast as PyTorch, which uses full float32 products '
    'there. Tiles were not tuned on this GPU.',
    pathx['torch'] > 1.1 and narrow['torch'] > 1.1,
    abs(pathx['torch'] - pathx['cudnn']) < 0.02 and abs(narrow['torch'] - narrow['cudnn']) < 0.02,
    long['cudnn'] > 1.02,
    image['cudnn'] < 0.98 and image['torch'] < 0.98,
    wide['torch'] > 2 and thin['torch'] > 2,
  )
  names = ('attention to', 'batch x length x heads x width', 'numbers', *ROUTES.values())
  return [*_table(names, lines), '', *paragraph(told), '', *paragraph(f'{_source(found)}.')]


def errors(found: dict) -> list[str]:
  """What the tests and the comparison with float64 found."""
  tests, kernels = _rows(found, 'tests')['pytest -m gpu'], found['parts']['kernels']['rows']
  largest = {
    kind: max(row['largest'] for row in kernels if row['case'].startswith(kind))
    for kind in ('float32 highest', 'float32 default', 'bfloat16')
  }
  return paragraph(
    claim(
      f'`pytest -m gpu`: {tests["summary"].partition(",")[0]} (attention by every implementation and '
      'pattern, recurrences; skipped: calls that cuDNN does not support). The largest error of attention and '
      'its gradients against float64, relative to the largest value, is '
      f'{largest["float32 highest"]:.0e} in float32, {largest["float32 default"]:.0e} with TF32 products and '
      f'{largest["bfloat16"]:.0e} in bfloat16, over {len(kernels)} cases ({_source(found)}).',
      tests['ok'],
      all(row['ok'] for row in kernels),
    )
  )


def steps(found: dict) -> list[str]:
  """Ways of running a training step of the rotary Transformer on Image."""
  rows = _rows(found, 'benchmarks')
  plain, other = rows[STEP], {words: rows[f'{STEP}, {way}'] for way, words in WAYS.items()}
  lines = [['layers one after the other (the default)', plain, 1.0]]
  lines += [[words, row, row['milliseconds'] / plain['milliseconds']] for words, row in other.items()]
  table = [
    [
      words,
      _time(row),
      f'{row["examples_per_second"]:,.0f}',
      f'{row["teraflops_per_second"]:.0f}',
      f'{ratio:.2f}',
    ]
    for words, row, ratio in lines
  ]
  (profile,) = found['parts']['profile']['rows']
  copies = profile['kernels']['memcpy128']
  told = claim(
    f'With layers in a loop, {copies:.1f} of {profile["milliseconds"]:.0f} ms are copies of what is kept for '
    'the gradient. Unrolled layers avoid these, so GPUs train without the loop and compile longer '
    f'({plain["first_call_seconds"]:.0f} s until the first steps are done). Evaluation keeps nothing and '
    'uses the loop: unrolled, one of its kernels for batches of 500 took minutes to compile in the runs of '
    '[Image at the size of the paper](results.md#image-at-the-size-of-the-paper). This default, unrolled in '
    'training only, has not been run on a GPU yet.',
    copies > 0.2 * profile['milliseconds'],
    all(ratio >= 1 for *_, ratio in lines),
  )
  names = (
    'a step of 64 images, rotary Transformer, bfloat16',
    'time',
    'images/s',
    'TFLOP/s',
    'over the default',
  )
  return [*_table(names, table), '', *paragraph(told), '', *paragraph(f'{_source(found)}.')]


def members(found: dict) -> list[str]:
  rows = _rows(found, 'members').values()
  parts = [
    f'{row["case"].rpartition(", ")[2]} take {row["alone"]["milliseconds"]:.1f} ms a step one by one and '
    f'{row["together"]["milliseconds"]:.1f} ms as one program'
    for row in rows
  ]
  return paragraph(
    claim(
      'On a GPU it pays to train members as one program: for the rotary Transformer of LRA-mini on Text '
      f'{" and ".join(parts)} ({_source(found)}; no other model was measured).',
      all(row['together']['milliseconds'] < row['alone']['milliseconds'] for row in rows),
    )
  )


def _pair(found: dict):
  (pair,) = [one for one in found['gains'] if one['row'] == 'Transformer + Rotary, masked']
  return pair


def _curves(found: dict) -> list[np.ndarray]:
  """Validation after every epoch from scratch and of finetuning."""
  curves = {one['row']: np.array(one['score']) for one in found['curves']}
  return [curves[f'Transformer + Rotary, {arm}'] for arm in ('scratch', 'masked')]


def _printed() -> dict[str, float]:
  """{regime: test accuracy in %} of the same model in the paper."""
  return {
    row.regime: row.value
    for row in published.ROWS
    if (row.table, row.model, row.task, row.causal) == (2, 'transformer_rotary', 'image', False)
  }


def what_has_been_run(found: dict) -> list[str]:
  """A paragraph of the README; found: of configs/studies/image_epochs.py."""
  pair, (scratch, _), printed = _pair(found), _curves(found), _printed()
  return paragraph(
    'Architectures are tested against float64 references and [published code](docs/models.md), GPU kernels '
    '[on a GPU](docs/speed.md#on-a-gpu); TPU kernels are only compiled. **No run has had the '
    "paper's full training length.** "
    + claim(
      'After 8 epochs of masked SPT and 8 of finetuning a rotary Transformer of its size reaches '
      f'{percent(pair["pretrained"])} % on Image (paper: {printed["masked"]} %); in 16 epochs from scratch '
      f'{percent(pair["scratch"])} % (paper: {printed["scratch"]} %), but with the learning rate of '
      'finetuning, as the paper prints none: no measure of the gain ([one '
      f'seed](docs/results.md#image-at-the-size-of-the-paper); {mini.hardware(found)}).',
      pair['significant'],
      pair['seeds'] == [0],
      scratch[-1] < scratch.max() - 0.05,
    )
  )


def epochs(found: dict) -> list[str]:
  """Of configs/studies/image_epochs.py."""
  pair, (scratch, masked), printed = _pair(found), _curves(found), _printed()
  text = claim(
    'After 8 epochs of self-pretraining and 8 of finetuning the test accuracy is '
    f'{percent(pair["pretrained"])} %. In 16 epochs from scratch, which take as many operations, the '
    f'{ORDINALS[np.argmax(scratch)]} has the best validation and a test accuracy of '
    f'{percent(pair["scratch"])} %. The difference, {gain(pair)} on the same images, says little about the '
    'gain of self-pretraining, because the learning rate suits finetuning only. The first epoch of '
    f'finetuning already brings validation to {percent(masked[0])} %, more than any epoch from scratch.',
    pair['significant'],
    abs(pair['operations'] - 1) < 0.001,
    masked[0] > scratch.max(),
  )
  limits = claim(
    f'From scratch validation peaks after {np.argmax(scratch) + 1} epochs ({percent(scratch.max())} %) and '
    f'falls to {percent(scratch[-1])} %. The paper prints no learning rate for training from scratch; with '
    'the one that Table 4 gives for finetuning, which was used here, the model does not keep what it has '
    'learned. Neither a smaller rate nor another seed was tried. With up to 200 epochs of finetuning the '
    f'paper reports {printed["scratch"]} and '
    f'{printed["masked"]} %. After pretraining validation still rises at the end.',
    np.argmax(scratch) < 4,
    scratch[-1] < scratch.max() - 0.05,
    masked[-2:].max() == masked.max(),
  )
  return [*paragraph(text), '', *paragraph(limits)]
