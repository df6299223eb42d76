#!/usr/bin/env bash
# A run on one or more TPU slices of a GKE cluster, started by xpk (pip install xpk) as a JobSet:
#
#   export CLUSTER=lra PROJECT=my-project ZONE=us-west4-a STORAGE=lra MOUNT=/lra
#   export IMAGE=us-docker.pkg.dev/my-project/lra/lra_spt:1
#   docker build -t "$IMAGE" --build-arg ACCELERATOR=tpu . && docker push "$IMAGE"
#   bash launch/gke_xpk.sh
#   NAME=two SLICES=2 TPU=v5litepod-16 bash launch/gke_xpk.sh     # 32 chips; batches are multiples of them
#   bash launch/gke_xpk.sh --config.runtime.mesh.seq=2            # any further flags of `lra-spt train`
#
# STORAGE is a file system (Filestore, not a bucket) that xpk knows (`xpk storage list`). All hosts mount it
# at MOUNT. Prepare the data in $MOUNT/data first; runs lie in $MOUNT/runs. To watch: kubectl logs. To stop:
# xpk workload delete --cluster="$CLUSTER" --workload="$NAME".
#
# JobSet starts all hosts again when one of them ends with status 75 (asked to end, or another host lost) or
# by a signal, up to RESTARTS times (default 50). A bad config (status 2) ends the job. Hosts on a spot node
# have GRACE seconds (default 60) to save before it is taken away. Rows of a batch are split between slices
# (docs/scaling.md).
#
# Tested with a stand-in for xpk (tests/test_launch.py); not run on a cluster.
set -euo pipefail
: "${CLUSTER:?name of the cluster}" "${PROJECT:?of Google Cloud}" "${ZONE:?as in ZONE=us-west4-a}"
: "${IMAGE:?container with lra-spt, see Dockerfile}" "${STORAGE:?as in xpk storage list}"
: "${MOUNT:?folder where hosts have STORAGE, as in MOUNT=/lra}"
NAME=${NAME:-lra}
CONFIG=${CONFIG:-configs/pathfinder.py:model=transformer_rotary,regime=masked}
WORKDIR=${WORKDIR:-$MOUNT/runs/$NAME}

# xpk passes SIGTERM to the subshell in which it runs the command. `exec` makes training that process. The
# subshell parses the command as bash, hence %q.
printf -v command '%q ' exec lra-spt train --distributed --config="$CONFIG" --workdir="$WORKDIR" \
  --config.runtime.data_dir="${DATA:-$MOUNT/data}" "$@"
exec xpk workload create --cluster="$CLUSTER" --project="$PROJECT" --zone="$ZONE" --workload="$NAME" \
  --tpu-type="${TPU:-v5litepod-16}" --num-slices="${SLICES:-1}" --docker-image="$IMAGE" \
  --storage="$STORAGE" --command="$command" --max-restarts="${RESTARTS:-50}" --restart-on-exit-codes=75 \
  --termination-grace-period-seconds="${GRACE:-60}"
