# SPDX-License-Identifier: Apache-2.0
"""Restart storm: the ranks of a group are killed, stopped and started again at random moments, while a
collector drops steps and a reader compares every byte of what it finds.

What must hold all along: what rank 0 was told to be saved is there until it is dropped, what it was told
to have failed is not, a checkpoint that can be opened is whole, and a rank of an earlier start changes
nothing. At the end, nothing leaks: members and catalogues hold what the log names, and nothing else.

With --mutations the protocol is broken on purpose, in one way at a time; the storm must find each.
"""

import argparse
import collections
import random
import select
import subprocess
import sys
import time

import harness

SUPERSEDED = 3  # exit code of a rank that has found a later start
MUTATIONS = ["stale-roots", "sweep-without-look", "reuse-attempt", "forget-shard"]


class Violation(Exception):
    """The storm has found what must not be."""


class Journal:
    """What may be in the group: for each step, whether it must, may or must not be there."""

    def __init__(self):
        self.events = collections.defaultdict(set)
        self.why = collections.defaultdict(list)  # saves failed

    def add(self, line):
        event, step, *why = [*line.split(" ", 2), ""]
        if event in ("saving", "saved", "failed", "dropping", "dropped"):
            self.events[int(step)].add(event)
            self.why[int(step)] += filter(None, why)

    def count(self, event):
        return sum(event in events for events in self.events.values())

    def judge(self, found):
        """Lines come from several processes, so only their sum counts, not their order."""
        for step in set(found) | set(self.events):
            events = self.events[step]
            if "dropped" in events or "failed" in events or not events:
                allowed = {False}
            elif "dropping" in events or "saved" not in events:
                allowed = {False, True}
            else:
                allowed = {True}
            if (step in found) not in allowed:
                there = "there" if step in found else "not there"
                raise Violation(f"step {step} is {there} after {events} {self.why[step]}")
            events.add("saved" if step in found else "dropped")


class Process:
    """A group_worker and the lines it prints."""

    def __init__(self, program, journal, *arguments):
        self.what = " ".join(map(str, arguments))
        self.journal = journal
        self.rest = b""
        self.lines = collections.Counter()
        self.process = subprocess.Popen(
            [program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.fate = set()  # exit codes that are no violation

    def take(self, data):
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            self.lines[line.decode().split(" ")[0]] += 1
            self.journal.add(line.decode())

    def finish(self):
        out, err = self.process.communicate()
        self.take(out)
        if self.process.returncode not in self.fate:
            raise Violation(f"{self.what} ended with {self.process.returncode}: {err.decode()}")

    def kill(self):
        self.fate.add(-9)
        self.process.kill()
        self.finish()


class Storm:
    """A group and the processes that work in it."""

    def __init__(self, options, folder, program):
        self.rng = random.Random(options.seed)
        self.program = program
        self.root = folder / "root"
        self.journal = Journal()
        self.epoch = 0
        self.instances = 0
        self.ranks = {}
        self.others = {}
        self.hung = []
        self.events = collections.Counter()

    def spawn(self, *arguments):
        return Process(self.program, self.journal, *arguments)

    def all(self):
        return [*self.ranks.values(), *self.others.values(), *self.hung]

    def watch(self, seconds):
        """Reads what all of them print. One that ends must have had a reason."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            streams = {p.process.stdout: p for p in self.all()}
            for stream in select.select(list(streams), [], [], min(left, 0.05))[0]:
                process = streams[stream]
                if data := stream.read1(1 << 16):
                    process.take(data)
                    continue
                process.finish()
                for group in (self.ranks, self.others):
                    for key in [k for k, p in group.items() if p is process]:
                        del group[key]
                self.hung = [p for p in self.hung if p is not process]

    def start_rank(self, rank):
        """Each instance of rank 0 saves steps of its own: lines of one that hangs are read late."""
        self.instances += 1
        self.ranks[rank] = self.spawn(
            "rank", self.root, rank, self.epoch, self.rng.randrange(1 << 30), self.instances * 10000
        )

    def begin_epoch(self, num_ranks):
        done = subprocess.run(
            [self.program, "epoch", str(self.root), str(num_ranks)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Violation(f"epoch: {done.stderr}")
        self.epoch = int(done.stdout)

    def restart(self, num_ranks):
        """A start of the job, which ends that of any ranks that are still there."""
        self.begin_epoch(num_ranks)
        for process in self.hung:
            process.fate.add(SUPERSEDED)
        self.ranks = {}
        for rank in range(num_ranks):
            self.start_rank(rank)
        for name in ("collect", "read"):
            if name not in self.others:
                self.others[name] = self.spawn(name, self.root, self.rng.randrange(1 << 30))

    def await_save(self):
        """Waits until a save is under way, if ranks get so far."""
        before = self.journal.count("saving")
        for _ in range(20):
            self.watch(0.05)
            if self.journal.count("saving") > before:
                break
        self.watch(self.rng.uniform(0, 0.6))

    def strike(self):
        """One thing that goes wrong."""
        event = self.rng.choice(["rank", "rank", "rank", "rank", "rank 0", "collector", "stop"])
        if event == "collector":
            if "collect" in self.others:
                self.others.pop("collect").kill()
                self.others["collect"] = self.spawn(
                    "collect", self.root, self.rng.randrange(1 << 30)
                )
        elif self.ranks:
            rank = 0 if event == "rank 0" else self.rng.choice(list(self.ranks))
            process = self.ranks.pop(rank, None)
            if process is None:
                return
            if event == "stop":
                process.process.send_signal(subprocess.signal.SIGSTOP)
                process.fate.add(SUPERSEDED)  # another instance of its rank may come
                self.hung.append(process)
            else:
                process.kill()
            # It comes back by itself, as often as not, before the others have noticed.
            if self.rng.random() < 0.7:
                self.start_rank(rank)
        self.events[event] += 1

    def end_round(self):
        """All ranks die at once, or are left behind: some hang and wake up after the restart."""
        for rank in list(self.ranks):
            process = self.ranks.pop(rank)
            if self.rng.random() < (0.5 if rank == 0 else 0.3):
                process.process.send_signal(subprocess.signal.SIGSTOP)
                self.hung.append(process)
                self.events["hangs over"] += 1
            else:
                process.kill()

    def wake(self):
        for process in self.hung:
            process.process.send_signal(subprocess.signal.SIGCONT)
        deadline = time.monotonic() + 300
        while self.hung and time.monotonic() < deadline:
            self.watch(0.2)
        if self.hung:
            raise Violation(f"{self.hung[0].what} woke up and did not notice that it is over")

    def judge(self):
        """Runs when no other process is at work."""
        for process in self.all():
            process.kill()
        self.ranks, self.others, self.hung = {}, {}, []
        self.begin_epoch(1)  # ends what the dead have left open
        done = subprocess.run(
            [self.program, "judge", str(self.root)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Violation(f"judge: {done.stderr}")
        found = set()
        for line in done.stdout.splitlines():
            kind, _, rest = line.partition(" ")
            step, _, verdict = rest.partition(" ")
            if kind != "step" or verdict != "ok":
                raise Violation(line)
            found.add(int(step))
        self.journal.judge(found)
        self.events["judged"] += 1

    def calm(self):
        """Undisturbed, a group goes on. (A save may fail because a rank is slow to start.)

        The wait is as long as a busy machine may need: it ends with the third save.
        """
        self.restart(2)
        saved = self.journal.count("saved")
        for _ in range(720):
            self.watch(0.5)
            if self.journal.count("saved") >= saved + 3:
                return
        raise Violation("a group that nobody disturbs does not get on")

    def run(self, attempts):
        while self.journal.count("saving") < attempts:
            self.restart(self.rng.randint(1, 4))
            if self.hung:
                self.watch(self.rng.uniform(0, 1))
                self.wake()
            for _ in range(self.rng.randint(0, 6)):
                self.watch(self.rng.choice([0.2, 0.5, 1.5]) * self.rng.random() + 0.1)
                if self.rng.random() < 0.7:
                    self.await_save()
                self.strike()
            self.watch(self.rng.uniform(0, 1.5))
            if self.rng.random() < 0.25:
                self.judge()
                self.calm()
            self.end_round()
        self.judge()
        self.calm()
        self.judge()

    def close(self):
        for process in self.all():
            process.process.kill()
            process.process.communicate()


def run_storm(options, program):
    with harness.clean_folder() as folder:
        storm = Storm(options, folder, program)
        try:
            storm.run(options.attempts)
        finally:
            storm.close()
        journal = storm.journal
        print(
            f"seed {options.seed}: {journal.count('saving')} attempts, {journal.count('saved')} saved, "
            f"{journal.count('dropping')} dropped, {storm.epoch} starts; "
            + ", ".join(f"{what} {n}" for what, n in sorted(storm.events.items()))
            + "; 0 violations, 0 leaks"
        )


def run_mutations(options):
    """Each mistake must be found within a few storms. Without one the same program must pass."""
    program = harness.program("group_worker_mutant")
    run_storm(options, program)
    for mutation in MUTATIONS:
        subprocess.os.environ["VARVE_MUTATION"] = mutation
        for seed in range(options.seed, options.seed + 8):
            try:
                run_storm(argparse.Namespace(seed=seed, attempts=options.attempts), program)
            except Violation as violation:
                print(f"{mutation}: found with seed {seed}: {violation}")
                break
        else:
            raise Violation(f"{mutation} was not found")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutations", action="store_true")
    options = parser.parse_args()
    if options.mutations:
        run_mutations(options)
    else:
        run_storm(options, harness.program("group_worker"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
