# SPDX-License-Identifier: Apache-2.0
"""scale_bench at sizes that mean nothing: every operation is measured. The arithmetic of docs/scale.md."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import scale_table  # noqa: E402

# An operation of each axis.
OPERATIONS = {
    "tensors": "save, unchanged",
    "import": "varve import, empty tensors",
    "steps": "varve forget, all but 100",
    "steps-tensors": "query of a tensor, any step",
    "log": "save in the log, all ranks",
    "group-steps": "Drop, half of the steps",
    "ranks": "load of one row",
    "sweep": "save after so many were dropped",
    "coverage": "proof of 32 tensors",
    "recut": "16 MiB of so many columns, whole",
}


class ScaleBenchTest(unittest.TestCase):
    def setUp(self):
        # Some hundred saves, which a slow disk would sync one by one.
        memory = Path("/dev/shm")
        place = memory if os.access(memory, os.W_OK) else None
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir=place)))

    def run_bench(self, *options):
        # A curve of such sizes, and a limit on a busy machine, may be missed: 1.
        done = subprocess.run(
            [
                harness.program("scale_bench"),
                "--quick",
                "--folder",
                self.folder / "stores",
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertEqual(list((self.folder / "stores").iterdir()), [], "stores are left behind")
        return done.stdout

    def test_every_operation_is_measured(self):
        out = self.folder / "scale.json"
        self.run_bench("--json", out)
        document = json.loads(out.read_text())
        table = subprocess.run(
            [sys.executable, scale_table.__file__, out], capture_output=True, text=True, check=True
        ).stdout
        self.assertEqual(list(document), list(OPERATIONS))
        for axis, operation in OPERATIONS.items():
            self.assertIn(operation, [o["what"] for o in document[axis]])
            self.assertIn(f"### {axis}\n", table)
            for measured in document[axis]:
                self.assertEqual(len(measured["points"]), 2)
                self.assertGreater(measured["points"][0]["seconds"], 0, measured["what"])
        self.assertEqual([f for f in scale_table.faults(table) if f != "there is no table"], [])

    def test_every_row_says_met_or_not(self):
        for row, line in (
            (2, "files in the log"),
            (3, "save, unchanged, seconds"),
            (4, "varve rewind to the middle, MiB"),
            (5, "beside varve reclaim --all"),
        ):
            lines = self.run_bench("--row", str(row)).splitlines()
            judged = [text for text in lines if line in text]
            self.assertEqual(len(judged), 1, lines)
            self.assertRegex(judged[0], "met|NOT MET")


class ScaleDocTest(unittest.TestCase):
    def test_the_arithmetic_holds(self):
        self.assertEqual(list(scale_table.faults((ROOT / "docs/scale.md").read_text())), [])

    def test_wrong_arithmetic_is_found(self):
        table = (
            "| ranks | when | number | 1 | 10 | 100 | fitted | expected | at 10,000 |\n|---|\n"
            "| save | before | s | 1 | 10 | 100 | {} | 1 | {} |\n"
        )
        self.assertEqual(list(scale_table.faults(table.format("1.00", "10,000"))), [])
        self.assertEqual(len(list(scale_table.faults(table.format("1.10", "10,000")))), 1)
        self.assertEqual(len(list(scale_table.faults(table.format("1.00", "1,000")))), 1)
        sums = table.format("1.00", "10,000") + "- `ranks` = 10,000\n\nSo `2 * ranks + 3` = {}.\n"
        self.assertEqual(list(scale_table.faults(sums.format("20,003"))), [])
        self.assertEqual(len(list(scale_table.faults(sums.format("30,003")))), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
