# SPDX-License-Identifier: Apache-2.0
"""Kills one rank of gpt_train at a random moment. The others must end by themselves and name that rank.

Each survivor's last words name the dead rank. Every step that rank 0 called saved is there afterwards, but
for those that retention has removed. Each step that is there has, bit for bit, the tensors that a training
that nobody killed has at that step. So no part of a step is there that was only begun. How long the slowest
survivor took is printed. With --within SECONDS, more is a failure.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time

import harness
import safetensors_bytes as files

MODEL = [
    "--num-layers",
    2,
    "--hidden-size",
    64,
    "--num-attention-heads",
    4,
    "--seq-length",
    32,
    "--micro-batch-size",
    4,
    "--lr-decay-iters",
    1000,
    "--threads",
    1,
]
NUM_RANKS = 4
KEPT = 3  # steps, by retention
PATIENCE = 300  # seconds, only so that the test ends


def trainer(root, last, *more):
    arguments = [*MODEL, "--tp", 2, "--dp", 2, "--zero", "--train-iters", last]
    arguments += ["--save", root, "--save-interval", 1, "--load", root, *more]
    return [harness.program("gpt_train"), *map(str, arguments)]


class Straight:
    """A training that nobody kills. It goes on when a later step is asked for."""

    AHEAD = 20  # steps, so that few starts serve many kills

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "straight"
        self.last = 0
        self.known = {}

    def tensors(self, step):
        """{name: (dtype, shape, bytes)}"""
        if step > self.last:
            self.last = step + self.AHEAD
            harness.command(*trainer(self.root, self.last, "--spawn", NUM_RANKS))
        if step not in self.known:
            self.known[step] = export(self.root, step, self.folder)
        return self.known[step]


def export(root, step, folder):
    out = folder / "exported.safetensors"
    harness.varve(root, "export", step, "-o", out, "--force")
    return files.read(out)


def start(folder, root, timeout):
    """The ranks, whose output is in files."""
    environment = os.environ | {
        "WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(harness.free_port()),
        "TORCHELASTIC_RUN_ID": str(folder),
    }
    command = trainer(
        root, 100000, "--max-checkpoint-keep", KEPT, "--rank-timeout-in-secs", timeout
    )
    processes = []
    for rank in range(NUM_RANKS):
        with open(folder / f"rank-{rank}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    command, env=environment | {"RANK": str(rank)}, stdout=log, stderr=log
                )
            )
    return processes


def await_line(begin, folder, processes):
    deadline = time.monotonic() + PATIENCE
    while begin not in (folder / "rank-0.log").read_bytes():
        if any(p.poll() is not None for p in processes) or time.monotonic() > deadline:
            sys.exit("the job does not train:\n" + (folder / "rank-0.log").read_text())
        time.sleep(0.02)


def expect_steps(folder, root, straight):
    """What was saved is there, and what is there was saved whole. Returns how many steps had to be there."""
    said = (folder / "rank-0.log").read_text()
    trained = {int(step) for step in re.findall(r"^step (\d+) ", said, re.MULTILINE)}
    saved = {int(step) for step in re.findall(r"^saved step (\d+) ", said, re.MULTILINE)}
    there = {entry["step"] for entry in harness.varve_json(root, "steps")}
    must_be_there = saved & set(sorted(saved | there)[-KEPT:])
    lost = must_be_there - there
    if lost:
        sys.exit(
            f"steps {sorted(lost)} were saved, and only {sorted(there)} are there:\n{said[-2000:]}"
        )
    if not there <= trained:
        sys.exit(f"steps {sorted(there)} are there, and only {sorted(trained)} were trained")
    for step in sorted(there):
        found, expected = export(root, step, folder), straight.tensors(step)
        wrong = [n for n in found.keys() | expected if found.get(n) != expected.get(n)]
        if wrong:
            sys.exit(
                f"step {step}: {len(wrong)} tensors are missing or not what was trained: {wrong[:5]}"
            )
    return len(must_be_there)


def kill_one(options, rng, folder, straight, begin):
    """How long the slowest survivor took, in seconds, and how many steps had to be there.

    The kill comes up to a second after rank 0 has said `begin`.
    """
    root = folder / "root"
    processes = start(folder, root, options.timeout)
    try:
        await_line(begin, folder, processes)
        time.sleep(rng.uniform(0, 1))
        victim = rng.randrange(NUM_RANKS)
        killed = time.monotonic()
        os.kill(processes[victim].pid, signal.SIGKILL)
        survivors = [rank for rank in range(NUM_RANKS) if rank != victim]
        for rank in survivors:
            processes[rank].wait(timeout=PATIENCE)
        seconds = time.monotonic() - killed
        for rank in survivors:
            said = (folder / f"rank-{rank}.log").read_text()
            if processes[rank].returncode != 1 or f"rank {victim}" not in said:
                sys.exit(
                    f"rank {rank} ended with {processes[rank].returncode} after rank {victim} "
                    f"was killed, and said:\n{said[-2000:]}"
                )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    harness.check(root)
    return seconds, expect_steps(folder, root, straight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=10, help="seconds, of the ranks")
    parser.add_argument("--within", type=float, help="seconds")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    slowest, num_steps = 0, 0
    with harness.clean_folder() as folder:
        straight = Straight(folder)
        for kill in range(options.kills):
            # One at least comes after a save.
            begin = b"step " if kill else b"saved step "
            with harness.clean_folder() as job:
                seconds, found = kill_one(options, rng, job, straight, begin)
                slowest, num_steps = max(slowest, seconds), num_steps + found
    if not num_steps:
        sys.exit("no step was saved before any of the kills")
    print(
        f"{options.kills} ranks killed, seed {options.seed}: the slowest survivor returned with the "
        f"rank's name after {slowest:.1f} s. All {num_steps} steps that were saved and kept are there, and "
        "what is there is what was trained, bit for bit"
    )
    if options.within is not None and slowest > options.within:
        sys.exit(f"expected at most {options.within} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
