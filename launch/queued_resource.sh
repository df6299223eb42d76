#!/usr/bin/env bash
# A run on spot TPUs that may be taken away at any moment: asks for a slice, trains, and asks again until done.
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket
#   bash launch/queued_resource.sh
#
# Works because the training command is the same after every loss: it resumes from its workdir on gs://, with the
# same batches, whatever the number of chips. Keep this script alive in tmux; stop it with Ctrl-C and delete the
# slice with: gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force
# Prepare the data first, as launch/tpu_vm.sh says.
#
# Tried so far: syntax-checked only; not run on a cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NAME:?name of the request, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}" "${BUCKET:?without gs://}"
export NAME ZONE BUCKET
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}     # see launch/tpu_vm.sh for other chips
export WORKDIR=${WORKDIR:-gs://$BUCKET/runs/pathfinder}

request() { gcloud compute tpus queued-resources "$@" --zone="$ZONE"; }
state() { request describe "$NAME" --format='value(state.state)' 2> /dev/null || echo NONE; }

started=no
until gcloud storage ls "$WORKDIR/result.json" > /dev/null 2>&1; do   # written last: the run is complete
  case $(state) in
    NONE)
      request create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR" --runtime-version="$IMAGE" --spot
      started=no
      ;;
    ACTIVE)
      if [ $started = no ]; then
        bash launch/tpu_vm.sh install && bash launch/tpu_vm.sh data && bash launch/tpu_vm.sh train && started=yes
      fi
      ;;
    FAILED | SUSPENDED)   # taken away: a request serves once, so it is deleted and made again
      request delete "$NAME" --force --quiet
      ;;
  esac
  sleep 60
done
request delete "$NAME" --force --quiet
echo "done: $WORKDIR/result.json"
