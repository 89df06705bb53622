# SPDX-License-Identifier: Apache-2.0
"""Kills a writing process at random moments and judges what is left.

The writer announces each change before it begins and reports it when it has returned; from that
journal this program knows, for each step, which contents may be there. After each kill a reader looks
at the store as it lies, and the shipped command checks every chunk.
"""

import argparse
import collections
import random
import select
import subprocess
import sys
import time

import harness

# The writer may be killed once it has announced one of these.
MOMENTS = ["open", "saving large", "saving small", "dropping", "reclaiming"]
ABSENT = None


class Journal:
    """What may be in the store: for each (run, step) the set of its possible contents."""

    def __init__(self):
        self.allowed = collections.defaultdict(lambda: {ABSENT})
        self.announced = {}
        self.committed = 0
        self.next_content = 1

    def add(self, line):
        verb, *words = line.split()
        place = tuple(words[:2])
        if verb == "saving":
            content = int(words[2])
            self.announced[place] = content
            self.allowed[place].add(content)
            self.next_content = max(self.next_content, content + 1)
        elif verb == "saved":
            self.allowed[place] = {self.announced[place]}
            self.committed += 1
        elif verb == "dropping":
            self.allowed[place].add(ABSENT)
        elif verb == "dropped":
            self.allowed[place] = {ABSENT}

    def compare(self, found):
        """Compares with (run, step) → content. Returns lost steps and steps that should not exist."""
        lost, strange = [], []
        for place in set(found) | set(self.allowed):
            content = found.get(place, ABSENT)
            if content not in self.allowed[place]:
                (lost if content is ABSENT else strange).append((place, content))
        return lost, strange

    def judge(self, found):
        """The same after the writer's death: from then on it is what was found."""
        verdict = self.compare(found)
        for place in set(found) | set(self.allowed):
            self.allowed[place] = {found.get(place, ABSENT)}
        return verdict


class Writer:
    """A crash_writer process and the lines it has printed."""

    def __init__(self, store, seed, journal):
        self.process = subprocess.Popen(
            [harness.program("crash_writer"), str(store), str(seed), str(journal.next_content)],
            stdout=subprocess.PIPE,
        )
        self.journal = journal
        self.rest = b""
        self.lines = []

    def take(self, data):
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            self.lines.append(line.decode())
            self.journal.add(self.lines[-1])

    def read_until(self, deadline, wanted=lambda line: False):
        """Reads lines until one is wanted or the deadline has passed."""
        seen = len(self.lines)
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            if not ready:
                return
            data = self.process.stdout.read1(1 << 16)
            assert data, f"the writer ended by itself with {self.process.wait()}"
            self.take(data)
            if any(wanted(line) for line in self.lines[seen:]):
                return
            seen = len(self.lines)

    def kill(self):
        self.process.kill()
        self.take(self.process.stdout.read())
        self.process.stdout.close()
        assert self.process.wait() == -9, (
            f"the writer ended by itself with {self.process.returncode}"
        )


def run_and_kill(store, seed, journal, rng):
    """Lets a writer work for a random while. Returns what it was at when it died."""
    writer = Writer(store, seed, journal)
    moment = rng.choice(MOMENTS + ["any"])
    if moment == "any":
        writer.read_until(time.monotonic() + rng.uniform(0, 2))
    else:
        for _ in range(rng.randint(1, 4)):
            writer.read_until(time.monotonic() + 3, lambda line: line.startswith(moment))
        time.sleep(rng.choice([0.0005, 0.005, 0.05]) * rng.random())
    writer.kill()
    return " ".join(writer.lines[-1].split()[:2]) if writer.lines else "opening"


def read_store(store):
    """What a reader finds: (run, step) → content, and the steps that are not whole."""
    done = subprocess.run(
        [harness.program("crash_reader"), str(store)], capture_output=True, text=True
    )
    if done.returncode == harness.NO_STORE:
        return {}, []
    assert done.returncode == 0, done.stderr
    found, partial = {}, []
    for line in done.stdout.splitlines():
        run, step, content, verdict = line.split(" ", 3)
        found[run, step] = int(content)
        if verdict != "ok":
            partial.append(line)
    return found, partial


def orphans(store):
    """Opens for writing, which sweeps, gives all dead space back, and returns what still leaks."""
    report = harness.varve_json(store, "reclaim", "--all")
    stats = harness.varve_json(store, "stats")
    leaks = [str(file) for file in (store / "incoming").glob("*")]
    if report["pending_bytes"] != 0:
        leaks.append(f"{report['pending_bytes']} pending bytes")
    # Beside the chunks: the reserve of 8 MiB, and records, logs and table indexes.
    allowance = stats["stored_bytes"] // 10 + 24 * harness.MIB
    if stats["disk_bytes"] > stats["stored_bytes"] + allowance:
        leaks.append(f"{stats['disk_bytes']} bytes on disk for {stats['stored_bytes']} stored")
    return leaks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    journal = Journal()
    moments = collections.Counter()
    lost, strange, partial, leaked, sweeps = [], [], [], [], 0
    with harness.clean_folder() as folder:
        store = folder / "store"
        for kill in range(options.kills):
            moments[run_and_kill(store, options.seed * 100000 + kill, journal, rng)] += 1
            found, torn = read_store(store)
            now_lost, now_strange = journal.judge(found)
            lost, strange, partial = lost + now_lost, strange + now_strange, partial + torn
            if (store / "FORMAT").exists():
                harness.check(store)
                if rng.random() < 0.4 or kill == options.kills - 1:
                    leaked += orphans(store)
                    harness.check(store)
                    sweeps += 1
            assert not (lost or strange or partial or leaked), (
                f"kill {kill}, seed {options.seed}: lost {lost}, not as journaled {strange}, "
                f"partial {partial}, leaked {leaked}"
            )
    print("killed at:", ", ".join(f"{moment} {n}" for moment, n in sorted(moments.items())))
    print(
        f"{options.kills} kills, seed {options.seed}, {journal.committed} committed steps: "
        f"{len(lost)} lost, {len(strange) + len(partial)} partial or strange steps visible, "
        f"{len(leaked)} orphans in {sweeps} sweeps"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
