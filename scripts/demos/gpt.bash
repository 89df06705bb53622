# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# scripts/demo: a GPT-2 is trained, killed in the middle of a save, resumed, queried and thinned out.
# scripts/demo sets work, train and the numbers.
# shellcheck disable=SC2034,SC2154

# True when the save before has ended and files of this one lie in incoming/, which the commit has not moved
# into the store yet.
is_saving() {
  grep -q "^step $kill_at " "$work/killed.log" &&
    grep -q "^saved step $((kill_at - every)) " "$work/killed.log" &&
    { compgen -G "$work/ckpt/incoming/*" || grep "^saved step $kill_at " "$work/killed.log"; } >/dev/null
}

show_gpt() {
  local resumed_at old before after freed pending
  title "1. $iters steps of a GPT-2 with 4.8 million parameters, without interruption"
  run "${train[@]}" --save "$work/whole" | tee "$work/whole.log" | few

  title "2. The same again, killed (SIGKILL) while step $kill_at is saved in the background"
  : >"$work/killed.log"
  "${train[@]}" --save "$work/ckpt" --dump-tensor "$tensor@$look_at=$work/trainer.bin" \
    >"$work/killed.log" &
  trainer_pid=$!
  await_trainer is_saving
  kill_trainer
  few <"$work/killed.log"
  say "killed. Files of the unfinished save: $(find "$work/ckpt/incoming" -type f | wc -l)"
  say "The store has the steps: $(steps_of "$work/ckpt")"
  if grep -q "^saved step $kill_at " "$work/killed.log"; then
    say "(the save had ended when the signal came)"
  fi

  title "3. Resumed from the store, the losses are those of the uninterrupted run, bit for bit"
  run "${train[@]}" --save "$work/ckpt" --load "$work/ckpt" | tee "$work/resumed.log" | few
  resumed_at=$(awk '$1 == "loaded" {print $3}' "$work/resumed.log")
  [[ -n "$resumed_at" ]] || fail "the resumed run loaded nothing"
  [[ -z "$(find "$work/ckpt/incoming" -type f)" ]] || fail "leftovers of the killed save are still there"
  losses "$work/whole.log" >"$work/whole.losses"
  { losses "$work/killed.log" | awk -v at="$resumed_at" '$2 <= at'; losses "$work/resumed.log"; } \
    >"$work/resumed.losses"
  (($(wc -l <"$work/whole.losses") == iters)) || fail "the uninterrupted run printed too few steps"
  cmp "$work/whole.losses" "$work/resumed.losses" || fail "the losses differ"
  say "all $iters losses are equal; the last: $(tail -n 1 "$work/resumed.losses")"
  varve -q -s "$work/whole" export "$iters" -o "$work/whole.safetensors"
  varve -q -s "$work/ckpt" export "$iters" -o "$work/ckpt.safetensors"
  cmp "$work/whole.safetensors" "$work/ckpt.safetensors" || fail "the states at step $iters differ"
  say "the states at step $iters are equal: $(stat -c %s "$work/ckpt.safetensors") bytes each"
  rm "$work"/*.safetensors

  title "4. What each save cost (bytes)"
  awk 'BEGIN {printf "   %4s %12s %12s %12s %8s\n", "step", "logical", "new", "stored", "ms"}
       $1 == "saved" {printf "   %4s %12s %12s %12s %8s\n", $3, $5, $7, $9, $11}' \
    "$work/killed.log" "$work/resumed.log"

  title "5. One tensor at step $look_at, read from the store"
  run varve -s "$work/ckpt" get "$look_at" "$tensor" | indent
  run varve -s "$work/ckpt" get "$look_at" "$tensor" --slice "0:2,:4" | indent
  varve -q -s "$work/ckpt" get "$look_at" "$tensor" -o "$work/store.bin"
  cmp "$work/trainer.bin" "$work/store.bin" || fail "$tensor is not what the trainer had"
  say "its $(stat -c %s "$work/store.bin") bytes are those that the trainer wrote itself at step $look_at"

  title "6. Old steps are dropped and their space comes back"
  old=$(steps_of "$work/ckpt" | tr ' ' '\n' | head -n -2 | xargs)
  before=$(disk_of "$work/ckpt")
  say "du before: $(mb "$before") in the steps $(steps_of "$work/ckpt")"
  # shellcheck disable=SC2086  # one argument a step
  run varve -s "$work/ckpt" --json drop $old | tee "$work/drop.json" | indent
  after=$(disk_of "$work/ckpt")
  say "du after:  $(mb "$after") in the steps $(steps_of "$work/ckpt")"
  freed=$(field freed_bytes <"$work/drop.json")
  pending=$(field pending_bytes <"$work/drop.json")
  ((freed > 0 && before - after >= freed * 9 / 10)) || fail "$freed bytes freed, but du shows less"
  ((pending <= after / 2)) || fail "more than half of the store is garbage: $pending bytes"

  title "7. The store is sound and what is left reads as before"
  run varve -s "$work/ckpt" check --read-data | indent
  for step in $(steps_of "$work/ckpt"); do
    for store in whole ckpt; do
      varve -q -s "$work/$store" get "$step" "$tensor" -o "$work/$store-$step.bin"
    done
    cmp "$work/whole-$step.bin" "$work/ckpt-$step.bin" || fail "step $step changed by the drop"
  done
  run varve -s "$work/ckpt" stats | indent
}
