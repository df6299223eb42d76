#!/usr/bin/env bash
# A run on spot TPUs, which may be taken away at any moment: asks for a slice, trains, asks again until done.
#
#   export NAME=lra ZONE=us-west4-a BUCKET=my-bucket SHARE=10.0.0.2:/lra
#   bash launch/queued_resource.sh
#   SLICES=2 bash launch/queued_resource.sh      # as one run over two slices, lra-0 and lra-1, of ACCELERATOR
#   bash launch/queued_resource.sh --config.runtime.mesh.seq=2      # any further flags of `lra-spt train`
#
# Needs what launch/tpu_vm.sh needs: gcloud, and where an ssh-agent runs, the key of gcloud in it
# (`ssh-add ~/.ssh/google_compute_engine`).
#
# Works because the training command is the same after every loss: it resumes from its workdir, which outlives
# the slice, with the same batches, whatever the number of chips. BUCKET and SHARE are as in launch/tpu_vm.sh,
# which also says how to prepare the data and where logs are. Keep this script alive in tmux; started again,
# with the same flags, it goes on with the slice and the run that it finds. To stop: Ctrl-C, then
#   gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force
# It gives up, and removes the slice, when training has ended by itself three times on it, or when the slice
# could not be prepared five times in a row (nor asked whether a run lives there, before there was one).
#
# Tried so far: tests/test_launch.py runs it against stand-ins for gcloud and ssh; not run on a cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NAME:?name of the request, as in NAME=lra}" "${ZONE:?as in ZONE=us-west4-a}"
: "${BUCKET:?without gs://}" "${SHARE:?as in SHARE=10.0.0.2:/lra}"
export NAME ZONE BUCKET SHARE
ACCELERATOR=${ACCELERATOR:-v5litepod-16}
IMAGE=${IMAGE:-v2-alpha-tpuv5-lite}     # see launch/tpu_vm.sh for other chips
POLL_SECONDS=${POLL_SECONDS:-60}
SLICES=${SLICES:-1}                     # the service tells their hosts of each other, and jax asks it

if [ "$SLICES" = 1 ]; then
  nodes=("$NAME")
  asked=(--node-id="$NAME")
else
  nodes=()
  for ((slice = 0; slice < SLICES; slice++)); do nodes+=("$NAME-$slice"); done
  asked=(--node-count="$SLICES" --node-prefix="$NAME")
fi

folder=$(mktemp -d)                     # not --suffix, which macOS does not know
trap 'rm -rf "$folder"' EXIT
export ARCHIVE=$folder/lra_spt.tar.gz   # every slice gets the code as it is now
bash launch/tpu_vm.sh pack "$ARCHIVE"

request() { gcloud compute tpus queued-resources "$@" --zone="$ZONE"; }
on_slice() {  # on_slice WORD [FLAGS...]: on every slice, to the first failure
  local node
  for node in "${nodes[@]}"; do NAME=$node bash launch/tpu_vm.sh "$@" || return; done
}

status() {  # one word for all slices: a run lives while one of its hosts does
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

state() {  # of the request; NONE only where the service says so, UNKNOWN where it cannot be asked
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

remove() {  # the request and its slice
  local turn
  for turn in 1 2 3 4 5; do
    if request delete "$NAME" --force --quiet; then return; fi
    sleep "$POLL_SECONDS"
  done
  echo "the slice could not be deleted, and costs money: gcloud compute tpus queued-resources delete $NAME" \
    "--zone=$ZONE --force" >&2
  return 1
}

finish() {  # the slice ends, its log stays here; it is on SHARE too, so a failed copy must not keep the slice
  local turn
  for turn in 1 2 3; do
    if on_slice fetch_log; then break; fi
    if [ "$turn" = 3 ]; then echo 'the logs were not fetched; they stay on SHARE, beside the workdir' >&2; fi
    sleep "$POLL_SECONDS"
  done
  remove
}

give_up() {  # give_up WHY
  finish || true   # it says itself what did not work
  echo "$1" >&2
  exit 1
}

run=unknown   # whether the slice that there is now has one: none, unknown, started (by this script)
attempts=0    # ends by itself on that slice
failures=0    # to get as far as training there, in a row

begin() {  # begin FLAGS...: all that comes before training, and its start
  on_slice install && on_slice data || return
  run=unknown   # when ssh fails in the next line, hosts may have started
  on_slice train "$@" || return
  run=started
  failures=0
}

failed() {  # may work the next time, or never: meanwhile the slice costs money
  failures=$((failures + 1))
  if [ $failures = 5 ]; then
    give_up 'the slice could not be prepared five times in a row: see what its hosts or gcloud say above'
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
      if [ "$now" = ended ] && [ $run = started ]; then now=finished; fi   # else by another command, maybe
      case $now in
        finished)
          finish
          echo "done: the result is in the workdir on SHARE, the logs are in launch_logs/$NAME"
          exit
          ;;
        running)
          [ $run = started ] || run=unknown
          ;;
        again | stopped | ended)   # again: with status 75, which asks for it
          if [ "$now" = stopped ] && [ $run = started ]; then   # by itself: a bad config, a non-finite loss
            attempts=$((attempts + 1))
            if [ $attempts = 3 ]; then
              give_up "the training command ended three times without a result: see launch_logs/$NAME"
            fi
          fi
          # May fail when the slice is lost in between; the next round finds out.
          begin "$@" || failed
          ;;
        *)   # ssh fails for a moment, or the slice was just lost: the next round finds out
          echo 'the slice does not answer: asking again' >&2
          if [ $run = none ]; then failed; fi   # else a run may live on it
          ;;
      esac
      ;;
    FAILED | SUSPENDED)   # taken away: a request serves once, so it is deleted and made again
      remove
      ;;
    UNKNOWN)
      echo 'the service does not answer: asking again' >&2
      ;;
  esac
  sleep "$POLL_SECONDS"
done
