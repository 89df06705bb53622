# SPDX-License-Identifier: Apache-2.0
"""examples/minimal_ranks.cc: docs/hooks.md shows it, and three ranks load what two have saved."""

import pathlib
import re
import subprocess
import sys
import textwrap
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class MinimalRanksTest(unittest.TestCase):
    def test_manual_shows_the_example(self):
        manual = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```cpp\n(.*?)^```$", manual, re.MULTILINE | re.DOTALL)
        shown = [block for block in blocks if "OpenGroupCheckpointer" in block]
        self.assertEqual(len(shown), 1)
        self.assertIn(shown[0], (ROOT / "examples/minimal_ranks.cc").read_text(encoding="utf-8"))

    def test_recipes_of_the_manual_are_those_of_the_test(self):
        manual = (
            (ROOT / "docs/hooks.md")
            .read_text(encoding="utf-8")
            .split("## Recipes")[1]
            .split("\n## ")[0]
        )
        blocks = re.findall(r"^```cpp\n(.*?)^```$", manual, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 5)
        recipes = (ROOT / "tests/trainer_hooks/recipes_test.cc").read_text(encoding="utf-8")
        for block in blocks:  # a function, or lines of one
            self.assertTrue(block in recipes or textwrap.indent(block, "  ") in recipes, block)

    def test_other_ranks_load_what_was_saved(self):
        with harness.clean_folder() as folder:
            done = subprocess.run(
                [harness.program("varve_minimal_ranks")],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            self.assertEqual(
                sorted(done.stdout.splitlines()),
                [f"rank {rank} of 3: its rows begin with {4000 * rank}" for rank in range(3)],
            )
            (weight,) = [
                tensor
                for tensor in harness.varve_json(folder / "ckpt", "ls", 100)
                if tensor["name"] == "weight"
            ]
            self.assertEqual(weight["shape"], [12, 1000])
            harness.check(folder / "ckpt")


if __name__ == "__main__":
    sys.exit(unittest.main())
