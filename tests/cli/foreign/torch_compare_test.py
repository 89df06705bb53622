# SPDX-License-Identifier: Apache-2.0
"""Files of 8 kinds by the torch that is there: an import has the bytes that the stock loaders read.
VARVE_FULL_SIZE=1 makes 50 files, otherwise it is two of each kind."""

import math
import os
import pathlib
import sys
import unittest

import harness
import safetensors_bytes as files
from verb_case import VerbCase

HAS_TORCH = harness.has("torch")
if HAS_TORCH:
    import torch
    import torch_files

COUNT = None if os.environ.get("VARVE_FULL_SIZE") == "1" else 2
sys.path.append(str(pathlib.Path(os.environ["VARVE_BIN_DIR"]).parent / "python"))
HAS_PACKAGE = HAS_TORCH and harness.has("varve")


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class TorchCompareTest(VerbCase):
    def setUp(self):
        super().setUp()
        self.varve("init")
        self.step = 0

    def compare(self, path):
        self.step += 1
        form = "dcp" if (path / ".metadata").exists() else "torch"
        self.json("import", path, "--format", form, "--step", self.step)
        expected, value = torch_files.load(path)
        out = self.folder / "out.safetensors"
        self.varve("export", self.step, "-o", out, "--force")
        found = files.read(out)
        self.assertEqual(sorted(found), sorted(expected), path)
        for name, tensor in expected.items():
            _, shape, data = found[name]
            self.assertEqual(list(shape), torch_files.stored_shape(tensor), (path, name))
            self.assertEqual(data, torch_files.stored_bytes(tensor), (path, name))
        return value

    def test_every_kind(self):
        count = 0
        for kind in torch_files.KINDS:
            for path in torch_files.make(self.folder, kind, COUNT):
                value = self.compare(path)
                count += 1
                if value is not None and HAS_PACKAGE:
                    self.load_again(path, value)
        self.assertEqual(count, 16 if COUNT else 50)

    def load_again(self, path, value):
        """varve.torch.load gives back what torch.load gives."""
        import varve.torch

        with varve.open(self.store) as store:
            self.equal(varve.torch.load(store, self.step), value, str(path))

    def equal(self, found, expected, where):
        kind = set if isinstance(expected, frozenset) else type(expected)
        if kind is torch.nn.Parameter:
            kind = torch.Tensor
        if kind is bytearray:
            kind = bytes
        self.assertIs(type(found), kind, where)
        if kind is torch.Tensor:
            self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), where)
            self.assertEqual(
                torch_files.stored_bytes(found), torch_files.stored_bytes(expected), where
            )
        elif isinstance(expected, dict):
            self.assertEqual(list(found), list(expected), where)
            for key in expected:
                self.equal(found[key], expected[key], f"{where}.{key}")
            self.assertEqual(
                getattr(found, "_metadata", None), getattr(expected, "_metadata", None), where
            )
        elif isinstance(expected, (list, tuple)) and kind is not torch.Size:
            self.assertEqual(len(found), len(expected), where)
            for i, (left, right) in enumerate(zip(found, expected, strict=True)):
                self.equal(left, right, f"{where}.{i}")
        elif kind is float and math.isnan(expected):
            self.assertTrue(math.isnan(found), where)
        else:
            self.assertEqual(found, expected, where)


if __name__ == "__main__":
    unittest.main()
