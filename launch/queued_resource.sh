#!/usr/bin/env bash
# A run on spot TPUs, which may be taken away at any moment: requests a slice, trains, and repeats until done.
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket SHARE=10.0.0.2:/lra
#   bash launch/queued_resource.sh
#   SLICES=2 bash launch/queued_resource.sh      # one run over two slices of ACCELERATOR, lra-0 and lra-1
#   bash launch/queued_resource.sh --config.runtime.mesh.seq=2      # any further flags of `lra-spt train`
#
# Needs gcloud, and if an ssh-agent runs, the key of gcloud in it (`ssh-add ~/.ssh/google_compute_engine`), as
# launch/tpu_vm.sh does. That script also explains BUCKET, SHARE, the data and the logs.
#
# After a loss the same training command resumes from its workdir, which outlives the slice, with the same
# batches on any number of chips. Run this script in tmux. Started again with the same flags, it continues
# with the existing slice and run. To stop: Ctrl-C, then
#   gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force
# It gives up and deletes the slice if training ended three times on it without a result, or if five times in
# a row the slice could not be prepared or, before its first run, did not answer.
#
# Tested with stand-ins for gcloud and ssh (tests/test_launch.py); not run on a cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NAME:?name of the request, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}"
: "${BUCKET:?without gs://}" "${SHARE:?as in SHARE=10.0.0.2:/lra}"
export NAME ZONE BUCKET SHARE
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}     # see launch/tpu_vm.sh for other chips
POLL_SECONDS=${POLL_SECONDS:-60}
SLICES=${SLICES:-1}                     # hosts of several slices find each other through the service

if [ "$SLICES" = 1 ]; then
  nodes=("$NAME")
  asked=(--node-id="$NAME")
else
  nodes=()
  for ((slice = 0; slice < SLICES; slice++)); do nodes+=("$NAME-$slice"); done
  asked=(--node-count="$SLICES" --node-prefix="$NAME")
fi

folder=$(mktemp -d)                     # macOS has no --suffix
trap 'rm -rf "$folder"' EXIT
export ARCHIVE=$folder/lra_spt.tar.gz   # every slice gets the present code
bash launch/tpu_vm.sh pack "$ARCHIVE"

request() { gcloud compute tpus queued-resources "$@" --zone="$ZONE"; }
on_slice() {  # on_slice WORD [FLAGS...]: runs launch/tpu_vm.sh for every slice, until one fails
  local node
  for node in "${nodes[@]}"; do NAME=$node bash launch/tpu_vm.sh "$@" || return; done
}

status() {  # prints one word for all slices; a run is alive while one of its hosts is
  local words word
  words=$(on_slice status)
  for word in finished unknown running stopped again ended; do
    if grep -qx "$word" <<< "$words"; then
      echo "$word"
      return
    fi
  done
  echo unknown
}

state() {  # prints the state of the request: NONE if there is none, UNKNOWN if the service does not answer
  local answer
  if answer=$(request describe "$NAME" --format='value(state.state)' 2>&1); then
    tail -n 1 <<< "$answer"
  elif grep -qiE 'NOT_FOUND|not found' <<< "$answer"; then
    echo NONE
  else
    printf '%s\n' "$answer" >&2
    echo UNKNOWN
  fi
}

remove() {  # deletes the request and its slice
  local turn
  for turn in 1 2 3 4 5; do
    if request delete "$NAME" --force --quiet; then return; fi
    sleep "$POLL_SECONDS"
  done
  echo "the slice could not be deleted, and costs money: gcloud compute tpus queued-resources delete $NAME" \
    "--zone=$ZONE --force" >&2
  return 1
}

finish() {  # fetches the logs and deletes the slice, even if the copy fails: the logs are on SHARE too
  local turn
  for turn in 1 2 3; do
    if on_slice fetch_log; then break; fi
    if [ "$turn" = 3 ]; then echo 'the logs were not fetched; they stay on SHARE, beside the workdir' >&2; fi
    sleep "$POLL_SECONDS"
  done
  remove
}

give_up() {  # give_up WHY
  finish || true   # prints its problems itself
  echo "$1" >&2
  exit 1
}

run=unknown   # of the present slice: none, unknown or started (by this script)
attempts=0    # times that training ended there without a result
failures=0    # failures in a row to prepare it

begin() {  # begin FLAGS...: prepares the slice and starts training
  on_slice install && on_slice data || return
  run=unknown   # if ssh fails in the next line, hosts may have started
  on_slice train "$@" || return
  run=started
  failures=0
}

failed() {  # counts a failure that may not happen again; meanwhile the slice costs money
  failures=$((failures + 1))
  if [ $failures = 5 ]; then
    give_up 'the slice could not be prepared five times in a row: see the messages above'
  fi
}

while true; do
  case $(state) in
    NONE)
      run=none
      attempts=0
      failures=0
      request create "$NAME" "${asked[@]}" --spot \
        --accelerator-type="$ACCELERATOR" --runtime-version="$IMAGE" || echo 'refused: trying again' >&2
      ;;
    ACTIVE)
      now=$(status)
      if [ "$now" = ended ] && [ $run = started ]; then now=finished; fi   # else it may be another command
      case $now in
        finished)
          finish
          echo "done: the result is in the workdir on SHARE, the logs are in launch_logs/$NAME"
          exit
          ;;
        running)
          [ $run = started ] || run=unknown
          ;;
        again | stopped | ended)
          if [ "$now" = stopped ] && [ $run = started ]; then   # a bad config, a non-finite loss
            attempts=$((attempts + 1))
            if [ $attempts = 3 ]; then
              give_up "the training command ended three times without a result: see launch_logs/$NAME"
            fi
          fi
          # Fails if the slice is lost in between, which the next round sees.
          begin "$@" || failed
          ;;
        *)   # ssh fails for a moment, or the slice was just lost
          echo 'the slice does not answer: asking again' >&2
          if [ $run = none ]; then failed; fi   # else a run may be alive on it
          ;;
      esac
      ;;
    FAILED | SUSPENDED)   # taken away: a request serves only once, so it is deleted and made again
      remove
      ;;
    UNKNOWN)
      echo 'the service does not answer: asking again' >&2
      ;;
  esac
  sleep "$POLL_SECONDS"
done
