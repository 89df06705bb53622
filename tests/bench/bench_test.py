# SPDX-License-Identifier: Apache-2.0
"""The benchmarks at sizes that mean nothing: every row is there and the JSON says what the table says."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

import harness

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import bench_table  # noqa: E402

TABLE = Path(bench_table.__file__)

# A word of each target of the design.
ROWS = [
    "full save, incompressible",
    "full save, training state",
    "stored bytes",
    "1 % of chunks changed",
    "nothing changed: digest pass",
    "nothing changed: added on disk",
    "restore, raw-stored, warm",
    "restore, raw-stored, cold",
    "restore, compressed, warm",
    "query of 1 MiB, 1,000 steps, raw",
    "query of 1 MiB, 1,000 steps, deltas",
    "drop of 1 step",
    "whole-dead files",
    "garbage",
    "memory of a save",
    "open, 10,000 steps",
    "descriptors",
    "crash",
]
# With CUDA, of cuda_bench.
GPU_ROWS = [
    "GPU digest, large state, 1 MiB, misaligned",
    "GPU stall of Save, 1 %",
    "staging for all",
    "GPU stall, two-phase, 100 %",
    "GPU time to durable, 10 %",
    "GPU restore",
    "largest state, 0 %",
]
NOT_RUN = {
    "not run: no GPU",
    "not run: built without CUDA",
    "not run: the device has not so much memory left",
}


class BenchTest(unittest.TestCase):
    def test_every_row_is_in_the_table_and_in_the_json(self):
        with harness.clean_folder() as folder:
            out = folder / "bench.json"
            done = subprocess.run(
                [
                    sys.executable,
                    TABLE,
                    "--quick",
                    "--dir",
                    folder / "stores",
                    "--json",
                    out,
                    "--program",
                    harness.program("store_bench"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            document = json.loads(out.read_text())
            self.assertEqual(list((folder / "stores").iterdir()), [], "stores are left behind")
        table = [
            [cell.strip() for cell in line.strip("|\n").split("|")]
            for line in done.stdout.splitlines()
            if line.startswith("|")
        ]
        self.assertEqual(table[0], ["what", "target", "measured", "verdict"])
        rows = [[row[column].strip() for column in table[0]] for row in document["rows"]]
        self.assertEqual(table[2:], rows)
        has_cuda = Path(harness.program("store_bench")).with_name("cuda_bench").exists()
        for name in ROWS + (GPU_ROWS if has_cuda else ["GPU: digests, stalls, restore"]):
            self.assertEqual(sum(name in row[0] for row in rows), 1, name)
        # Small sizes prove nothing, and what was not measured is not called met.
        self.assertTrue(document["quick"])
        self.assertEqual({row["met"] for row in document["rows"]}, {None})
        self.assertEqual(
            {row[3] for row in rows} - NOT_RUN, {"not judged", "for information", "see tests/crash"}
        )
        for key in ("cpu", "cores", "memory_gib", "kernel", "file_system", "device"):
            self.assertTrue(document["machine"][key], key)

    def test_two_builds_are_compared_pair_by_pair(self):
        programs = Path(harness.program("store_bench")).parent
        with harness.clean_folder() as folder:
            done = subprocess.run(
                [sys.executable, TABLE.with_name("compare.py"), programs, programs]
                + ["--quick", "--rounds", "2", "--only", "digest/", "--dir", folder],
                capture_output=True,
                text=True,
                check=False,
            )
        # The same build twice: which is slower is chance.
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertRegex(
            done.stdout, r"\| digest/pass \| [\d.]+ \| [\d.]+ \| [\d.]+ \([\d.]+ to [\d.]+\) \|"
        )
        self.assertIn("more than 3% slower: ", done.stdout)

    def test_a_row_is_judged_by_its_limit(self):
        counters = {"ratio": 1.15, "ms": 115, "pread_ms": 100}
        row = bench_table.ratio_row("what", "target", 1.15, counters, "pread_ms")
        self.assertEqual((row["met"], row["verdict"]), (True, "met"))
        row = bench_table.ratio_row("what", "target", 1.14, counters, "pread_ms")
        self.assertEqual((row["met"], row["verdict"]), (False, "NOT MET"))

    def test_medians_are_of_single_pairs(self):
        results = bench_table.Results()
        runs = [
            {
                "run_type": "iteration",
                "run_name": "save/x/iterations:1",
                "real_time": ms,
                "ratio": ratio,
            }
            for ms, ratio in ((1, 9), (2, 1), (6, 2))
        ]
        runs.append(
            {
                "run_type": "aggregate",
                "run_name": "save/x/iterations:1",
                "real_time": 99,
                "ratio": 99,
            }
        )
        results.add({"benchmarks": runs})
        self.assertEqual(results["save/x"], {"ms": 2, "ratio": 2})
        self.assertEqual(
            results.spread()["save/x"]["ratio"], {"median": 2, "min": 1, "max": 9, "samples": 3}
        )


if __name__ == "__main__":
    sys.exit(unittest.main())
