# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# scripts/demo --remote: the host of a training dies with its disk, and another host goes on from S3.
# A folder below $work stands for the disk of a host. What one host has there, no other opens.
# scripts/demo sets work, train, python and the numbers.
# shellcheck disable=SC2034,SC2154

# Starts a Ceph with a gateway for S3, which ends when this script ends, however that happens.
start_ceph() {
  local line
  exec {ceph_input}> >(exec "$python" tests/support/mini_ceph.py >"$work/ceph" 2>"$work/ceph.err")
  ceph_pid=$!
  # It prints NAME=VALUE of the environment, and then the URL.
  until grep -q '^s3://' "$work/ceph" 2>/dev/null; do
    kill -0 "$ceph_pid" 2>/dev/null || { cat "$work/ceph.err" >&2; fail "Ceph did not start"; }
    sleep 0.05
  done
  while read -r line; do
    if [[ "$line" == s3://* ]]; then url=$line; else export "${line?}"; fi
  done <"$work/ceph"
}

# True when a push has brought the step that is looked at later, and the training has gone on from there.
has_pushed() {
  awk -v at="$look_at" '$1 == "pushed" && $3 >= at {at_push = NR} $1 == "step" && at_push {found = 1}
                        END {exit !found}' "$work/a.log"
}

# The losses of the two hosts, where b goes on after step $1. What a has trained later is lost, and trained again.
losses_of_both() {
  losses "$work/a.log" | awk -v at="$1" '$2 <= at'
  losses "$work/b.log"
}

show_remote() {
  local url="" loaded
  title "1. $iters steps of a GPT-2 with 4.8 million parameters, without interruption and without S3"
  run "${train[@]}" --save "$work/whole/ckpt" | tee "$work/whole.log" | few

  title "2. An object store: Ceph with its gateway for S3, on this machine alone"
  start_ceph
  say "it is at $url"

  title "3. Host a trains the same, and what it saves is pushed in the background. It dies with its disk"
  : >"$work/a.log"
  "${train[@]}" --save "$work/a/ckpt" --load "$work/a/ckpt" --remote "$url" \
    --dump-tensor "$tensor@$look_at=$work/trainer.bin" >"$work/a.log" &
  trainer_pid=$!
  await_trainer has_pushed
  kill_trainer
  few <"$work/a.log"
  rm -r "$work/a"
  say "killed (SIGKILL), and its disk deleted. Left is what S3 has: steps $(steps_of "$url")"

  title "4. Host b, whose disk is empty, starts with the same flags"
  [[ ! -e "$work/b" ]] || fail "host b has a disk already"
  run "${train[@]}" --save "$work/b/ckpt" --load "$work/b/ckpt" --remote "$url" | tee "$work/b.log" | few
  loaded=$(awk '$1 == "loaded" {print $3}' "$work/b.log")
  ((loaded >= look_at)) || fail "host b loaded step '$loaded', expected $look_at or later"
  losses "$work/whole.log" >"$work/whole.losses"
  losses_of_both "$loaded" >"$work/both.losses"
  (($(wc -l <"$work/whole.losses") == iters)) || fail "the uninterrupted run printed too few steps"
  cmp "$work/whole.losses" "$work/both.losses" || fail "the losses differ"
  say "all $iters losses, to $loaded on a and from there on b, are those of the uninterrupted run, bit for bit"

  title "5. Host c has no store at all. It reads one tensor of an old step straight from S3"
  run varve -s "$url" steps | indent
  run varve -s "$url" get "$look_at" "$tensor" --slice "0:2,:4" | indent
  varve -q -s "$url" get "$look_at" "$tensor" -o "$work/s3.bin"
  cmp "$work/trainer.bin" "$work/s3.bin" || fail "$tensor is not what the trainer had"
  say "its $(stat -c %s "$work/s3.bin") bytes are those that the trainer on a wrote itself at step $look_at"

  title "6. The snapshot is sound, and the last states are equal"
  run varve -s "$url" check --read-data | indent
  varve -q -s "$work/whole/ckpt" export "$iters" -o "$work/whole.safetensors"
  varve -q -s "$url" export "$iters" -o "$work/s3.safetensors"
  cmp "$work/whole.safetensors" "$work/s3.safetensors" || fail "the states at step $iters differ"
  say "the states at step $iters are equal: $(stat -c %s "$work/s3.safetensors") bytes each"
}
