# SPDX-License-Identifier: Apache-2.0
"""A store of one's own for each test of the verbs, and short ways to ask the command."""

import pathlib
import random
import unittest

import harness
import safetensors_bytes as files


class VerbCase(unittest.TestCase):
    """Every test ends with a full check of its store."""

    def setUp(self):
        self.rng = random.Random(21)
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"

    def tearDown(self):
        harness.check(self.store)

    def varve(self, *arguments, **options):
        return harness.varve(self.store, *arguments, **options)

    def json(self, *arguments, **options):
        done = harness.varve(self.store, "--json", *arguments, **options)
        self.assertEqual(done.stderr, "")
        return harness.json.loads(done.stdout)

    def fails(self, code, *arguments, says=""):
        done = self.varve(*arguments, expect=code)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^varve: [^\n]+\n$")
        self.assertIn(says, done.stderr)

    def save(self, step, *arguments, seed=None, tensors=None):
        """One random tensor "w" of 300,000 floats, equal for equal seeds, unless told otherwise."""
        if tensors is None:
            rng = random.Random(step if seed is None else seed)
            tensors = {"w": files.random_tensor(rng, "F32", [300_000])}
        source = files.write(pathlib.Path(self.folder, "in"), tensors)
        return self.json("import", source, "--init", "--step", step, *arguments)

    def steps(self, *arguments):
        return [(step["run"], step["step"]) for step in self.json("steps", *arguments)]

    def assert_adds_up(self, report, raw):
        """Codecs and coders each hold every byte of the frames once."""
        for uses in (report["by_codec"].values(), report["by_coder"].values()):
            self.assertEqual(sum(use["raw_bytes"] for use in uses), report[raw])
            self.assertEqual(sum(use["stored_bytes"] for use in uses), report["stored_bytes"])
