#!/usr/bin/env bash
# A run on spot TPUs, which may be taken away at any moment: asks for a slice, trains, asks again until done.
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket SHARE=10.0.0.2:/lra
#   bash launch/queued_resource.sh
#
# Works because the training command is the same after every loss: it resumes from its workdir, which outlives
# the slice, with the same batches, whatever the number of chips. BUCKET and SHARE are as in launch/tpu_vm.sh,
# which also says how to prepare the data. Keep this script alive in tmux. To stop: Ctrl-C, then
#   gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force
#
# Tried so far: syntax-checked only; not run on a cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NAME:?name of the request, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}"
: "${BUCKET:?without gs://}" "${SHARE:?as in SHARE=10.0.0.2:/lra}"
export NAME ZONE BUCKET SHARE
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}     # see launch/tpu_vm.sh for other chips

request() { gcloud compute tpus queued-resources "$@" --zone="$ZONE"; }
state() { request describe "$NAME" --format='value(state.state)' 2> /dev/null || echo NONE; }
on_slice() { bash launch/tpu_vm.sh "$1"; }

started=no
attempts=0
while true; do
  case $(state) in
    NONE)
      started=no
      request create "$NAME" --node-id="$NAME" --spot \
        --accelerator-type="$ACCELERATOR" --runtime-version="$IMAGE" || echo 'refused: trying again' >&2
      ;;
    ACTIVE)
      if [ $started = no ]; then
        # May fail when the slice is lost in between; the next round finds out.
        if on_slice install && on_slice data && on_slice train; then started=yes; fi
      elif on_slice finished; then
        break
      elif ! on_slice alive; then   # it ended by itself: a bad config, a non-finite loss, or a slice just lost
        started=no
        attempts=$((attempts + 1))
        if [ $attempts = 3 ]; then
          request delete "$NAME" --force --quiet
          echo 'the training command ended three times without a result: see its log in the workdir' >&2
          exit 1
        fi
      fi
      ;;
    FAILED | SUSPENDED)   # taken away: a request serves once, so it is deleted and made again
      request delete "$NAME" --force --quiet
      ;;
  esac
  sleep 60
done
request delete "$NAME" --force --quiet
echo 'done: the result is in the workdir on SHARE'
