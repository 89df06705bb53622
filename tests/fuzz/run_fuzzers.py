# SPDX-License-Identifier: Apache-2.0
"""Runs each fuzz target under libFuzzer for some seconds, and prints one table (scripts/fuzz)."""

import argparse
import base64
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

# An input that waits, for a lock or for a clock, takes nothing of the processor, and one that never ends is
# never measured. So there is a limit on the wall, too: so many times what an input may take of the processor
# (targets.h), because on a busy machine an input waits for the processor, and at most so many seconds.
STUCK_TIMES = 12
MOST_STUCK_SECONDS = 300
MEMORY_MIB = 2048  # of the whole process, with the sanitizer's own
ALLOCATION_MIB = 256  # at once: no input is longer than a MiB
PRINTED_BYTES = 64 << 10  # of an input
PRINTED_LINES = 150  # of what a target said

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
SETTINGS = {
    # addr2line is always there, llvm-symbolizer is not.
    "ASAN_OPTIONS": "detect_container_overflow=0:allow_addr2line=1",
    "LSAN_OPTIONS": f"suppressions={SUPPORT}/lsan.supp:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def fixed_layout():
    """A sanitizer may not find room among addresses at random, so they are switched off where that works."""
    command = ["setarch", "--addr-no-randomize"]
    works = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return command if works else []


def last_number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


@dataclasses.dataclass
class Finding:
    target: str
    what: pathlib.Path | str  # the input, or how the target ended without one

    def __str__(self):
        return str(self.what)


class Fuzzer:
    def __init__(self, build):
        self.build = build
        self.program = build / "bin" / "varve_fuzz"
        self.prefix = fixed_layout()
        self.stuck = {}

    def command(self, *arguments):
        return [*self.prefix, str(self.program), *map(str, arguments)]

    def targets(self):
        """{name: the seconds on the wall after which an input is stuck}"""
        done = subprocess.run(
            self.command(),
            env=os.environ | SETTINGS | {"VARVE_FUZZ_LIST": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        self.stuck = {
            name: min(STUCK_TIMES * int(seconds), MOST_STUCK_SECONDS) for name, seconds in lines
        }
        return self.stuck

    def log_of(self, name):
        return self.build / "findings" / f"{name}.log"

    def run(self, name, seconds):
        """Returns (executions, coverage, inputs kept, findings, seconds)."""
        corpus, findings = self.build / "corpus" / name, self.build / "findings" / name
        for folder in (corpus, findings):
            folder.mkdir(parents=True, exist_ok=True)
        before = set(findings.iterdir())
        shm = pathlib.Path("/dev/shm")
        # A target that crashes leaves its own folder.
        with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as scratch:
            settings = os.environ | SETTINGS | {"VARVE_FUZZ_TARGET": name, "TMPDIR": scratch}
            subprocess.run(
                self.command(), env=settings | {"VARVE_FUZZ_SEEDS": str(corpus)}, check=True
            )
            started = time.monotonic()
            done = subprocess.run(
                self.command(
                    corpus,
                    f"-max_total_time={seconds}",
                    f"-timeout={self.stuck[name]}",
                    f"-report_slow_units={self.stuck[name]}",
                    f"-rss_limit_mb={MEMORY_MIB}",
                    f"-malloc_limit_mb={ALLOCATION_MIB}",
                    "-print_final_stats=1",
                    "-print_funcs=0",  # to look up their names takes time
                    f"-artifact_prefix={findings}/",
                ),
                env=settings,
                capture_output=True,
                text=True,
                errors="replace",
            )
            took = time.monotonic() - started
        self.log_of(name).write_text(done.stderr)
        written = map(pathlib.Path, re.findall(r"Test unit written to (.+)", done.stderr))
        inputs = sorted({*findings.iterdir()} - before | {*written})
        if done.returncode != 0 and not inputs:
            inputs = [f"exit {done.returncode}"]
        found = [Finding(name, each) for each in inputs]
        executions = last_number(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        executions = executions or last_number(r"^#(\d+)", done.stderr)
        coverage = last_number(r"cov: (\d+)", done.stderr)
        return executions, coverage, len(list(corpus.iterdir())), found, took


@dataclasses.dataclass
class Totals:
    """What all rounds of a target came to."""

    executions: int = 0
    coverage: int = 0
    inputs: int = 0
    found: list = dataclasses.field(default_factory=list)

    def add(self, executions, coverage, inputs, found, _):
        self.executions += executions
        self.coverage = max(self.coverage, coverage)
        self.inputs = inputs
        self.found += found


def run_round(fuzzer, totals, options):
    """Each target has its seconds, whether it is fast or slow. Returns the executions of all."""
    before = sum(each.executions for each in totals.values())
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda name: fuzzer.run(name, options.seconds), totals)
        for name, result in zip(totals, results, strict=True):
            totals[name].add(*result)
    return sum(each.executions for each in totals.values()) - before


def run_rounds(fuzzer, totals, options):
    """Returns the number of rounds: enough for the executions, or up to one with a finding."""
    executions, rounds = 0, 0
    while rounds == 0 or executions < options.executions:
        added = run_round(fuzzer, totals, options)
        executions += added
        rounds += 1
        print(f"round {rounds}: {executions} executions so far", file=sys.stderr, flush=True)
        if added == 0 or any(each.found for each in totals.values()):
            break
    return rounds


def print_table(totals, rounds, seconds):
    print(f"{'target':<20} {'executions':>11} {'coverage':>9} {'inputs':>7} findings")
    for name, each in totals.items():
        text = " ".join(str(found) for found in each.found) or "0"
        print(f"{name:<20} {each.executions:>11} {each.coverage:>9} {each.inputs:>7} {text}")
    executions = sum(each.executions for each in totals.values())
    num_found = sum(len(each.found) for each in totals.values())
    times = f"{rounds} times " if rounds > 1 else ""
    print(
        f"{len(totals)} targets, {times}{seconds} s each: {executions} executions, {num_found} findings"
    )
    return executions, num_found


def print_finding(fuzzer, finding):
    """All that is needed to see it again where nothing is left of this machine."""
    print(f"\nFINDING in target {finding.target}: {finding}")
    if isinstance(finding.what, pathlib.Path):
        size = finding.what.stat().st_size
        again = {"VARVE_FUZZ_TARGET": finding.target} | SETTINGS
        again = [f"{name}={shlex.quote(value)}" for name, value in again.items()]
        print(
            "reproduce it, after scripts/fuzz has built the program. It leaves files in a new folder of /tmp:"
        )
        print(f"  TMPDIR=$(mktemp -d) {' '.join(again)} {shlex.join(fuzzer.command(finding.what))}")
        if size <= PRINTED_BYTES:
            text = base64.b64encode(finding.what.read_bytes()).decode()
            print(f"the input has {size} bytes. To make it elsewhere:")
            print(f"  base64 -d >{shlex.quote(str(finding.what))} <<<'{text}'")
        else:
            print(f"the input has {size} bytes, too many to print")
    log = fuzzer.log_of(finding.target)
    lines = log.read_text().splitlines()
    start = next(
        (i for i, line in enumerate(lines) if re.search(r"==\d+==|runtime error", line)), 0
    )
    start = max(start - 3, 0)  # with what the target itself said of it
    print(f"what the target said ({log}):")
    print("\n".join("  " + line[:500] for line in lines[start : start + PRINTED_LINES]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=15, help="for each target in each round")
    parser.add_argument(
        "--executions",
        type=int,
        default=0,
        help="of all targets together: rounds go on until there are so many",
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    fuzzer = Fuzzer(options.build.resolve())
    totals = {name: Totals() for name in fuzzer.targets() if options.only in name}
    if not totals:
        sys.exit(f'no target has "{options.only}" in its name')
    rounds = run_rounds(fuzzer, totals, options)
    executions, num_found = print_table(totals, rounds, options.seconds)
    for each in totals.values():
        for finding in each.found:
            print_finding(fuzzer, finding)
    idle = [name for name, each in totals.items() if each.executions == 0]
    if idle:
        print(f"no executions: {' '.join(idle)}")
    has_enough = executions >= options.executions
    if not has_enough:
        print(f"{options.executions} executions were not reached")
    return 1 if num_found or idle or not has_enough else 0


if __name__ == "__main__":
    sys.exit(main())
