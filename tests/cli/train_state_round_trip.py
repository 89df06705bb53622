# SPDX-License-Identifier: Apache-2.0
"""Real training state through the command: train_state_round_trip.py VARVE FOLDER

FOLDER holds late+000, +001, +010 and +100.safetensors. Each becomes a step; each step is exported
and must hold the same tensors byte for byte; slices of every tensor must equal NumPy's. Prints one
line a step and exits 1 at the first difference.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import safetensors

STEPS = (0, 1, 10, 100)
RAW = {"BF16": numpy.uint16, "F32": numpy.float32}  # BF16 comes as its bits


def run(varve, store, *arguments):
    command = [varve, "--store", store, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def read(path):
    return {
        name: (t["dtype"], list(t["shape"]), bytes(t["data"]))
        for name, t in safetensors.deserialize(pathlib.Path(path).read_bytes())
    }


def random_slice(rng, shape):
    parts = [sorted((rng.randint(0, size), rng.randint(0, size))) for size in shape]
    return ",".join(f"{begin}:{end}" for begin, end in parts), tuple(slice(*part) for part in parts)


def compare_slices(varve, store, step, tensors, folder, rng):
    """Returns the number of slices compared."""
    for name, (dtype, shape, data) in tensors.items():
        array = numpy.frombuffer(data, RAW[dtype]).reshape(shape)
        text, index = random_slice(rng, shape)
        out = folder / "slice.npy"
        run(varve, store, "--quiet", "get", step, name, f"--slice={text}", "-o", out, "--force")
        expected = numpy.ascontiguousarray(array[index])
        found = numpy.load(out)
        if found.shape != expected.shape or found.tobytes() != expected.tobytes():
            sys.exit(f"step {step}: {name}[{text}] is not NumPy's slice")
    return len(tensors)


def main(varve, data):
    rng = random.Random(2)
    with tempfile.TemporaryDirectory(prefix="varve-train-state-") as name:
        folder = pathlib.Path(name)
        store = folder / "store"
        files = {step: pathlib.Path(data, f"late+{step:03}.safetensors") for step in STEPS}
        for step, file in files.items():
            report = json.loads(
                run(varve, store, "--json", "import", file, "--init", "--step", step)
            )
            print(
                f"import late+{step:03}: {report['logical_bytes']:>9} logical  {report['new_bytes']:>9} new  "
                f"{report['stored_bytes']:>9} stored bytes"
            )
        for step, file in files.items():
            out = folder / f"{step}.safetensors"
            run(varve, store, "export", step, "-o", out)
            tensors = read(file)
            if read(out) != tensors:
                sys.exit(f"step {step}: the exported tensors differ from {file}")
            slices = compare_slices(varve, store, step, tensors, folder, rng)
            print(
                f"export step {step:>3}: {len(tensors)} tensors byte-identical, {slices} slices equal NumPy's"
            )
        run(varve, store, "check", "--read-data")
        print("check --read-data: no errors")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
