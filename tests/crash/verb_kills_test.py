# SPDX-License-Identifier: Apache-2.0
"""Kills every verb of the command at random moments, and lets two processes race.

After each kill a reader finds every step that the verb does not change, with its bytes, and of the others
all or nothing. The store checks clean. The same command works again, and leaves nothing of its own behind.
What the kill left is gone after the next command that writes.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import time

import harness
import safetensors_bytes as files

MAX_TENSOR_BYTES = 60_000
STEPS = range(1, 7)
NEW = 100  # a step that an import saves
NEWER = 1000  # one that the writer after it saves
REFUSED = (harness.EXISTS, harness.NO_STEP)  # the killed command had done its work


class Verb:
    """`changes`: steps that may be there or not, or changed. `work`: what it makes beside the store."""

    def __init__(self, name, arguments, changes=(), damaged=False, fresh=False, copies=False):
        self.name, self.arguments, self.changes = name, arguments, set(changes)
        self.damaged, self.fresh, self.copies = damaged, fresh, copies
        self.seconds = 0.0


def verbs():
    everything = [f"main@{step}" for step in STEPS]
    return [
        Verb("import", ["import", "IN", "--step", NEW], [f"main@{NEW}"]),
        Verb("import new", ["import", "IN", "--step", NEW, "--init"], [f"main@{NEW}"], fresh=True),
        Verb("replace", ["import", "IN", "--step", 6, "--on-existing", "replace"], ["main@6"]),
        Verb("export", ["export", 3, "-o", "DEST/out.safetensors", "--force"]),
        Verb("tag", ["tag", 2, "good"]),
        Verb("metric", ["metric", 2, "loss=1"]),
        Verb("fork", ["fork", "main", "other", "--at", 3]),
        Verb("rewind", ["rewind", "main", "--to", 3], everything[3:]),
        Verb("drop", ["drop", 2, 4], [everything[1], everything[3]]),
        Verb("forget", ["forget", "--keep-last", 2], everything[:4]),
        Verb("reclaim", ["reclaim", "--all"]),
        Verb(
            "copy", ["copy", 1, 5, "DEST/copy", "--init", "--on-existing", "replace"], copies=True
        ),
        Verb("backup", ["backup", "DEST/backup"], copies=True),
        Verb("check", ["check", "--read-data"]),
        Verb("repair", ["repair", "--yes"], everything, damaged=True),
    ]


class Template:
    def __init__(self, folder):
        self.store = folder / "store"
        with harness.StoreTool(self.store, MAX_TENSOR_BYTES) as tool:
            for step in STEPS:
                tool.must(f"save {step} {step}")
            tool.must("save 50 50")
        harness.varve(self.store, "drop", 50, "--no-reclaim")  # a reclaim has work to do
        self.damaged = folder / "damaged"
        shutil.copytree(self.store, self.damaged)
        max(self.damaged.glob("db/*.sst"), key=lambda file: file.stat().st_size).unlink()
        rng = random.Random(3)
        self.input = files.write(
            folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [40_000])}
        )
        self.content = files.read(self.input)
        self.steps = [f"main@{step}" for step in STEPS]
        self.read = read_steps(self.store, self.steps)
        self.read_damaged = read_steps(self.damaged, self.steps)


def read_steps(store, steps):
    done = subprocess.run(
        [harness.program("damage_reader"), store, str(MAX_TENSOR_BYTES), *steps],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: text.split()[0]
        for name, text in (line.split(" ", 1) for line in done.stdout.splitlines())
    }


def listed(store):
    return {f"{s['run']}@{s['step']}" for s in harness.varve_json(store, "steps")}


class Kill:
    """One killed run of a verb in a folder of its own."""

    def __init__(self, template, verb, folder):
        self.template, self.verb, self.folder = template, verb, folder
        self.store, self.dest = folder / "store", folder / "dest"
        self.dest.mkdir(parents=True)
        if not verb.fresh:
            shutil.copytree(template.damaged if verb.damaged else template.store, self.store)
        names = {"IN": str(template.input)}
        self.arguments = [
            names.get(a, a.replace("DEST", str(self.dest)) if isinstance(a, str) else str(a))
            for a in verb.arguments
        ]

    def start(self):
        return subprocess.Popen(
            [harness.program("varve"), "-s", str(self.store), *self.arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, delay):
        """Kills the verb after so many seconds. Returns whether it was still running."""
        process = self.start()
        time.sleep(delay)
        process.kill()
        process.stderr.close()
        return process.wait() == -9

    def judge(self, is_whole_now):
        if self.verb.fresh and not (self.store / "FORMAT").exists():
            return
        expected = self.template.read_damaged if self.verb.damaged else self.template.read
        there = set() if self.verb.fresh else listed(self.store)
        kept = (
            []
            if self.verb.fresh
            else [s for s in self.template.steps if s not in self.verb.changes]
        )
        assert set(kept) <= there, f"lost: {set(kept) - there}"
        found = read_steps(self.store, kept)
        assert found == {name: expected[name] for name in kept}, found
        if is_whole_now or not self.verb.damaged:
            harness.check(self.store)
        if f"main@{NEW}" in there or self.verb.name == "replace" and is_whole_now:
            self.expect_imported(NEW if f"main@{NEW}" in there else 6)

    def expect_imported(self, step):
        out = self.folder / "imported.safetensors"
        harness.varve(self.store, "export", step, "-o", out, "--force")
        assert files.read(out) == self.template.content, f"step {step} has other bytes"

    def left(self):
        """What lies where only a verb that runs keeps files. Names come again, files do not."""
        there = [*self.store.glob("incoming/*"), *self.folder.glob("store~repair")]
        return {(path, path.stat().st_ino) for path in there}

    def again(self):
        by_the_kill = self.left()
        process = self.start()
        said = process.stderr.read()
        process.stderr.close()
        code = process.wait()
        assert code == 0 or code in REFUSED, f"again: exit {code}: {said}"
        self.judge(True)
        # Only a verb that finds its work done opens nothing for writing. The next writer sweeps then.
        may_be_done = code in REFUSED or self.verb.name == "forget"
        left = self.left() - (by_the_kill if may_be_done else set())
        assert not left, f"left behind: {left}"
        harness.varve(self.store, "import", self.template.input, "--step", NEWER)
        assert not self.left(), f"left behind by the kill, and not swept: {self.left()}"
        if self.verb.copies:
            (copy,) = self.dest.iterdir()
            harness.check(copy)
            found = read_steps(copy, sorted(listed(copy)))
            assert found == {name: self.template.read[name] for name in found}, found


def kill_once(template, verb, folder, rng):
    kill = Kill(template, verb, folder)
    delay = rng.random() * verb.seconds * 1.1
    where = f"{verb.name} killed after {delay * 1000:.1f} ms"
    try:
        was_running = kill.run(delay)
        kill.judge(False)
        kill.again()
    except AssertionError as error:
        raise AssertionError(f"{where}, in {folder}: {error}") from error
    shutil.rmtree(folder)
    return was_running


def race(template, folder, rng, number):
    """Two processes make a store, or open it, and commit: the same step, or one each."""
    store = folder / "store"
    if number % 2:
        shutil.copytree(template.store, store)
    else:
        folder.mkdir()
    same = number // 2 % 2 == 0
    command = [harness.program("varve"), "-s", str(store), "import", str(template.input), "--init"]
    racers = []
    for i in range(2):
        step = NEW if same else NEW + i
        racers.append(
            subprocess.Popen(
                [*command, "--step", str(step)],
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        )
        time.sleep(rng.random() * 0.02)
    said = [racer.stderr.read() for racer in racers]
    codes = [racer.wait() for racer in racers]
    for racer in racers:
        racer.stderr.close()
    where = f"race {number}: {codes} {said}"
    assert set(codes) <= {0, harness.LOCKED, harness.EXISTS}, where
    assert 0 in codes, where
    assert codes.count(0) == 1 or not same, where
    saved = {NEW if same else NEW + i for i, code in enumerate(codes) if code == 0}
    there = {int(name.split("@")[1]) for name in listed(store)}
    before = set(STEPS) if number % 2 else set()
    assert there == before | saved, f"{where}: {there}"
    harness.check(store)
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=90)
    parser.add_argument("--races", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    struck = collections.Counter()
    chosen = [verb for verb in verbs() if options.only in verb.name]
    with harness.clean_folder() as folder:
        template = Template(folder)
        for i, verb in enumerate(chosen):
            kill = Kill(template, verb, folder / f"whole{i}")
            started = time.monotonic()
            assert kill.start().wait() == 0, verb.name
            verb.seconds = time.monotonic() - started
            shutil.rmtree(kill.folder)
        rng = random.Random(options.seed)

        def one(i):
            verb = chosen[i % len(chosen)]
            mine = random.Random(f"{options.seed} {i}")
            return verb.name, kill_once(template, verb, folder / f"kill{i}", mine)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, was_running in pool.map(one, range(options.kills)):
                struck[name] += was_running
        for number in range(options.races):
            race(template, folder / f"race{number}", rng, number)
    assert options.kills < 60 or sum(struck.values()) > options.kills // 6, struck
    print("killed while running:", json.dumps(struck))
    print(
        f"{options.kills} kills of {len(chosen)} verbs, seed {options.seed}: 0 steps lost, 0 partial, "
        f"0 left behind. {options.races} races: one winner each"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
