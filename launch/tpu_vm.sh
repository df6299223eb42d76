#!/usr/bin/env bash
# One run on a Cloud TPU VM slice of one or more hosts, from your own machine:
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket SHARE=10.0.0.2:/lra
#   bash launch/tpu_vm.sh create     # the slice
#   bash launch/tpu_vm.sh install    # the code, Python and jax[tpu] on every host; mounts SHARE
#   bash launch/tpu_vm.sh data       # prepared data from gs://$BUCKET/data to every host's disk
#   bash launch/tpu_vm.sh train      # starts; say it again after a failure: it resumes from the workdir
#   bash launch/tpu_vm.sh log        # what host 0 prints
#   bash launch/tpu_vm.sh delete     # ends the bill
#
# Needs the gcloud command, logged in, with a project that has TPU quota. SHARE is an NFS export that all
# hosts see (a Filestore instance in the same network): the workdir lives there, because logs are appended to
# and checkpoints renamed, which buckets cannot do, and it outlives the slice.
# Prepare the data once, anywhere:
#
#   lra-spt prepare pathfinder32 --data_dir=data && gcloud storage cp -r data "gs://$BUCKET/"
#
# Tried so far: syntax-checked only; not run on a cluster.
set -euo pipefail

: "${NAME:?name of the slice, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}"
ACCELERATOR=${ACCELERATOR:-v5litepod-16}      # 16 chips of v5e on 4 hosts
# The image goes with the chip: v2-alpha-tpuv5-lite (v5e), v2-alpha-tpuv5 (v5p), v2-alpha-tpuv6e (v6e),
# tpu-ubuntu2204-base (v4 and older).
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}
CONFIG=${CONFIG:-configs/pathfinder.py:model=transformer_rotary,regime=masked}
WORKDIR=${WORKDIR:-/mnt/lra/runs/pathfinder}

tpu() { gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }
everywhere() { tpu ssh "$NAME" --worker=all --command="$1"; }

cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  create)
    tpu create "$NAME" --accelerator-type="$ACCELERATOR" --version="$IMAGE"
    ;;
  install)
    # Only what git tracks, so that no local environment, data or run travels along.
    archive=$(mktemp --suffix=.tar.gz)
    git archive --format=tar.gz --output="$archive" HEAD
    tpu scp "$archive" "$NAME":lra_spt.tar.gz --worker=all
    rm "$archive"
    # The images bring Python 3.10; uv fetches a newer one beside it. jax[tpu] brings libtpu.
    everywhere "set -e
      sudo apt-get install -qq -y nfs-common && sudo mkdir -p /mnt/lra
      mountpoint -q /mnt/lra || sudo mount -t nfs ${SHARE:?as in SHARE=10.0.0.2:/lra} /mnt/lra
      mkdir -p lra_spt && tar -xzf lra_spt.tar.gz -C lra_spt && cd lra_spt
      python3 -m pip install --quiet --user uv
      python3 -m uv venv --quiet --allow-existing --python 3.12 .venv
      python3 -m uv pip install --quiet --python .venv/bin/python -e '.[tpu]'
      .venv/bin/lra-spt --version"
    ;;
  data)
    # Every host reads the rows of its own chips, from its own disk: a bucket is slow at single examples.
    source=gs://${BUCKET:?without gs://}/data
    everywhere "mkdir -p lra_spt/data && gcloud storage rsync -r $source lra_spt/data"
    ;;
  alive)   # whether the training command still runs
    tpu ssh "$NAME" --worker=0 --command="pgrep -f 'lra-spt [t]rain'"   # [t]: not this command itself
    ;;
  train)
    # The same command on every host; they find each other through the TPU's metadata (--distributed). Only
    # host 0 writes results. nohup: the run outlives the ssh session.
    everywhere "cd lra_spt &&
      nohup .venv/bin/lra-spt train --distributed --config=$CONFIG --workdir=$WORKDIR \
        > train.log 2>&1 < /dev/null &"
    ;;
  log)
    tpu ssh "$NAME" --worker=0 --command='tail -n 50 -f lra_spt/train.log'
    ;;
  finished)
    # Status 0 when the run is complete: result.json is written last.
    tpu ssh "$NAME" --worker=0 --command="test -e $WORKDIR/result.json"
    ;;
  delete)
    tpu delete "$NAME"
    ;;
  *)
    echo 'usage: bash launch/tpu_vm.sh create|install|data|train|log|alive|finished|delete' >&2
    exit 2
    ;;
esac
