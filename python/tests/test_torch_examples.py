# SPDX-License-Identifier: Apache-2.0
"""The examples with torch, the page for those who come from torch.save, and the benchmark of peers. Skipped
where torch is not installed."""

import json
import os
import pathlib
import re
import shutil
import subprocess
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
        """With each peer that is installed: all of them after `scripts/setup --peers`."""
        out = self.folder / "comparison.json"
        folders = ["--dir", self.folder / "bench", "--states", self.folder / "states"]
        options = ["--quick", "--seed", 5, *folders, "--json", out]
        of_peers = ROOT / "build/peers_venv/bin/python"
        if of_peers.exists():
            command = [of_peers, "-W", "ignore", ROOT / "bench/compare_peers.py", *options]
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            printed = done.stdout
        else:
            printed = run("bench/compare_peers.py", *options)
        self.assertIn("shuffled with the seed 5", printed)
        document = json.loads(out.read_text(encoding="utf-8"))
        self.assertIn("bench/compare_peers.py --quick --seed 5 ", document["command"])
        results = document["sizes"]["tiny"]["results"]
        missing = document["not_installed"]
        self.assertEqual(list(results), list(document["subjects"]))
        self.assertEqual(len(results) + len(missing), 10)
        if of_peers.exists():
            self.assertEqual(missing, {})
        for subject in {"varve", "safetensors", "torch.save", "DCP", *results}:
            for metric in (
                "full",
                "same",
                "later",
                "ten",
                "load",
                "one",
                "drop_last",
                "drop_first",
                "memory_full",
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
        for name, lacking in missing.items():
            self.assertIn(f"| {name} | not installed: {', '.join(lacking)} |", printed)

    def test_the_page_has_the_numbers_that_were_measured(self):
        measured = ROOT / "bench/comparison/measured.json"
        if not measured.exists():
            self.skipTest("nothing was measured yet")
        run("bench/comparison_page.py", "--check", measured)

    def test_the_page_has_a_section_for_each_size_that_was_measured(self):
        document, write = self.page_and_document()
        document["sizes"]["100M"] = document["sizes"]["17M"]
        write(document, "--check", codes=[1])
        write(document)
        write(document, "--check")
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertNotIn("no numbers", page)
        self.assertEqual(page.count("\n## 100 million parameters\n"), 1)
        for name in re.findall(r"\(comparison/(.*?\.svg)\)", page):
            self.assertTrue((self.folder / "page" / name).exists(), name)
        del document["sizes"]["100M"]
        self.assertIn("loads-100M.svg is of a size", write(document, "--check", codes=[1]))
        write(document)
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertIn("**no numbers** of the model of 100 million parameters", page)
        self.assertEqual(list((self.folder / "page").glob("*-100M.svg")), [])

    def test_a_page_with_other_parts_than_are_written_is_an_error(self):
        document, write = self.page_and_document()
        path = self.folder / "page.md"
        page = path.read_text(encoding="utf-8")
        for other in (
            page.replace("<!-- made: sizes -->", "<!-- made: sizes-17M -->"),
            page + "<!-- made: loads 1B -->\n<!-- end -->\n",
        ):
            path.write_text(other, encoding="utf-8")
            write(document, codes=[1])
            self.assertEqual(path.read_text(encoding="utf-8"), other)

    def test_a_peer_gets_no_reason_that_is_not_true_of_it(self):
        document, write = self.page_and_document()
        for metric, peer in (("load", "restic on safetensors"), ("full_bytes", "torch.save")):
            other = json.loads(json.dumps(document))
            other["sizes"]["17M"]["results"][peer][metric]["median"] = 1e-3
            self.assertIn(f"why is it better with {peer}", write(other, codes=[1]))

    def page_and_document(self):
        """A copy of the page, and what writes it from a document."""
        measured = (ROOT / "bench/comparison/measured.json").read_text(encoding="utf-8")
        shutil.copy(ROOT / "docs/comparison.md", self.folder / "page.md")
        shutil.copytree(ROOT / "docs/comparison", self.folder / "page")

        def write(document, *options, codes=(0,)):
            path = self.folder / "document.json"
            path.write_text(json.dumps(document), encoding="utf-8")
            command = [ROOT / "bench/comparison_page.py", "--page", self.folder / "page.md"]
            done = subprocess.run(
                [sys.executable, *map(str, [*command, *options, path])],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertIn(done.returncode, codes, done.stdout + done.stderr)
            return done.stdout + done.stderr

        return json.loads(measured), write

    def test_each_peer_goes_before_each_other_about_as_often(self):
        sys.path.insert(0, str(ROOT / "bench"))
        from comparison.order import order_of

        names = [f"peer {i}" for i in range(10)]
        for num_rounds in (3, 5, 8):
            orders = [order_of(names, 7, number) for number in range(num_rounds)]
            self.assertEqual(orders, [order_of(names, 7, number) for number in range(num_rounds)])
            for a in names:
                behind = {order[order.index(a) - 1] for order in orders if order[0] != a}
                self.assertGreater(len(behind), 1 if num_rounds > 3 else 0)
                for b in names:
                    before = sum(order.index(a) < order.index(b) for order in orders)
                    self.assertLessEqual(abs(2 * before - num_rounds), 1 if a != b else num_rounds)

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
