# SPDX-License-Identifier: Apache-2.0
"""Every file of a store of 20 steps is damaged in every way, one file at a time.

A file is missing, cut in half, empty, has its last 4 KiB zeroed or one bit flipped, also in the number of an
ingested table, which no checksum covers. Or a pipe or a folder has its name: who opens a pipe waits for ever.
Then these are asked:

- readers: an answer is that of the whole store, or an error with exit code 3. Steps that do not need the
  file are read as before.
- `check --read-data`: it finds the damage, unless every answer is whole. It names the steps that are lost.
- a writer: it saves a step, or refuses with exit code 3 and names `varve repair`.
- `repair`: it finds what the check found. It keeps every step that a reader could read, and loses those
  that need a lost table (damage_template.py). Only the loss of a table loses steps.
- a writer once more, after the repair or where none was needed: it saves a step, and the store checks clean.

It prints how many damages of each kind of file a check has found or warned of, how many of these name the
file, how many are repaired, and after how many the store can be written. It also prints the damages that a
check finds harmless. VARVE_FULL_SIZE=1 takes every kind of damage for every file, else only some.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import sys

import harness
from damage import damage
from damage_template import Template, varve

FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
TABLE_BITS = ("first", "middle", "late", "index", "footer", "number", "random")
OTHER_BITS = ("first", "middle", "late", "random", "random2", "random3")
# A repair makes anew what tables of these families hold.
DERIVED_FAMILIES = ("births", "counts", "index", "meta")
WHOLE_KINDS = ("missing", "half", "empty", "zeros", "pipe", "folder")


def kind_of(file):
    """What a file is, for the table: a table's family is added by the caller."""
    name = file.name
    for start in ("MANIFEST", "OPTIONS"):
        if name.startswith(start):
            return start
    return "log" if name.endswith(".log") else name


def damaged_steps(check):
    return {f"{step['run']}@{step['step']}" for step in json.loads(check.stdout)["damaged_steps"]}


class Case:
    """One damage of one file. `faults` says what was wrong with the answers."""

    def __init__(self, template, folder, file, kind, seed):
        self.template, self.folder, self.file, self.kind = template, folder, file, kind
        self.what = f"{file} {kind} (seed {seed})"
        self.seed = seed
        self.faults = []
        self.silent = 0
        self.lost = set()
        self.outcome = "no change"
        self.is_named = self.is_repaired = self.is_writable = False
        self.family = template.families.get(file.name)

    def expect(self, holds, fault):
        if not holds:
            self.faults.append(f"{self.what}: {fault}")

    def tells_a_lie(self, fault):
        self.silent += 1
        self.faults.append(f"{self.what}: SILENT: {fault}")

    def judge(self):
        try:
            self.store = self.folder / "store"
            for store in (self.store, self.folder / "written"):
                shutil.copytree(self.template.store, store)
                rng = random.Random(f"{self.seed} {self.file} {self.kind}")
                self.place = damage(store / self.file, self.kind, rng)
                if not self.place:
                    return self
            self.ask_readers()
            self.ask_check()
            self.ask_repair()
            self.ask_writer()
        except AssertionError as error:
            self.outcome = "died"
            self.faults.append(f"{self.what}: {error}")
        finally:
            shutil.rmtree(self.folder)
        return self

    def ask_readers(self):
        self.is_whole = True
        for question, expected in self.template.listed.items():
            done = self.template.list(self.store, question)
            if done.returncode == 0 and done.stdout != expected:
                self.tells_a_lie(f"{question} is not as before")
            if done.returncode != 0:
                self.is_whole = False
                self.expect(
                    done.returncode == harness.DAMAGED,
                    f"{question} exits {done.returncode}: {done.stderr}",
                )
                self.expect(self.file.name in done.stderr, f"{question} says: {done.stderr}")
        self.found = self.template.read_steps(self.store)
        for name, text in self.found.items():
            if text == self.template.read[name]:
                continue
            self.is_whole = False
            if not text.startswith("error"):
                self.tells_a_lie(f"{name} reads as {text}")
            elif text.startswith("error: not found"):
                self.tells_a_lie(f"{name}: {text}")
            else:
                self.expect(text.startswith("error: corruption"), f"{name}: {text}")
        if self.family == "chunks":
            lost = {name for name, text in self.found.items() if text.startswith("error")}
            self.expect_needed(lost, "readers")

    def expect_hidden(self):
        """Which steps readers do not read although repair keeps them.

        Readers find chunks and lists by their addresses. They scan `state` and `tensors`, and a lost table
        hides all between its first and its last key. A damaged block of records hides its neighbours. Repair
        opens the store without the table. It also takes the older record of a step whose metrics were
        changed, and a reader does not, so nothing is asked of `steps`.
        """
        unread = {name for name, text in self.found.items() if text.startswith("error")}
        hidden = unread - self.lost
        if self.family in ("state", "tensors"):
            order = self.template.in_order_of_keys()
            places = [order.index(name) for name in self.lost] or [0]
            first, last = min(places), max(places)
            if self.kind in WHOLE_KINDS:
                between = set(order[first : last + 1]) - self.lost
                self.expect(hidden == between, f"hidden: {hidden}, expected {between}")
            else:
                while first > 0 and order[first - 1] in unread:
                    first -= 1
                while last + 1 < len(order) and order[last + 1] in unread:
                    last += 1
                far = hidden - set(order[first : last + 1])
                self.expect(not far, f"not read, kept by repair, and no neighbours: {far}")
        elif self.family and self.family != "steps":
            self.expect(not hidden, f"not read, and kept by repair: {hidden}")

    def expect_needed(self, lost, who):
        """A whole table of chunks takes exactly the steps that need it, and a bit of it no others."""
        needers = self.template.needers[self.file.name]
        is_right = lost == needers if self.kind in WHOLE_KINDS else lost <= needers
        wrong = sorted(lost ^ needers)
        self.expect(
            is_right, f"{who} lose {sorted(lost)}, which differs in {wrong} from what needs it"
        )

    def ask_check(self):
        done = varve(self.store, "--json", "check", "--read-data")
        if done.returncode == 0:
            warnings = json.loads(done.stdout)["warnings"]
            self.outcome = "warned" if warnings else "harmless"
            if not self.is_whole:
                self.tells_a_lie("check finds nothing")
            is_guard = self.file.name == "SYNCED" or self.file.parent.name == "spare"
            is_right = bool(warnings) == is_guard and all(
                self.file.name in each for each in warnings
            )
            self.expect(is_right, f"check warns: {warnings}")
            self.is_named = bool(warnings) and is_right
            return
        self.outcome = "found"
        self.expect(
            done.returncode == harness.DAMAGED, f"check exits {done.returncode}: {done.stderr}"
        )
        said = " ".join(json.loads(done.stdout)["errors"]) if done.stdout else done.stderr
        # A frame that decodes to other bytes is named by run, step and tensor.
        self.is_named = self.file.name in said or (self.family == "chunks" and "decodes to" in said)
        self.expect(self.is_named, f"check does not name the file: {said[:500]}")
        if not done.stdout:  # nothing can be opened
            self.expect(
                all(text.startswith("error") for text in self.found.values()),
                f"check gives up, but steps are read: {said}",
            )
            return
        damaged = damaged_steps(done)
        for name, text in self.found.items():
            run_name, step = name.split("@")
            # If the names of runs are lost, a step can only be named by the number of its run.
            known = rf"{run_name}|#\d+" if self.family == "meta" else run_name
            if text.startswith("error"):
                named = re.search(rf"\bstep {step} of run ({known})(?![\w@])", said)
                self.expect(named, f"check does not name {name}: {said[:600]}")
            is_listed = any(re.fullmatch(rf"({known})@{step}", one) for one in damaged)
            # Who knows the name of a run reads steps of which a check knows no name.
            is_right = is_listed == text.startswith("error") or is_listed and self.family == "meta"
            self.expect(is_right, f"check lists {sorted(damaged)}, and {name} reads: {text}")
        if self.kind in WHOLE_KINDS and self.family:
            found = damaged_steps(varve(self.store, "--json", "check"))
            self.expect(found == damaged, f"without --read-data check lists {sorted(found)}")

    def ask_repair(self):
        done = varve(self.store, "--json", "repair", "--yes")
        if done.returncode != 0:
            self.outcome = "refused"
            self.expect(False, f"repair exits {done.returncode}: {done.stderr}")
            return
        report = json.loads(done.stdout)
        if not report["damage"]:
            self.expect(self.is_whole, "repair finds nothing")
            self.expect(self.outcome != "found", "check finds damage, and repair finds nothing")
            self.expect_writable(self.store)
            return
        self.is_repaired = True
        found = self.template.read_steps(self.store)
        kept = {f"{step['run']}@{step['step']}" for step in report["kept"]}
        lost = {f"{step['run']}@{step['step']}" for step in report["lost"]}
        if self.family is None or self.family in DERIVED_FAMILIES:
            num_lost = len(self.template.steps) - len(report["kept"])
            self.expect(num_lost == 0, f"repair loses {num_lost} steps")
        if self.family == "chunks":
            self.expect_needed(set(self.template.steps) - kept, "repairs")
        if self.family == "meta":
            self.ask_repaired_without_names(kept)
        if self.family != "meta":  # which run is which may not be known
            self.lost = set(self.template.steps) - kept
            self.expect_hidden()
            for name, text in self.found.items():
                if not text.startswith("error"):
                    self.expect(name in kept, f"repair loses {name}, which can be read")
            for name in set(self.template.steps) - kept - lost:
                self.expect(self.family == "steps" or report["warnings"], f"{name} is not named")
            for name in kept:
                content = self.template.read[name].split()[0]
                self.expect(
                    found[name].split()[0] == content, f"repaired {name} reads: {found[name]}"
                )
        self.expect_writable(self.store)

    def ask_repaired_without_names(self, kept):
        """Only names of runs are lost: each step is there under its number, whatever its run is called."""
        found = self.template.read_steps(self.store, sorted(kept))
        contents = collections.Counter(text.split()[0] for text in found.values())
        expected = collections.Counter(text.split()[0] for text in self.template.read.values())
        self.expect(contents == expected, f"repaired steps hold {contents}, expected {expected}")
        for name, text in found.items():
            content = self.template.read[f"main@{name.split('@')[1]}"].split()[0]
            self.expect(text.split()[0] == content, f"repaired {name} reads: {text}")

    def expect_writable(self, store):
        saved = varve(store, "import", self.template.input, "--step", 1000)
        self.expect(saved.returncode == 0, f"no save after it: {saved.stderr}")
        checked = varve(store, "--json", "check", "--read-data")
        self.expect(checked.returncode == 0, f"check after it: {checked.stdout}{checked.stderr}")
        self.is_writable = saved.returncode == checked.returncode == 0

    def ask_writer(self):
        store = self.folder / "written"
        done = varve(store, "import", self.template.input, "--step", 1000)
        if done.returncode == 0:
            for name, text in self.template.read_steps(store).items():
                before = self.found[name]
                same = text == before or text.startswith("error") and before.startswith("error")
                self.expect(same, f"a save changes what is read: {name}: {text}, before {before}")
            return
        self.expect(self.outcome == "found", f"check finds nothing, a writer: {done.stderr}")
        self.expect(
            done.returncode == harness.DAMAGED, f"a writer exits {done.returncode}: {done.stderr}"
        )
        for text in (self.file.name, "varve repair"):
            self.expect(text in done.stderr, f"a writer does not say {text}: {done.stderr}")


def cases(template):
    """Each file with the kinds of damage to try."""
    everything = ("MANIFEST", "CURRENT", "FORMAT", "SYNCED")
    for number, file in enumerate(template.files):
        is_table = file.suffix == ".sst"
        bits = [f"bit {place}" for place in (TABLE_BITS if is_table else OTHER_BITS)]
        kinds = [*WHOLE_KINDS, *bits]
        if FULL_SIZE or (file.name.startswith(everything) and file.parts[0] != "spare"):
            if file.name.startswith("MANIFEST") and FULL_SIZE:
                kinds += [f"bit random{i}" for i in range(4, 60)]
        elif is_table and number % 3 != 0:
            continue
        else:
            kinds = [kinds[number // 3 % len(kinds)]]
        for kind in kinds:
            yield file, kind


def count(cases):
    """How many cases came to what, as a text."""
    outcomes = collections.Counter(case.outcome for case in cases)
    numbers = {name: outcomes[name] for name in sorted(outcomes)}
    numbers["named"] = sum(case.is_named for case in cases)
    numbers["repaired"] = sum(case.is_repaired for case in cases)
    numbers["writable after it"] = sum(case.is_writable for case in cases)
    numbers["steps lost"] = sum(len(case.lost) for case in cases)
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def print_harmless(cases):
    """Each damage that a check finds harmless, by file. A reader of the list sees what they are."""
    places = collections.defaultdict(list)
    for case in cases:
        if case.outcome == "harmless":
            places[case.file, case.family].append(case.place)
    for (file, family), each in sorted(places.items(), key=lambda item: str(item[0])):
        print(f"harmless: {file}{f' of {family}' if family else ''}: {', '.join(each)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="only files, kinds and families that hold this text"
    )
    options = parser.parse_args()
    table = collections.defaultdict(list)
    with harness.clean_folder() as folder:
        template = Template(folder)
        chosen = [
            (file, kind)
            for file, kind in cases(template)
            if options.only in f"{file} {kind} {template.families.get(file.name, '')}"
        ]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(
                pool.map(
                    lambda i: Case(template, folder / f"case{i}", *chosen[i], options.seed).judge(),
                    range(len(chosen)),
                )
            )
        for case in done:
            row = f"tables of {case.family}" if case.family else kind_of(case.file)
            table[row, case.kind.partition(" ")[0]].append(case)
        faults = [fault for case in done for fault in case.faults]
        gone = [case for case in done if case.family and case.kind == "missing"]
        if len(gone) == len(template.families):
            faults += template.find_wrong_losses({case.file.name: case.lost for case in gone})
        print(f"{'file':<20} {'damage':<8} outcomes")
        for (row, kind), alike in sorted(table.items()):
            print(f"{row:<20} {kind:<8} {count(alike)}")
        print_harmless(done)
        print(f"all: {count(done)}")
        num_changed = sum(case.outcome != "no change" for case in done)
        print(
            f"{num_changed} damages of {len(template.files)} files, seed {options.seed}: "
            f"{sum(case.silent for case in done)} silent answers, {len(faults)} faults"
        )
        assert not faults, "\n".join(fault[:600] for fault in faults[:40])
    return 0


if __name__ == "__main__":
    sys.exit(main())
