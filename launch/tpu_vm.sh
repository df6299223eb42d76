#!/usr/bin/env bash
# One run on a Cloud TPU VM slice of one or more hosts, from your own machine:
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket SHARE=10.0.0.2:/lra
#   bash launch/tpu_vm.sh create     # the slice
#   bash launch/tpu_vm.sh install    # the code, Python and jax[tpu] on every host; mounts SHARE
#   bash launch/tpu_vm.sh data       # prepared data from gs://$BUCKET/data to every host's disk
#   bash launch/tpu_vm.sh train      # starts the run; again after a failure: resumes it from the workdir
#   bash launch/tpu_vm.sh train --config.runtime.mesh.seq=2     # any further flags of `lra-spt train`
#   bash launch/tpu_vm.sh status     # running, stopped, again (status 75), finished, unknown (no answer), or
#                                    # ended (status 0, no result in WORKDIR itself, as with --seeds)
#   bash launch/tpu_vm.sh log        # follows the logs of all hosts
#   bash launch/tpu_vm.sh fetch_log  # copies them to launch_logs/$NAME here
#   bash launch/tpu_vm.sh delete     # fetches the logs, then deletes the slice and ends its costs
#
# Needs the gcloud command, logged in, with a project that has TPU quota. If an ssh-agent runs, it has to hold
# gcloud's key (`ssh-add ~/.ssh/google_compute_engine`; the first ssh of gcloud makes it); without it slices
# of several hosts are refused with SSHKeyNotInAgent. SHARE is an NFS export for all hosts (Filestore in the
# same network). The workdir and the logs of the hosts ($WORKDIR.logs) lie there: they outlive the slice, and
# logs are appended to, which buckets cannot do. Prepare the data once, anywhere:
#
#   lra-spt prepare pathfinder32 --data_dir=data && gcloud storage cp -r data "gs://$BUCKET/"
#
# Tested with stand-ins for gcloud and ssh (tests/test_launch.py); not run on a cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NAME:?name of the slice, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}"
ACCELERATOR=${ACCELERATOR:-v5litepod-16}      # 16 chips of v5e on 4 hosts
# The image depends on the chip: v2-alpha-tpuv5-lite (v5e), v2-alpha-tpuv5 (v5p), v2-alpha-tpuv6e (v6e),
# tpu-ubuntu2204-base (v4 and older).
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}
CONFIG=${CONFIG:-configs/pathfinder.py:model=transformer_rotary,regime=masked}
WORKDIR=${WORKDIR:-/mnt/lra/runs/pathfinder}
LOGS=$WORKDIR.logs

tpu() { gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }
everywhere() { tpu ssh "$NAME" --worker=all --command="$1"; }

# Writes the code as an archive of the files that git tracks, without local environments, data and runs.
pack() {  # pack FILE
  local changed
  changed=$(git status --porcelain)
  if [ -z "$changed" ]; then
    git archive --format=tar.gz --output="$1" HEAD
  elif [ "${UNCOMMITTED:-refuse}" = include ]; then
    printf 'These files differ from the commit and are included as they are:\n%s\n' "$changed" >&2
    export COPYFILE_DISABLE=1   # keeps tar of macOS from adding files ._NAME with attributes
    git ls-files -z --cached --others --exclude-standard \
      | while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done \
      | tar --null --files-from=- -czf "$1"
  else
    printf '%s\n%s\n%s\n' 'These files differ from the commit, so the slice would run something else:' \
      "$changed" 'Commit them, or include them with UNCOMMITTED=include.' >&2
    return 1
  fi
}

case ${1:-} in
  create)
    tpu create "$NAME" --accelerator-type="$ACCELERATOR" --version="$IMAGE"
    ;;
  pack)
    pack "${2:?the file to write}"
    ;;
  install)
    # ARCHIVE is an archive that `pack` made, so that all slices run the same code.
    archive=${ARCHIVE:-}
    if [ -z "$archive" ]; then
      folder=$(mktemp -d)    # macOS has no --suffix
      trap 'rm -rf "$folder"' EXIT
      archive=$folder/lra_spt.tar.gz
      pack "$archive"
    fi
    tpu scp "$archive" "$NAME":lra_spt.tar.gz --worker=all
    # The images have Python 3.10; uv installs a newer one. jax[tpu] brings libtpu. A new host upgrades itself
    # and holds apt's lock meanwhile. A new share belongs to root.
    everywhere "set -e
      apt='sudo apt-get -qq -o DPkg::Lock::Timeout=600'
      \$apt update && \$apt install -y nfs-common && sudo mkdir -p /mnt/lra
      mountpoint -q /mnt/lra || sudo mount -t nfs ${SHARE:?as in SHARE=10.0.0.2:/lra} /mnt/lra
      test -w /mnt/lra || sudo chmod go+rwx /mnt/lra
      mkdir -p lra_spt && tar -xzf lra_spt.tar.gz -C lra_spt && cd lra_spt
      python3 -m pip install --quiet --user uv
      python3 -m uv venv --quiet --allow-existing --python 3.12 .venv
      python3 -m uv pip install --quiet --python .venv/bin/python -e '.[tpu]'
      .venv/bin/lra-spt --version"
    ;;
  data)
    # Every host reads the rows of its chips from its local disk, because a bucket is slow at single examples.
    source=gs://${BUCKET:?without gs://}/data
    everywhere "mkdir -p lra_spt/data && gcloud storage rsync -r $source lra_spt/data"
    ;;
  train)
    # All hosts run the same command; they find each other through the TPU's metadata (--distributed). Only
    # host 0 writes results. nohup: the run goes on after the ssh session. flock: the operating system holds
    # the lock exactly as long as the run lives, so a second copy on a host ends at once.
    command=$(printf '%q ' .venv/bin/lra-spt train --distributed --config="$CONFIG" --workdir="$WORKDIR" \
      "${@:2}")
    logs=$(printf '%q' "$LOGS")
    everywhere "set -e
      cd lra_spt
      mkdir -p $logs
      log=$logs/\$(hostname).log
      if flock -n train.lock true; then
        date -u '+--- started %FT%TZ' >> \"\$log\"
        rm -f train.status
        nohup flock -n train.lock bash -c '\"\$@\"; echo \$? > train.status' - $command \
          >> \"\$log\" 2>&1 < /dev/null &
      else
        echo 'a run lives on this host already, so no second one is started'
      fi"
    ;;
  status)
    # Prints one word. Only answers of hosts count, because the run may be alive when ssh fails. `again`: the
    # last command on this slice ended with status 75 (or 0 on some hosts). `ended`: it ended with status 0 on
    # all hosts.
    answers=$(everywhere "mkdir -p lra_spt
      if test -e $(printf '%q' "$WORKDIR/result.json"); then echo 'run: finished'
      elif ! flock -n lra_spt/train.lock true; then echo 'run: running'
      elif grep -qx 75 lra_spt/train.status 2> /dev/null; then echo 'run: again'
      elif grep -qx 0 lra_spt/train.status 2> /dev/null; then echo 'run: ended'
      else echo 'run: stopped'; fi") || answers=
    case $answers in
      *'run: finished'*) echo finished ;;
      *'run: running'*) echo running ;;
      *'run: stopped'*) echo stopped ;;
      *'run: again'*) echo again ;;
      *'run: ended'*) echo ended ;;
      *) echo unknown ;;
    esac
    ;;
  log)
    tpu ssh "$NAME" --worker=0 --command="tail -n 50 -F $(printf '%q' "$LOGS")/*.log"
    ;;
  fetch_log)
    mkdir -p "launch_logs/$NAME"
    tpu scp --recurse "$NAME":"$LOGS" "launch_logs/$NAME" --worker=0
    ;;
  delete)
    bash launch/tpu_vm.sh fetch_log || echo "the logs were not fetched; they stay in $LOGS on SHARE" >&2
    tpu delete "$NAME"
    ;;
  *)
    echo 'usage: bash launch/tpu_vm.sh create|install|data|train|status|log|fetch_log|delete' >&2
    exit 2
    ;;
esac
