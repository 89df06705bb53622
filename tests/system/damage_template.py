# SPDX-License-Identifier: Apache-2.0
"""The store that damage_matrix_test.py damages, and what a damage of each of its tables must cost.

What a step needs is known from the sound store alone: no damaged store is read to find out.
"""

import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess

import harness
import safetensors_bytes as files

MAX_TENSOR_BYTES = 20_000
NUM_STEPS = 20
SESSIONS = (range(1, 15), range(15, NUM_STEPS + 1))  # save ids go on in another block
FORKS = (5, 9, 12, 13, 14)
# RocksDB merges the tables of a family of records once it has eight. These saves add none to some families,
# so that their last tables are not merged. A fork adds a table to the others.
REPEATS = {6: 5, 18: 17}  # step -> the content that it repeats
MEASURED = 12  # the step that gets a metric later than its save, and so has two records
FEWEST_TABLES = 2  # of a family. With one table "other steps are read as before" says nothing
# A merge runs in the background. On a busy machine it may come late and take all tables of a family.
MOST_ATTEMPTS = 10


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=250)
    assert done.returncode >= 0, f"{command} died of signal {-done.returncode}\n{done.stderr}"
    return done


def varve(store, *arguments):
    return run(harness.program("varve"), "-s", store, *arguments)


class Template:
    """A store of 20 steps and some forks, and what every question about it is answered."""

    def __init__(self, folder):
        self.folder = folder
        self.store = folder / "store"
        for _ in range(MOST_ATTEMPTS):
            self.make()
            self.families = self.find_families()
            numbers = collections.Counter(self.families.values())
            if min(numbers.values()) >= FEWEST_TABLES:
                break
            shutil.rmtree(self.store)
        else:
            raise AssertionError(f"tables of each family: {numbers}")
        self.input = files.write(
            folder / "in.safetensors", {"w": files.random_tensor(random.Random(2), "F32", [500])}
        )
        self.listed = {q: self.list(self.store, q).stdout for q in ("steps", "runs")}
        self.read = self.read_steps(self.store)
        assert not any(text.startswith("error") for text in self.read.values()), self.read
        self.files = sorted(
            file.relative_to(self.store) for file in self.store.rglob("*") if file.is_file()
        )
        self.needers = self.find_needers()

    def make(self):
        self.steps = []  # in the order in which their records were saved
        self.save(SESSIONS[0])
        harness.varve(self.store, "tag", 3, "good")
        for step in FORKS:
            harness.varve(self.store, "fork", "main", f"side{step}", "--at", step)
            self.steps.append(f"side{step}@{step}")
        self.save(SESSIONS[1])
        harness.varve(self.store, "metric", MEASURED, "loss=0.5")

    def save(self, steps):
        with harness.StoreTool(self.store, MAX_TENSOR_BYTES) as tool:
            for step in steps:
                tool.must(f"save {step} {REPEATS.get(step, step)}")
                self.steps.append(f"main@{step}")

    def in_order_of_keys(self):
        """The steps in the order of their keys: by the number of their run, which main has first."""
        return sorted(
            self.steps, key=lambda name: (not name.startswith("main@"), self.steps.index(name))
        )

    def find_families(self):
        """Table file -> family, as a check names it once the file is missing."""
        tables = list(self.store.rglob("*.sst"))
        for file in tables:
            file.rename(file.with_suffix(".saved"))
        said = varve(self.store, "check").stdout
        for file in tables:
            file.with_suffix(".saved").rename(file)
        families = dict(re.findall(r"(\d+\.sst) of family (\w+) is missing", said))
        assert len(families) == len(tables), said
        return families

    def find_needers(self):
        """Table of chunks -> the steps that need it.

        Where all other steps are dropped, a reclaim leaves the tables that a step needs. It goes by counts
        and reads no damaged store. It may write a table anew, which then has the save id of the old one.
        """
        needers = {file: set() for file, family in self.families.items() if family == "chunks"}
        by_save = {save_of(self.store / "db" / file): file for file in needers}
        assert len(by_save) == len(needers), f"tables of chunks with the same first save: {by_save}"
        others = set(self.families) - set(needers)

        def needed_by(step):
            store = self.folder / f"needed by {step}"
            shutil.copytree(self.store, store)
            harness.varve(store, "drop", *[each for each in self.steps if each != step])
            left = [file for file in store.glob("db/*.sst") if file.name not in others]
            saves = {save_of(file) for file in left}
            shutil.rmtree(store)
            return {by_save[save] for save in saves & set(by_save)}

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for step, tables in zip(self.steps, pool.map(needed_by, self.steps), strict=True):
                for file in tables:
                    needers[file].add(step)
        assert all(needers.values()), needers
        return needers

    def list(self, store, question):
        return varve(store, "--json", question)

    def read_steps(self, store, steps=None):
        steps = self.steps if steps is None else steps
        done = run(harness.program("damage_reader"), store, MAX_TENSOR_BYTES, *steps)
        if done.returncode == 1:
            return dict.fromkeys(steps, done.stdout.strip())
        return dict(line.split(" ", 1) for line in done.stdout.splitlines())

    def find_wrong_losses(self, lost):
        """What the loss of one table after the other took wrongly. `lost`: table -> steps that it took.

        The rules are those of docs/durability.md. Case asks that of `chunks` of each damage.
        """
        wrong = []
        for family in ("state", "steps", "tensors"):
            # Each step has its records in one table, and later tables have those of later saves. The step
            # with a metric has two records of itself. If they lie in two tables, none takes the step.
            excepted = {f"main@{MEASURED}"} if family == "steps" else set()
            parts = [lost[file] - excepted for file in lost if self.families[file] == family]
            parts.sort(key=lambda part: min(map(self.steps.index, part), default=-1))
            taken = [step for part in parts for step in sorted(part, key=self.steps.index)]
            expected = [step for step in self.steps if step not in excepted]
            if taken != expected:
                wrong.append(f"tables of {family}: they take {parts}, not each step once, in order")
        return wrong + self.find_wrong_losses_of_lists(lost)

    def find_wrong_losses_of_lists(self, lost):
        """A step needs the list of each tensor, which was saved when the tensor changed last.

        A table has the lists of some saves that follow one another. The first of them is the first step that
        the loss of the table takes.
        """
        changes = collections.defaultdict(set)  # tensor -> steps of main at which it changed
        for change in json.loads(varve(self.store, "--json", "log", "*").stdout):
            if change["chunks"]:
                changes[change["name"]].add(change["step"])
        needed = {}  # step -> the saves whose lists it needs
        for name in self.steps:
            step = int(name.split("@")[1])
            needed[name] = {max(s for s in each if s <= step) for each in changes.values()}
        tables = {file: steps for file, steps in lost.items() if self.families[file] == "lists"}
        firsts = {
            file: min((int(step.split("@")[1]) for step in steps), default=0)
            for file, steps in tables.items()
        }
        wrong = []
        for file, first in firsts.items():
            after = min((f for f in firsts.values() if f > first), default=NUM_STEPS + 1)
            saves = set(range(first, after))
            expected = {name for name in self.steps if needed[name] & saves}
            if tables[file] != expected:
                wrong.append(f"{file} of lists takes {tables[file]}, expected {expected}")
        if len(set(firsts.values())) != len(firsts) or min(firsts.values(), default=0) != 1:
            wrong.append(f"tables of lists, and the first step that each takes: {firsts}")
        return wrong


def save_of(file):
    """The save id in the first key of a table of chunks, whose blocks are not compressed. 0: another table.

    An entry of a block is three varints (bytes shared with the key before, other bytes of the key, bytes of
    the value) and the key: save id and number of the chunk, big endian, and 8 bytes of RocksDB.
    """
    data = file.read_bytes()
    numbers, place = [], 0
    while len(numbers) < 3:
        start = place
        while data[place] & 0x80:
            place += 1
        place += 1
        numbers.append(sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[start:place])))
    is_chunk = numbers[:2] == [0, 20]
    return int.from_bytes(data[place : place + 8], "big") if is_chunk else 0
