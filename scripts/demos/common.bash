# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the shows of scripts/demo share: how they print, fail and kill a trainer.
# shellcheck disable=SC2154  # scripts/demo sets work

title() { printf '\n== %s\n' "$*"; }
say() { printf '   %s\n' "$*"; }
# Runs a command and shows it, on the terminal only: its output may go to a file.
run() { printf '   $ %s\n' "${*//$work\//}" >&2; "$@"; }
fail() { echo "demo: FAILED: $*" >&2; exit 1; }
indent() { sed -u 's/^/   /'; }

# Every fifth step and all that is not a step.
few() { grep --line-buffered -v '^step [0-9]*[1-46-9] ' | indent; }
# "step N loss X bits Y" of each step in a log.
losses() { awk '$1 == "step" {print $1, $2, $3, $4, $5, $6}' "$@"; }
# One integer of the JSON object on standard input.
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
steps_of() { varve -s "$1" --json steps | python3 -c 'import json, sys
print(*[s["step"] for s in json.load(sys.stdin)])'; }
disk_of() { du -s --block-size=1 "$1" | cut -f1; }
mb() { awk -v b="$1" 'BEGIN {printf "%.1f MB", b / 1e6}'; }
# Kills the trainer that runs in the background, as a host that is lost. It must not have ended by itself.
kill_trainer() {
  local status=0
  kill -KILL "$trainer_pid"
  wait "$trainer_pid" 2>/dev/null || status=$?
  trainer_pid=""
  ((status == 128 + 9)) || fail "the trainer ended by itself with status $status"
}
# Waits for a condition, a command, while the trainer runs.
await_trainer() {
  until "$@"; do
    kill -0 "$trainer_pid" 2>/dev/null || fail "the trainer ended before it could be killed"
    sleep 0.01
  done
}
