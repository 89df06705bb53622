# SPDX-License-Identifier: Apache-2.0
"""Saves in the background of a loop, in a process of their own: memory, a full disk, a deleted store."""

import argparse
import re
import shutil
import subprocess
import sys
import unittest

import harness

STEP = re.compile(
    r"step (\d+) stall ([\d.]+) durable ([\d.]+) changed (\d+) staged (\d+) peak (\d+)"
)
PIPELINE = 256 * harness.MIB
options = argparse.Namespace(mib=256)


def start(store, state_bytes, saves, staging_bytes):
    command = [harness.program("async_loop"), store, state_bytes, saves, staging_bytes]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)


class AsyncTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"

    def run_memory(self, staging):
        state = options.mib * harness.MIB
        with start(self.store, state, 4, staging) as process:
            out = process.stdout.read()
        self.assertEqual(process.returncode, 0, out)
        steps = STEP.findall(out)
        self.assertEqual(len(steps), 4)
        limit = state + staging + PIPELINE + state // 20
        for step, stall, durable, changed, staged, peak in steps:
            print(
                f"step {step}: {int(changed) >> 20} MiB changed, {int(staged) >> 20} staged, stall "
                f"{stall} s, durable after {durable} s; peak {int(peak) >> 20} MiB, limit {limit >> 20}",
                file=sys.stderr,
            )
            self.assertLessEqual(int(staged), staging)
            self.assertLessEqual(int(peak), limit)
        kept, released = map(int, re.search(r"kept (\d+) released (\d+)", out).groups())
        print(f"kept {kept >> 20} MiB, released {released >> 20} MiB", file=sys.stderr)
        # The last staging is given back. The first save staged everything that fits.
        self.assertGreaterEqual(kept - released, min(staging, state) * 9 // 10)
        self.assertEqual(harness.check(self.store)["steps"], 4)

    def test_memory_is_bounded_and_released(self):
        self.run_memory(staging=options.mib * harness.MIB + harness.MIB)

    def test_memory_is_bounded_by_a_small_staging_budget(self):
        self.run_memory(staging=options.mib * harness.MIB // 8)

    def fails_at(self, out):
        failed = re.search(r"failed at (\d+): (.*)", out)
        self.assertIsNotNone(failed, out)
        return int(failed[1]), failed[2]

    def test_a_full_disk_reaches_the_trainer_and_loses_nothing(self):
        mount = harness.mounted(self.folder, "-t", "tmpfs", "-o", "size=160m", "tmpfs")
        try:
            self.enterContext(mount)
        except PermissionError as error:
            self.skipTest(f"a small file system cannot be mounted here: {error}")
        with start(self.store, 48 * harness.MIB, 50, 64 * harness.MIB) as process:
            out = process.stdout.read()
        self.assertEqual(process.returncode, 3, out)
        step, message = self.fails_at(out)
        durable = [int(found[0]) for found in STEP.findall(out)]
        print(f"{len(durable)} steps were durable; at step {step}: {message}", file=sys.stderr)
        self.assertTrue("No space left" in message or "are free" in message, message)
        self.assertGreaterEqual(len(durable), 2)
        # The save that failed is the one before the call at the latest.
        self.assertLessEqual(step - durable[-1], 2)
        steps = [info["step"] for info in harness.varve_json(self.store, "steps")]
        self.assertEqual(steps, durable)
        harness.check(self.store)

    def test_a_deleted_store_reaches_the_trainer(self):
        with start(self.store, 48 * harness.MIB, 1000, 64 * harness.MIB) as process:
            for line in process.stdout:
                if line.startswith("step 2 "):
                    break
            shutil.rmtree(self.store, ignore_errors=True)
            shutil.rmtree(self.store, ignore_errors=True)
            out = process.stdout.read()
        self.assertEqual(process.returncode, 3, out)
        step, message = self.fails_at(out)
        print(f"at step {step}: {message}", file=sys.stderr)
        self.assertLess(step, 12)
        self.assertIn(str(self.store), message)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.parse_known_args(namespace=options)
    _, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)


if __name__ == "__main__":
    main()
