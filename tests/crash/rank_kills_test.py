# SPDX-License-Identifier: Apache-2.0
"""Kills one rank of gpt_train at a random moment. The others must end by themselves and name that rank.

Each survivor's last words name the dead rank, and every step that the store shows afterwards is whole.
How long the slowest survivor took is printed. With --within SECONDS, more is a failure.
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import harness

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
PATIENCE = 300  # seconds, only so that the test ends


def start(folder, root, timeout):
    """The ranks, whose output is in files."""
    environment = os.environ | {
        "WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(harness.free_port()),
        "TORCHELASTIC_RUN_ID": str(folder),
    }
    command = list(
        map(
            str,
            [
                harness.program("gpt_train"),
                *MODEL,
                "--tp",
                2,
                "--dp",
                2,
                "--zero",
                "--train-iters",
                100000,
                "--save",
                root,
                "--save-interval",
                1,
                "--max-checkpoint-keep",
                3,
                "--load",
                root,
                "--rank-timeout-in-secs",
                timeout,
            ],
        )
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


def await_first_save(folder, processes):
    deadline = time.monotonic() + PATIENCE
    while b"step " not in (folder / "rank-0.log").read_bytes():
        if any(p.poll() is not None for p in processes) or time.monotonic() > deadline:
            sys.exit("the job does not train:\n" + (folder / "rank-0.log").read_text())
        time.sleep(0.02)


def kill_one(options, rng, folder):
    """How long the slowest survivor took, in seconds."""
    root = folder / "root"
    processes = start(folder, root, options.timeout)
    try:
        await_first_save(folder, processes)
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
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=10, help="seconds, of the ranks")
    parser.add_argument("--within", type=float, help="seconds")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    slowest = 0
    for _ in range(options.kills):
        with harness.clean_folder() as folder:
            slowest = max(slowest, kill_one(options, rng, pathlib.Path(folder)))
    print(
        f"{options.kills} ranks killed, seed {options.seed}: the slowest survivor returned with the "
        f"rank's name after {slowest:.1f} s"
    )
    if options.within is not None and slowest > options.within:
        sys.exit(f"expected at most {options.within} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
