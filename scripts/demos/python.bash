# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# scripts/demo --python. scripts/demo sets work and python.
# shellcheck disable=SC2034,SC2154

# Runs Python lines in one session and shows each with its result, as the prompt of Python does.
session() {
  "$python" -c 'import code, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(1))
console = code.InteractiveConsole()
console.showtraceback = lambda: sys.exit(console.__class__.showtraceback(console) or 1)
for line in sys.stdin:
    print(">>>", line, end="", flush=True)
    console.push(line.rstrip())' | indent
}

show_python() {
  title "1. A training of 40 steps, without interruption (examples/python/minimal.py)"
  run "$python" examples/python/minimal.py "$work/whole" 40 >"$work/whole.log"
  grep -E '^step [0-9]*[05] ' "$work/whole.log" | indent

  title "2. The same again, killed (SIGKILL) after step 20"
  "$python" examples/python/minimal.py "$work/ckpt" 40 >"$work/killed.log" &
  trainer_pid=$!
  until grep -q '^step 20 ' "$work/killed.log"; do
    kill -0 "$trainer_pid" 2>/dev/null || fail "the trainer ended before step 20"
    sleep 0.01
  done
  kill -KILL "$trainer_pid"
  wait "$trainer_pid" 2>/dev/null || true
  trainer_pid=""
  say "killed. The last line: $(tail -n 1 "$work/killed.log")"

  title "3. Started again, it goes on where it was, and its losses are those of the uninterrupted run"
  run "$python" examples/python/minimal.py "$work/ckpt" 40 >"$work/resumed.log"
  head -n 2 "$work/resumed.log" | indent
  # A step may have been saved whose line the killed trainer has not printed.
  local resumed_at
  resumed_at=$(awk 'NR == 1 {print $2}' "$work/resumed.log")
  awk -v at="$resumed_at" '$2 >= at' "$work/whole.log" | cmp - "$work/resumed.log" ||
    fail "the losses differ"
  say "the losses of the steps $resumed_at to 39 are equal, bit for bit"

  title "4. Looking back"
  cd "$work" || return
  session <<'PY'
import numpy as np, varve
store = varve.open("ckpt", "a")
store
store["best:loss"], store[10].metrics
w = store[10]["w"]; w
w[100:103]                               # reads only the chunks that overlap
whole = varve.open("whole")
same = [np.array_equal(store[step]["w"], whole[step]["w"]) for step in range(40)]; assert all(same); len(same)
store.diff(10, 11, values=True).changed[0].values.max_abs
[info.step for info in store.steps()][-3:]
store.close()
PY

  title "5. Old steps are dropped, and the store is sound"
  session <<'PY'
import numpy as np, varve
store, whole = varve.open("ckpt", "a"), varve.open("whole")
plan = store.forget(keep_last=3, keep_best="loss:1", keep_every=10, dry_run=True); plan.kept
store.forget(keep_last=3, keep_best="loss:1", keep_every=10).drop.dropped[0]
same = [np.array_equal(store[step]["w"], whole[step]["w"]) for step in plan.kept]; assert all(same); same
report = store.check(read_data=True); report.num_steps, report.ok
assert report.ok and plan.kept == [info.step for info in store.steps()]
store.close()
PY
}
