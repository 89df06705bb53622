# SPDX-License-Identifier: Apache-2.0
"""Kills a training at random moments while it restores: from a store, or from an object store on a new host.

A load changes no byte of the store. After each kill the store checks clean with its data, and the next start
goes on with the losses of a training that was not killed, bit for bit. What was fetched by half is no store,
and the next start fetches the rest.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time

import harness

FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
MODEL = ["--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", 32]
SAVED, LAST = 3, 5  # steps of the template, and of a training that goes on


def command(*flags):
    program = harness.program("gpt_train")
    flags = [*flags, *MODEL, "--micro-batch-size", 2, "--lr-decay-iters", 100, "--threads", 1]
    return [program, *map(str, flags)]


def losses(text):
    """The bits of the loss of each step."""
    lines = [line.split() for line in text.splitlines() if line.startswith("step ")]
    return {int(words[1]): words[5] for words in lines}


def content(store):
    return {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


class Template:
    def __init__(self, folder):
        self.store, self.remote = folder / "store", folder / "remote"
        harness.command(
            *command("--train-iters", SAVED, "--save", self.store, "--save-interval", 1),
            *("--remote", f"file://{self.remote}"),
        )
        self.steps = {s["step"] for s in harness.varve_json(self.store, "steps")}
        assert self.steps == set(range(1, SAVED + 1)), self.steps


class Load:
    """A start from a store, which it only reads."""

    name = "load"

    def __init__(self, template, folder):
        folder.mkdir()
        self.template, self.store = template, folder / "store"
        shutil.copytree(template.store, self.store)
        self.before = content(self.store)

    def command(self):
        return command("--train-iters", LAST, "--load", self.store)

    def judge(self):
        assert content(self.store) == self.before, "a load has changed the store"
        harness.check(self.store)


class Fetch:
    """A start on a host that has nothing: it fetches the store from the object store, and goes on saving."""

    name = "fetch"

    def __init__(self, template, folder):
        folder.mkdir()
        self.template, self.store, self.remote = template, folder / "store", folder / "remote"
        shutil.copytree(template.remote, self.remote)

    def command(self):
        return [
            *command("--train-iters", LAST, "--load", self.store, "--save", self.store),
            *("--save-interval", "1", "--remote", f"file://{self.remote}"),
        ]

    def judge(self):
        if not (self.store / "FORMAT").exists():
            return
        harness.check(self.store)
        there = {s["step"] for s in harness.varve_json(self.store, "steps")}
        assert self.template.steps <= there, f"a fetched store has only the steps {there}"


def kill_once(kind, template, folder, reference, seconds, rng):
    """Returns whether it was killed before its first step."""
    run = kind(template, folder)
    delay = rng.random() * seconds * 0.7
    log = folder / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen(run.command(), stdout=file, stderr=file)
    time.sleep(delay)
    process.kill()
    was_running = process.wait() == -9
    where = f"{run.name} killed after {delay * 1000:.1f} ms, in {folder}"
    try:
        run.judge()
        done = subprocess.run(run.command(), capture_output=True, text=True)
        assert done.returncode == 0, f"started again: {done.stdout}{done.stderr}"
        found = losses(done.stdout)
        assert all(reference[step] == bits for step, bits in found.items()), found
        before_first_step = not losses(log.read_text(errors="replace"))
        assert not before_first_step or set(found) == set(reference), f"it trained {set(found)}"
        run.judge()
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    shutil.rmtree(folder)
    return was_running and before_first_step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200 if FULL_SIZE else 12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    restoring = {Load: 0, Fetch: 0}
    with harness.clean_folder() as folder:
        template = Template(folder)
        seconds, reference = {}, {}
        for kind in restoring:
            whole = kind(template, folder / f"whole {kind.name}")
            started = time.monotonic()
            reference[kind] = losses(harness.command(*whole.command()))
            seconds[kind] = time.monotonic() - started
        assert set(reference[Load]) == set(range(SAVED + 1, LAST + 1)), reference
        assert reference[Load] == reference[Fetch], "a fetched store has other content"
        for kill in range(options.kills):
            kind = [Load, Fetch][kill % 2]
            restoring[kind] += kill_once(
                kind, template, folder / f"kill{kill}", reference[kind], seconds[kind], rng
            )
    counts = ", ".join(f"{kind.name} {count}" for kind, count in restoring.items())
    assert options.kills < 12 or sum(restoring.values()) > 0, f"no kill in a restore: {counts}"
    print(
        f"{options.kills} kills, seed {options.seed}, before the first step: {counts}. 0 lost, 0 wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
