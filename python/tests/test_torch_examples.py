# SPDX-License-Identifier: Apache-2.0
"""The examples with torch, the page for those who come from torch.save, and the benchmark of peers. Skipped
where torch is not installed."""

import json
import os
import pathlib
import re
import sys
import unittest
import warnings

import varve
from support import StoreTest, needs, require

require("torch")
import torch  # noqa: E402
from ranks import run_script  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(script, *arguments, codes=(0,)):
    code, printed, said = run_script(ROOT / script, *arguments)
    if code not in codes:
        raise AssertionError(f"{script} exited {code}:\n{printed}{said}")
    return printed


def losses(text):
    return [float(found) for found in re.findall(r"^step \d+ loss (\S+)$", text, re.MULTILINE)]


class ExamplesTest(StoreTest):
    def test_the_gpt_goes_on_where_it_was(self):
        whole = run("examples/python/gpt.py", self.folder / "whole", "--steps", 13)
        self.assertEqual(len(losses(whole)), 13)
        first = run("examples/python/gpt.py", self.path, "--steps", 11)
        second = run("examples/python/gpt.py", self.path, "--steps", 13)
        self.assertEqual(first + second, whole)
        with self.open("r") as store:
            self.assertLess(store["best:loss"].metrics["loss"], losses(whole)[0])

    def test_fsdp2_goes_on_with_other_ranks(self):
        script = "examples/python/fsdp2.py"
        whole = losses(run(script, self.folder / "whole", "--ranks", 1, "--steps", 9))
        found = losses(run(script, self.path, "--ranks", 4, "--steps", 5))
        found += losses(run(script, self.path, "--ranks", 2, "--steps", 7))
        found += losses(run(script, self.path, "--ranks", 3, "--steps", 9))
        self.assertEqual(len(found), 9)
        for a, b in zip(found, whole, strict=True):
            self.assertAlmostEqual(a, b, delta=0.01)  # sums are taken in another order
        self.assertLess(found[-1], found[0])
        with varve.open(self.path) as store:
            self.assertEqual([info.step for info in store.steps()], [4, 6, 8])

    @needs("safetensors")
    def test_the_benchmark_runs(self):
        out = run("bench/peers.py", "--quick", "--dir", self.folder / "bench", codes=(0, 1))
        for row in ("Store.save", "Checkpoint.load", "one tensor", "stall of after_step, 100 %"):
            self.assertIn(row, out)

    @needs("safetensors")
    def test_the_comparison_runs(self):
        out = self.folder / "comparison.json"
        options = ["--quick", "--only", "varve", "safetensors", "torch.save", "DCP", "ZipNN files"]
        folders = ["--dir", self.folder / "bench", "--states", self.folder / "states"]
        run("bench/compare_peers.py", *options, *folders, "--json", out)
        document = json.loads(out.read_text(encoding="utf-8"))
        results = document["sizes"]["tiny"]["results"]
        for subject in ("varve", "safetensors", "torch.save", "DCP"):
            for metric in (
                "full",
                "same",
                "later",
                "ten",
                "load",
                "one",
                "drop_first",
                "memory_load",
            ):
                self.assertGreaterEqual(results[subject][metric]["median"], 0, (subject, metric))
        # Sizes are those of the format, and no busy machine changes them.
        own, plain = results["varve"], results["safetensors"]
        self.assertLess(own["same_bytes"]["median"], plain["same_bytes"]["median"] / 10)
        self.assertIn("stall", own)
        self.assertEqual(list((self.folder / "bench").iterdir()), [], "stores are left behind")
        printed = run("bench/comparison_page.py", "--print", out)
        self.assertIn("| varve |", printed)
        if "ZipNN files" not in results:
            self.assertEqual(document["not_installed"], {"ZipNN files": ["zipnn"]})
            self.assertIn("not installed: zipnn", printed)

    def test_the_page_has_the_numbers_that_were_measured(self):
        measured = ROOT / "bench/comparison/measured.json"
        if not measured.exists():
            self.skipTest("nothing was measured yet")
        run("bench/comparison_page.py", "--check", measured)

    def test_bytes_that_differ_are_an_error_of_the_comparison(self):
        sys.path.insert(0, str(ROOT / "bench"))
        from comparison import states

        saved = {"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.bfloat16)}
        states.require_same({name: each.clone() for name, each in saved.items()}, saved, "peer")
        for name, other in (
            ("a", -torch.zeros(3)),  # equal, with other bits
            ("a", torch.zeros(4)),
            ("b", torch.ones(2)),
        ):
            with self.assertRaisesRegex(AssertionError, f"peer: {name} "):
                states.require_same({**saved, name: other}, saved, "peer")
        with self.assertRaisesRegex(AssertionError, "other names"):
            states.require_same({"a": saved["a"]}, saved, "peer")


class FromTorchTest(StoreTest):
    @needs("safetensors")
    def test_both_columns_load_the_same(self):
        text = (ROOT / "docs/from_torch.md").read_text(encoding="utf-8")
        snippets = [
            (text.count("\n", 0, match.start(1)), match.group(1))
            for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        ]
        self.assertGreaterEqual(len(snippets), 15)
        self.assertEqual(len(snippets) % 2, 1)
        names = {"__name__": "page"}

        def execute(snippet):
            line, code = snippet
            exec(compile("\n" * line + code, "docs/from_torch.md", "exec"), names)
            return names.pop("loaded", None)

        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            execute(snippets[0])
            for before, after in zip(snippets[1::2], snippets[2::2], strict=True):
                with self.subTest(f"line {before[0]}"):
                    expected, found = execute(before), execute(after)
                    self.assertIsNotNone(expected)
                    self.assert_same(found, expected)
            names["store"].close()
            with varve.open("runs/ckpt") as store:
                self.assertTrue(store.check(read_data=True).ok)

    def assert_same(self, found, expected):
        if isinstance(expected, dict):
            self.assertEqual(list(found), list(expected))
            for key, value in expected.items():
                self.assert_same(found[key], value)
        elif isinstance(expected, torch.Tensor):
            self.assertTrue(torch.equal(found, expected))
        else:
            self.assertEqual(found, expected)


if __name__ == "__main__":
    unittest.main()
