# SPDX-License-Identifier: Apache-2.0
"""Kills every verb of the command at random moments, and lets two processes race.

After each kill a reader finds every step that the verb does not change, with its bytes, and of the
others all or nothing. A step that is replaced is there with its old bytes or the new ones. The store
checks clean. The same command works again, and leaves nothing of its own behind. What the kill left is
gone after the next command that writes.
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
import store_verbs
from store_verbs import NEW, STEPS, Template, listed, verbs


class Kill(store_verbs.Run):
    """One killed run of a verb."""

    def __init__(self, template, verb, folder):
        super().__init__(template, verb, folder)
        self.said = open(folder / "said", "w+")

    def start(self):
        self.said.seek(0)
        self.said.truncate()
        return subprocess.Popen(
            self.command,
            stdout=self.said,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def run(self, delay):
        """Kills the verb after so many seconds. Returns whether it was still running."""
        process = self.start()
        time.sleep(delay)
        process.kill()
        process.stderr.close()
        return process.wait() == -9

    def judge(self):
        self.expect_kept()
        if self.is_there() and self.verb.start != "damaged":
            harness.check(self.store)
        if self.verb.makes == "file":
            names = [path.name for path in self.dest.iterdir()]
            assert len(names) <= 1 and names[:1] in ([], ["out.safetensors"], ["out.npy"]), names

    def left(self):
        """What lies where only a verb that runs keeps files. Names come again, files do not."""
        there = [
            *self.store.glob("incoming/*"),
            *self.folder.glob("store~repair"),
            *self.folder.rglob("*.tmp"),
            *self.folder.rglob(".varve-*"),
        ]
        return {(path, path.stat().st_ino) for path in there}

    def again(self):
        by_the_kill = self.left()
        process = self.start()
        said = process.stderr.read()
        process.stderr.close()
        code = process.wait()
        assert code == 0 or code in store_verbs.REFUSED, f"again: exit {code}: {said}"
        self.expect_whole()
        self.said.seek(0)
        self.expect_answer(self.said.read())
        # Only a verb that finds its work done opens nothing for writing. The next writer sweeps then.
        may_be_done = code in store_verbs.REFUSED or self.verb.name == "forget"
        left = self.left() - (by_the_kill if may_be_done else set())
        assert not left, f"left behind: {left}"
        self.command = [*self.command[:3], "import", str(self.template.input)]
        self.command += ["--step", str(store_verbs.NEWER)]
        assert self.start().wait() == 0, "a writer after the verb was refused"
        assert not self.left(), f"left behind by the kill, and not swept: {self.left()}"
        unnamed = unnamed_tables(self.store)
        assert not unnamed, f"tables that no manifest names: {unnamed}"
        self.said.close()


def unnamed_tables(store):
    """The table files in db/ that the manifest does not name. A backup copies those that it names."""
    copy = store.with_name("copy of it")
    harness.varve(store, "backup", copy)
    named = {path.name for path in copy.glob("db/*.sst")}
    shutil.rmtree(copy)
    return {path.name for path in store.glob("db/*.sst")} - named


def kill_once(template, verb, seconds, folder, rng):
    kill = Kill(template, verb, folder)
    delay = rng.random() * seconds * 1.1
    where = f"{verb.name} killed after {delay * 1000:.1f} ms"
    try:
        was_running = kill.run(delay)
        kill.judge()
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
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--races", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    struck = collections.Counter()
    chosen = [verb for verb in verbs() if options.only in verb.name]
    with harness.clean_folder() as folder:
        os.environ["TMPDIR"] = str(folder)  # a push that is killed leaves its temporary folder
        template = Template(folder)
        seconds = store_verbs.run_unhindered(template, chosen, folder / "unhindered")
        rng = random.Random(options.seed)

        def one(i):
            verb = chosen[i % len(chosen)]
            mine = random.Random(f"{options.seed} {i}")
            mine_in = folder / f"kill{i}"
            return verb.name, kill_once(template, verb, seconds[verb.name], mine_in, mine)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, was_running in pool.map(one, range(options.kills)):
                struck[name] += was_running
        for number in range(options.races):
            race(template, folder / f"race{number}", rng, number)
    print("killed while running:", json.dumps(struck))
    assert options.kills < 60 or sum(struck.values()) > options.kills // 6, "too few were running"
    # At full size this asks for 6 of the 60 kills of each verb.
    floor = options.kills // len(chosen) // 10
    spared = [verb.name for verb in chosen if struck[verb.name] < floor]
    assert not spared, f"killed less than {floor} times while they were running: {spared}"
    print(
        f"{options.kills} kills of {len(chosen)} verbs, seed {options.seed}: 0 steps lost, 0 partial, "
        f"0 left behind. {options.races} races: one winner each"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
