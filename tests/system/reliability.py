# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that show that nothing is lost, and prints one table (scripts/must_show reliability).

Each row is one or more programs. A row is met when all of them end with 0 and print the numbers that the
row names. What they print goes to FOLDER/ROW.log. The environment makes a row smaller, and the table says
so:

  VARVE_CUTS=some      power cuts and faults at some operations (full: at each)
  VARVE_KILLS=2000     SIGKILLs of the command
  VARVE_FUZZ_SECONDS=15  for each fuzz target in each round
  VARVE_FUZZ_EXECUTIONS=100000000  of all fuzz targets: so many rounds are run
  VARVE_DAMAGE=some    damages of some files (full: every file in every way)
  VARVE_SOAK_STEPS=120000  all but the first quarter are judged
  VARVE_ROWS=1,4       only these rows
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest

import command_faults_test
import harness

ROOT = pathlib.Path(__file__).parents[2]
# These take longest, because ranks wait for each other, and readers for a disk that has failed for good. They
# begin first, each as so many processes (tests/store/faults/sweep.h).
LONG = (
    "GroupFaultsTest",
    "TwoRanksFaultsTest",
    "RepairFaultsTest.What",
    "BackupFaultsTest.TheFirst",
    "BackupFaultsTest.ALaterOne",
    "FaultsTest.Reclaim",
    "SealedFaultsTest.Reclaim",
)
SWEEP_PARTS = 4


def setting(name, default):
    return os.environ.get(f"VARVE_{name}", default)


class Failed(Exception):
    """Says what failed, and what the program printed."""


class Row:
    """One row. Its programs write to one log."""

    def __init__(self, number, folder):
        self.lock = threading.Lock()  # of the log
        self.log = folder / f"{number}.log"
        self.log.write_text("")

    def run(self, program, *arguments, full=True, part=None):
        """Runs a program and returns what it printed. `part`: of its sweep of faults, such as "2/8"."""
        command = [program, *arguments]
        environment = dict(os.environ)
        environment.pop("VARVE_FULL_SIZE", None)
        environment.pop("VARVE_SWEEP_PART", None)
        if full:
            environment["VARVE_FULL_SIZE"] = "1"
        if part:
            environment["VARVE_SWEEP_PART"] = part
        done = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment,
        )
        which = f", part {part}" if part else ""
        said = f"$ {' '.join(map(str, command))}{which}\n{done.stdout}exit {done.returncode}\n"
        with self.lock, self.log.open("a") as log:
            log.write(said)
        if done.returncode != 0:
            program, *rest = [str(each) for each in command if each != sys.executable]
            name = " ".join([pathlib.Path(program).name, *rest])
            raise Failed(f"{name}{which}: exit {done.returncode}", done.stdout)
        return done.stdout

    def python(self, script, *arguments, full=True):
        return self.run(sys.executable, ROOT / script, *arguments, full=full)


def total(pattern, text):
    """The sum of what all matches say. No row is met that counts none."""
    numbers = [int(number) for number in re.findall(pattern, text)]
    if not sum(numbers):
        raise Failed(f"nothing says {pattern!r}, or all say 0", text)
    return sum(numbers)


def find(pattern, text):
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        raise Failed(f"nothing says {pattern!r}", text)
    return found[-1]


def tests_of(case):
    return [f"{case.__name__}.{name}" for name in unittest.TestLoader().getTestCaseNames(case)]


def gtests_of(program):
    """The names of the tests of a program of GoogleTest."""
    listed = subprocess.run(
        [program, "--gtest_list_tests"], stdout=subprocess.PIPE, text=True, check=True
    )
    names, suite = [], None
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].strip()
        if not line.startswith(" "):
            suite = name if name.endswith(".") else None
        elif suite:
            names.append(suite + name)
    if not names:
        raise Failed(f"{program} lists no test")
    return names


def faults(row):
    full = setting("CUTS", "full") == "full"
    # Many wait for a call that fails to be tried again, or for another rank. With so many the cores are busy.
    with concurrent.futures.ThreadPoolExecutor(6 * os.cpu_count()) as pool:

        def start(program, tests, parts=(None,)):
            command = [harness.program(program), "--gtest_brief=1"]
            return [
                pool.submit(row.run, *command, f"--gtest_filter={test}", full=full, part=part)
                for test in tests
                for part in parts
            ]

        of_io = gtests_of(harness.program("faults_test"))
        long = [test for test in of_io if test.startswith(LONG)]
        parts = [f"{part}/{SWEEP_PARTS}" for part in range(SWEEP_PARTS)] if full else [None]
        programs = start("faults_test", long, parts)
        of_cuts = start("power_cut_test", gtests_of(harness.program("power_cut_test")))
        of_commands = [
            pool.submit(row.python, command_faults_test.__file__, each, full=full)
            for each in tests_of(command_faults_test.CommandFaultsTest)
        ]
        programs += start("faults_test", [test for test in of_io if test not in long])
    failed = [
        str(program.exception().args[0])
        for program in [*of_cuts, *of_commands, *programs]
        if program.exception()
    ]
    if failed:
        raise Failed(", ".join(failed))
    cuts = "".join(each.result() for each in of_cuts)
    commands = "".join(each.result() for each in of_commands)
    io = "".join(each.result() for each in programs)
    num_cuts = total(r"(\d+) power cuts", cuts)
    num_operations = total(r"cuts at (\d+) operations", cuts)
    violations = re.findall(r"operations, (\d+) violations", cuts)
    planted = re.findall(r"^planted: .*: found by cut", cuts, re.MULTILINE)
    planted_io = re.findall(r"^planted: .*: found by fault", io, re.MULTILINE)
    if set(violations) != {"0"} or not planted or not planted_io:
        raise Failed(f"violations {violations}, planted mistakes {planted}, {planted_io}", cuts)
    num_faults = total(r"(\d+) faults", io) + total(r"(\d+) faults", commands)
    return (
        f"{num_cuts} power cuts at {num_operations} operations, 0 violations; "
        f"{len(planted)} planted mistakes found; {num_faults} faults of calls, 0 violations; "
        f"{len(planted_io)} planted mistakes found"
    )


def kills(row):
    text = row.python("tests/crash/verb_kills_test.py", "--kills", setting("KILLS", "2000"))
    return find(r"(\d+ kills of .*)", text)


def fuzzers(row):
    text = row.run(
        "scripts/fuzz",
        *("--seconds", setting("FUZZ_SECONDS", "15")),
        *("--executions", setting("FUZZ_EXECUTIONS", "100000000")),
    )
    coverage = [
        int(number) for number in re.findall(r"^\S+ +\d+ +(\d+) +\d+ 0$", text, re.MULTILINE)
    ]
    said = find(r"(\d+ targets, .* 0 findings)", text)
    growth = row.run(harness.program("fuzz_growth_test"))
    num_linear = len(re.findall(r"us for 16 times the input", growth))
    if not num_linear:
        raise Failed("no input's time is measured", growth)
    return (
        f"{said}; coverage of the targets, added up: {sum(coverage)}; "
        f"{num_linear} kinds of inputs take time in proportion to their size"
    )


def damage(row):
    full = setting("DAMAGE", "full") == "full"
    text = row.python("tests/system/damage_matrix_test.py", full=full)
    outcomes = find(r"^all: (.*)$", text)
    return find(r"(\d+ damages of .*: 0 silent answers, 0 faults)", text) + f". Of these {outcomes}"


def soak(row):
    output = row.log.parent / "soak"
    text = row.python(
        "tests/system/soak_test.py", "--steps", setting("SOAK_STEPS", "120000"), "--output", output
    )
    slopes = re.findall(
        r"^  (\S+(?: \d+)?) +(.*?) +median .* slope +(\S+% \+- \S+%)  limit \S+  (.*)",
        text,
        re.MULTILINE,
    )
    if not slopes:
        raise Failed("no slope is printed", text)
    return find(r"(\d+ steps)", text) + ", slopes: " + ", ".join(" ".join(s) for s in slopes)


def full_disk(row):
    disk = row.python("tests/system/full_disk_test.py")
    quota = row.python("tests/system/quota_test.py")
    said = find(r"(\d+ steps fit; forget .*)", disk)
    return f"{said}. Quota: " + find(r"(\d+ steps fit a quota.*)", quota)


ROWS = [
    ("1", "a fault or a power cut at every operation", faults),
    ("2", "kills in every verb", kills),
    ("3", "fuzz targets", fuzzers),
    ("4", "damage of every file", damage),
    ("5", "soak", soak),
    ("6", "a full disk and a quota", full_disk),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = setting("ROWS", "1,2,3,4,5,6").split(",")
    table, missed = [], 0
    for number, what, show in ROWS:
        if number not in chosen:
            table.append((number, what, "not run", "", 0.0))
            continue
        started = time.monotonic()
        row = Row(number, folder)
        try:
            said, verdict = show(row), "met"
        except Failed as failed:
            said, verdict = f"{failed.args[0]}, see {row.log}", "NOT MET"
            missed += 1
        table.append((number, what, verdict, said, time.monotonic() - started))
        print(f"  row {number} ({what}): {verdict}, {table[-1][-1]:.0f} s", flush=True)
    print()
    for number, what, verdict, said, seconds in table:
        print(f"| {number} | {what} | {verdict} | {said} | {seconds:.0f} s |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
