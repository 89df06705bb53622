# SPDX-License-Identifier: Apache-2.0
"""A disk quota during save and forget: a clear error, nothing committed is lost, and forget makes room.

The quota is one of tests/support/quota_preload.cc, as few kernels of test machines have quotas. It gives the
error EDQUOT where a file system would.
"""

import os
import random
import sys
import unittest

import harness
import safetensors_bytes as files

QUOTA_BYTES = 32 * harness.MIB
ELEMENTS = 600_000


class QuotaTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "home" / "store"
        self.rng = random.Random(6)
        self.saved = {}

    def limited(self, *arguments, expect=0):
        environment = os.environ | {
            "LD_PRELOAD": harness.program("libvarve_quota.so"),
            "VARVE_QUOTA_FOLDER": str(self.folder / "home"),
            "VARVE_QUOTA_BYTES": str(QUOTA_BYTES),
        }
        return harness.varve(self.store, *arguments, expect=expect, env=environment)

    def save(self, step, expect=0):
        tensors = {"w": files.random_tensor(self.rng, "F32", [ELEMENTS])}
        source = files.write(self.folder / "in.safetensors", tensors)
        done = self.limited("import", source, "--init", "--step", step, expect=expect)
        if expect == 0:
            self.saved[step] = files.read(source)
        return done

    def assert_whole(self, steps):
        self.assertEqual([s["step"] for s in harness.varve_json(self.store, "steps")], steps)
        for step in steps:
            out = self.folder / "out.safetensors"
            harness.varve(self.store, "export", step, "-o", out, "--force")
            self.assertEqual(files.read(out), self.saved[step])
        harness.check(self.store)

    def fill(self):
        """Saves until the quota is exceeded. Returns how many steps there are."""
        (self.folder / "home").mkdir()
        for step in range(100):
            if harness.disk_bytes(self.folder / "home") + 4 * ELEMENTS > QUOTA_BYTES:
                break
            self.save(step)
        done = self.save(step, expect=harness.FAILED)
        self.assertIn("Disk quota exceeded", done.stderr)
        self.assertIn("nothing that was saved is lost", done.stderr)
        return step

    def test_forget_makes_room_and_the_next_save_succeeds(self):
        count = self.fill()
        self.assertGreaterEqual(count, 4)
        self.assert_whole(list(range(count)))
        self.assertEqual(list((self.store / "incoming").glob("*")), [])
        self.limited("forget", "--keep-last", 2)
        self.save(count)
        self.assert_whole([count - 2, count - 1, count])
        print(
            f"{count} steps fit a quota of {QUOTA_BYTES} bytes; the next save is refused; forget makes room; "
            "the next save succeeds",
            file=sys.stderr,
        )


if __name__ == "__main__":
    unittest.main()
