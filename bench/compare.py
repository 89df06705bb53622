# SPDX-License-Identifier: Apache-2.0
"""Runs the store_bench of two builds in turn and prints, for each benchmark, how much slower the second is.

The two alternate, and a ratio is that of two neighbours, so a machine that slowly gets slower or faster
changes the ratios little. A benchmark whose ratios lie wide apart says little: give it more --rounds.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bench_table import BENCHMARKS, default_state

SLOWEST = 1.03  # more is a regression


def milliseconds(program, name, options):
    """The median time of one run of a benchmark, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [program, "--folder", folder, f"--benchmark_filter=^{name}/"]
        command += [f"--benchmark_out={out}", "--benchmark_out_format=json"]
        command += ["--quick"] if options.quick else []
        command += ["--state", options.state] if options.state is not None else []
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"compare: {program} exited {done.returncode}\n{done.stderr}", file=sys.stderr)
            sys.exit(2)
        runs = json.loads(out.read_text())["benchmarks"]
        return statistics.median(
            run.get("p50_ms", run["real_time"]) for run in runs if run["run_type"] == "iteration"
        )


def compare(name, options):
    pairs = []
    for number in range(options.rounds):
        programs = [options.before / "store_bench", options.after / "store_bench"]
        if number % 2 == 1:
            programs.reverse()
        pair = [milliseconds(program, name, options) for program in programs]
        pairs.append(pair[::-1] if number % 2 == 1 else pair)
    ratios = sorted(after / before for before, after in pairs)
    before, after = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"before_ms": before, "after_ms": after, "ratios": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=pathlib.Path, help="the folder bin/ of a build")
    parser.add_argument("after", type=pathlib.Path, help="the folder bin/ of the other build")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--only", default="", help="only benchmarks whose names start with this")
    parser.add_argument("--dir", type=pathlib.Path, default=None, help="where stores are made")
    parser.add_argument("--state", type=pathlib.Path, default=default_state())
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    options = parser.parse_args()
    slower = []
    print(
        "| benchmark | before, ms | after, ms | after / before, median (least to most) |\n|---|---|---|---|"
    )
    for name in BENCHMARKS:
        if not name.startswith(options.only):
            continue
        found = compare(name, options)
        ratio = statistics.median(found["ratios"])
        slower += [name] if ratio > SLOWEST else []
        print(
            f"| {name} | {found['before_ms']:.4g} | {found['after_ms']:.4g} | "
            f"{ratio:.3f} ({found['ratios'][0]:.3f} to {found['ratios'][-1]:.3f}) |",
            flush=True,
        )
    print(f"more than {SLOWEST - 1:.0%} slower: {', '.join(slower) or 'none'}")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
