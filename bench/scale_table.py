# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/scale.md: written from what scale_bench --json has measured, and checked.

scale_table.py BEFORE.json [AFTER.json]   prints the tables
scale_table.py --check FILE.md            fits each row of its tables again; so with what is said of
                                          10,000 ranks, and with the sums in the lines "= ..."
"""

import argparse
import json
import math
import re
import sys

MANY_RANKS = 10_000
MIB = 1 << 20
# Number, how it is shown, and what it must reach at the largest size to be shown at all.
NUMBERS = [
    ("seconds", 1, "s", 0.02),
    ("cpu_seconds", 1, "s of CPUs", 0.02),
    ("bytes_read", MIB, "MiB read", 4),
    ("bytes_written", MIB, "MiB written", 4),
    ("calls", 1, "calls", 2000),
    ("memory_bytes", MIB, "MiB held", 32),
]


def fit(points):
    """Exponent and factor of the power that goes through the points (size, value) best."""
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(max(value, 1e-9)) for _, value in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    exponent = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=False)) / sum(
        (a - x) ** 2 for a in xs
    )
    return exponent, math.exp(y - exponent * x)


def shown(value):
    if value == 0:
        return "0"
    if abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def number(text):
    return float(text.replace(",", ""))


def row_of(operation, when, field, unit, show):
    """The cells of one number of an operation, computed from what is shown; or nothing."""
    key, scale, _, least = field
    if any(key not in point for point in operation["points"]):  # of a bench before it counted that
        return None
    values = [point[key] / scale for point in operation["points"]]
    if max(values) < least:
        return None
    cells = [shown(value) for value in values]
    sizes = [point["size"] for point in operation["points"]]
    exponent, factor = fit(list(zip(sizes, map(number, cells), strict=False)))
    memory = key == "memory_bytes"
    expected = operation["expected_memory" if memory else "expected_work"]
    row = [operation["what"], when, field[2], *cells, f"{exponent:.2f}", f"{expected:g}"]
    return row + ([shown(factor * MANY_RANKS**exponent)] if unit == "ranks" else [])


def sizes_of(operation):
    return [f"{int(point['size']):,}" for point in operation["points"]]


def table(name, documents):
    """One axis of documents that measured the same sizes."""
    first = documents[0][1][name]
    unit, sizes = first[0]["axis"], sizes_of(first[0])
    header = [unit, "when", "number", *sizes, "fitted", "expected"]
    header += ["at 10,000"] if unit == "ranks" else []
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for operation in first:
        for field in NUMBERS:
            for when, document in documents:
                same = [o for o in document[name] if o["what"] == operation["what"]]
                row = row_of(same[0], when, field, unit, shown) if same else None
                if row and len(row) == len(header):
                    yield "| " + " | ".join(row) + " |"


def tables(documents):
    for name in documents[0][1]:
        yield f"\n### {name}"
        by_sizes = {}
        for when, document in documents:
            if document.get(name):
                sizes = tuple(sizes_of(document[name][0]))
                by_sizes.setdefault(sizes, []).append((when, document))
        for same in by_sizes.values():
            yield ""
            yield from table(name, same)


def faults_of_row(header, cells):
    sizes = [number(cell) for cell in header[3 : header.index("fitted")]]
    values = [number(cell) for cell in cells[3 : 3 + len(sizes)]]
    exponent, factor = fit(list(zip(sizes, values, strict=False)))
    said = number(cells[header.index("fitted")])
    if abs(exponent - said) > 0.02:
        yield f"{cells[0]}, {cells[2]}: the values give {exponent:.2f}, the table says {said}"
    if "at 10,000" in header:
        there, far = factor * MANY_RANKS**exponent, number(cells[header.index("at 10,000")])
        if abs(there - far) > 0.05 * max(there, far):
            yield f"{cells[0]}, {cells[2]}: {there:.4g} at 10,000 ranks, the table says {far}"


# A line of the arithmetic: "`2 * ranks + 3` = 20,003 records".
SUM = re.compile(r"`([-+*/() \w.,]+)` = ([\d.,]+)")
ALLOWED = re.compile(r"[-+*/() \d.]*")


def faults_of_sum(expression, said, names):
    text = re.sub(r"[A-Za-z_]+", lambda word: str(names[word.group()]), expression.replace(",", ""))
    if not ALLOWED.fullmatch(text):
        yield f"`{expression}` is no sum"
        return
    value = eval(text, {"__builtins__": {}})  # noqa: S307 - digits and operators only
    if abs(value - number(said)) > 0.005 * max(abs(value), 1e-9):
        yield f"`{expression}` is {value:,.6g}, not {said}"


def faults(text):
    names = {
        name: float(value.replace(",", ""))
        for name, value in re.findall(r"^- `(\w+)` = ([\d.,]+\d)", text, re.MULTILINE)
    }
    header, num_rows = None, 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif "fitted" in cells:
            header = cells
        elif header and not cells[0].startswith("---"):
            num_rows += 1
            yield from faults_of_row(header, cells)
        for expression, said in SUM.findall(line):
            if not line.startswith("- `") or not re.fullmatch(r"\w+", expression):
                yield from faults_of_sum(expression, said, names)
    if num_rows == 0:
        yield "there is no table"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", metavar="FILE.md")
    parser.add_argument("json", nargs="*")
    flags = parser.parse_args()
    if flags.check:
        with open(flags.check, encoding="utf-8") as file:
            found = list(faults(file.read()))
        print("\n".join(found))
        return 1 if found else 0
    documents = []
    for when, path in zip(("before", "after"), flags.json, strict=False):
        with open(path, encoding="utf-8") as file:
            documents.append((when, json.load(file)))
    print("\n".join(tables(documents)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
