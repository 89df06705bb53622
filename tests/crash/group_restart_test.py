# SPDX-License-Identifier: Apache-2.0
"""Kills a rank of gpt_train in the middle of a save and starts the job again with fewer ranks.

The last step that was committed must be there, be what a training that nobody killed has at that step,
and load into the ranks of the new start; of the save that was cut off nothing may be seen, and nothing
be left. A rank of the old start that was stopped meanwhile wakes up and must change nothing. Then the
same under mpirun, which kills the whole job. Where there is no MPI, that half is left out. With --mpi
that is a failure.
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import harness
import ml_dtypes  # noqa: F401, so that numpy knows bfloat16
import numpy as np
from safetensors.numpy import load_file

MODEL = [
    "--num-layers",
    3,
    "--hidden-size",
    128,
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
RANKS = {2: ["--tp", 2], 3: ["--pp", 3], 4: ["--tp", 2, "--dp", 2, "--zero"]}
VICTIM, HUNG = 2, 3  # of the four ranks
ATTEMPTS = 50


class Wrong(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Wrong(what)


def trainer(num_ranks, root, last, interval=1):
    return list(
        map(
            str,
            [
                harness.program("gpt_train"),
                *MODEL,
                *RANKS[num_ranks],
                "--train-iters",
                last,
                "--save",
                root,
                "--save-interval",
                interval,
                "--load",
                root,
            ],
        )
    )


class Job:
    """A start of the trainer with four ranks that are processes of this one. Their output is in files."""

    def __init__(self, folder, root):
        self.folder = folder
        self.pids = {}
        self.processes = {}
        environment = os.environ | {
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(harness.free_port()),
            "TORCHELASTIC_RUN_ID": "restart",
        }
        for rank in range(4):
            with open(self.log(rank), "wb") as log:
                self.processes[rank] = subprocess.Popen(
                    trainer(4, root, 100000),
                    env=environment | {"RANK": str(rank)},
                    stdout=log,
                    stderr=log,
                )
            self.pids[rank] = self.processes[rank].pid

    def log(self, rank=0):
        return self.folder / f"rank-{rank}.log"

    def is_running(self):
        return all(process.poll() is None for process in self.processes.values())

    def strike(self):
        """One rank dies, another hangs, and the launcher ends the others."""
        os.kill(self.pids[HUNG], signal.SIGSTOP)
        os.kill(self.pids[VICTIM], signal.SIGKILL)
        for rank in (0, 1):
            os.kill(self.pids[rank], signal.SIGKILL)
        for rank in (0, 1, VICTIM):
            self.processes[rank].wait()

    def wake(self):
        """The rank that hung must find out by itself that it is over."""
        os.kill(self.pids[HUNG], signal.SIGCONT)
        code = self.processes[HUNG].wait(timeout=400)
        check(code == 1, f"the rank that woke up exited {code}")
        return self.log(HUNG).read_text().splitlines()[-1]

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


class MpiJob:
    """The same with mpirun."""

    def __init__(self, folder, root):
        self.folder = folder
        with open(self.log(), "wb") as log:
            self.mpirun = subprocess.Popen(mpirun(4, root, 100000), stdout=log, stderr=log)

    def log(self):
        return self.folder / "mpirun.log"

    def is_running(self):
        return self.mpirun.poll() is None

    def ranks(self):
        path = pathlib.Path(f"/proc/{self.mpirun.pid}/task/{self.mpirun.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def strike(self):
        """A rank dies, and mpirun kills the others."""
        pids = self.ranks()
        os.kill(pids[VICTIM], signal.SIGKILL)
        check(self.mpirun.wait(timeout=400) != 0, "mpirun did not notice")
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.05)

    def end(self):
        if self.mpirun.poll() is None:
            for pid in self.ranks():
                os.kill(pid, signal.SIGKILL)
        self.mpirun.wait()


def mpirun(num_ranks, *arguments):
    return harness.mpirun(num_ranks, *trainer(num_ranks, *arguments))


def is_writing(root):
    """True when a rank has started to write its part of a save."""
    for incoming in root.glob("members/*/incoming"):
        with contextlib.suppress(FileNotFoundError):
            if any(os.scandir(incoming)):
                return True
    return False


def steps_of(root):
    return [entry["step"] for entry in harness.varve_json(root, "steps")]


def kill_during_save(start, root, rng):
    """Starts jobs until one was struck in the middle of a save. That job, and the step of the save."""
    for _ in range(ATTEMPTS):
        num_saves = rng.randint(1, 4)
        job = start()
        try:
            while job.is_running() and job.log().read_text().count("\nsaved step ") < num_saves:
                time.sleep(0.01)
            while job.is_running() and not is_writing(root):
                pass
            check(job.is_running(), f"the job ended by itself:\n{job.log().read_text()}")
            job.strike()
        except BaseException:
            job.end()
            raise
        unfinished = harness.varve_json(root, "show", "latest")["unfinished"]
        if any(VICTIM in save["missing_ranks"] for save in unfinished):
            return job, unfinished[0]["step"]
        job.end()
    raise Wrong(f"{ATTEMPTS} kills came between two saves")


class Restart:
    def __init__(self, folder, rng):
        self.folder = folder
        self.rng = rng

    def export(self, root, step):
        out = self.folder / "state.safetensors"
        harness.varve(root, "export", step, "-o", out, "--force")
        return load_file(out)

    def is_right(self, root, step):
        """The step is that of a training that was not killed: the same ranks have the same bits."""
        expected_root = self.folder / f"straight-{step}"
        if not expected_root.exists():
            harness.command(*spawn(4, expected_root, step, step))
        expected, found = self.export(expected_root, step), self.export(root, step)
        check(sorted(expected) == sorted(found), f"step {step}: not the same tensors")
        for name, tensor in expected.items():
            a, b = (
                np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (tensor, found[name])
            )
            check(np.array_equal(a, b), f"step {step}: {name} is not what it should be")
        return len(expected)

    def nothing_leaks(self, root):
        leaks = harness.run("group_worker", "leaks", root)
        check(not leaks, leaks)
        harness.check(root)

    def run(self, num_ranks, start, launch):
        root = self.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        job, cut_off = kill_during_save(lambda: start(self.folder, root), root, self.rng)
        try:
            steps = steps_of(root)
            last = steps[-1]
            check(cut_off == last + 1, f"step {cut_off} was cut off, and the last is {last}")
            harness.check(root)
            num_tensors = self.is_right(root, last)
            log = harness.command(*launch(num_ranks, root, last + 2))
            check(f"\nloaded step {last} of run main " in log, log)
            check(steps_of(root) == [*steps, last + 1, last + 2], f"steps {steps_of(root)}")
            said = ""
            if isinstance(job, Job):
                said = f"; the rank that hung said: {job.wake()}"
                check(steps_of(root) == [*steps, last + 1, last + 2], f"steps {steps_of(root)}")
            check(self.is_right(root, last) == num_tensors, "tensors are missing")
            self.nothing_leaks(root)
        finally:
            job.end()
        print(
            f"{start.__name__}: killed in the save of step {cut_off}; {num_ranks} ranks loaded step {last}, "
            f"{num_tensors} tensors, bit for bit, and went on{said}",
            flush=True,
        )


def spawn(num_ranks, *arguments):
    return [*trainer(num_ranks, *arguments), "--spawn", str(num_ranks)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mpi", action="store_true", help="fail where there is no MPI")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    why_no_mpi = harness.why_no_mpi()
    if options.mpi and why_no_mpi:
        sys.exit(f"group_restart: FAILED: it is to run under mpirun, too, but {why_no_mpi}")
    with harness.clean_folder() as folder:
        restart = Restart(folder, random.Random(options.seed))
        try:
            for _ in range(options.rounds):
                for num_ranks in (2, 3):
                    restart.run(num_ranks, Job, spawn)
                for num_ranks in () if why_no_mpi else (2, 3):
                    restart.run(num_ranks, MpiJob, mpirun)
        except Wrong as wrong:
            sys.exit(f"group_restart: FAILED: {wrong}")
    if why_no_mpi:
        print(f"HALF OF THIS TEST DID NOT RUN, the one under mpirun: {why_no_mpi}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
