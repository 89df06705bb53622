#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a seal costs: the same saves and checks in a sealed store and in another one, in turn.

bench/seal.py BUILD [--mib N] [--rounds N] [--folder FOLDER]

It uses the Python package of the build. Each round saves tensors of noise, all of them new, and then
the same with a small one beside them. It prints medians in milliseconds, and the sealed store as a
multiple of the other. The first round is thrown away.
"""

import argparse
import pathlib
import shutil
import statistics
import sys
import tempfile
import time


def milliseconds(work, *arguments):
    start = time.perf_counter()
    work(*arguments)
    return 1000 * (time.perf_counter() - start)


def measure(varve, numpy, folder, mib, rounds):
    rng = numpy.random.default_rng(7)
    paths = {b"": folder / "plain", bytes(range(32)): folder / "sealed"}
    times = {}
    for step in range(rounds + 1):
        tensors = {f"w{i}": rng.bytes(mib << 17) for i in range(8)}
        arrays = {name: numpy.frombuffer(value, numpy.uint8) for name, value in tensors.items()}
        changed = arrays | {"small": numpy.arange(step + 1)}
        for key, path in list(paths.items())[:: 1 if step % 2 else -1]:
            with varve.open(path, "a", key=key) as store:
                took = {
                    f"save {mib} MiB of noise": milliseconds(store.save, 2 * step, arrays),
                    "save it again, and a small tensor": milliseconds(
                        store.save, 2 * step + 1, changed
                    ),
                }
            with varve.open(path, "r", key=key) as store:
                took["check of the structure"] = milliseconds(store.check)
            with varve.open(path, "a", key=key) as store:
                store.drop([2 * step, 2 * step + 1])
            for name, value in took.items():
                if step > 0:
                    times.setdefault(name, {}).setdefault(bool(key), []).append(value)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    sys.path.insert(0, str(options.build / "python"))
    import numpy
    import varve

    folder = pathlib.Path(tempfile.mkdtemp(prefix="varve_seal_", dir=options.folder))
    try:
        times = measure(varve, numpy, folder, options.mib, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("| | plain, ms | sealed, ms | ratio |\n|---|---|---|---|")
    for name, by_key in times.items():
        plain, sealed = (statistics.median(by_key[key]) for key in (False, True))
        print(f"| {name} | {plain:.1f} | {sealed:.1f} | {sealed / plain:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
