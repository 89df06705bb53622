# SPDX-License-Identifier: Apache-2.0
"""A writer that saves, drops and reclaims for a long time, and readers in processes of their own.

It plots disk, memory, descriptors, and the times of saves and queries, as PNG, and judges their drift
after the warm-up. The drift is that of the line through the medians of pairs (Theil and Sen), over the
whole time, as a share of the median. Tests of every change judge disk, memory and descriptors only.
"""

import argparse
import itertools
import pathlib
import statistics
import subprocess
import sys

import harness
import png_plot

COLUMNS = ("step", "disk", "rss", "descriptors", "save ms", "query ms")
TITLES = {
    "disk": "disk (bytes)",
    "rss": "rss (bytes)",
    "descriptors": "descriptors",
    "save ms": "save (ms, median)",
    "query ms": "query (ms, median)",
}


def parse(text):
    return [tuple(float(word) for word in line.split()) for line in text.splitlines()]


def drift(rows, column):
    """By how much of its median a column changes from the first row to the last."""
    xs, ys = [row[0] for row in rows], [row[column] for row in rows]
    slopes = [
        (ys[j] - ys[i]) / (xs[j] - xs[i])
        for i, j in itertools.combinations(range(len(rows)), 2)
        if xs[j] != xs[i]
    ]
    middle = statistics.median(ys)
    return statistics.median(slopes) * (xs[-1] - xs[0]) / middle if slopes and middle else 0.0


def start_reader(store):
    return subprocess.Popen(
        [harness.program("soak"), "--reader", str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_reader(reader):
    out, err = reader.communicate(input="")
    assert reader.returncode == 0, f"a reader ends with {reader.returncode}: {err}"
    return parse(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.02, help="of a drift")
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the rows not judged")
    parser.add_argument("--judge", default="disk,rss,descriptors,save ms,query ms")
    parser.add_argument("--output", type=pathlib.Path, help="a folder for plots and rows")
    options = parser.parse_args()
    if not options.minutes and options.steps == 10**9:
        options.steps = 2000
    with harness.clean_folder() as folder:
        store = folder / "store"
        subprocess.run(
            [harness.program("varve"), "-s", store, "init"], check=True, stdout=subprocess.DEVNULL
        )
        readers = [start_reader(store) for _ in range(options.readers)]
        writer = subprocess.run(
            [
                *(harness.program("soak"), store, str(options.steps), str(options.rows)),
                str(options.minutes * 60),
            ],
            capture_output=True,
            text=True,
        )
        read = [finish_reader(reader) for reader in readers]
        assert writer.returncode == 0, writer.stderr
        harness.check(store)
    rows = parse(writer.stdout)
    assert len(rows) >= 8, f"only {len(rows)} rows"
    output = options.output or pathlib.Path(".")
    if options.output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "soak.txt").write_text(writer.stdout)
        panels = [
            (f"writer: {TITLES[name]}", [row[0] for row in rows], [row[column] for row in rows])
            for column, name in enumerate(COLUMNS)
            if column > 0
        ]
        for k, mine in enumerate(read):
            for name in ("rss", "descriptors", "query ms"):
                column = COLUMNS.index(name)
                title = f"reader {k + 1}: {TITLES[name]}"
                panels.append((title, [row[0] for row in mine], [row[column] for row in mine]))
        png_plot.plot(output / "soak.png", panels)
        print(f"plots: {output / 'soak.png'}")
    missed = []
    print(f"{rows[-1][0]:.0f} steps, {len(rows)} rows, drift after {options.warm_up:.0%} of them:")
    series = [("writer", rows, COLUMNS[1:])]
    series += [
        (f"reader {k + 1}", mine, ("rss", "descriptors", "query ms"))
        for k, mine in enumerate(read)
        if len(mine) >= 8
    ]
    for who, mine, names in series:
        for name in names:
            column = COLUMNS.index(name)
            late = mine[int(len(mine) * options.warm_up) :]
            change = drift(late, column)
            is_judged = name in options.judge.split(",")
            holds = abs(change) <= options.limit
            verdict = ("met" if holds else "NOT MET") if is_judged else "not judged"
            middle = statistics.median(row[column] for row in late)
            print(
                f"  {who:<9} {name:<12} median {png_plot.number(middle):>9}  drift {change:+7.2%}  "
                f"limit {options.limit:.0%}  {verdict}"
            )
            if is_judged and not holds:
                missed.append(f"{who} {name} {change:+.2%}")
    print(f"reads in other processes: {sum(mine[-1][0] for mine in read if mine):.0f}, 0 failed")
    assert not missed, f"drift: {missed}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
