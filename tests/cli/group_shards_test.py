# SPDX-License-Identifier: Apache-2.0
"""The command on tensors that the ranks of a group hold in parts, cut in one way and in another."""

import fnmatch
import unittest

import harness
import numpy
import safetensors.numpy
import verb_case

SHAPES = {"rows": [10, 6], "columns": [6, 11], "flat": [7, 9], "norm": [5]}


def global_tensor(name, *changed):
    """As group_saver makes it."""
    tensor = numpy.arange(numpy.prod(SHAPES[name]), dtype=numpy.float32)
    tensor[list(changed)] = -1
    return tensor.reshape(SHAPES[name])


class GroupShardsTest(verb_case.VerbCase):
    """Steps 1 to 3 are of tp 2 x dp 2, step 4 of three tensor-parallel ranks. Step 2 changes two columns
    of different ranks and an element of the last flat slice, and the others have what it has."""

    def setUp(self):
        super().setUp()
        changed = ["columns:13", "columns:65", "flat:62"]
        self.save_group(1, 2, 2)
        self.save_group(2, 2, 2, *changed)
        self.save_group(3, 2, 2, *changed)
        self.save_group(4, 3, 1, *changed)
        self.model = {
            "rows": global_tensor("rows"),
            "columns": global_tensor("columns", 13, 65),
            "flat": global_tensor("flat", 62),
            "norm": global_tensor("norm"),
        }

    def save_group(self, step, tp, dp, *changed):
        harness.run("group_saver", self.store, step, tp, dp, *changed)

    def get(self, step, name, *arguments):
        out = self.folder / "x.npy"
        self.varve("get", step, name, *arguments, "-o", out, "--force")
        return numpy.load(out)

    def test_ls_lists_global_tensors(self):
        for step, shards in (3, 4), (4, 3):
            self.assertEqual(
                [(t["name"], t["shape"], t["shards"]) for t in self.json("ls", step)],
                [(name, SHAPES[name], shards) for name in sorted(SHAPES)],
            )

    def test_ls_lists_names_that_match(self):
        for step in 3, 4:
            for glob in "rows", "r*", "*s", "*", "n*m", "col*ns", "zz*":
                self.assertEqual(
                    self.json("ls", step, glob),
                    [t for t in self.json("ls", step) if fnmatch.fnmatchcase(t["name"], glob)],
                )
            self.fails(harness.NO_STEP, "ls", step, "row", says="no tensor row")

    def test_get_puts_parts_of_ranks_together(self):
        for step in (2, 3, 4):
            for name, expected in self.model.items():
                numpy.testing.assert_array_equal(self.get(step, name), expected)
        for name in self.model:
            numpy.testing.assert_array_equal(self.get(1, name), global_tensor(name))

    def test_get_puts_slices_across_ranks_together(self):
        for step in (3, 4):
            for name, text, box in [
                ("rows", "3:9,1:5", numpy.s_[3:9, 1:5]),
                ("columns", ":,2:10", numpy.s_[:, 2:10]),
                ("flat", "1:6,4:", numpy.s_[1:6, 4:]),
                ("norm", "-2:", numpy.s_[-2:]),
            ]:
                numpy.testing.assert_array_equal(
                    self.get(step, name, "--slice", text), self.model[name][box]
                )

    def test_get_shows_what_one_rank_has(self):
        numpy.testing.assert_array_equal(
            self.get(3, "columns", "--shard", 1), self.model["columns"][:, 6:]
        )
        padded = numpy.append(self.model["flat"].ravel()[48:], numpy.float32(0))
        numpy.testing.assert_array_equal(self.get(3, "flat", "--shard", 3), padded)

    def test_show_says_which_rank_holds_what(self):
        for step, name, layouts in [
            (3, "rows", ["[0:5, :] of [10, 6]", "[5:10, :] of [10, 6]"] * 2),
            (3, "columns", ["[:, 0:6] of [6, 11]", "[:, 6:11] of [6, 11]"] * 2),
            (3, "flat", [f"[:, :] of [7, 9], elements {16 * i}:{16 * i + 16}" for i in range(4)]),
            (3, "norm", ["[:] of [5]"] * 4),
            (4, "rows", [f"[{rows}, :] of [10, 6]" for rows in ("0:4", "4:8", "8:10")]),
            (4, "columns", [f"[:, {c}] of [6, 11]" for c in ("0:4", "4:8", "8:11")]),
            (4, "flat", [f"[:, :] of [7, 9], elements {21 * i}:{21 * i + 21}" for i in range(3)]),
        ]:
            shards = self.json("show", step, name)
            self.assertEqual(
                [(s["rank"], s["shard"], s["layout"]) for s in shards],
                [(i, i, layout) for i, layout in enumerate(layouts)],
            )
            lines = self.varve("show", step, name).stdout.splitlines()
            self.assertRegex(lines[0], r"^rank +shard +dtype +shape +bytes +holds$")
            self.assertEqual(
                [line.split()[0] for line in lines[1:]], [str(i) for i in range(len(layouts))]
            )
            for line, layout in zip(lines[1:], layouts, strict=False):
                self.assertTrue(line.endswith(layout), line)
        self.fails(harness.NO_STEP, "show", 3, "x", says="no tensor x")
        self.assertEqual(
            [
                self.json("show", step)["topology"][key]
                for step in (3, 4)
                for key in ("tp", "dp", "world_size")
            ],
            [2, 2, 4, 3, 1, 3],
        )

    def test_show_names_no_ranks_where_there_are_none(self):
        plain = self.folder / "plain"
        self.varve("copy", 3, plain, "--init")
        shards = harness.varve_json(plain, "show", 3, "rows")
        self.assertEqual([s["shard"] for s in shards], [0, 1, 2, 3])
        self.assertNotIn("rank", shards[0])
        self.assertRegex(harness.varve(plain, "show", 3, "rows").stdout, r"^shard +dtype")
        harness.check(plain)

    def test_diff_of_the_same_cut_names_shards(self):
        diff = self.json("diff", 1, 2, "--values")
        self.assertEqual(
            [(c["name"], c["shard"], c["values"]["changed_elements"]) for c in diff["changed"]],
            # Elements 13 and 65 are in columns 2 and 10. Each is on two data-parallel ranks.
            [
                ("columns", 0, 1),
                ("columns", 1, 1),
                ("columns", 2, 1),
                ("columns", 3, 1),
                ("flat", 3, 1),
            ],
        )
        self.assertEqual(diff["unchanged"], ["norm", "rows"])

    def test_diff_does_not_depend_on_the_cut(self):
        diff = self.json("diff", 3, 4)
        self.assertEqual((diff["added"], diff["removed"], diff["changed"]), ([], [], []))
        self.assertEqual(diff["unchanged"], sorted(SHAPES))
        diff = self.json("diff", 1, 4, "--values")
        self.assertEqual(diff["unchanged"], ["norm", "rows"])
        self.assertEqual(
            [
                (
                    c["name"],
                    c["reshaped"],
                    c["values"]["elements"],
                    c["values"]["changed_elements"],
                    c["values"]["max_abs"],
                )
                for c in diff["changed"]
            ],
            [("columns", False, 66, 2, 66), ("flat", False, 63, 1, 63)],
        )
        self.assertEqual(self.json("diff", 1, 4, "rows")["unchanged"], ["rows"])
        self.assertIn("0 changed (~) in 0 B, 4 unchanged", self.varve("diff", 3, 4).stdout)

    def test_log_lists_the_steps_of_changes(self):
        # Shards that are cut in another way are new ones.
        def changes(name):
            return [(c["step"], c["changed_chunks"], c["chunks"]) for c in self.json("log", name)]

        self.assertEqual(changes("rows"), [(1, 4, 4), (4, 3, 3)])
        self.assertEqual(changes("columns"), [(1, 4, 4), (2, 4, 4), (4, 3, 3)])
        self.assertEqual(changes("flat"), [(1, 4, 4), (2, 1, 4), (4, 3, 3)])
        self.fails(harness.NO_STEP, "log", "x", says="no tensor x")

    def test_export_writes_global_tensors(self):
        for step in (3, 4):
            out = self.folder / f"{step}.safetensors"
            self.varve("export", step, "-o", out)
            tensors = safetensors.numpy.load_file(out)
            self.assertEqual(set(tensors), set(self.model))
            for name, expected in self.model.items():
                numpy.testing.assert_array_equal(tensors[name], expected)


if __name__ == "__main__":
    unittest.main()
