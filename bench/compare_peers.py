# SPDX-License-Identifier: Apache-2.0
"""Measures varve beside what people keep checkpoints in, for docs/comparison.md.

    scripts/bench --peers

It trains two models, unless their states are kept from the last time, and measures in rounds. Each round
runs every subject once, in an order that is shuffled. Everything that is loaded is compared bit for bit with
what was saved. It begins with what --quick does, so that a subject that fails does so at once. All samples go
to one JSON file, from which bench/comparison_page.py makes the tables and plots. bench/README.md defines each
row.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import statistics
import sys
import tempfile
import time
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ICECHUNK_LOG", "error")  # it warns of each repository in a folder

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from comparison import clock, machine, memory, order, rounds, stalls, states, subjects  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUNDS = {"tiny": 1, "17M": 5, "100M": 3}
QUICK_STEP = 0.02  # seconds
MEMORY_ROUNDS = 3  # at most; memory varies little


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["17M", "100M"], choices=states.SIZES)
    parser.add_argument("--rounds", type=int, help="of each size (default: 5 of 17M, 3 of 100M)")
    parser.add_argument("--only", nargs="+", choices=subjects.ALL, help="subjects")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "build/bench-stores")
    parser.add_argument("--states", type=pathlib.Path, default=ROOT / "build/comparison-states")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build/comparison.json")
    parser.add_argument(
        "--seed", type=int, help="of the order of the subjects (default: by chance)"
    )
    parser.add_argument("--step-seconds", type=float, default=0.5, help="of the step of the stalls")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tiny state, and without what is not installed: a smoke test",
    )
    parser.add_argument("--memory-of", choices=subjects.ALL, help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=states.SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.step_seconds = ["tiny"], QUICK_STEP
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    return options


def installed(options):
    """The subjects that run, and what the others lack."""
    kinds = [kind for name, kind in subjects.ALL.items() if name in (options.only or subjects.ALL)]
    missing = {kind.name: kind.missing() for kind in kinds if kind.missing()}
    for name, lacking in missing.items():
        print(f"{name}: not installed: {', '.join(lacking)} (scripts/setup --peers)", flush=True)
    if missing and not options.quick:
        sys.exit("compare_peers: every peer must be installed, but with --quick")
    return [kind for kind in kinds if kind.name not in missing], missing


def measure_size(size, kinds, options, folder, num_rounds, step_seconds):
    """What the states are, and the samples of all subjects on them."""
    states.make(size, options.states)
    by_distance = {each: states.load(size, each, options.states) for each in states.DISTANCES}
    about = states.describe(size, by_distance[0])
    print(f"{size.name}: {about['bytes'] / 1e6:.0f} MB, {about['tensors']} tensors", flush=True)
    samples = clock.Samples()
    saving = rounds.Rounds(kinds, by_distance, folder, samples, options.seed)
    stalling = stalls.Stalls(kinds, by_distance, folder, samples, options.seed, step_seconds)
    for number in range(num_rounds):
        start = time.monotonic()
        saving.run(number)
        stalling.run(number)
        print(f"  round {number + 1} of {num_rounds}: {time.monotonic() - start:.0f} s", flush=True)
    measure_memory(size, kinds, options, folder, samples, min(num_rounds, MEMORY_ROUNDS))
    return {**about, "rounds": num_rounds}, samples


def measure_memory(size, kinds, options, folder, samples, num_rounds):
    for number in range(num_rounds):
        for kind in order.order_of(kinds, options.seed, number):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                found = memory.run(__file__, kind, size, options.states, place)
            for metric, value in found.items():
                samples.note(kind.name, metric, value)


def summary(kinds, samples):
    """By subject, in the order of the page, and by metric."""
    return {
        kind.name: {
            metric: {
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
                "samples": values,
            }
            for metric, values in samples.values[kind.name].items()
        }
        for kind in kinds
    }


def measure_all(options):
    kinds, missing = installed(options)
    options.dir.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine.describe(options.dir) | {"torch_threads": torch.get_num_threads()},
        "command": shlex.join(["bench/compare_peers.py", *sys.argv[1:]]),
        "seed": options.seed,
        "order": order.words(options.seed),
        "subjects": {
            kind.name: {
                "versions": kind.versions(),
                "how": kind.how,
                "syncs": kind.syncs,
                "cannot": kind.cannot,
            }
            for kind in kinds
        },
        "not_installed": missing,
        "sizes": {},
    }
    print(json.dumps(document["machine"]), flush=True)
    print(document["order"], flush=True)
    with tempfile.TemporaryDirectory(prefix="compare_", dir=options.dir) as place:
        folder = pathlib.Path(place)
        if not options.quick:  # it also loads the code of the libraries and starts their threads
            measure_size(states.SIZES["tiny"], kinds, options, folder, 1, QUICK_STEP)
        for name in options.sizes:
            size = states.SIZES[name]
            num_rounds = options.rounds or ROUNDS[name]
            about, samples = measure_size(
                size, kinds, options, folder, num_rounds, options.step_seconds
            )
            document["sizes"][name] = {**about, "results": summary(kinds, samples)}
            document["machine"]["load_after"] = round(os.getloadavg()[0], 2)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"all samples are in {options.json}")


def main():
    options = arguments()
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if options.memory_of:
        kind, size = subjects.ALL[options.memory_of], states.SIZES[options.size]
        print(json.dumps(memory.measure(kind, size, options.states, options.dir)))
    else:
        measure_all(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
