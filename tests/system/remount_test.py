# SPDX-License-Identifier: Apache-2.0
"""A file system that becomes read-only under an open store, and writable again.

What changes the store fails meanwhile, with an error that says why. Readers go on. Afterwards the same open
store saves and drops again. A kernel refuses to remount a file system read-only while files of it are open
for writing, unless it has failed (errors=remount-ro). So that is imitated (support/read_only_preload.cc).
The test also asks the kernel, as root.
"""

import os
import subprocess
import sys
import unittest

import harness

ROUNDS = 20 if "VARVE_FULL_SIZE" in os.environ else 3
TENSOR_BYTES = 1 << 20


class ReadOnlyLaterTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.flag = self.folder / "read-only"
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        self.store = self.disk / "store"

    def environment(self):
        return os.environ | {
            "LD_PRELOAD": harness.program("libvarve_read_only.so"),
            "VARVE_READ_ONLY_FOLDER": str(self.disk),
            "VARVE_READ_ONLY_WHILE": str(self.flag),
        }

    def refused(self, tool, order):
        answer = tool.say(order)
        self.assertFalse(answer.startswith("ok"), answer)
        self.assertIn("Read-only file system", answer)
        self.assertIn(str(self.store), answer)

    def test_the_open_store_goes_on(self):
        with harness.StoreTool(self.store, TENSOR_BYTES, env=self.environment()) as tool:
            last = 0
            for _ in range(ROUNDS):
                for step in range(last + 1, last + 4):
                    tool.must(f"save {step} {step}")
                last += 3
                self.flag.touch()
                self.refused(tool, f"save {last + 1} {last + 1}")
                self.refused(tool, f"drop {last}")
                tool.must(f"verify {last}")
                steps = [s["step"] for s in harness.varve_json(self.store, "steps")]
                self.assertEqual(steps[-1], last)
                harness.check(self.store)
                self.flag.unlink()
                tool.must(f"save {last + 1} {last + 1}")
                tool.must(f"drop {last + 1}")
                tool.must(f"verify {last}")
            self.assertIn("not found", tool.say(f"verify {last + 1}"))
        self.assertEqual(harness.check(self.store)["steps"], 3 * ROUNDS)
        self.assertEqual(list(self.store.glob("incoming/*")), [])

    def test_a_command_that_begins_meanwhile_is_refused(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            tool.must("save 1 1")
            tool.must("save 2 2")
        before = {path: path.read_bytes() for path in self.store.rglob("*") if path.is_file()}
        self.flag.touch()
        for verb in (["drop", 1], ["tag", 1, "a"], ["reclaim"], ["fork", "main", "b"]):
            done = harness.varve(self.store, *verb, env=self.environment(), expect=harness.FAILED)
            self.assertIn("Read-only file system", done.stderr)
        after = {path: path.read_bytes() for path in self.store.rglob("*") if path.is_file()}
        self.assertEqual(after, before)
        self.flag.unlink()
        harness.varve(self.store, "drop", 1, env=self.environment())
        harness.check(self.store)

    def test_a_remount_beside_an_open_store(self):
        try:
            self.enterContext(harness.mounted(self.disk, "-t", "tmpfs", "-o", "size=64m", "tmpfs"))
        except PermissionError as error:
            self.skipTest(str(error))
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            tool.must("save 1 1")
            remount = ["mount", "-o", "remount,ro", str(self.disk)]
            done = subprocess.run(remount, capture_output=True, text=True)
            if done.returncode == 0:
                self.refused(tool, "save 2 2")
                tool.must("verify 1")
                harness.check(self.store)
                harness.command("mount", "-o", "remount,rw", self.disk)
            else:
                self.assertIn("busy", done.stderr)
            tool.must("save 2 2")
            tool.must("drop 1")
        harness.command("mount", "-o", "remount,ro", self.disk)
        self.assertEqual(harness.check(self.store)["steps"], 1)
        done = harness.varve(self.store, "drop", 2, expect=harness.FAILED)
        self.assertIn("Read-only file system", done.stderr)
        harness.command("mount", "-o", "remount,rw", self.disk)
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            tool.must("save 3 3")
            tool.must("verify 2")
        harness.check(self.store)


if __name__ == "__main__":
    sys.exit(unittest.main())
