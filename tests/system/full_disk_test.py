# SPDX-License-Identifier: Apache-2.0
"""A full disk (a small tmpfs) during save, drop and open: clear errors, and nothing committed is lost."""

import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

import harness

DISK_MIB = 96
TENSOR_BYTES = 2 * harness.MIB


class FullDiskTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.enterContext(
            harness.mounted(self.folder, "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs")
        )
        self.store = self.folder / "store"

    def save_until_full(self, tool):
        """Saves steps 0, 1, ... until one fails. Returns the number saved and the error."""
        for step in range(1000):
            answer = tool.say(f"save {step} {step}")
            if not answer.startswith("ok"):
                return step, answer
        self.fail("the disk never got full")

    def assert_whole(self, tool, steps):
        for step in steps:
            tool.must(f"verify {step}")

    def assert_clear(self, message):
        self.assertIn("No space left", message)

    def test_save_fails_clearly_and_works_again_after_a_drop(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            saved, error = self.save_until_full(tool)
            print(f"{saved} steps fit; then: {error}", file=sys.stderr)
            self.assert_clear(error)
            self.assertGreaterEqual(saved, 4)
            self.assert_whole(tool, range(saved))
            self.assertIn("not found", tool.say(f"verify {saved}"))
            self.assertEqual(list((self.store / "incoming").glob("*")), [])
            for step in range(saved // 2):
                tool.must(f"drop {step}")
            tool.must(f"save {saved} {saved}")
            self.assert_whole(tool, range(saved // 2, saved + 1))
        self.assertEqual(harness.check(self.store)["steps"], saved + 1 - saved // 2)

    def test_drop_works_with_no_byte_free(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            for step in range(6):
                tool.must(f"save {step} {step}")
            filler = harness.fill_disk(self.folder)
            before = harness.disk_bytes(self.store)
            for step in range(5):
                tool.must(f"drop {step}")
            self.assertLess(harness.disk_bytes(self.store), before)
            self.assert_whole(tool, [5])
            filler.unlink()
            tool.must("save 6 6")
        self.assertEqual(harness.check(self.store)["steps"], 2)
        self.assertGreaterEqual((self.store / "RESERVE").stat().st_blocks * 512, 8 * harness.MIB)

    def test_the_command_says_what_makes_room(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            tool.must("save 0 0")
        with tempfile.TemporaryDirectory() as other:
            source = pathlib.Path(other) / "large.safetensors"
            header = json.dumps(
                {
                    "w": {
                        "dtype": "U8",
                        "shape": [DISK_MIB * harness.MIB],
                        "data_offsets": [0, DISK_MIB * harness.MIB],
                    }
                }
            ).encode()
            source.write_bytes(
                struct.pack("<Q", len(header)) + header + os.urandom(DISK_MIB * harness.MIB)
            )
            done = harness.varve(self.store, "import", source, "--step", 1, expect=harness.FAILED)
        self.assert_clear(done.stderr)
        self.assertIn(
            "nothing that was saved is lost: varve drop and varve forget make room", done.stderr
        )
        harness.varve(self.store, "drop", "0")

    def test_the_command_drops_with_no_byte_free(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            for step in range(6):
                tool.must(f"save {step} {step}")
        harness.fill_disk(self.folder)
        harness.check(self.store)
        report = harness.varve_json(self.store, "drop", "0", "1", "2", "3")
        self.assertEqual(len(report["dropped"]), 4)
        self.assertLess(report["disk_bytes_after"], report["disk_bytes_before"])
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            self.assert_whole(tool, [4, 5])
        harness.check(self.store)

    def test_forget_frees_space_and_the_next_save_succeeds(self):
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            saved, _ = self.save_until_full(tool)
        harness.fill_disk(self.folder)
        report = harness.varve_json(self.store, "forget", "--keep-last", 2)
        self.assertEqual(len(report["dropped"]), saved - 2)
        self.assertGreater(report["freed_bytes"], 0)
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            tool.must(f"save {saved} {saved}")
            self.assert_whole(tool, range(saved - 2, saved + 1))
        print(
            f"{saved} steps fit; forget freed {report['freed_bytes']} bytes; the next save succeeds",
            file=sys.stderr,
        )
        self.assertEqual(harness.check(self.store)["steps"], 3)

    def test_a_kill_on_a_full_disk_loses_nothing(self):
        tool = harness.StoreTool(self.store, TENSOR_BYTES)
        saved, _ = self.save_until_full(tool)
        tool.process.kill()
        tool.__exit__()
        harness.fill_disk(self.folder)
        harness.check(self.store)
        harness.varve(self.store, "drop", "0")
        with harness.StoreTool(self.store, TENSOR_BYTES) as tool:
            self.assert_whole(tool, range(1, saved))
        harness.check(self.store)

    def test_init_fails_clearly_and_leaves_no_store(self):
        filler = harness.fill_disk(self.folder)
        done = harness.varve(self.store, "init", expect=harness.FAILED)
        self.assert_clear(done.stderr)
        harness.varve(self.store, "steps", expect=harness.NO_STORE)
        filler.unlink()
        harness.varve(self.store, "init")
        harness.check(self.store)


def may_mount():
    """True when this process may mount a tmpfs. Says why when not."""
    with harness.clean_folder() as folder:
        try:
            with harness.mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
                return True
        except PermissionError as error:
            print(f"skipped: a small file system cannot be mounted here: {error}")
            return False


if __name__ == "__main__":
    if not may_mount():
        sys.exit(harness.SKIPPED)
    unittest.main()
