# SPDX-License-Identifier: Apache-2.0
"""What NumPy writes comes in bit for bit: .npz, compressed and not, and .npy."""

import os
import unittest
import zipfile

import harness
import numpy
from safetensors.numpy import load_file
from verb_case import VerbCase

DTYPES = "? u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8".split()


class NpzImportTest(VerbCase):
    def setUp(self):
        super().setUp()
        self.varve("init")
        self.numbers = numpy.random.default_rng(17)

    def array(self, dtype, shape):
        size = int(numpy.prod(shape, dtype=int)) * numpy.dtype(dtype).itemsize
        raw = self.numbers.integers(0, 2 if dtype == "?" else 256, size, numpy.uint8)
        return raw.view(dtype).reshape(shape)

    def arrays(self):
        made = {f"any.{dtype}": self.array(dtype, (3, 5)) for dtype in DTYPES}
        made["several chunks"] = self.array("f4", (700_000,))
        made["scalar"] = self.array("f8", ())
        made["empty"] = self.array("f4", (0, 3))
        made["fortran"] = numpy.asfortranarray(self.array("i2", (40, 50, 60)))
        made["large fortran"] = numpy.asfortranarray(self.array("f4", (700, 1000)))
        made["transposed"] = self.array("f4", (7, 9)).T
        made["strided"] = self.array("f4", (20, 30))[::2, ::3]
        made["optimizer.exp_avg"] = self.array("f4", (4,))
        return made

    def expect(self, step, arrays):
        out = self.folder / "out.safetensors"
        self.varve("export", step, "-o", out, "--force")
        found = load_file(out)
        self.assertEqual(found.keys(), arrays.keys())
        for name, array in arrays.items():
            self.assertEqual((found[name].dtype, found[name].shape), (array.dtype, array.shape))
            self.assertEqual(found[name].tobytes(), array.tobytes(), name)

    def bring(self, step, *files):
        return self.json("import", *files, "--format", "npz", "--step", step)

    def test_stored_and_compressed(self):
        arrays = self.arrays()
        for step, save in ((1, numpy.savez), (2, numpy.savez_compressed)):
            path = self.folder / f"{step}.npz"
            save(path, **arrays)
            self.assertEqual(self.bring(step, path)["tensors"], len(arrays))
            self.expect(step, arrays)

    def test_npy(self):
        arrays = {
            "a": self.array("f4", (30, 4)),
            "b": numpy.asfortranarray(self.array("f8", (5, 6))),
        }
        for name, array in arrays.items():
            numpy.save(self.folder / f"{name}.npy", array)
        self.bring(1, self.folder / "a.npy", self.folder / "b.npy")
        self.expect(1, arrays)
        self.fails(
            harness.FAILED,
            *("import", self.folder / "a.npy", self.folder / "a.npy"),
            *("--format", "npz", "--step", 2),
            says="an array of that name is in two files",
        )

    def test_a_changed_byte_is_found(self):
        array = self.array("f4", (600_000,))
        for save in (numpy.savez, numpy.savez_compressed):
            path = self.folder / "x.npz"
            save(path, ones=numpy.ones(10), changed=array)
            content = bytearray(path.read_bytes())
            content[-1_000_000] ^= 1
            path.write_bytes(content)
            self.fails(
                harness.FAILED,
                *("import", path, "--format", "npz", "--step", 1),
                says='x.npz: entry "changed.npy": ',
            )
            self.assertEqual(self.steps(), [])

    def test_refusals(self):
        path = self.folder / "x.npz"
        for arrays, says in (
            ({"a": numpy.array([{}], dtype=object)}, "Python objects, which are pickled"),
            ({"a": numpy.ones(3, ">f4")}, "is big-endian"),
            ({"a": numpy.ones(3, "U4")}, "the dtype '<U4' is none that varve has"),
            ({"a": numpy.ones(3, [("x", "f4")])}, "the dtype has fields"),
        ):
            numpy.savez(path, **arrays)
            self.fails(harness.FAILED, "import", path, "--format", "npz", "--step", 1, says=says)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
            archive.writestr("a.npy", b"x")
        says = "the compression method is 12"
        self.fails(harness.FAILED, "import", path, "--format", "npz", "--step", 1, says=says)
        self.fails(harness.USAGE, "import", path, "--format", "npz", says="--step is missing")

    def test_what_deflates_beyond_reason(self):
        path = self.folder / "zeros.npz"
        numpy.savez_compressed(path, a=numpy.zeros(10_000_000))
        self.assertLess(os.path.getsize(path), 100_000)
        self.bring(1, path)
        self.expect(1, {"a": numpy.zeros(10_000_000)})


if __name__ == "__main__":
    unittest.main()
