# SPDX-License-Identifier: Apache-2.0
"""A writer that saves, drops and reclaims for a long time, and readers in processes of their own.

It plots disk, memory, descriptors, and the times of saves and queries, as PNG, and judges their slopes after
the warm-up, in which memory grows for some 17,000 steps (docs/decisions.md). The manifest of the store
grows until the writer opens it anew, and disk, memory and queries follow its length. So the rows of one
manifest are one period, and their mean is one point. A manifest that is the first, or was not filled, is
left out. A machine that others use is faster at one time than at another. So times are judged as multiples
of a reference: work without varve, timed in the same steps.

A slope is the change over 10,000 steps, or over all that are judged if these are fewer, as a share of the
mean. It is that of the line of least squares through the means of 12 blocks of points. Descriptors follow
how many tables wait for a merge, and points of one cycle of merges are alike. A block is longer than that.
The interval holds the true slope with a probability of 95 % (Student's t). With a limit below 5 % the whole
interval has to lie within the limit, so a slope that is hidden by noise is not met. With a larger limit
only the slope has to.

`--leak disk,memory,descriptors` makes these grow on purpose: the test then passes if it finds each of them.
"""

import argparse
import itertools
import math
import os
import pathlib
import statistics
import subprocess
import sys

import harness
import png_plot

LEAST_POINTS = 6  # as many as blocks for a limit below 5 %
NUM_BLOCKS = 12
STEPS_A_SLOPE = 10_000
LEAST_DOTS = 200  # of a line in a plot that is 790 wide
# Of Student's t, two-sided, by the degrees of freedom: blocks less two.
T_OF_95 = dict(
    zip(range(1, 11), (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23), strict=True)
)
COLUMNS = (
    "step",
    "disk",
    "rss",
    "descriptors",
    "save ms",
    "query ms",
    "manifest",
    "reference ms",
    "save",
    "query",
)
TITLES = {
    "disk": "disk (bytes)",
    "rss": "rss (bytes)",
    "descriptors": "descriptors",
    "save ms": "save (ms, median)",
    "query ms": "query (ms, median)",
    "reference ms": "reference (ms, median)",
    "save": "save (times reference)",
    "query": "query (times reference)",
}
# What glibc keeps of many arenas wanders by some 5 %, so the programs have one. A leak shows all the same.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
OF_READERS = ("rss", "descriptors", "query ms", "reference ms", "query")
LEAKS = {"disk": "disk", "memory": "rss", "descriptors": "descriptors"}


def parse(text):
    rows = [tuple(float(word) for word in line.split()) for line in text.splitlines()]
    save, query, reference = (
        COLUMNS.index(name) for name in ("save ms", "query ms", "reference ms")
    )
    return [(*row, row[save] / row[reference], row[query] / row[reference]) for row in rows]


def settled(rows, warm_up):
    return rows[int(len(rows) * warm_up) :]


def mean_of(rows):
    return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))


def blocks_of(points):
    """The means of as many blocks of about equal length as there may be."""
    count = min(NUM_BLOCKS, len(points))
    ends = [len(points) * k // count for k in range(count + 1)]
    return [mean_of(points[a:b]) for a, b in itertools.pairwise(ends)]


def slope(points, column, share):
    """The change of a column over this share of the points, and half its interval, both over its mean."""
    blocks = blocks_of(points)
    ys = [block[column] for block in blocks]
    mean = statistics.fmean(ys)
    if mean == 0:
        return 0.0, 0.0
    xs = [k / len(blocks) for k in range(len(blocks))]  # blocks have about the same length
    rise, start = statistics.linear_regression(xs, ys)
    freedom = len(blocks) - 2
    squares = sum((y - start - rise * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    half = T_OF_95[freedom] * math.sqrt(squares / freedom / spread)
    return rise * share / mean, half * share / mean


def periods(rows, warm_up):
    """One point for each manifest that was filled after the warm-up."""
    manifest = COLUMNS.index("manifest")
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[manifest])]
    warm = settled(rows, warm_up)[0][0]
    return [mean_of(group) for group in groups[1:-1] if group[0][0] >= warm]


def start_reader(store):
    return subprocess.Popen(
        [harness.program("soak"), "--reader", str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
    )


def finish_reader(reader):
    out, err = reader.communicate(input="")
    assert reader.returncode == 0, f"a reader ends with {reader.returncode}: {err}"
    return parse(out)


def soak(options):
    """Returns the rows of the writer and of each reader."""
    with harness.clean_folder() as folder:
        store = folder / "store"
        harness.varve(store, "init")
        readers = [start_reader(store) for _ in range(options.readers)]
        writer = subprocess.run(
            [
                harness.program("soak"),
                store,
                str(options.steps),
                str(options.minutes * 60),
                str(options.steps_a_manifest),
            ],
            capture_output=True,
            text=True,
            env=os.environ | ENVIRONMENT | {"VARVE_SOAK_LEAK": options.leak},
        )
        read = [finish_reader(reader) for reader in readers]
        assert writer.returncode == 0, writer.stderr
        harness.check(store)
    return parse(writer.stdout), read


def plot(rows, read, output):
    output.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(f"{value:g}" for value in row) for row in rows]
    (output / "soak.txt").write_text(" ".join(COLUMNS) + "\n" + "\n".join(lines) + "\n")
    panels = []
    for who, mine, names in [
        ("writer", rows, TITLES),
        *((f"reader {k + 1}", each, OF_READERS) for k, each in enumerate(read)),
    ]:
        for name in names:
            ys = [row[COLUMNS.index(name)] for row in mine]
            panels.append((f"{who}: {TITLES[name]}", [row[0] for row in mine], ys))
    png = output / "soak.png"
    png.unlink(missing_ok=True)  # of an earlier run
    png_plot.plot(png, panels)
    drawn = png_plot.num_drawn(png, len(panels))
    empty = [title for (title, _, _), dots in zip(panels, drawn, strict=True) if dots < LEAST_DOTS]
    assert not empty, f"{png}: no line is drawn of {empty}"
    print(f"plots: {png}, {len(panels)} panels, each with its line")


def is_strict(options):
    return options.limit < 0.05


def judge(options, who, points, names, share):
    """Prints a line for each name. Returns those that drift. A slope spans this share of the points."""
    drifting = []
    for name in names:
        column = COLUMNS.index(name)
        change, half = slope(points, column, share)
        is_judged = name in options.judge.split(",")
        holds = abs(change) + (half if is_strict(options) else 0) <= options.limit
        verdict = ("met" if holds else "NOT MET") if is_judged else "not judged"
        middle = statistics.median(point[column] for point in points)
        print(
            f"  {who:<9} {name:<12} median {png_plot.number(middle):>9}  slope {change:+7.2%} "
            f"+- {half:.2%}  limit {options.limit:.0%}  {verdict}"
        )
        if is_judged and not holds:
            drifting.append(f"{who} {name} {change:+.2%} +- {half:.2%}")
    return drifting


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="default 120,000")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument(
        "--steps-a-manifest",
        type=int,
        default=500,
        help="0: as many as RocksDB puts into one, some 800",
    )
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the steps")
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.02, help="of a slope")
    parser.add_argument("--judge", default="disk,rss,descriptors,save,query")
    parser.add_argument("--leak", default="", help="what shall grow on purpose")
    parser.add_argument("--output", type=pathlib.Path, help="a folder for plots and rows")
    options = parser.parse_args()
    if options.steps is None:
        options.steps = 10**9 if options.minutes else 120000
    rows, read = soak(options)
    if options.output:
        plot(rows, read, options.output)
    points = periods(rows, options.warm_up)
    share = min(1, STEPS_A_SLOPE / (rows[-1][0] * (1 - options.warm_up)))
    print(
        f"{rows[-1][0]:.0f} steps, {len(rows)} rows, "
        f"{len(points)} manifests after {options.warm_up:.0%} of them:"
    )
    least = NUM_BLOCKS if is_strict(options) else LEAST_POINTS
    assert len(points) >= least, f"{len(points)} manifests are too few: take more steps"
    drifting = judge(options, "writer", points, list(TITLES), share)
    for k, mine in enumerate(read):
        points = periods(mine, options.warm_up)
        assert len(points) >= least, f"reader {k + 1} saw {len(points)} manifests: take more steps"
        drifting += judge(options, f"reader {k + 1}", points, OF_READERS, share)
    print(f"reads in other processes: {sum(mine[-1][0] for mine in read if mine):.0f}, 0 failed")
    if not options.leak:
        assert not drifting, f"drift: {drifting}"
        return 0
    for leak in options.leak.split(","):
        found = any(text.startswith(f"writer {LEAKS[leak]} +") for text in drifting)
        assert found, f"the leak of {leak} is not found: {drifting}"
        print(f"planted: a leak of {leak}: found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
