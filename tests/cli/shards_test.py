# SPDX-License-Identifier: Apache-2.0
"""Tensors that are saved in shards: the command shows and reads the global ones."""

import unittest

import harness
import numpy
import safetensors.numpy
import verb_case


class ShardsTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        with harness.StoreTool(self.store, 1000) as tool:
            tool.must("shards 1")
            tool.must("shards 2")
        self.w = numpy.arange(1, 61, dtype=numpy.float32).reshape(10, 6)

    def test_ls_counts_shards_of_the_global_tensor(self):
        self.assertEqual(
            self.json("ls", 1),
            [
                {"name": "b", "dtype": "F32", "shape": [4], "shards": 2, "logical_bytes": 16},
                {"name": "w", "dtype": "F32", "shape": [10, 6], "shards": 4, "logical_bytes": 240},
            ],
        )

    def test_get_puts_slices_together(self):
        out = self.folder / "x.npy"
        self.varve("get", 1, "w", "-o", out)
        numpy.testing.assert_array_equal(numpy.load(out), self.w)
        self.varve("get", 1, "w", "--slice", "2:9,1:5", "-o", out, "--force")
        numpy.testing.assert_array_equal(numpy.load(out), self.w[2:9, 1:5])
        self.varve("get", 1, "w", "--shard", 1, "-o", out, "--force")
        numpy.testing.assert_array_equal(numpy.load(out), self.w[:, 2:4])
        self.fails(harness.NO_STEP, "get", 1, "w", "--shard", 9, says="shard 9")

    def test_export_writes_global_tensors(self):
        out = self.folder / "x.safetensors"
        self.varve("export", 1, "-o", out)
        tensors = safetensors.numpy.load_file(out)
        numpy.testing.assert_array_equal(tensors["w"], self.w)
        numpy.testing.assert_array_equal(tensors["b"], numpy.array([1, 2, 7, 8], numpy.float32))

    def test_show_says_what_each_shard_holds(self):
        layouts = [shard["layout"] for shard in self.json("show", 1, "w")]
        self.assertEqual(
            layouts,
            [
                "[:, 0:2] of [10, 6]",
                "[:, 2:4] of [10, 6]",
                "[:, 4:6] of [10, 6]",
                "[:, pad 2] of [10, 6]",
            ],
        )
        self.assertIn("[:, pad 2] of [10, 6]", self.varve("show", 1, "w").stdout)
        self.assertEqual(self.json("show", 1)["topology"]["tp"], 4)
        self.fails(harness.NO_STEP, "show", 1, "x", says="no tensor x")

    def test_diff_and_copy(self):
        self.assertEqual({c["name"] for c in self.json("diff", 1, 2)["changed"]}, {"b", "w"})
        other = self.folder / "other"
        harness.varve(other, "init")
        self.varve("copy", 1, other)
        self.assertEqual(harness.varve_json(other, "ls", "1"), self.json("ls", 1))
        harness.check(other)


if __name__ == "__main__":
    unittest.main()
