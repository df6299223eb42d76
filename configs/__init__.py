"""Config files, one per task: lra-spt train --config=configs/image.py:model=transformer,regime=masked."""
