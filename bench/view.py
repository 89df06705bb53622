#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the requests of `varve view` take on a large store.

bench/view.py BUILD [--folder FOLDER] [--tensors N] [--steps N] [--rounds N] [--fresh N]
bench/view.py BUILD --writer [--blocks N] [--quiet SECONDS] [--one-view]

Makes a store with a run of many steps and a run of many tensors, if the folder does not have it, with
the Python package of the build. Then it asks each request that a view asks. It prints the machine, the
commit, and a table for docs/view.md with these times in milliseconds:

- first: the median until the whole answer, of N new servers that were asked nothing before
- reply: the longest time until one of these replied at all. It may have replied that it computes
- p50 and p95: until the whole answer, of the requests that follow at one server

A first answer and a p95 above 300 ms are named below the table. Progress goes to standard error.

--writer saves ten times a second, in blocks with and without somebody who looks at all views each second,
and prints how long the saves of both kinds took. Neighbouring blocks are compared, and each kind comes
first as often as the other. The process that looks has the lowest priority, as if the browser were
on another machine. With --quiet it measures for so many seconds, and leaves out each pair of blocks while
other programs used more than a tenth of one core. With --one-view, somebody looks at one view each second,
at each in turn.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse

from comparison import machine

LAYERS = 1000
GOAL_MS = 300
PARTS = ("weight", "bias")


def names_of_tensors(count):
    kinds = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.in")
    for i in range(count):
        layer, rest = i % LAYERS, i // LAYERS
        kind = kinds[rest // len(PARTS) % len(kinds)]
        block = rest // (len(PARTS) * len(kinds))
        yield f"model.layers.{layer}.block{block}.{kind}.{PARTS[rest % len(PARTS)]}"


def make_store(varve, numpy, path, num_tensors, num_steps):
    rng = numpy.random.default_rng(1)

    def values(size):
        return rng.standard_normal(size, dtype=numpy.float32)

    with varve.open(path, "a") as store:
        names = list(names_of_tensors(num_tensors))
        tensors = {name: values(64) for name in names}
        for step in (1, 2, 3):
            for name in names[step::3]:
                tensors[name] = values(64)
            store.save(step, tensors, run="wide", metrics={"loss": 3 / step})
        tensors = {f"layer{i}.weight": values(256) for i in range(8)}
        for step in range(1, num_steps + 1):
            tensors[f"layer{step % 4}.weight"] = values(256)
            store.save(step, tensors, metrics={"loss": 4 / step**0.5 + float(rng.random()) / 10})


# What each view asks, of which the first word is the view. cli_view_live compares them with the page.
def requests_of_store():
    return [
        ("all", "store", {}),
        ("runs", "lineage", {}),
        ("runs", "curves", {}),
        ("runs", "steps", {"order": "newest", "limit": 50}),
        ("runs", "steps", {"sort": "loss", "limit": 50}),
        ("space", "space", {}),
        ("space", "stats", {}),
        ("space", "sharing", {}),
        ("space", "runs", {}),
        ("space", "forget", {"keep-last": 3, "limit": 50}),
        ("health", "health", {}),
        ("health", "check", {}),
        ("health", "check", {"start": 1}),
    ]


def requests_of_step(run, last, name, layer):
    step, before = f"{run}@{last}", f"{run}@{last - 1}"
    two = {"before": before, "after": step, "values": 1}
    table = {"step": step, "limit": 50}
    by_bytes = {"sort": "bytes", "order": "down", "limit": 50}
    return [
        ("step", "show", {"step": step}),
        ("step", "near", {"step": step}),
        ("step", "tree", {"step": step}),
        ("step", "tree", {"step": step, "prefix": layer}),
        ("step", "tensors", table),
        ("step", "tensors", table | {"sort": "bytes", "order": "down"}),
        ("step", "tensors", table | {"sort": "stored", "order": "down"}),
        ("step", "ranks", {"step": step}),
        ("tensor", "tensor", {"step": step, "name": name, "values": 16}),
        ("tensor", "log", {"run": run, "name": name, "order": "down", "limit": 50}),
        ("tensor", "shards", {"step": step, "name": name}),
        ("tensor", "diff", two | {"name": name}),
        ("diff", "diff", two | by_bytes),
        ("diff", "diff", two | by_bytes | {"values": "all"}),
        ("diff", "diff", two | by_bytes | {"sort": "name", "order": "up"}),
    ]


def reply_of(connection, path, what, parameters):
    connection.request("GET", f"{path}api/{what}?{urllib.parse.urlencode(parameters)}")
    answer = connection.getresponse()
    body = answer.read()
    if answer.status not in (200, 202):
        sys.exit(f"{what} {parameters}: {answer.status} {body[:300]}")
    return answer.status, body


def ask(connection, path, what, parameters):
    """Milliseconds until a reply and until the answer, and the answer."""
    start = time.perf_counter()
    status, body = reply_of(connection, path, what, parameters)
    replied = time.perf_counter() - start
    while status == 202:  # it is being made
        status, body = reply_of(connection, path, "job", {"id": json.loads(body)["job"]})
    return replied * 1000, (time.perf_counter() - start) * 1000, body


def ask_new_servers(command, store, count, what, parameters):
    """The times of an answer of a server that was asked nothing before."""
    times = []
    for _ in range(count):
        with shown(command, store) as url:
            connection = http.client.HTTPConnection("127.0.0.1", url.port)
            times.append(ask(connection, url.path, what, parameters))
            connection.close()
    return times


# They say which of the steps or tensors of the store is asked for, or how many rows.
OF_STORE = ("step", "before", "after", "run", "limit")


def words_of(what, parameters):
    shown = {key: value for key, value in parameters.items() if key not in OF_STORE}
    shown |= {key: "" for key in ("name", "prefix") if key in shown}
    return " ".join([what, *(f"{key}={value}" for key, value in shown.items())])


def times_of(command, store, url, what, parameters, rounds, fresh):
    """Of one request: first, reply, p50 and p95."""
    new = ask_new_servers(command, store, fresh, what, parameters)
    # The first of these is left out: the columns before tell of first answers.
    count = 4 if "start" in parameters else rounds
    connection = http.client.HTTPConnection("127.0.0.1", url.port)
    later = [ask(connection, url.path, what, parameters)[1] for _ in range(count + 1)][1:]
    connection.close()
    return (
        statistics.median(took for _, took, _ in new),
        max(replied for replied, _, _ in new),
        statistics.median(later),
        statistics.quantiles(later, n=20)[-1],
    ), len(new[0][2])


def measure(command, store, columns, rounds, fresh):
    """`columns` are lists of requests. Equal requests of several columns share a row."""
    table = {}  # by view and words, a cell for each column
    first_late, later_late = [], []
    slowest_reply = 0
    with shown(command, store) as url:
        for number, (view, what, parameters) in (
            (number, each) for number, questions in enumerate(columns) for each in questions
        ):
            times, size = times_of(command, store, url, what, parameters, rounds, fresh)
            words = words_of(what, parameters)
            cell = " / ".join(f"{each:.1f}" for each in times)
            print(f"{view}: {what} {parameters}: {cell} ms, {size} bytes", file=sys.stderr)
            table.setdefault((view, words), {})[number] = cell
            first, reply, _, p95 = times
            slowest_reply = max(slowest_reply, reply)
            if first > GOAL_MS:
                first_late.append(f"`{words}` {first:.0f}")
            if p95 > GOAL_MS:
                later_late.append(f"`{words}` {p95:.0f}")
    head = "first / reply / p50 / p95"
    print(f"\n| view | request |{f' {head} |' * len(columns)}\n|---|---|{'---|' * len(columns)}")
    for (view, words), cells in table.items():
        shown_cells = " | ".join(cells.get(number, "") for number in range(len(columns)))
        print(f"| {view} | `{words}` | {shown_cells} |")
    for title, late in (("First answers", first_late), ("Repeated answers with a p95", later_late)):
        print(f"\n{title} above {GOAL_MS} ms: {', '.join(late) or 'none'}.")
    print(f"\nThe slowest first reply came after {slowest_reply:.1f} ms.")


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


COMPARED_CHANGES = 8  # of the history of a tensor, as in tensor.js


class Visitor:
    """Asks what the page asks, view by view. A view has requests that follow from the answers to others."""

    def __init__(self, url):
        self.url = url
        self.connection = http.client.HTTPConnection("127.0.0.1", url.port)

    def ask(self, what, **parameters):
        named = {name.replace("_", "-"): value for name, value in parameters.items()}
        return json.loads(ask(self.connection, self.url.path, what, named)[2])

    def newest(self):
        """The run and the number of the newest step."""
        lanes = [lane for lane in self.ask("lineage") if lane["last"]]
        lane = max(lanes, key=lambda lane: lane["last"]["created"])
        return lane["run"], lane["last"]["step"]

    def runs(self):
        self.ask("lineage")
        self.ask("curves")
        self.ask("steps", order="newest", limit=50)

    def space(self):
        self.ask("space")
        self.ask("stats")
        self.ask("sharing")
        self.ask("runs")
        self.ask("store")
        self.ask("forget", run=self.newest()[0], keep_last=3, limit=50)

    def step(self):
        step = "{}@{}".format(*self.newest())
        self.ask("show", step=step)
        self.ask("near", step=step)
        self.ask("tree", step=step)
        self.ask("tensors", step=step, sort="name", order="up", limit=50)
        self.ask("ranks", step=step, limit=1000)

    def tensor(self):
        run, newest = self.newest()
        step = f"{run}@{newest}"
        tensors = self.ask("tensors", step=step, limit=50)["rows"]
        name = tensors[newest % len(tensors)]["name"]
        self.ask("tensor", step=step, name=name, values=16)
        self.ask("near", step=step)
        log = self.ask("log", run=run, name=name, order="down", limit=50)["rows"]
        steps = [f"{run}@{row['step']}" for row in log[COMPARED_CHANGES::-1]]
        for before, after in itertools.pairwise(steps):
            self.ask("diff", before=before, after=after, name=name, values=1, limit=1000)
        self.ask("shards", step=step, name=name, limit=1000)

    def diff(self):
        after = "{}@{}".format(*self.newest())
        parent = self.ask("show", step=after)["parent"]
        if not parent:
            return
        asked = {"before": f"{parent['run']}@{parent['step']}", "after": after}
        table = {"sort": "bytes", "order": "down", "limit": 50}
        for values in (1, "all"):
            for _ in range(2):  # for the layers, and for the table
                self.ask("diff", **asked, **table, values=values)

    def health(self):
        self.ask("store")
        self.ask("check")
        self.ask("health")

    def look(self, view):
        getattr(self, view)()
        self.ask("store")


VIEWS = ("runs", "space", "step", "tensor", "diff", "health")


def poll(url, views_at_once):
    """Looks at so many views, and a second later at the next ones."""
    # What the browser takes is not measured. So it takes what nobody else wants.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("ready", flush=True)
    views = itertools.cycle(VIEWS)
    while True:
        visitor = Visitor(urllib.parse.urlsplit(url))
        for view in itertools.islice(views, views_at_once):
            visitor.look(view)
            print(view, flush=True)
        visitor.connection.close()
        time.sleep(1)


@contextlib.contextmanager
def somebody_who_looks_on(command, path, views_at_once):
    with shown(command, path) as url:
        looker = subprocess.Popen(
            [sys.executable, __file__, "--poll", url.geturl(), str(views_at_once)],
            stdout=subprocess.PIPE,
        )
        if looker.stdout.readline() != b"ready\n":
            sys.exit("nobody looks at the view")
        looks = []
        try:
            yield looks
        finally:
            has_ended = looker.poll() is not None
            looker.terminate()
            looks += looker.stdout.read().split()
            looker.wait()
        if has_ended:
            sys.exit("who looks at the view has ended too early")


# A tensor's deltas end with a keyframe, which costs more. So few tensors change that each block has
# several keyframes of each.
CHANGING = 3


class Writer:
    """Saves ten times a second."""

    def __init__(self, varve, numpy, path):
        rng = numpy.random.default_rng(3)
        self.small_step = numpy.float32(1e-3)
        self.tensors = {
            f"w{i}": rng.standard_normal(1 << 18, dtype=numpy.float32) for i in range(16)
        }
        self.store = varve.open(path, "a")
        self.step = 0

    def save(self, count):
        """How many milliseconds each of the saves took."""
        took = []
        for _ in range(count):
            due = time.perf_counter() + 0.1
            self.step += 1
            name = f"w{self.step % CHANGING}"
            self.tensors[name] = self.tensors[name] + self.small_step
            start = time.perf_counter()
            self.store.save(self.step, self.tensors, metrics={"loss": 1 / self.step})
            took.append((time.perf_counter() - start) * 1000)
            time.sleep(max(0, due - time.perf_counter()))
        return took


def busy_seconds():
    """Of all cores and programs, since the machine started."""
    words = pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """Of this program, and of those that it has started and that have ended."""
    return sum(os.times()[:4])


# Each block changes every tensor equally often.
def beside_writer(varve, numpy, command, folder, options, saves=48, warm=16):
    path = folder / "written"
    shutil.rmtree(path, ignore_errors=True)
    writer = Writer(varve, numpy, path)
    writer.save(2 * saves)
    took = {"alone": [], "shown": []}
    ratios = []
    num_left_out = 0
    num_looks = 0
    views_at_once = 1 if options.one_view else len(VIEWS)
    end = time.perf_counter() + options.quiet
    for block in itertools.count():
        if time.perf_counter() > end if options.quiet else block == options.blocks:
            break
        start, foreign = time.perf_counter(), busy_seconds() - own_seconds()
        pair = {}
        looks = []
        # Whoever comes first, the other comes first next time.
        for kind in ("alone", "shown") if block % 2 == 0 else ("shown", "alone"):
            with contextlib.ExitStack() as stack:
                if kind == "shown":
                    looks = stack.enter_context(somebody_who_looks_on(command, path, views_at_once))
                writer.save(warm)
                pair[kind] = writer.save(saves)
        foreign = (busy_seconds() - own_seconds() - foreign) / (time.perf_counter() - start)
        if options.quiet and foreign > 0.1:
            num_left_out += 1
            continue
        num_looks += len(looks)
        for kind, times in pair.items():
            took[kind] += times
        ratios.append(statistics.mean(pair["shown"]) / statistics.mean(pair["alone"]))
    writer.store.close()
    if len(ratios) < 2:
        sys.exit(f"{num_left_out} pairs were left out, and {len(ratios)} are not enough")
    print("| saves | median ms | mean ms | p95 ms | count |\n|---|---|---|---|---|")
    for kind, times in took.items():
        p95 = statistics.quantiles(times, n=20)[-1]
        print(
            f"| {kind} | {statistics.median(times):.2f} | {statistics.mean(times):.2f} | {p95:.2f} "
            f"| {len(times)} |"
        )
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"\nMean of a block with a view, against that of the block beside it: {(middle - 1) * 100:+.1f} % "
        f"(quartiles {(low - 1) * 100:+.1f} and {(high - 1) * 100:+.1f} %) in {len(ratios)} pairs, "
        f"without {num_left_out}. Beside {warm + saves} saves, "
        f"{num_looks / len(ratios):.1f} views were looked at."
    )


def words_of_run(folder):
    about = machine.describe(folder)
    command = shlex.join(["bench/view.py", *sys.argv[1:]])
    said = [
        machine.words(about),
        f"The load was {about['load_before']} before.",
        f"The command was `{command}`.",
    ]
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        said.append("The processes had another scheduling policy than programs have by default.")
    return " ".join(said)


def main():
    if sys.argv[1:2] == ["--poll"]:
        poll(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/bench_view"))
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--fresh", type=int, default=5)
    parser.add_argument("--make", action="store_true", help="only make the store")
    parser.add_argument("--writer", action="store_true")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--one-view", action="store_true", help="each second, in place of all")
    parser.add_argument("--quiet", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    sys.path.insert(0, str(options.build / "python"))
    import numpy
    import varve

    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{words_of_run(options.folder)}\n", flush=True)
    command = str(options.build / "bin/varve")
    if options.writer:
        beside_writer(varve, numpy, command, options.folder, options)
        return
    path = options.folder / f"tensors{options.tensors}_steps{options.steps}"
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        make_store(varve, numpy, part, options.tensors, options.steps)
        part.rename(path)
    if options.make:
        return
    name = next(names_of_tensors(options.tensors))
    measure(
        command,
        path,
        [
            requests_of_store() + requests_of_step("wide", 3, name, "model.layers.7."),
            requests_of_step("main", options.steps, "layer1.weight", "layer1."),
        ],
        options.rounds,
        options.fresh,
    )


if __name__ == "__main__":
    main()
