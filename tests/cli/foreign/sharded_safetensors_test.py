# SPDX-License-Identifier: Apache-2.0
"""Row 34: sharded safetensors are exported as the stock package wrote them."""

import json
import unittest

import numpy
from foreign_case import ForeignCase
from safetensors.numpy import save_file


class SafetensorsTest(ForeignCase):
    def test_files_of_the_stock_package_and_their_index(self):
        generator = numpy.random.default_rng(5)
        arrays = {
            f"layer.{i}.w": generator.standard_normal((20, 25)).astype(numpy.float32)
            for i in range(6)
        }
        names = sorted(arrays)
        folder, weight_map = self.folder / "in", {}
        folder.mkdir()
        for i in range(3):
            file = f"model-{i + 1:05}-of-00003.safetensors"
            save_file(
                {name: arrays[name] for name in names[2 * i : 2 * i + 2]},
                folder / file,
                {"format": "pt"},
            )
            weight_map |= {name: file for name in names[2 * i : 2 * i + 2]}
        index = {"metadata": {"total_size": 12_000}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2, sort_keys=True) + "\n"
        )
        self.varve("import", folder / "model.safetensors.index.json", "--step", 1)
        out = self.folder / "out"
        out.mkdir()
        self.varve("export", 1, "-o", out, "--max-shard-size", "4KB")
        self.assert_same_files(out, {path.name: path.read_bytes() for path in folder.iterdir()})


if __name__ == "__main__":
    unittest.main()
