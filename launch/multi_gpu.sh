#!/usr/bin/env bash
# One run on all GPUs of one machine: one process, nothing to coordinate.
#
#   bash launch/multi_gpu.sh
#   CUDA_VISIBLE_DEVICES=0,1 bash launch/multi_gpu.sh
#   CONFIG=configs/listops.py:model=transformer,regime=causal WORKDIR=runs/listops bash launch/multi_gpu.sh
#   bash launch/multi_gpu.sh --config.runtime.microbatches=2     # any further flags of `lra-spt train`
#   nohup bash launch/multi_gpu.sh >> pathfinder.log 2>&1 &     # goes on after logout; appends to its log
#
# Before:
#
#   python3.12 -m venv .venv && .venv/bin/pip install -e '.[cuda13]'     # driver >= 580; older: '.[cuda12]'
#   .venv/bin/lra-spt prepare pathfinder32 --data_dir=data
#
# Tested with a stand-in for lra-spt (tests/test_launch.py); not run on several GPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CONFIG=${CONFIG:-configs/pathfinder.py:model=transformer_rotary,regime=masked}
WORKDIR=${WORKDIR:-runs/pathfinder}

if [ ! -x .venv/bin/lra-spt ]; then
  echo "there is no $PWD/.venv/bin/lra-spt: make the environment first; the head of this script shows how" >&2
  exit 2
fi

# jax takes 75 % of each GPU's memory at the start. If nothing else runs there, it can take more:
#   export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92
# On a GPU sums may run in another order each time, so a resumed run agrees with an uninterrupted one up to
# rounding. Bitwise agreement costs speed:
#   export XLA_FLAGS='--xla_gpu_deterministic_ops=true'
# float32 products use TF32 on Ampere and later; full float32 is several times slower:
#   export JAX_DEFAULT_MATMUL_PRECISION=highest
# Compiled programs are kept between starts:
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/lra_spt_xla}

# By default the mesh splits the rows of a batch over all GPUs. These models are small and need no sharding of
# parameters, but this splits them over pairs of GPUs:
#   --config.runtime.mesh.fsdp=2
# The batch size is global. It must be a multiple of the number of GPUs divided by runtime.mesh.seq.
exec .venv/bin/lra-spt train --config="$CONFIG" --workdir="$WORKDIR" "$@"
