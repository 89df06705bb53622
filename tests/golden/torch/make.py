# SPDX-License-Identifier: Apache-2.0
"""Writes the files of this folder with torch (2.15 made those that are here), and what they hold.

    PYTHONPATH=tests/cli/foreign:build/release/python PYTHON_WITH_TORCH tests/golden/torch/make.py
"""

import hashlib
import json
import pathlib
import shutil

import torch_files
from varve.torch import _trees

HERE = pathlib.Path(__file__).parent
COUNTS = {"sharded": 1, "dcp": 2}


def main():
    recorded = {}
    for kind in torch_files.KINDS:
        for path in torch_files.make(HERE, kind, COUNTS.get(kind, 1)):
            if path.name == "dcp0":
                shutil.rmtree(path)  # the one of two ranks stays
                continue
            tensors, value = torch_files.load(path)
            entry = {
                "format": "dcp" if kind == "dcp" else "torch",
                "tensors": {
                    name: [
                        torch_files.stored_shape(tensor),
                        hashlib.sha256(torch_files.stored_bytes(tensor)).hexdigest(),
                    ]
                    for name, tensor in tensors.items()
                },
            }
            if value is not None:
                entry["item"] = _trees_json(value)
            recorded[path.name] = entry
    (HERE / "expected.json").write_text(json.dumps(recorded, indent=1) + "\n")


def _trees_json(value):
    """As varve.torch.save writes it."""
    encoder = _trees.Encoder()
    tree = encoder.encode(value, ("tensor",) if hasattr(value, "shape") else ())
    encoder.tensors()
    return json.loads(_trees.dumps(tree))


if __name__ == "__main__":
    for old in HERE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.suffix == ".pt":
            old.unlink()
    main()
