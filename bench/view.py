#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the requests of `varve view` take on large stores.

bench/view.py BUILD [--folder FOLDER] [--tensors N] [--steps N] [--rounds N]
bench/view.py BUILD --writer

Makes one store with many tensors and one with many steps, if the folder does not have them, with the
Python package of the build. Then it asks each request that a view asks, and prints the first time,
the median and the 95th percentile in milliseconds.

--writer saves ten times a second, in blocks with and without somebody who asks for a view each
second, in turn, and prints how long the saves of both kinds took.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse

LAYERS = 1000
PARTS = ("weight", "bias")


def names_of_tensors(count):
    kinds = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.in")
    for i in range(count):
        layer, rest = i % LAYERS, i // LAYERS
        kind = kinds[rest // len(PARTS) % len(kinds)]
        block = rest // (len(PARTS) * len(kinds))
        yield f"model.layers.{layer}.block{block}.{kind}.{PARTS[rest % len(PARTS)]}"


def make_many_tensors(varve, numpy, path, count):
    rng = numpy.random.default_rng(1)
    names = list(names_of_tensors(count))
    tensors = {name: rng.standard_normal(64, dtype=numpy.float32) for name in names}
    with varve.open(path, "a") as store:
        for step in (1, 2, 3):
            for name in names[step::3]:
                tensors[name] = rng.standard_normal(64, dtype=numpy.float32)
            store.save(step, tensors, metrics={"loss": 3 / step})


def make_many_steps(varve, numpy, path, count):
    rng = numpy.random.default_rng(2)
    tensors = {f"layer{i}.weight": rng.standard_normal(256, dtype=numpy.float32) for i in range(8)}
    with varve.open(path, "a") as store:
        for step in range(1, count + 1):
            tensors[f"layer{step % 4}.weight"] = rng.standard_normal(256, dtype=numpy.float32)
            store.save(step, tensors, metrics={"loss": 4 / step**0.5 + float(rng.random()) / 10})


# What each view asks, of which the first word is the view.
def requests_of(last, name, layer):
    step = f"main@{last}"
    before = f"main@{last - 1}"
    return [
        ("runs", "lineage", {}),
        ("runs", "curves", {}),
        ("runs", "steps", {"order": "newest", "limit": 50}),
        ("runs", "steps", {"sort": "loss", "limit": 50}),
        ("space", "space", {}),
        ("space", "stats", {}),
        ("space", "sharing", {}),
        ("space", "forget", {"keep-last": 3, "limit": 50}),
        ("step", "show", {"step": step}),
        ("step", "near", {"step": step}),
        ("step", "tree", {"step": step}),
        ("step", "tree", {"step": step, "prefix": layer}),
        ("step", "tensors", {"step": step, "limit": 50}),
        ("step", "tensors", {"step": step, "limit": 50, "sort": "bytes", "order": "down"}),
        ("step", "tensors", {"step": step, "limit": 50, "sort": "stored", "order": "down"}),
        ("step", "ranks", {"step": step}),
        ("tensor", "tensor", {"step": step, "name": name, "values": 64}),
        ("tensor", "log", {"name": name, "order": "down", "limit": 50}),
        ("tensor", "shards", {"step": step, "name": name}),
        ("tensor", "diff", {"before": before, "after": step, "name": name, "values": 1}),
        ("diff", "diff", {"before": before, "after": step, "values": 1, "limit": 50}),
        (
            "diff",
            "diff",
            {"before": before, "after": step, "values": 1, "sort": "bytes", "limit": 50},
        ),
        ("health", "health", {}),
        ("health", "check", {}),
        ("health", "check", {"start": 1}),
    ]


def ask(connection, path, what, parameters):
    start = time.perf_counter()
    connection.request("GET", f"{path}api/{what}?{urllib.parse.urlencode(parameters)}")
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        sys.exit(f"{what} {parameters}: {answer.status} {body[:300]}")
    return (time.perf_counter() - start) * 1000, len(body)


def measure(command, store, questions, rounds):
    with shown(command, store) as url:
        connection = http.client.HTTPConnection("127.0.0.1", url.port)
        print("| view | request | first ms | p50 ms | p95 ms | KB |\n|---|---|---|---|---|---|")
        for view, what, parameters in questions:
            times = []
            # A check is no answer that a view waits for.
            for _ in range(4 if "start" in parameters else rounds):
                took, size = ask(connection, url.path, what, parameters)
                times.append(took)
            later = times[1:]
            p95 = statistics.quantiles(later, n=20)[-1]
            words = " ".join(f"{key}={value}" for key, value in parameters.items())
            print(
                f"| {view} | {what} {words} | {times[0]:.1f} | {statistics.median(later):.1f} "
                f"| {p95:.1f} | {size / 1000:.1f} |"
            )


@contextlib.contextmanager
def shown(command, store):
    """A `varve view` of the store. Gives its URL, in parts."""
    process = subprocess.Popen(
        [command, "-s", store, "-q", "--json", "view"], stdout=subprocess.PIPE, text=True
    )
    try:
        lines = ""
        while not lines.endswith("}\n"):
            lines += process.stdout.readline()
        yield urllib.parse.urlsplit(json.loads(lines)["url"])
    finally:
        process.terminate()
        process.wait()


def poll(url):
    """Asks for the views Runs and Space once a second, as somebody who looks on does."""
    parts = urllib.parse.urlsplit(url)
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", parts.port)
        for what, parameters in (
            ("lineage", {}),
            ("curves", {}),
            ("steps", {"order": "newest", "limit": 50}),
            ("space", {}),
            ("show", {"step": "latest"}),
            ("tensors", {"step": "latest", "limit": 50}),
        ):
            ask(connection, parts.path, what, parameters)
        connection.close()
        time.sleep(1)


def beside_writer(varve, numpy, command, folder, blocks=8, saves=60):
    path = folder / "written"
    shutil.rmtree(path, ignore_errors=True)
    rng = numpy.random.default_rng(3)
    tensors = {f"w{i}": rng.standard_normal(1 << 18, dtype=numpy.float32) for i in range(16)}
    took = {"alone": [], "shown": []}
    step = 0
    with varve.open(path, "a") as store:
        for block in range(2 * blocks):
            kind = ("alone", "shown")[block % 2]
            with contextlib.ExitStack() as stack:
                if kind == "shown" and step:
                    url = stack.enter_context(shown(command, path)).geturl()
                    looker = subprocess.Popen([sys.executable, __file__, "--poll", url])
                    stack.callback(looker.wait)
                    stack.callback(looker.terminate)
                for _ in range(saves):
                    due = time.perf_counter() + 0.1
                    step += 1
                    name = f"w{step % 16}"
                    tensors[name] = tensors[name] + numpy.float32(1e-3)
                    start = time.perf_counter()
                    store.save(step, tensors, metrics={"loss": 1 / step})
                    took[kind].append((time.perf_counter() - start) * 1000)
                    time.sleep(max(0, due - time.perf_counter()))
    print("| saves | median ms | mean ms | p95 ms | count |\n|---|---|---|---|---|")
    for kind, times in took.items():
        p95 = statistics.quantiles(times, n=20)[-1]
        print(
            f"| {kind} | {statistics.median(times):.2f} | {statistics.mean(times):.2f} | {p95:.2f} "
            f"| {len(times)} |"
        )


def main():
    if sys.argv[1:2] == ["--poll"]:
        return poll(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/bench_view"))
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--writer", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(options.build / "python"))
    import numpy
    import varve

    options.folder.mkdir(parents=True, exist_ok=True)
    command = str(options.build / "bin/varve")
    if options.writer:
        return beside_writer(varve, numpy, command, options.folder)
    tensors = options.folder / f"tensors{options.tensors}"
    steps = options.folder / f"steps{options.steps}"
    if not tensors.exists():
        make_many_tensors(varve, numpy, tensors, options.tensors)
    if not steps.exists():
        make_many_steps(varve, numpy, steps, options.steps)
    name = next(names_of_tensors(options.tensors))
    print(f"\n{options.tensors} tensors, 3 steps\n")
    measure(command, tensors, requests_of(3, name, "model.layers.7."), options.rounds)
    print(f"\n{options.steps} steps, 8 tensors\n")
    measure(command, steps, requests_of(options.steps, "layer1.weight", "layer1."), options.rounds)


if __name__ == "__main__":
    main()
