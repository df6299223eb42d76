"""CIFAR-10 in gray at 12 x 12, one pixel per position; 2,000 of the 5,000 labelled images of `image_mini`.

  lra-spt prepare image_mini --raw_dir=RAW --data_dir=data
  lra-spt train --config=configs/mini/image.py:model=s4,regime=masked --workdir=runs/mini

Expect a test accuracy of about 39.0 % with the learning rate that validation chose (docs/mini.md).

With all 5,000 images, pretraining left little to gain on development seed 0 (docs/mini.md).

Arguments: model, regime, protocol, seed; with regime=scratch, causal=true; and full=true, which trains the
same models for the same steps on LRA's Image: 45,000 images of 32 x 32 (`lra-spt prepare cifar10`).
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config_or_full(arg, task='image', mask_rate=0.5, part=0.4)
