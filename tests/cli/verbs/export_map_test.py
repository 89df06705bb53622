# SPDX-License-Identifier: Apache-2.0
"""varve export --map: other names in the file, the same bytes."""

import sys
import unittest

import harness
import numpy
from safetensors.numpy import load_file, save_file

# The parameters in the order in which the optimizer got them (docs/hooks.md).
PARAMETERS = ["wte", "h.0.w"]


class ExportMapTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = numpy.random.default_rng(3)
        self.tensors = {
            kind + name: rng.standard_normal((4, 3), dtype=numpy.float32)
            for kind in ("", "exp_avg.", "exp_avg_sq.")
            for name in PARAMETERS
        }
        save_file(self.tensors, self.folder / "in.safetensors")
        harness.varve(self.store, "import", "--init", "--step", 1, self.folder / "in.safetensors")

    def tearDown(self):
        harness.check(self.store)

    def export(self, lines, *arguments, **options):
        names = self.folder / "names"
        names.write_text("".join(f"{line}\n" for line in lines))
        out = self.folder / "out.safetensors"
        return harness.varve(
            self.store, "export", 1, "-o", out, "--force", "--map", names, *arguments, **options
        )

    def read(self):
        return load_file(self.folder / "out.safetensors")

    def test_state_by_index(self):
        lines = ["# from to"]
        for index, name in enumerate(PARAMETERS):
            for kind in ("exp_avg", "exp_avg_sq"):
                lines.append(f"{kind}.{name} state.{index}.{kind}")
        self.assertEqual(self.export(lines).stderr, "")
        read = self.read()
        expected = {}
        for name, tensor in self.tensors.items():
            kind, _, parameter = name.partition(".")
            if kind.startswith("exp_"):
                name = f"state.{PARAMETERS.index(parameter)}.{kind}"
            expected[name] = tensor
        self.assertEqual(set(read), set(expected))
        for name, tensor in expected.items():
            numpy.testing.assert_array_equal(read[name], tensor, name)

    def test_names_may_be_swapped(self):
        self.export(["wte h.0.w", "h.0.w wte"], "--exclude", "exp_*")
        read = self.read()
        numpy.testing.assert_array_equal(read["wte"], self.tensors["h.0.w"])
        numpy.testing.assert_array_equal(read["h.0.w"], self.tensors["wte"])

    def test_a_prefix_renames_all_below_it(self):
        self.export(["exp_avg m"], "--include", "exp_avg.*")
        self.assertEqual(set(self.read()), {"m.wte", "m.h.0.w"})

    def test_names_that_match_nothing_are_noted(self):
        done = self.export(["wte embedding", "wpe positions"])
        self.assertIn("--map: 1 name not in the step: wpe", done.stderr)
        self.assertIn("embedding", self.read())

    def test_one_name_for_two_tensors_is_an_error(self):
        done = self.export(["wte x", "h.0.w x"], expect=harness.USAGE)
        self.assertIn("tensors h.0.w and wte would both be named x", done.stderr)
        done = self.export(["wte h.0.w"], expect=harness.USAGE)
        self.assertIn("would both be named h.0.w", done.stderr)

    def test_a_wrong_file_is_an_error(self):
        done = self.export(["wte"], expect=harness.USAGE)
        self.assertIn('names:1: "wte", expected two names', done.stderr)
        done = self.export([], "--format", "llmc", expect=harness.USAGE)
        self.assertIn("--map does not go with --format llmc", done.stderr)
        out = self.folder / "none.safetensors"
        done = harness.varve(
            self.store, "export", 1, "-o", out, "--map", self.folder / "no", expect=harness.NO_STEP
        )
        self.assertIn("no", done.stderr)
        self.assertFalse(out.exists())


if __name__ == "__main__":
    sys.exit(unittest.main())
