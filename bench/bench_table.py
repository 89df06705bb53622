# SPDX-License-Identifier: Apache-2.0
"""Runs store_bench and cuda_bench and prints one table of targets and what was measured, also as JSON.

scripts/bench builds first and then calls this. bench/README.md defines every number.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REAL_STATE = "late+000.safetensors"
REAL_STATE_SHARE = 0.715  # of its bytes when stored as keyframes: the goal of the codec

# Each runs in a process of its own, so that none pays for the memory that another one left.
BENCHMARKS = [
    "digest/pass",
    "save/full_noise",
    "save/full_trained",
    "save/one_percent",
    "save/unchanged",
    "restore/raw_warm",
    "restore/raw_cold",
    "restore/trained_warm",
    "restore/delta_warm",
    "query/noise",
    "query/drift",
    "drop/one",
    "drop/most",
    "open/many_steps",
    "memory/quarter",
    "memory/large",
]


def ms(value):
    return f"{value:,.0f} ms" if value >= 20 else f"{value:.2f} ms"


class Results:
    """Medians of the counters by benchmark: results["save/full_noise"]["ratio"]."""

    def __init__(self):
        self.samples = {}

    def add(self, report):
        for run in report["benchmarks"]:
            if run["run_type"] != "iteration":
                continue
            name = "/".join(run["run_name"].split("/")[:2])
            counters = self.samples.setdefault(name, {})
            counters.setdefault("ms", []).append(run["real_time"])
            known = {
                "repetitions",
                "threads",
                "iterations",
                "real_time",
                "cpu_time",
                "family_index",
                "per_family_instance_index",
                "repetition_index",
            }
            for key, value in run.items():
                if isinstance(value, (int, float)) and key not in known:
                    counters.setdefault(key, []).append(value)

    def __getitem__(self, name):
        return {key: statistics.median(values) for key, values in self.samples[name].items()}

    def spread(self):
        return {
            name: {
                key: {
                    "median": statistics.median(values),
                    "min": min(values),
                    "max": max(values),
                    "samples": len(values),
                }
                for key, values in counters.items()
            }
            for name, counters in self.samples.items()
        }


def row(what, target, measured, met=None, verdict=None):
    """`met` is None for what has no target here; then `verdict` says why."""
    if met is not None:
        verdict = "met" if met else "NOT MET"
    return {"what": what, "target": target, "measured": measured, "met": met, "verdict": verdict}


def ratio_row(what, target, limit, counters, baseline):
    measured = f"{counters['ratio']:.2f} x ({ms(counters['ms'])}, {ms(counters[baseline])})"
    return row(what, target, measured, counters["ratio"] <= limit)


def save_rows(results, state):
    full, trained = results["save/full_noise"], results["save/full_trained"]
    yield ratio_row(
        "full save, incompressible", "<= 1.15 x raw write + fdatasync", 1.15, full, "baseline_ms"
    )
    yield row(
        "  the same, raw write with early write-back",
        "no target",
        f"{full['early_ratio']:.2f} x ({ms(full['early_baseline_ms'])})",
        verdict="for information",
    )
    yield ratio_row(
        "full save, training state", "faster than safetensors + fsync", 1.0, trained, "baseline_ms"
    )
    share = f"{trained['stored_share']:.3f} of its bytes, {trained['disk_share']:.3f} on disk"
    if state is not None and state.name == REAL_STATE:
        yield row(
            "stored bytes of that state",
            f"<= {REAL_STATE_SHARE} (codec.md)",
            share,
            trained["stored_share"] <= REAL_STATE_SHARE,
        )
    else:
        yield row(
            "stored bytes of that state", "none for this state", share, verdict="for information"
        )
    one = results["save/one_percent"]
    yield row(
        "save, 1 % of chunks changed",
        "<= 1.2 x (digest + raw write) + 30 ms",
        f"{one['share_of_allowed']:.2f} of it ({ms(one['ms'])}; digest "
        f"{ms(one['digest_ms'])}, write {ms(one['write_ms'])})",
        one["share_of_allowed"] <= 1,
    )
    digest, same = results["digest/pass"], results["save/unchanged"]
    yield row(
        "nothing changed: digest pass",
        ">= 8 GB/s a core",
        f"{digest['gb_per_s']:.1f} GB/s (memcpy {digest['memcpy_gb_per_s']:.1f})",
        digest["gb_per_s"] >= 8,
    )
    yield row(
        "nothing changed: added on disk",
        "<= 160 bytes a tensor",
        f"{same['bytes_per_tensor']:.0f} bytes",
        same["bytes_per_tensor"] <= 160,
    )
    yield row(
        "  that save against the digest pass alone",
        "no target",
        f"{same['ratio']:.2f} x ({ms(same['ms'])}, {ms(same['digest_ms'])})",
        verdict="for information",
    )


def restore_rows(results):
    for name, what, limit in (
        ("raw_warm", "restore, raw-stored, warm", 1.5),
        ("raw_cold", "restore, raw-stored, cold", 1.1),
        ("trained_warm", "restore, compressed, warm", 2.0),
    ):
        yield ratio_row(
            what,
            f"<= {limit} x pread of the same bytes",
            limit,
            results["restore/" + name],
            "pread_ms",
        )
    delta = results["restore/delta_warm"]
    yield row(
        "  the same, stored as deltas",
        "no target",
        f"{delta['ratio']:.2f} x ({ms(delta['ms'])}, {ms(delta['pread_ms'])})",
        verdict="for information",
    )


def query_rows(results):
    for name, what in (("noise", "raw"), ("drift", "deltas")):
        query = results["query/" + name]
        yield row(
            f"query of 1 MiB, 1,000 steps, {what}",
            "p50 < 2 ms, <= 1.5 x that of 10 steps",
            f"{query['p50_ms']:.2f} ms (p99 {query['p99_ms']:.2f}), {query['ratio']:.2f} x",
            query["p50_ms"] < 2 and query["ratio"] <= 1.5,
        )


def drop_rows(results):
    one, most = results["drop/one"], results["drop/most"]
    yield row(
        "drop of 1 step of 1,000",
        "<= 1.5 x drop of 1 of 10",
        f"{one['ratio']:.2f} x ({ms(one['ms'])}, {ms(one['few_ms'])})",
        one["ratio"] <= 1.5,
    )
    yield row(
        "whole-dead files back at once",
        ">= 0.95 of the step's bytes",
        f"{one['back_share']:.3f}",
        one["back_share"] >= 0.95,
    )
    yield row(
        "garbage, 190 of 200 steps dropped",
        "<= live bytes at any time",
        f"at most {most['garbage_share']:.2f} x live; rewritten "
        f"{most['rewritten_share']:.2f} x freed; {ms(most['mean_ms'])} a drop",
        most["garbage_share"] <= 1,
    )


def size_rows(results):
    memory = [results["memory/quarter"], results["memory/large"]]
    yield row(
        "memory of a save above the state",
        "<= 256 MiB + 64 bytes a chunk",
        " and ".join(f"{m['above_state_mib']:.0f} MiB" for m in memory) + " (state x 4)",
        all(m["above_state_mib"] <= m["allowed_mib"] for m in memory),
    )
    opened = results["open/many_steps"]
    yield row(
        "open, 10,000 steps",
        "<= 200 ms",
        f"{ms(opened['reading_ms'])} to read, {ms(opened['writing_ms'])} to write",
        opened["slower_ms"] <= 200,
    )
    yield row(
        "  its descriptors",
        "<= bytes/128 MiB + 300",
        f"{opened['descriptors']:.0f} for {opened['disk_mib']:.0f} MiB",
        opened["descriptors"] <= opened["allowed_descriptors"],
    )


def gpu_rows(program, quick):
    """The table of cuda_bench, which judges itself; on a machine without a GPU its rows say so."""
    sizes = ["--gib", "0.125", "--large-gib", "0.125", "--rounds", "3", "--seconds", "0"]
    if not program.exists():
        return [
            row(
                "GPU: digests, stalls, restore",
                "see bench/README.md",
                "-",
                verdict="not run: built without CUDA",
            )
        ]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        done = subprocess.run(
            [program, "--json", out, *(sizes if quick else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        if not out.exists():
            sys.exit(f"bench: {program.name} exited {done.returncode}\n{done.stderr}")
        return json.loads(out.read_text())["rows"]


def all_rows(results, options):
    state = options.state
    yield from save_rows(results, state)
    yield from restore_rows(results)
    yield from query_rows(results)
    yield from drop_rows(results)
    yield from size_rows(results)
    yield from gpu_rows(options.program.with_name("cuda_bench"), options.quick)
    yield row("crash, kill, power cut", "no committed step lost", "-", verdict="see tests/crash")


def mount_of(folder):
    """Device, file system and options of the mount that holds `folder`."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        if left.split()[2] == number:
            kind, source, options = right.split()[:3]
            return {"device": source, "file_system": kind, "options": options}
    return {"device": number, "file_system": "unknown", "options": ""}


def first_match(path, key):
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return "unknown"


def describe_machine(folder):
    return {
        "cpu": first_match("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(first_match("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "folder": str(folder),
        **mount_of(folder),
    }


def default_state():
    for shared in (ROOT.parent / "shared", pathlib.Path("/work/shared")):
        path = shared / "data" / "train_state" / REAL_STATE
        if path.exists():
            return path
    return None


def commit():
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def run(options, name, loads):
    """One benchmark in a process of its own: Google Benchmark's report."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [
            options.program,
            "--folder",
            options.dir,
            f"--benchmark_filter=^{name}/",
            f"--benchmark_out={out}",
            "--benchmark_out_format=json",
        ]
        command += ["--quick"] if options.quick else []
        command += ["--state", options.state] if options.state is not None else []
        before, started = os.getloadavg()[0], time.monotonic()
        done = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"bench: {name} exited {done.returncode}\n{done.stderr}")
        loads.append(
            {
                "benchmark": name,
                "before": before,
                "after": os.getloadavg()[0],
                "seconds": round(time.monotonic() - started, 1),
            }
        )
        print(f"bench: {name}, {loads[-1]['seconds']} s", file=sys.stderr)
        return json.loads(out.read_text())


def steal_share(before):
    """Share of processor time that the host gave to others since `before`."""
    after = cpu_times()
    total = sum(after) - sum(before)
    return (after[7] - before[7]) / total if total else 0.0


def cpu_times():
    return list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))


def print_table(document):
    rows = document["rows"]
    columns = ("what", "target", "measured", "verdict")
    widths = [max(len(r[c]) for r in [*rows, {c: c for c in columns}]) for c in columns]
    line = "| " + " | ".join(f"{{:{width}}}" for width in widths) + " |"
    print(line.format(*columns))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for r in rows:
        print(line.format(*(r[c] for c in columns)))
    machine = document["machine"]
    print()
    print("{cpu}, {cores} cores, {memory_gib} GiB, Linux {kernel}".format(**machine))
    print("folder {folder}: {file_system} on {device} ({options})".format(**machine))
    print("training state: " + (document["state"] or "synthetic, no file was given or found"))
    print(
        f"varve {document['commit']}; load {document['load_before']:.2f} before, "
        f"{document['load_after']:.2f} after (one program here is 1 to {machine['cores']}); "
        f"{100 * document['steal_share']:.1f} % of processor time went to other guests"
    )
    if document["quick"]:
        print("--quick: sizes of a smoke test, the numbers say nothing")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        default=ROOT / "build" / "bench-stores",
        help="where stores are made (default build/bench-stores)",
    )
    parser.add_argument(
        "--state",
        type=pathlib.Path,
        default=default_state(),
        help="a safetensors file with training state",
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        default=ROOT / "build" / "bench.json",
        help="where the JSON goes (default build/bench.json)",
    )
    parser.add_argument("--only", default="", help="only benchmarks whose name begins so; no table")
    parser.add_argument(
        "--program", type=pathlib.Path, default=ROOT / "build" / "release" / "bin" / "store_bench"
    )
    return parser.parse_args()


def main():
    options = parse_arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(options.dir.resolve())
    if machine["file_system"] in ("tmpfs", "ramfs"):
        print("bench: this folder is memory, not a disk; saves will look too good", file=sys.stderr)
    load_before, times_before = os.getloadavg()[0], cpu_times()
    results, loads = Results(), []
    for name in BENCHMARKS:
        if name.startswith(options.only):
            results.add(run(options, name, loads))
    if options.only:
        print(json.dumps(results.spread(), indent=1))
        return
    document = {
        "commit": commit(),
        "quick": options.quick,
        "state": str(options.state) if options.state is not None else None,
        "machine": machine,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "steal_share": steal_share(times_before),
        "loads": loads,
        "rows": list(all_rows(results, options)),
        "benchmarks": results.spread(),
    }
    if options.quick:
        for r in document["rows"]:
            if r["met"] is not None:
                r.update(met=None, verdict="not judged")
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_table(document)


if __name__ == "__main__":
    main()
