# SPDX-License-Identifier: Apache-2.0
"""Do stores get as small as codec_bench says? store_matches_bench.py VARVE CODEC_BENCH FOLDER

FOLDER holds SERIES+STEPS.safetensors, as codec_bench takes it. Each kind of tensors is imported into
a store of its own, every file as a step whose parent is +000, because that is the base which the
bench takes. Then whole files are imported with bf16 weights derived from their masters: against
+000, and once more in order, each against the one before, as a trainer would. Prints a row for each,
and exits 1 when a store differs from the bench by more than 2 %; one that was filled in order may be
smaller, since its bases are nearer. Small differences are chunks that did not change at all: the
bench counts a delta of some 80 bytes, a store shares them.
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import safetensors_bytes

LIMIT = 2.0  # percent


def run(*command):
    return subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def bench_rows(codec_bench, folder):
    """{(series, kind, distance): encoded bytes}. The distance of +000 is "keyframe"."""
    rows, key = {}, None
    for line in run(codec_bench, folder).splitlines():
        if found := re.match(r"(\S+)  (\S.*?)(?:, bf16 derived)?  (keyframe|\+\d+)$", line):
            key = found.groups()
        elif found := re.match(r"  varve +(\d+) ", line):
            rows[key] = int(found[1])
    return rows


class Importer:
    def __init__(self, varve, folder):
        self.varve = varve
        self.folder = folder

    def stored_bytes(self, files, *arguments, parent=None):
        """Yields (file, stored bytes) of each file, imported into a new store as steps 0, 1, 2 ..."""
        with tempfile.TemporaryDirectory(dir=self.folder) as store:
            for step, file in enumerate(files):
                options = [] if parent is None or step == 0 else ["--parent", parent]
                report = json.loads(
                    run(
                        self.varve,
                        "-s",
                        store,
                        "--json",
                        "import",
                        file,
                        "--init",
                        "--step",
                        step,
                        *options,
                        *arguments,
                    )
                )
                yield file, report["stored_bytes"]
            run(self.varve, "-s", store, "check", "--read-data")


def distance(file):
    steps = file.stem[file.stem.rindex("+") :]
    return "keyframe" if steps == "+000" else steps


def only(kind, file, folder):
    """A copy of the file with the tensors of one kind."""
    tensors = {
        name: tensor
        for name, tensor in safetensors_bytes.read(file).items()
        if name.startswith(kind + ".")
    }
    return safetensors_bytes.write(folder / file.name, tensors)


def store_rows(importer, bench, series, files):
    """Yields (label, key of the bench, stored bytes, whether it may also be smaller)."""
    kinds = sorted({kind for name, kind, _ in bench if name == series} - {"whole state"})
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=importer.folder) as folder:
            copies = [only(kind, file, pathlib.Path(folder)) for file in files]
            for file, stored in importer.stored_bytes(copies, parent=0):
                yield kind, (series, kind, distance(file)), stored, False
    derive = ["--derive", "model.*=master.*"] if "master" in kinds else []
    for file, stored in importer.stored_bytes(files, *derive, parent=0):
        yield "whole state", (series, "whole state", distance(file)), stored, False
    for file, stored in importer.stored_bytes(files, *derive):
        yield "whole state, in order", (series, "whole state", distance(file)), stored, True


def main(varve, codec_bench, data):
    bench = bench_rows(codec_bench, data)
    by_series = itertools.groupby(
        sorted(pathlib.Path(data).glob("*+*.safetensors")),
        key=lambda file: file.stem[: file.stem.rindex("+")],
    )
    missed = 0
    print(f"{'':46} {'bench':>10} {'store':>10} {'difference':>10}")
    with tempfile.TemporaryDirectory(prefix="varve-bench-") as folder:
        importer = Importer(varve, pathlib.Path(folder))
        for series, files in by_series:
            for label, key, stored, may_be_smaller in store_rows(
                importer, bench, series, list(files)
            ):
                percent = 100 * (stored / bench[key] - 1)
                met = percent <= LIMIT and (may_be_smaller or percent >= -LIMIT)
                missed += not met
                print(
                    f"{series:16} {label:22} {key[2]:8} {bench[key]:>8} {stored:>10} {percent:>+9.2f}%  "
                    f"{'met' if met else 'not met'}"
                )
    print(f"{missed} not met")
    return missed > 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
